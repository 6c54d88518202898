"""What no schedule can beat, and how a measured time becomes a bandwidth.

Units are bytes and seconds; the model is that of :mod:`mpiring.plan.cost`.

Sources
    Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice, and
    experience", Concurrency 19 (2007): the lower bounds.
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69
    (2009): an all-reduce moves at least ``2 (K-1)/K N`` bytes through some rank, and the ring does so.
    nccl-tests, ``doc/PERFORMANCE.md``: algbw and busbw.
"""

from __future__ import annotations

from dataclasses import dataclass

from .cost import Model
from .schedules import COLLECTIVES


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
