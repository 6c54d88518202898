"""Symbolic execution of a schedule: which rank holds which combination of whose contributions, when.

A **value** is what a rank holds of one segment.  It is a tuple ``(mask, form, *operands)``:

* ``mask`` has bit ``r`` set if rank ``r``'s contribution is in it;
* a contribution has the rank as its one operand, or several if one rank brings the inputs of them all; they
  are folded one by one onto what stands on their left, and into one value before they travel;
* a partial has the values that were folded, from the left;
* a result has the partial (or contribution) that was finished, or nothing for data that was complete
  from the start (an allgather's, a broadcast's).

Why one run is enough
    Every receive names its sender, and messages between two ranks match in the order posted, so which
    send meets which receive does not depend on timing, and a step that can complete stays able to.
    Such a system is confluent: if one order of progress ends, every order ends, and with the same
    values.  The run below lets a send complete only when its receive has been posted (a *rendezvous*),
    which is the hardest case: eager sends can only complete earlier.  Hence: no deadlock here, no
    deadlock anywhere.

    The argument asks four things of an executor.  It posts *all* of a step before it waits for any of it:
    one blocking send after the other is another program, and can deadlock where this one cannot.  It
    matches the messages of a pair of ranks in the order posted.  It combines and finishes only when the
    step's own sends are through, because they read what was held before.  And what it keeps of a partial
    is wide.  What is stored may then go straight into the buffer the step's sends read from: no segment
    is stored that the same step sends, reduces or stores a second time.

    Confluence also leaves open who goes next, so a :class:`Ready` may choose it: a stack where only the
    values matter, a clock (:mod:`mpiring.plan.cost`) where the times do.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from ..errors import DeadlockError, ScheduleError
from .schedules import Action, Form, Receive, Schedule, Send, Step
from .segments import Segments

Value = tuple[Any, ...]
Cells = list[list["Value | None"]]
Observer = Callable[[int, int, Step, "list[Value | None]"], None]


class Ready(Protocol):
    """The ranks that can go on: a list, or anything else that hands them out in an order of its own."""

    def append(self, rank: int, /) -> None:
        """All transfers of the rank's step have matched (or it has not begun)."""

    def pop(self) -> int:
        """The rank that completes its step and posts its next one now."""

    def __len__(self) -> int: ...


class Clock(Ready, Protocol):
    """A :class:`Ready` that is told of the messages, too, as they match."""

    def moved(self, source: int, dest: int, send: Send, receive: Receive) -> None:
        """Both halves of a message are posted."""


_CONTRIBUTION, _PARTIAL, _RESULT = Form.CONTRIBUTION, Form.PARTIAL, Form.RESULT
_STORE, _REDUCE = Action.STORE, Action.REDUCE


def initial(schedule: Schedule) -> Cells:
    """What each rank holds before the collective: ``cells[rank][segment]``, None for nothing."""
    size, segments = schedule.size, schedule.segments
    full = (1 << size) - 1
    given: list[Value | None] = [(full, _RESULT)] * segments
    if schedule.collective == "allgather":
        owned = [schedule.owned(rank) for rank in range(size)]
        return [
            [given[s] if s == owned[r] else None for s in range(segments)]
            for r in range(size)
        ]
    if schedule.collective == "broadcast":
        return [
            list(given) if r == schedule.root else [None] * segments
            for r in range(size)
        ]
    if schedule.fuses:
        return [
            [_brought(schedule.inputs(r, s)) for s in range(segments)]
            for r in range(size)
        ]
    return [[(1 << r, _CONTRIBUTION, r)] * segments for r in range(size)]


def run(
    schedule: Schedule,
    observe: Observer | None = None,
    lengths: list[int] | None = None,
    clock: Clock | None = None,
) -> tuple[Cells, list[int], list[int], list[int]]:
    """Execute the schedule on symbols.

    Args:
        schedule: what to run.
        observe: called as ``observe(rank, index, step, cells_of_rank)`` after each step of each rank.
        lengths: elements in each segment; one each if None.
        clock: decides who goes next, and hears of each message; a stack if None.

    Returns:
        ``cells[rank][segment]`` at the end, and for each rank the number of exchanges and the elements
        sent and received.

    Raises:
        ScheduleError: naming rank, step, segment and what is missing or double.
        DeadlockError: with the cycle of ranks that wait for each other.
    """
    machine = _Machine(schedule, observe, lengths or [1] * schedule.segments, clock)
    collecting = gc.isenabled()
    gc.disable()  # millions of tuples and no cycle among them: the collector would only walk them
    try:
        machine.run()
    finally:
        if collecting:
            gc.enable()
    return machine.cells, machine.exchanges, machine.sent, machine.received


def segment_lengths(
    schedule: Schedule, count: int | None, lengths: Sequence[int] | None
) -> list[int]:
    """Elements in each segment: those given, or ``count`` cut evenly, or one each.

    Raises:
        ValueError: if the number of lengths is not that of the segments, or one is negative.
    """
    if lengths is None:
        total = schedule.segments if count is None else count
        cut = Segments(total, schedule.segments)
    elif len(lengths) == schedule.segments:
        cut = Segments.of_lengths(lengths)
    else:
        raise ValueError(
            f"{schedule.algorithm} {schedule.collective}: {len(lengths)} lengths for "
            f"{schedule.segments} segments"
        )
    return [segment.length for segment in cut]


def order_of(value: Value) -> tuple[int | str, ...]:
    """The order in which a value was combined, as ranks in a left-to-right fold.

    Consecutive members of one fold are the same whether they were combined one by one or at once;
    a combination that stands on the right of another keeps its brackets.

    >>> x = [(1 << r, Form.CONTRIBUTION, r) for r in range(4)]
    >>> order_of((7, Form.PARTIAL, (3, Form.PARTIAL, x[1], x[0]), x[2]))
    (1, 0, 2)
    >>> order_of((15, Form.PARTIAL, x[0], x[1], (12, Form.PARTIAL, x[2], x[3])))
    (0, 1, '(', 2, 3, ')')
    """
    tokens: list[int | str] = []
    # (value, whether it is the leftmost operand of the fold around it: then it needs no brackets)
    todo: list[tuple[Any, bool]] = [(value, True)]
    while todo:
        item, leftmost = todo.pop()
        if isinstance(item, str):
            tokens.append(item)
            continue
        _, form, *operands = item
        if form is _CONTRIBUTION:
            tokens.extend(operands)
        elif form is _RESULT:
            todo.extend((operand, leftmost) for operand in operands)
        else:
            if not leftmost and len(operands) > 1:
                tokens.append("(")
                todo.append((")", False))
            todo.extend((operand, False) for operand in reversed(operands[1:]))
            todo.append((operands[0], True))
    return tuple(tokens)


def ranks_of(mask: int) -> list[int]:
    """The ranks whose bits are set.

    >>> ranks_of(0b1010)
    [1, 3]
    """
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


T = TypeVar("T")


class _Waiting(Generic[T]):
    """Transfers that wait for their other half, by channel, first in first out."""

    def __init__(self) -> None:
        self._first: dict[int, T] = {}
        self._later: dict[int, deque[T]] = {}

    def __contains__(self, channel: int) -> bool:
        return channel in self._first

    def put(self, channel: int, item: T) -> None:
        if channel in self._first:
            self._later.setdefault(channel, deque()).append(item)
        else:
            self._first[channel] = item

    def take(self, channel: int) -> T:
        item = self._first.pop(channel)
        later = self._later.get(channel)
        if later:
            self._first[channel] = later.popleft()
        return item

    def heads(self) -> Iterable[tuple[int, T]]:
        return self._first.items()


class _Machine:
    """All ranks' programs, and the messages that wait for their other half."""

    def __init__(
        self,
        schedule: Schedule,
        observe: Observer | None,
        lengths: list[int],
        clock: Clock | None,
    ) -> None:
        size = schedule.size
        self.schedule = schedule
        self.size = size
        self.observe = observe
        self.clock = clock
        self.lengths = lengths
        self.full = (1 << size) - 1
        self.cells = initial(schedule)
        self.programs: list[Iterator[Step]] = [
            schedule.steps(rank) for rank in range(size)
        ]
        self.current: list[Step | None] = [None] * size
        self.index = [-1] * size
        self.pending = [
            0
        ] * size  # sends and receives of the current step that have not matched
        self.arrived: list[list[Any]] = [[] for _ in range(size)]
        # What waits on the channel source * size + dest, in the order posted: mostly one, so the first
        # stands bare and only further ones make a queue (a million queues would not fit in memory).
        self.sends = _Waiting[tuple[Send, Value]]()
        self.receives = _Waiting[tuple[Receive, int]]()
        self.exchanges = [0] * size
        self.sent = [0] * size
        self.received = [0] * size

    def run(self) -> None:
        ready: Ready = [] if self.clock is None else self.clock
        for rank in reversed(range(self.size)):
            ready.append(rank)
        while ready:
            rank = ready.pop()
            if self.current[rank] is not None:
                self._complete(rank)
            step = next(self.programs[rank], None)
            self.current[rank] = step
            if step is None:
                continue
            self.index[rank] += 1
            self._post(rank, step, ready)
        waiting = [rank for rank in range(self.size) if self.current[rank] is not None]
        if waiting:
            self._explain_stop(waiting)

    def _post(self, rank: int, step: Step, ready: Ready) -> None:
        """Post a step's receives and sends; ranks whose step is thereby complete become ready."""
        sends, receives, _ = step
        size, pending = self.size, self.pending
        if len(sends) + len(receives) != 2 or len(sends) != 1:
            self._check_alone(rank, step)
        elif receives[0].action is _STORE and receives[0].segment == sends[0].segment:
            self._check_alone(rank, step)
        pending[rank] = len(sends) + len(receives)
        if not pending[rank]:
            ready.append(rank)
            return
        self.exchanges[rank] += 1
        self.arrived[rank] = [None] * len(receives)
        for place, receive in enumerate(receives):
            if not 0 <= receive.peer < size or not 0 <= receive.segment < len(
                self.lengths
            ):
                self._refuse(rank, receive, "there is no such rank or segment")
            channel = receive.peer * size + rank
            if channel in self.sends:
                send, value = self.sends.take(channel)
                self._match(receive.peer, send, value, rank, receive, place, ready)
            else:
                self.receives.put(channel, (receive, place))
        for send in sends:
            if not 0 <= send.peer < size or not 0 <= send.segment < len(self.lengths):
                self._refuse(rank, send, "there is no such rank or segment")
            value_held = self.cells[rank][send.segment]
            if value_held is None:
                self._refuse(rank, send, f"rank {rank} holds nothing of this segment")
            held = value_held[1]
            if held is not send.form and (
                held is not _CONTRIBUTION or send.form is not _PARTIAL
            ):
                self._refuse(rank, send, f"what rank {rank} holds is a {held.value}")
            if held is _CONTRIBUTION and len(value_held) > 3:
                value_held = self._folded(rank, send, value_held)
            channel = rank * size + send.peer
            if channel in self.receives:
                receive, place = self.receives.take(channel)
                self._match(rank, send, value_held, send.peer, receive, place, ready)
            else:
                self.sends.put(channel, (send, value_held))

    def _match(
        self,
        source: int,
        send: Send,
        value: Value,
        dest: int,
        receive: Receive,
        place: int,
        ready: Ready,
    ) -> None:
        if send.segment != receive.segment or send.form is not receive.form:
            self._refuse(
                dest,
                receive,
                f"but rank {source}'s matching send (its step {self.index[source]}) is of segment "
                f"{send.segment} as a {send.form.value}",
            )
        if self.clock is not None:
            self.clock.moved(source, dest, send, receive)
        length = self.lengths[send.segment]
        self.sent[source] += length
        self.received[dest] += length
        self.arrived[dest][place] = value
        for rank in (source, dest):
            self.pending[rank] -= 1
            if not self.pending[rank]:
                ready.append(rank)

    def _complete(self, rank: int) -> None:
        """Combine and store what arrived, then finish."""
        step = self.current[rank]
        assert step is not None
        cells = self.cells[rank]
        receives = step.receives
        if len(receives) == 1:
            receive = receives[0]
            if receive.action is _STORE:
                cells[receive.segment] = _stored(receive, self.arrived[rank][0])
            else:
                self._fold(rank, receive.segment, receives, self.arrived[rank])
        elif receives:
            by_segment: dict[int, list[int]] = {}
            for place, receive in enumerate(receives):
                by_segment.setdefault(receive.segment, []).append(place)
            for segment, places in by_segment.items():
                first = places[0]
                if receives[first].action is _STORE:
                    cells[segment] = _stored(receives[first], self.arrived[rank][first])
                else:
                    group = tuple(receives[place] for place in places)
                    self._fold(
                        rank, segment, group, [self.arrived[rank][p] for p in places]
                    )
        for segment in step.finishes:
            self._finish(rank, segment)
        if self.observe is not None:
            self.observe(rank, self.index[rank], step, cells)

    def _fold(
        self,
        rank: int,
        segment: int,
        receives: tuple[Receive, ...],
        values: list[Value],
    ) -> None:
        own = self.cells[rank][segment]
        if own is None or own[1] is _RESULT:
            held = "nothing" if own is None else "a finished result"
            self._fault(
                rank,
                segment,
                f"reduces into segment {segment}, of which it holds {held}",
            )
        if len(values) == 1:
            before, after = (
                (values, []) if receives[0].action is _REDUCE else ([], values)
            )
        else:
            before = [v for v, r in zip(values, receives) if r.action is _REDUCE]
            after = [v for v, r in zip(values, receives) if r.action is not _REDUCE]
        operands = [*before, own, *after]
        mask = 0
        for value in operands:
            if mask & value[0]:
                self._fault(
                    rank,
                    segment,
                    f"would count twice, in segment {segment}, the contribution of rank "
                    + _listed(mask & value[0]),
                )
            mask |= value[0]
        self.cells[rank][segment] = (mask, _PARTIAL, *operands)

    def _finish(self, rank: int, segment: int) -> None:
        if not 0 <= segment < len(self.lengths):
            self._fault(
                rank, segment, f"finishes segment {segment}, which does not exist"
            )
        value = self.cells[rank][segment]
        if value is None or value[1] is _RESULT:
            held = "nothing of it" if value is None else "it finished already"
            self._fault(rank, segment, f"finishes segment {segment}, but holds {held}")
        if value[0] != self.full:
            self._fault(
                rank,
                segment,
                f"finishes segment {segment}, in which is missing the contribution of rank "
                + _listed(self.full & ~value[0]),
            )
        self.cells[rank][segment] = (self.full, _RESULT, value)

    def _folded(self, rank: int, send: Send, value: Value) -> Value:
        """The inputs of several ranks as the one value in which they travel."""
        mask, _, *ranks = value
        if send.form is not _PARTIAL:
            self._refuse(
                rank, send, f"what rank {rank} holds are the inputs of ranks {ranks}"
            )
        return mask, _PARTIAL, *(_brought((r,)) for r in ranks)

    def _check_alone(self, rank: int, step: Step) -> None:
        """A segment that is stored may have no other part in the same step: their order is open."""
        stored = [r.segment for r in step.receives if r.action is _STORE]
        taken = {send.segment for send in step.sends}
        taken.update(r.segment for r in step.receives if r.action is not _STORE)
        for segment in stored:
            if segment in taken:
                self._fault(
                    rank,
                    segment,
                    f"stores into segment {segment} while the same step also uses it",
                )
            taken.add(segment)

    def _explain_stop(self, waiting: list[int]) -> NoReturn:
        """Nobody can go on: a partner is missing, or the ranks wait in a cycle."""
        waits: dict[int, tuple[int, Send | Receive]] = {}
        for channel, (receive, _) in self.receives.heads():
            waits.setdefault(channel % self.size, (channel // self.size, receive))
        for channel, (send, _) in self.sends.heads():
            waits.setdefault(channel // self.size, (channel % self.size, send))
        for rank in waiting:
            peer, wanted = waits[rank]
            if peer == rank or self.current[peer] is None:
                self._refuse(
                    rank,
                    wanted,
                    f"but rank {peer} has no matching {_other(wanted)}: "
                    + (
                        "a step waits for itself"
                        if peer == rank
                        else "its program has ended"
                    ),
                )
        seen: list[int] = []
        rank = waiting[0]
        while rank not in seen:
            seen.append(rank)
            rank = waits[rank][0]
        cycle = tuple(seen[seen.index(rank) :])
        lines = [
            f"rank {r}, step {self.index[r]}: waits to {_words(waits[r][1])}, but rank {waits[r][0]} is in its "
            f"step {self.index[waits[r][0]]}"
            for r in cycle
        ]
        raise DeadlockError(
            f"{self._name()}: deadlock, these ranks wait for each other:\n  "
            + "\n  ".join(lines),
            cycle,
        )

    def _refuse(self, rank: int, transfer: Send | Receive, why: str) -> NoReturn:
        self._fault(rank, transfer.segment, f"would {_words(transfer)}; {why}")

    def _fault(self, rank: int, segment: int, what: str) -> NoReturn:
        step = self.index[rank]
        raise ScheduleError(
            f"{self._name()}: step {step} of rank {rank} {what}",
            rank=rank,
            step=step,
            segment=segment,
        )

    def _name(self) -> str:
        return (
            f"{self.schedule.algorithm} {self.schedule.collective} of {self.size} ranks"
        )


def _brought(ranks: tuple[int, ...]) -> Value | None:
    """The inputs of these ranks, in order, as one rank brings them; None for none."""
    return (sum(1 << r for r in ranks), _CONTRIBUTION, *ranks) if ranks else None


def _stored(receive: Receive, value: Value) -> Value:
    """What is held of a message: a contribution that came as a partial is one from here on."""
    if receive.form is _PARTIAL and value[1] is _CONTRIBUTION:
        return value[0], _PARTIAL, value
    return value


def _words(transfer: Send | Receive) -> str:
    verb, to = ("send", "to") if isinstance(transfer, Send) else ("receive", "from")
    form = transfer.form.value
    return f"{verb} segment {transfer.segment} {to} rank {transfer.peer} as a {form}"


def _other(transfer: Send | Receive) -> str:
    return "receive" if isinstance(transfer, Send) else "send"


def _listed(mask: int) -> str:
    ranks = ranks_of(mask)
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"
