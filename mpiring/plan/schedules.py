"""Steps and schedules: one collective as plain data.

A **schedule** says, for every rank, which segment goes to whom at which step, and whether what arrives
is reduced or stored.  It knows no MPI, no array and no clock.  The same object is proven
(:mod:`mpiring.plan.verify`), priced (:mod:`~mpiring.plan.cost`), drawn (:mod:`~mpiring.plan.draw`)
and run (:mod:`mpiring.wire.execute.steps`).

What a step means
    All its receives are posted, then all its sends; the step ends when each of them is complete.  A send
    reads what the rank held before the step.  Only then is anything combined, and at last the segments
    in ``finishes`` are finished.  Messages between two ranks match in the order they were posted.

How received values combine
    Into segment ``s`` come, in the order listed, the values received with ``REDUCE``, then the rank's
    own value, then those received with ``REDUCE_AFTER``; they are folded from the left.  With a single
    ``REDUCE`` that is ``received op own``: the accumulated value stands on the left, as in the ring.

What a message carries
    A ``CONTRIBUTION`` is one rank's own input, a ``PARTIAL`` is a combination that is not complete yet
    and a ``RESULT`` is finished.  The difference matters to 16-bit floats: partials travel and add up in
    float32; a segment is divided (for an average) and rounded once, when it is *finished*.

The ring, following one segment
    Segment ``s`` starts at rank ``s + 1``, moves to the right neighbour at each step, picks up that
    rank's contribution, and is complete when it arrives at its home, rank ``s``.  The lecture's slides
    end one rank earlier, at ``s - 1``: ownership offset 1.  Its C loops are these, with ``i`` the step:

    ==============================  ==============================  =========================
    ring, offset ``o``              offset 1: the lecture's C       offset 0: ours
    ==============================  ==============================  =========================
    reduce: send ``r - i - 1 + o``  ``rank - i``                    ``rank - i - 1``
    reduce: recv ``r - i - 2 + o``  ``rank - i - 1``                ``rank - i - 2``
    gather: send ``r - i + o``      ``rank - i + 1``                ``rank - i``
    gather: recv ``r - i - 1 + o``  ``rank - i``                    ``rank - i - 1``
    ==============================  ==============================  =========================

Source: the lecture, section 3.1; Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", JPDC 69 (2009).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import chain
from typing import NamedTuple


class Action(Enum):
    """What is done with a segment that arrives."""

    REDUCE = "reduce"  # received op own
    REDUCE_AFTER = "reduce after"  # own op received
    STORE = "store"


class Form(Enum):
    """What a message carries."""

    CONTRIBUTION = "contribution"
    PARTIAL = "partial"
    RESULT = "result"


class Send(NamedTuple):
    """Send ``segment`` to rank ``peer``."""

    peer: int
    segment: int
    form: Form = Form.PARTIAL


class Receive(NamedTuple):
    """Receive ``segment`` from rank ``peer`` and do ``action`` with it."""

    peer: int
    segment: int
    action: Action = Action.REDUCE
    form: Form = Form.PARTIAL


class Step(NamedTuple):
    """One exchange of one rank; with neither sends nor receives, a purely local step.

    ``finishes`` are the segments whose value is complete on this rank after the exchange: they are
    divided (average) and rounded to the array's dtype here, and are a ``RESULT`` from then on.
    """

    sends: tuple[Send, ...] = ()
    receives: tuple[Receive, ...] = ()
    finishes: tuple[int, ...] = ()

    @property
    def is_exchange(self) -> bool:
        """Whether the step sends or receives anything."""
        return bool(self.sends or self.receives)


COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "broadcast", "reduce")


@dataclass(frozen=True, eq=False)
class Schedule:
    """One collective as data.

    Args:
        collective: what it promises, one of ``COLLECTIVES``.
        algorithm: its name, for people.
        size: number of ranks.
        program: the steps of a rank.  Steps are made when asked for: 1024 ranks have two million.
        order: ``"ring"`` if segment ``s`` is combined as ``((x[o+1] op x[o+2]) op ...) op x[o]`` with
            ``o`` its owner (a reduce's root), ``"rank"`` for ``x[0], x[1], ...``, None where it makes
            no such promise.
        offset: segment ``r + offset`` is owned by rank ``r``.
        root: the rank that has (broadcast) or gets (reduce) the buffer; None for the others.
        segments: into how many segments the buffer is cut; 0 means one for each rank.

    Two schedules are equal when they promise the same and every rank has the same steps.
    """

    collective: str
    algorithm: str
    size: int
    program: Callable[[int], Iterable[Step]]
    order: str | None = None
    offset: int = 0
    root: int | None = None
    segments: int = 0

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            known = ", ".join(COLLECTIVES)
            raise ValueError(
                f"Schedule: unknown collective {self.collective!r}; known: {known}"
            )
        if self.size < 1:
            raise ValueError(f"Schedule: size must be 1 or more, got {self.size}")
        object.__setattr__(self, "offset", self.offset % self.size)
        if self.order not in ("ring", "rank", None):
            raise ValueError(
                f"Schedule: order must be 'ring', 'rank' or None, got {self.order!r}"
            )
        rooted = self.collective in ("broadcast", "reduce")
        if (self.root is None) if rooted else (self.root is not None):
            need = f"a root from 0 to {self.size - 1}" if rooted else "no root"
            raise ValueError(
                f"Schedule: {self.collective} takes {need}, got root={self.root}"
            )
        if self.root is not None and not 0 <= self.root < self.size:
            raise ValueError(f"Schedule: root {self.root} of {self.size} ranks")
        object.__setattr__(self, "segments", self.segments or self.size)
        by_home = self.collective in ("reduce_scatter", "allgather") or (
            self.collective == "allreduce" and self.order == "ring"
        )
        if self.segments < 1 or (by_home and self.segments != self.size):
            raise ValueError(
                f"Schedule: {self.collective} of {self.size} ranks cannot have {self.segments} segments"
                + (", each segment has a rank as its home" if by_home else "")
            )

    def steps(self, rank: int) -> Iterator[Step]:
        """The steps of one rank, in order.

        Raises:
            ValueError: if there is no such rank.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"steps: rank {rank} of a schedule for {self.size} ranks")
        return iter(self.program(rank))

    def owned(self, rank: int) -> int:
        """The segment that is complete on ``rank`` after the reduce-scatter phase."""
        return (rank + self.offset) % self.size

    def owner(self, segment: int) -> int:
        """The rank that owns ``segment``: the inverse of :meth:`owned`."""
        return (segment - self.offset) % self.size

    @property
    def fuses(self) -> bool:
        """Whether a rank may bring inputs of others, read where they are: :mod:`mpiring.plan.hierarchy`."""
        return False

    def inputs(self, rank: int, segment: int) -> tuple[int, ...]:
        """The ranks whose inputs ``rank`` brings to a segment, in the order in which it folds them: its own."""
        return (rank,)

    def results(self, rank: int) -> Sequence[int]:
        """The segments whose result the collective's postcondition wants on ``rank``."""
        if self.collective == "reduce_scatter":
            return (self.owned(rank),)
        if self.collective == "reduce" and rank != self.root:
            return ()
        return range(self.segments)

    @property
    def digest(self) -> str:
        """A fingerprint of all steps: equal schedules have equal digests, on every machine."""
        text = hashlib.blake2b(digest_size=12)
        text.update(repr(self._promise()).encode())
        for rank in range(self.size):
            for step in self.steps(rank):
                text.update(repr(step).encode())
            text.update(b"/")
        return text.hexdigest()

    def _promise(self) -> tuple[object, ...]:
        return (
            self.collective,
            self.size,
            self.order,
            self.offset,
            self.root,
            self.segments,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return self._promise() == other._promise() and all(
            list(self.steps(rank)) == list(other.steps(rank))
            for rank in range(self.size)
        )

    def __hash__(self) -> int:
        return hash(self._promise())


def from_steps(
    collective: str,
    steps: Sequence[Iterable[Step]],
    *,
    algorithm: str = "custom",
    order: str | None = None,
    offset: int = 0,
    root: int | None = None,
    segments: int = 0,
) -> Schedule:
    """A schedule from the written-out steps of each rank: ``steps[rank]``.

    >>> swap = [[Step((Send(1 - r, r, Form.RESULT),), (Receive(1 - r, 1 - r, Action.STORE, Form.RESULT),))]
    ...         for r in range(2)]
    >>> from_steps("allgather", swap) == ring_allgather(2)
    True
    """
    fixed = tuple(tuple(rank_steps) for rank_steps in steps)
    return Schedule(
        collective,
        algorithm,
        len(fixed),
        fixed.__getitem__,
        order,
        offset,
        root,
        segments,
    )


@lru_cache(maxsize=512)
def combination(order: str, last: int, size: int) -> tuple[int, ...]:
    """The ranks in the order in which their contributions are combined, from left to right.

    >>> combination("ring", 1, 4), combination("rank", 1, 4)
    ((2, 3, 0, 1), (0, 1, 2, 3))

    Args:
        order: ``"ring"`` or ``"rank"``.
        last: the home of the segment, or the root.
        size: number of ranks.
    """
    first = last + 1 if order == "ring" else 0
    return tuple((first + i) % size for i in range(size))


def others(rank: int, size: int) -> tuple[int, ...]:
    """The other ranks, each rank's next one first, so that not all go to the same.

    >>> others(1, 4)
    (2, 3, 0)
    """
    return combination("ring", rank, size)[:-1]


class Turn(NamedTuple):
    """A round of a dissemination, as one rank sees it.

    Attributes:
        dest, source: to whom it tells what it knows, and whom it hears.
        known: how many ranks each knows of then: itself and those before it.
    """

    dest: int
    source: int
    known: int


def dissemination(rank: int, size: int) -> Iterator[Turn]:
    """The rounds after which every rank has heard of every other, ``ceil(log2 size)`` of them (Hensgen 1988).

    >>> [tuple(turn) for turn in dissemination(0, 5)]
    [(1, 4, 1), (2, 3, 2), (4, 1, 4)]
    """
    known = 1
    while known < size:
        yield Turn((rank + known) % size, (rank - known) % size, known)
        known *= 2


# ---- the ring -------------------------------------------------------------------------------------


def ring_reduce_scatter(size: int, offset: int = 0) -> Schedule:
    """The lecture's scatter-reduce: afterwards rank ``r`` holds the result of segment ``r + offset``.

    >>> for step in ring_reduce_scatter(3).steps(0):
    ...     print([s.segment for s in step.sends], [r.segment for r in step.receives], step.finishes)
    [2] [1] ()
    [1] [0] ()
    [] [] (0,)
    """

    def steps(rank: int) -> Iterator[Step]:
        left, right = neighbours(rank, size)
        for i in range(size - 1):
            send = (rank - i - 1 + offset) % size
            recv = (rank - i - 2 + offset) % size
            yield Step((Send(right, send),), (Receive(left, recv),))
        yield Step(finishes=((rank + offset) % size,))

    return Schedule("reduce_scatter", "ring", size, steps, "ring", offset)


def ring_allgather(size: int, offset: int = 0) -> Schedule:
    """The lecture's all-gather: rank ``r`` brings segment ``r + offset``, all end with all of them.

    >>> for step in ring_allgather(3).steps(0):
    ...     print([s.segment for s in step.sends], [r.segment for r in step.receives])
    [0] [2]
    [2] [1]
    """

    def steps(rank: int) -> Iterator[Step]:
        left, right = neighbours(rank, size)
        for i in range(size - 1):
            send = (rank - i + offset) % size
            recv = (rank - i - 1 + offset) % size
            yield Step(
                (Send(right, send, Form.RESULT),),
                (Receive(left, recv, Action.STORE, Form.RESULT),),
            )

    return Schedule("allgather", "ring", size, steps, None, offset)


def ring_allreduce(size: int, offset: int = 0) -> Schedule:
    """Reduce-scatter, then all-gather: ``2 (size - 1)`` exchanges, each of one segment."""
    return _allreduce_of(
        ring_reduce_scatter(size, offset), ring_allgather(size, offset)
    )


def neighbours(rank: int, size: int) -> tuple[int, int]:
    """The left and the right neighbour of ``rank`` in a ring of ``size``.

    >>> neighbours(0, 4)
    (3, 1)
    """
    return (rank - 1) % size, (rank + 1) % size


# ---- the direct exchange --------------------------------------------------------------------------


def direct_reduce_scatter(size: int, order: str = "ring") -> Schedule:
    """Every rank sends each segment straight to its home, which combines all of them at once.

    One exchange instead of ``size - 1``, at the same bytes; contributions travel as they are, so a
    16-bit float stays 16 bits wide on the wire.  The home needs room for ``size - 1`` segments.

    Args:
        order: the order of combination, ``"ring"`` or ``"rank"`` (``x[0] op x[1] op ...``).
    """

    def steps(rank: int) -> Iterator[Step]:
        others = [(rank + i) % size for i in range(1, size)]
        sends = tuple(Send(peer, peer, Form.CONTRIBUTION) for peer in others)
        if order == "ring":
            receives = [(peer, Action.REDUCE) for peer in others]
        else:
            receives = [
                (peer, Action.REDUCE if peer < rank else Action.REDUCE_AFTER)
                for peer in sorted(others)
            ]
        yield Step(
            sends,
            tuple(
                Receive(peer, rank, action, Form.CONTRIBUTION)
                for peer, action in receives
            ),
            (rank,),
        )

    return Schedule("reduce_scatter", "direct", size, steps, order)


def direct_allgather(size: int) -> Schedule:
    """Every rank sends its segment straight to each other rank, all in one exchange."""

    def steps(rank: int) -> Iterator[Step]:
        others = [(rank + i) % size for i in range(1, size)]
        yield Step(
            tuple(Send(peer, rank, Form.RESULT) for peer in others),
            tuple(Receive(peer, peer, Action.STORE, Form.RESULT) for peer in others),
        )

    return Schedule("allgather", "direct", size, steps)


def direct_allreduce(size: int, order: str = "ring") -> Schedule:
    """Two exchanges: every segment to its home, and its result back to everyone."""
    return _allreduce_of(direct_reduce_scatter(size, order), direct_allgather(size))


def _allreduce_of(reduce_scatter: Schedule, allgather: Schedule) -> Schedule:
    return Schedule(
        "allreduce",
        reduce_scatter.algorithm,
        reduce_scatter.size,
        lambda rank: chain(reduce_scatter.steps(rank), allgather.steps(rank)),
        reduce_scatter.order,
        reduce_scatter.offset,
    )


def last_uses(steps: Sequence[Step]) -> list[tuple[int, ...]]:
    """For each step of one rank, the segments whose value is not read any more after it.

    An executor frees the memory of a partial there: a ring's partial is dead once it was sent on.

    >>> [list(dead) for dead in last_uses(list(ring_reduce_scatter(3).steps(0)))]
    [[2], [1], [0]]
    """
    dead: list[tuple[int, ...]] = []
    alive: set[int] = set()
    for step in reversed(steps):
        stored = {r.segment for r in step.receives if r.action is Action.STORE}
        read = {r.segment for r in step.receives} - stored
        read.update(send.segment for send in step.sends)
        # What is stored and finished in one step is not the value held before.
        read.update(set(step.finishes) - stored)
        dead.append(tuple(sorted((read | stored) - alive)))
        alive = (alive - stored) | read
    dead.reverse()
    return dead
