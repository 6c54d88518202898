"""What a schedule costs: exchanges, bytes, and seconds in the alpha-beta-gamma model.

Units are always bytes and seconds.  The model, for a schedule of any shape:

* A message of ``n`` bytes starts when both ranks are in the step that posts it (a rendezvous) and takes
  ``alpha + n * beta``.
* A rank has one link, which carries one stream of bytes out and one in.  Messages that are under way at
  the same time share it one after the other, in the order they started; their latencies overlap.  The
  two ends do not wait for each other's other messages (the network between them buffers).
* When the last message of a step has arrived, what came to be reduced costs ``gamma`` a byte; then the
  rank's next step begins.

:func:`price` evaluates that by events, on the very run that proves the schedule
(:func:`mpiring.plan.symbolic.run`): which messages match is decided there and nowhere else.
:func:`closed_form` says the same for ring and direct exchange as formulas, :func:`lower_bound` what no
schedule can beat, and :func:`bus_factor` how a measured time becomes a bandwidth.

Sources
    Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
    IJHPCA 19 (2005): alpha, beta and gamma, and the costs of the ring.
    Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice, and
    experience", Concurrency 19 (2007): the lower bounds.
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69
    (2009): an all-reduce moves at least ``2 (K-1)/K N`` bytes through some rank, and the ring does so.
    nccl-tests, ``doc/PERFORMANCE.md``: algbw and busbw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from .schedules import COLLECTIVES, Action, Form, Receive, Schedule, Send
from .segments import Segments
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


# ---- formulas -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClosedForm:
    """The cost of a named schedule as a formula gives it.

    Attributes:
        exchanges: of each rank.
        sent_bytes: of each rank.
        seconds: when the last rank is done.
    """

    exchanges: int
    sent_bytes: tuple[int, ...]
    seconds: float


def closed_form(
    collective: str,
    algorithm: str,
    size: int,
    count: int,
    itemsize: int = 4,
    model: Model | None = None,
    *,
    partial_itemsize: int | None = None,
) -> ClosedForm:
    """Exchanges, bytes and seconds of the ring and of the direct exchange, without running them.

    With ``K`` ranks, ``N`` elements, ``L = ceil(N / K)`` in the longest segment, ``w`` bytes of an
    element and ``p`` of a partial one:

    ==========================  =============  ======================================================
    schedule                    exchanges      seconds
    ==========================  =============  ======================================================
    ring reduce_scatter         ``K - 1``      ``(K-1) (alpha + L p beta + L p gamma)``
    ring allgather              ``K - 1``      ``(K-1) (alpha + L w beta)``
    direct reduce_scatter       ``1``          ``alpha + (K-1) (L w beta + L w gamma)``
    direct allgather            ``1``          ``alpha + (K-1) L w beta``
    allreduce of either         their sum      their sum
    ==========================  =============  ======================================================

    Both send the same elements where ``K`` divides ``N``: ``(K-1)/K N`` in each phase.  Else rank
    ``r`` of the ring sends all segments but its own, then all but its right neighbour's; in the direct
    exchange all but its own, then its own ``K - 1`` times.

    >>> closed_form("allreduce", "ring", 4, 400, model=Model(alpha=1000, beta=1))
    ClosedForm(exchanges=6, sent_bytes=(2400, 2400, 2400, 2400), seconds=8400.0)
    >>> closed_form("allreduce", "direct", 4, 400, model=Model(alpha=1000, beta=1)).seconds
    4400.0

    Why the longest segment alone decides: it makes all its hops one after the other, and no other
    message of a step takes longer.

    Raises:
        ValueError: for another collective or algorithm.

    Source: Thakur, Rabenseifner and Gropp (2005), section 4; Patarasuk and Yuan (2009) for the ring.
    """
    if algorithm not in ("ring", "direct") or collective not in (
        "allreduce",
        "reduce_scatter",
        "allgather",
    ):
        raise ValueError(
            f"closed_form: {algorithm!r} {collective!r}; there are formulas for ring and direct, "
            "allreduce, reduce_scatter and allgather; price() evaluates any schedule"
        )
    model = model or Model(0, 0, 0)
    ring = algorithm == "ring"
    moved = (partial_itemsize or itemsize) if ring else itemsize
    segments = Segments(count, size)
    longest, hops = segments.longest, size - 1
    messages = hops if ring else min(1, hops)  # in sequence, in each phase
    exchanges, seconds, sent = 0, 0.0, [0] * size
    if collective != "allgather":
        exchanges += messages
        seconds += messages * model.alpha
        seconds += hops * longest * moved * (model.beta + model.gamma)
        for rank in range(size):
            sent[rank] += (count - segments[rank].length) * moved
    if collective != "reduce_scatter":
        exchanges += messages
        seconds += messages * model.alpha + hops * longest * itemsize * model.beta
        for rank in range(size):
            kept = segments[(rank + 1) % size].length
            out = count - kept if ring else hops * segments[rank].length
            sent[rank] += out * itemsize
    return ClosedForm(exchanges, tuple(sent), seconds)


@dataclass(frozen=True)
class Bound:
    """What no schedule can beat; each term is a bound of its own, in seconds."""

    latency: float
    bandwidth: float
    compute: float

    @property
    def seconds(self) -> float:
        """A bound for all of it: the first message's latency, then the wire or the arithmetic."""
        return self.latency + max(self.bandwidth, self.compute)


def lower_bound(
    collective: str,
    size: int,
    nbytes: int,
    model: Model,
    *,
    ports: int | None = None,
) -> Bound:
    """The least a collective can take, for ``K`` ranks and a buffer of ``n = nbytes`` bytes.

    ==============  ====================================  ==================  =================
    collective      latency                               bandwidth           compute
    ==============  ====================================  ==================  =================
    allreduce       ``ceil(log(K) / log(1+P)) * alpha``   ``2(K-1)/K n beta``  ``(K-1)/K n gamma``
    reduce_scatter  the same                              ``(K-1)/K n beta``   ``(K-1)/K n gamma``
    allgather       the same                              ``(K-1)/K n beta``   none
    broadcast       the same                              ``n beta``           none
    reduce          the same                              ``n beta``           ``(K-1)/K n gamma``
    ==============  ====================================  ==================  =================

    Latency: if a rank can start ``P`` messages at a time, an exchange multiplies the ranks that know
    something by at most ``1 + P``.  Bandwidth: a rank must let go of all its contributions that others
    need, or get all it lacks; an all-reduce must do both.  Compute: ``K - 1`` combinations of every
    element, shared by ``K`` ranks.

    >>> lower_bound("allreduce", 4, 1600, Model(alpha=1000, beta=1)).bandwidth
    2400.0
    >>> [lower_bound("allreduce", 9, 0, Model(1, 1), ports=p).latency for p in (1, 2, None)]
    [4, 2, 1]

    Args:
        ports: messages that a rank can start at a time: 1 in Chan et al.; None for no limit, as in the
            model of this module, where latencies overlap.

    Raises:
        ValueError: for an unknown collective, a size or ports below 1.

    Source: Chan et al. (2007), table 1; Patarasuk and Yuan (2009), theorem 1.
    """
    factor = bus_factor(collective, size)
    if size == 1:
        return Bound(0, 0, 0)
    reach, exchanges = 1, 0
    if ports is not None and ports < 1:
        raise ValueError(f"lower_bound: ports must be 1 or more, got {ports}")
    while reach < size:
        reach *= 1 + (size if ports is None else ports)
        exchanges += 1
    combines = collective in ("allreduce", "reduce_scatter", "reduce")
    return Bound(
        exchanges * model.alpha,
        factor * nbytes * model.beta,
        (size - 1) / size * nbytes * model.gamma if combines else 0,
    )


def algbw(nbytes: int, seconds: float) -> float:
    """Algorithm bandwidth in bytes per second: ``nbytes / seconds``.

    ``nbytes`` is the whole buffer: for reduce_scatter what a rank puts in, for allgather what it gets.

    >>> algbw(1 << 20, 0.5)
    2097152.0

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    return nbytes / seconds


def busbw(collective: str, size: int, nbytes: int, seconds: float) -> float:
    """Bus bandwidth in bytes per second: algbw times :func:`bus_factor`, comparable with a link's.

    >>> busbw("allreduce", 4, 1 << 20, 0.5)
    3145728.0

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    return algbw(nbytes, seconds) * bus_factor(collective, size)


def bus_factor(collective: str, size: int) -> float:
    """busbw / algbw: how often each byte of the buffer must cross a rank's link, one way.

    allreduce ``2 (n-1)/n``; reduce_scatter and allgather ``(n-1)/n``; broadcast and reduce ``1``.

    >>> [bus_factor(collective, 4) for collective in ("allreduce", "allgather", "broadcast")]
    [1.5, 0.75, 1.0]

    Raises:
        ValueError: for an unknown collective or a size below 1.

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    if collective not in COLLECTIVES:
        raise ValueError(
            f"unknown collective {collective!r}; known: {', '.join(COLLECTIVES)}"
        )
    if size < 1:
        raise ValueError(f"bus_factor: size must be 1 or more, got {size}")
    if collective == "allreduce":
        return 2 * (size - 1) / size
    if collective in ("reduce_scatter", "allgather"):
        return (size - 1) / size
    return 1.0
