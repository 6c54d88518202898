"""What a schedule costs, evaluated event by event: exchanges, bytes, and seconds.

Units are always bytes and seconds.  The alpha-beta-gamma model, for a schedule of any shape:

* A message of ``n`` bytes starts when both ranks are in the step that posts it (a rendezvous) and takes
  ``alpha + n * beta``.
* A rank has one link, which carries one stream of bytes out and one in.  Messages that are under way at
  the same time share it one after the other, in the order they started; their latencies overlap.  The
  two ends do not wait for each other's other messages (the network between them buffers).
* When the last message of a step has arrived, what came to be reduced costs ``gamma`` a byte; then the
  rank's next step begins.

:func:`price` evaluates that on the very run that proves the schedule (:func:`mpiring.plan.symbolic.run`):
which messages match is decided there and nowhere else.  :mod:`mpiring.plan.formulas` says the same as
formulas for the schedules that have a name, :mod:`mpiring.plan.bounds` what no schedule can beat.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
IJHPCA 19 (2005): alpha, beta and gamma.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from .schedules import Action, Form, Receive, Schedule, Send
from .symbolic import run, segment_lengths


@dataclass(frozen=True)
class Model:
    """The three constants of a machine.

    Args:
        alpha: seconds for a message of no bytes, from post to arrival.
        beta: seconds for each further byte: 1 / bandwidth.
        gamma: seconds to reduce one byte.
    """

    alpha: float
    beta: float
    gamma: float = 0.0


@dataclass(frozen=True)
class Price:
    """What :func:`price` finds.

    Attributes:
        exchanges: for each rank, the steps that send or receive.
        sent_bytes, received_bytes: for each rank.
        reduced_bytes: for each rank, what it received to reduce.
        link_bytes, link_messages: for each pair (source, dest) that has a message.
        rank_seconds: for each rank, when its last step ends; all 0 without a model.
    """

    exchanges: tuple[int, ...]
    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]
    reduced_bytes: tuple[int, ...]
    link_bytes: Mapping[tuple[int, int], int]
    link_messages: Mapping[tuple[int, int], int]
    rank_seconds: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """When the last rank is done."""
        return max(self.rank_seconds)


def price(
    schedule: Schedule,
    count: int | None = None,
    itemsize: int = 4,
    model: Model | None = None,
    *,
    partial_itemsize: int | None = None,
    lengths: Sequence[int] | None = None,
) -> Price:
    """Evaluate any schedule, as the module's head describes.

    >>> from mpiring.plan.schedules import ring_allreduce
    >>> found = price(ring_allreduce(4), count=400, itemsize=4, model=Model(alpha=1000, beta=1))
    >>> found.sent_bytes, found.link_bytes[0, 1], found.seconds
    ((2400, 2400, 2400, 2400), 2400, 8400.0)

    Args:
        schedule: the schedule, which must be free of faults.
        count: elements in the buffer; one for each segment if None.
        itemsize: bytes of an element.
        model: the machine; without one the seconds are 0.
        partial_itemsize: bytes of an element of a partial, if they differ: 4 for 16-bit floats, whose
            partials travel in float32.
        lengths: elements in each segment instead of a count, for an allgather of uneven parts.

    Raises:
        ScheduleError: from the symbolic run, where the schedule is broken.
        ValueError: if the number of lengths is not that of the segments.
    """
    elements = segment_lengths(schedule, count, lengths)
    clock = EventClock(
        schedule.size,
        model or Model(0, 0, 0),
        [length * itemsize for length in elements],
        [length * (partial_itemsize or itemsize) for length in elements],
    )
    exchanges = run(schedule, clock=clock)[1]
    sent, received = [0] * schedule.size, [0] * schedule.size
    for (source, dest), nbytes in clock.link_bytes.items():
        sent[source] += nbytes
        received[dest] += nbytes
    return Price(
        tuple(exchanges),
        tuple(sent),
        tuple(received),
        tuple(clock.reduced),
        clock.link_bytes,
        clock.link_messages,
        tuple(clock.begun),
    )


class EventClock:
    """Time for a symbolic run: hands out the rank whose step ends first, so that events come in order.

    Args:
        size: number of ranks.
        model: what a message and a reduction take.
        nbytes: bytes of each segment as a contribution or a result.
        partial_nbytes: bytes of each segment as a partial.

    Attributes:
        now: seconds since the start.
    """

    def __init__(
        self,
        size: int,
        model: Model,
        nbytes: Sequence[int],
        partial_nbytes: Sequence[int],
    ) -> None:
        self.model = model
        self.nbytes = nbytes
        self.partial_nbytes = partial_nbytes
        self.now: float = 0
        self.begun: list[float] = [0] * size  # when each rank's present step began
        self.arrived: list[float] = [0] * size  # its last arrival or departure so far
        self.work: list[float] = [0] * size  # seconds of reducing at the step's end
        self.out_free: list[float] = [0] * size
        self.in_free: list[float] = [0] * size
        self.reduced = [0] * size
        self.link_bytes: dict[tuple[int, int], int] = {}
        self.link_messages: dict[tuple[int, int], int] = {}
        self._queue: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def append(self, rank: int, /) -> None:
        """The rank's step ends when its messages are through and what came is reduced."""
        end = max(self.begun[rank], self.arrived[rank]) + self.work[rank]
        self.work[rank] = 0
        heappush(self._queue, (end, rank))

    def pop(self) -> int:
        """The rank whose step ends next; its following step begins now."""
        self.now, rank = heappop(self._queue)
        self.begun[rank] = self.now
        return rank

    def moved(self, source: int, dest: int, send: Send, receive: Receive) -> None:
        """A message starts now; both links work through their bytes in the order they started."""
        table = self.partial_nbytes if send.form is Form.PARTIAL else self.nbytes
        nbytes = table[send.segment]
        link = (source, dest)
        self.link_bytes[link] = self.link_bytes.get(link, 0) + nbytes
        self.link_messages[link] = self.link_messages.get(link, 0) + 1
        wire = nbytes * self.model.beta
        left = self.out_free[source] = max(self.now, self.out_free[source]) + wire
        came = self.in_free[dest] = max(self.now, self.in_free[dest]) + wire
        done = max(left, came) + self.model.alpha
        self.arrived[source] = max(self.arrived[source], done)
        self.arrived[dest] = max(self.arrived[dest], done)
        if receive.action is not Action.STORE:
            self.reduced[dest] += nbytes
            self.work[dest] += nbytes * self.model.gamma
