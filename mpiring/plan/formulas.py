"""What the schedules of the catalog cost, as formulas: no schedule is built, so 100,000 ranks cost nothing.

Units are bytes and seconds, the model is that of :mod:`mpiring.plan.cost`.  Throughout: ``K`` ranks, ``N``
elements cut in ``S`` segments (one for each rank where each has a home), of which the longest has ``L =
ceil(N / S)``; ``w`` bytes of an element, ``p`` of one of a partial (other than ``w`` for 16-bit floats, whose
partials travel in float32); ``a``, ``b``, ``g`` for alpha, beta, gamma.

===============================  ===========  =======================================  ====================
schedule                         exchanges    seconds                                  busiest rank moves
===============================  ===========  =======================================  ====================
ring reduce_scatter              ``K-1``      ``(K-1) (a + L p (b+g))``                ``(K-1)/K N p``
ring allgather                   ``K-1``      ``(K-1) (a + L w b)``                    ``(K-1)/K N w``
direct reduce_scatter            ``1``        ``a + (K-1) L w (b+g)``                  ``(K-1) L w``
direct allgather                 ``1``        ``a + (K-1) L w b``                      ``(K-1) L w``
allreduce of either              their sum    their sum                                their sum
broadcast naive (``S = 1``)      ``K-1``      ``(K-1) (a + N w b)``                    ``N w``
broadcast pipelined              ``K+S-2``    ``(K+S-2) a + ((K-2) L + N) w b``        ``N w``
broadcast direct                 ``S``        ``S a + (K-1) N w b``                    ``(K-1) N w``, root
reduce ring                      ``K+S-2``    ``(K+S-2) a + ((K-2) L + N) p (b+g)``    ``N p``
reduce direct                    ``S``        ``S a + (K-1) N w (b+g)``                ``(K-1) N w``, root
===============================  ===========  =======================================  ====================

Each is derived where it stands, and equals :func:`mpiring.plan.cost.price` for every count, also one that
does not divide.  With ``a = g = 0`` and ``b = 1 / B`` they are the lecture's: naive ``(K-1) N/B``, pipelined
``(K+S-2) N/(S B)``, the parameter server's link ``(K-1) N/B`` each way.

What the model leaves out: that a network may slow down when a rank talks to many at once.  So a direct
exchange never loses to the ring here; ``at_once`` says how many messages it counts on.

Sources: the lecture, sections 2.2, 3.1 and 3.2; Thakur, Rabenseifner and Gropp (2005), section 4; Patarasuk
and Yuan (2009) for the ring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .catalog import check_algorithm
from .cost import Model


@dataclass(frozen=True)
class ClosedForm:
    """The cost of a named schedule as a formula gives it.

    Attributes:
        exchanges: one after the other until the last rank is done.
        at_once: messages that the busiest rank sends, or receives, in one exchange.
        sent_bytes, received_bytes: of the rank that sends, or receives, most.
        seconds: when the last rank is done.
    """

    exchanges: int
    at_once: int
    sent_bytes: int
    received_bytes: int
    seconds: float

    @property
    def busiest_bytes(self) -> int:
        """What must cross one link in one direction: the most that a rank sends or receives."""
        return max(self.sent_bytes, self.received_bytes)


def closed_form(
    collective: str,
    algorithm: str,
    size: int,
    count: int,
    itemsize: int = 4,
    model: Model | None = None,
    *,
    partial_itemsize: int | None = None,
    segments: int = 1,
) -> ClosedForm:
    """Exchanges, bytes and seconds of a schedule of the catalog, without building it.

    >>> closed_form("allreduce", "ring", 4, 400, model=Model(alpha=1000, beta=1)).seconds
    8400.0
    >>> closed_form("broadcast", "pipelined", 100_000, 10**6, 1, Model(alpha=100, beta=1), segments=1000)
    ClosedForm(exchanges=100998, at_once=1, sent_bytes=1000000, received_bytes=1000000, seconds=111097800.0)

    Args:
        collective, algorithm: a name of the catalog.
        size, count, itemsize: ranks, elements in the buffer, bytes of an element.
        model: the machine; without one the seconds are 0.
        partial_itemsize: bytes of an element of a partial, if they differ.
        segments: pieces of a broadcast or reduce (a naive one has 1); see :func:`best_segments`.

    Raises:
        ValueError: for a name that does not exist, or a number that is too small.
    """
    check_algorithm(collective, algorithm)
    for what, number, least in (
        ("size", size, 1),
        ("count", count, 0),
        ("segments", segments, 1),
    ):
        if number < least:
            raise ValueError(
                f"closed_form: {what} must be {least} or more, got {number}"
            )
    if size == 1:
        return ClosedForm(0, 0, 0, 0, 0.0)
    rooted = collective in ("broadcast", "reduce")
    pieces = (1 if algorithm == "naive" else segments) if rooted else size
    p, model = partial_itemsize or itemsize, model or Model(0, 0)
    case = _Case(size, count, pieces, itemsize, p, model)
    return _FORMULAS[collective, algorithm](case)


def server_form(
    form: str,
    size: int,
    count: int,
    itemsize: int = 4,
    model: Model | None = None,
    *,
    partial_itemsize: int | None = None,
    segments: int = 1,
) -> ClosedForm:
    """The lecture's parameter server, which is an all-reduce: a reduce to it, then a broadcast from it.

    Seconds and exchanges are the sum of the two: the root is the last to be done with the first and the one
    on which the second waits.  In a star the root moves ``(K-1) N w`` bytes each way; in a chain a rank that
    is neither end of it moves ``N p``, then ``N w``.

    >>> for form in ("star", "chain"):
    ...     print(server_form(form, 5, 1000, 1, Model(alpha=0, beta=1), segments=100).seconds)
    8000.0
    2060.0

    Args:
        form: ``"star"`` or ``"chain"``; the other arguments are those of :func:`closed_form`.

    Raises:
        ValueError: for another form, or a number that is too small.

    Source: the lecture, sections 2.2 and 2.3.
    """
    names = {"star": ("direct", "direct"), "chain": ("ring", "pipelined")}
    if form not in names:
        raise ValueError(f"server_form: unknown form {form!r}; known: star, chain")
    reduce, broadcast = (
        closed_form(
            collective,
            algorithm,
            size,
            count,
            itemsize,
            model,
            partial_itemsize=partial_itemsize,
            segments=segments,
        )
        for collective, algorithm in zip(("reduce", "broadcast"), names[form])
    )
    total = _sum(reduce, broadcast)
    if size > 2 and form == "chain":
        return total
    # The rank that is busiest in one of them is not in the other: a star's root sends only in the second.
    sent = max(reduce.sent_bytes, broadcast.sent_bytes)
    received = max(reduce.received_bytes, broadcast.received_bytes)
    return replace(total, sent_bytes=sent, received_bytes=received)


@dataclass(frozen=True)
class _Case:
    """What the formulas depend on, and the names that they have for it."""

    size: int
    count: int
    segments: int
    w: int  # bytes of an element
    p: int  # bytes of an element of a partial
    model: Model

    @property
    def longest(self) -> int:
        """Elements in the longest segment."""
        return -(-self.count // self.segments)

    @property
    def shortest(self) -> int:
        """Elements in the shortest segment."""
        return self.count // self.segments


def _ring_reduce_scatter(case: _Case) -> ClosedForm:
    """``(K-1) (a + L p (b+g))``.

    The longest segment makes its ``K-1`` hops one after the other, and is added to after each; no other
    message of a step takes longer.  Rank r sends every segment but its own.
    """
    hops, model = case.size - 1, case.model
    each = model.alpha + case.longest * case.p * (model.beta + model.gamma)
    moved = (case.count - case.shortest) * case.p
    return ClosedForm(hops, 1, moved, moved, float(hops * each))


def _ring_allgather(case: _Case) -> ClosedForm:
    """``(K-1) (a + L w b)``, as before; rank r sends every segment but its right neighbour's."""
    hops, model = case.size - 1, case.model
    each = model.alpha + case.longest * case.w * model.beta
    moved = (case.count - case.shortest) * case.w
    return ClosedForm(hops, 1, moved, moved, float(hops * each))


def _ring_allreduce(case: _Case) -> ClosedForm:
    """The sum of both phases.

    Their bytes, too, unless a single segment is shorter than the others: a rank keeps its own segment in
    the first phase and its neighbour's in the second, and these cannot both be that one.
    """
    total = _sum(_ring_reduce_scatter(case), _ring_allgather(case))
    if case.count % case.size != case.size - 1:
        return total
    wide, narrow = max(case.p, case.w), min(case.p, case.w)
    moved = (case.count - case.shortest) * wide + (case.count - case.longest) * narrow
    return ClosedForm(total.exchanges, 1, moved, moved, total.seconds)


def _direct_reduce_scatter(case: _Case) -> ClosedForm:
    """``a + (K-1) L w (b+g)``.

    The home of the longest segment gets ``K-1`` of them through its link, whose latencies overlap, and
    then adds them.  Contributions travel as they are.  A rank sends all segments but its own.
    """
    hops, model = case.size - 1, case.model
    taken = hops * case.longest * case.w
    seconds = model.alpha + taken * (model.beta + model.gamma)
    sent = (case.count - case.shortest) * case.w
    return ClosedForm(1, hops, sent, taken, float(seconds))


def _direct_allgather(case: _Case) -> ClosedForm:
    """``a + (K-1) L w b``: the home of the longest segment sends it ``K-1`` times."""
    hops, model = case.size - 1, case.model
    sent = hops * case.longest * case.w
    received = (case.count - case.shortest) * case.w
    return ClosedForm(1, hops, sent, received, float(model.alpha + sent * model.beta))


def _direct_allreduce(case: _Case) -> ClosedForm:
    """The sum of both exchanges.

    The bytes of one rank, with ``l`` elements at home: it sends ``N - l``, then ``(K-1) l``, and gets as
    much, so ``N + (K-2) l`` each way.
    """
    total = _sum(_direct_reduce_scatter(case), _direct_allgather(case))
    moved = (case.count + (case.size - 2) * case.longest) * case.w
    return ClosedForm(2, total.at_once, moved, moved, total.seconds)


def _chain_broadcast(case: _Case) -> ClosedForm:
    """``(K+S-2) a + ((K-2) L + N) w b``.

    Say link ``i`` (of ``K-1``) carries segment ``s`` in ``c[s]`` seconds, ``c`` never growing with ``s``,
    and is through with it at ``T(i, s)``.  A rank passes a segment on when it has got it, its last one has
    left, and the next rank is ready, having passed on the one before that:
    ``T(i, s) = c[s] + max(T(i-1, s), T(i, s-1), T(i+1, s-2))``.  The way back to link ``i+1`` never pays:
    it leads to the same place as two segments on link ``i``, which are not shorter.  What is left is the
    longest path over a grid from ``(0, 0)`` to ``(K-2, S-1)``: across where segments are longest, at
    ``s = 0``, then down: ``(K-2) c[0] + c[0] + c[1] + ... + c[S-1]``.
    """
    exchanges, elements = _pipeline(case)
    moved = case.count * case.w
    seconds = exchanges * case.model.alpha + elements * case.w * case.model.beta
    return ClosedForm(exchanges, 1, moved, moved, float(seconds))


def _chain_reduce(case: _Case) -> ClosedForm:
    """``(K+S-2) a + ((K-2) L + N) p (b+g)``.

    As the broadcast's, but at the end of a link's turn the receiver adds, for ``d[s]`` seconds, before its
    next step: ``T(i, s) = c[s] + max(d[s] + T(i-1, s), d[s-1] + T(i, s-1), d[s-1] + T(i+1, s-2))``.  The
    longest path is the same one, each hop with its addition, the root's last one included.
    """
    exchanges, elements = _pipeline(case)
    moved = case.count * case.p
    each = case.p * (case.model.beta + case.model.gamma)
    seconds = exchanges * case.model.alpha + elements * each
    return ClosedForm(exchanges, 1, moved, moved, float(seconds))


def _pipeline(case: _Case) -> tuple[int, int]:
    """Turns of a chain, and the elements that pass in them, one message after the other."""
    turns = case.size + case.segments - 2
    return turns, (case.size - 2) * case.longest + case.count


def _star_broadcast(case: _Case) -> ClosedForm:
    """``S a + (K-1) N w b``: each segment leaves through the root's one link ``K-1`` times."""
    hops, model = case.size - 1, case.model
    sent, received = hops * case.count * case.w, case.count * case.w
    seconds = case.segments * model.alpha + sent * model.beta
    return ClosedForm(case.segments, hops, sent, received, float(seconds))


def _star_reduce(case: _Case) -> ClosedForm:
    """``S a + (K-1) N w (b+g)``: each segment comes to the root ``K-1`` times, then they are added."""
    hops, model = case.size - 1, case.model
    sent, received = case.count * case.w, hops * case.count * case.w
    seconds = case.segments * model.alpha + received * (model.beta + model.gamma)
    return ClosedForm(case.segments, hops, sent, received, float(seconds))


def _sum(first: ClosedForm, second: ClosedForm) -> ClosedForm:
    """One after the other, if the same rank is the busiest in both."""
    return ClosedForm(
        first.exchanges + second.exchanges,
        max(first.at_once, second.at_once),
        first.sent_bytes + second.sent_bytes,
        first.received_bytes + second.received_bytes,
        first.seconds + second.seconds,
    )


_FORMULAS: dict[tuple[str, str], Callable[[_Case], ClosedForm]] = {
    ("allreduce", "ring"): _ring_allreduce,
    ("allreduce", "direct"): _direct_allreduce,
    ("reduce_scatter", "ring"): _ring_reduce_scatter,
    ("reduce_scatter", "direct"): _direct_reduce_scatter,
    ("allgather", "ring"): _ring_allgather,
    ("allgather", "direct"): _direct_allgather,
    ("broadcast", "naive"): _chain_broadcast,
    ("broadcast", "pipelined"): _chain_broadcast,
    ("broadcast", "direct"): _star_broadcast,
    ("reduce", "ring"): _chain_reduce,
    ("reduce", "direct"): _star_reduce,
}
