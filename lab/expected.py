"""What the lab measures, and what each should take: the lecture's formulas and our model's price.

A :class:`Case` is one way of doing one thing.  It has two expectations, for ``K`` hosts, ``N`` bytes and
links of ``B`` bytes a second, one way:

bound
    The lecture's formula, in which messages cost their bytes and nothing else.  It is ``turns(K, S) * N / B``
    with ``S`` the pieces the buffer is cut into.
prediction
    What :func:`mpiring.plan.price` says for the schedule with a latency, a bandwidth and a speed of adding
    that were measured on the same network (:func:`mpiring.plan.fit`).  The MPI's own collectives have none:
    only the MPI knows what it does.

``B`` is not what ``tc`` calls the rate.  A full packet is :data:`FRAME` bytes to the token bucket, of which
:data:`PAYLOAD` are the program's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from mpiring import plan

# An Ethernet header of 14 bytes and an IP packet of 1500, in it 20 of IP, 20 of TCP and 12 of its
# timestamps.  On a real wire the packet takes 24 more (check sum, preamble, gap), which tc does not count.
FRAME = 1514
PAYLOAD = 1448

CHUNK_BYTES = 32 << 10  # the pieces of Ring.broadcast and Ring.reduce
MOST_CHUNKS = 1024
ITEM = 4  # float32


def payload_rate(bits_per_second: float) -> float:
    """``B``: bytes a second that a program gets through a link of that rate.

    >>> round(payload_rate(100e6))
    11955086
    """
    return bits_per_second / 8 * PAYLOAD / FRAME


def pieces(nbytes: int) -> int:
    """The ``S`` that ``Ring.broadcast`` and ``Ring.reduce`` choose.

    >>> pieces(8_000_000)
    245
    """
    return max(1, min(MOST_CHUNKS, -(-nbytes // CHUNK_BYTES)))


def chain_turns(size: int, segments: int) -> float:
    """The lecture's ``(K + S - 2) / S``, which is ``K - 1`` for one piece."""
    return (size + segments - 2) / segments


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Attributes:
        name: in tables.
        function: the call that is timed.
        formula: the bound, as the lecture writes it.
        turns: the bound, from ``K`` and ``S``, in units of ``N / B``.
        schedules: what is run one after the other, from ``K`` and ``S``; none for the MPI's own.
    """

    name: str
    function: str
    formula: str
    turns: Callable[[int, int], float]
    schedules: Callable[[int, int], tuple[plan.Schedule, ...]] | None = None

    def bound(self, size: int, segments: int, nbytes: int, rate: float) -> float:
        """Seconds, for ``rate`` bytes a second."""
        return self.turns(size, segments) * nbytes / rate

    def prediction(
        self, size: int, segments: int, nbytes: int, model: plan.Model
    ) -> float | None:
        """Seconds, by the price of the schedules."""
        if self.schedules is None:
            return None
        return sum(
            _seconds(schedule, nbytes // ITEM, model)
            for schedule in self.schedules(size, segments)
        )


@lru_cache(maxsize=None)
def _seconds(schedule: plan.Schedule, count: int, model: plan.Model) -> float:
    return plan.price(schedule, count, ITEM, model).seconds


def _phase_turns(size: int, segments: int) -> float:
    return (size - 1) / size


def _ring_turns(size: int, segments: int) -> float:
    return 2 * (size - 1) / size


CHAIN = "(K+S-2) N/(S B)"
CASES = {
    case.name: case
    for case in (
        Case(
            "broadcast, naive",
            'Ring.broadcast(algorithm="naive")',
            "(K-1) N/B",
            lambda size, _: size - 1,
            lambda size, _: (plan.chain_broadcast(size),),
        ),
        Case(
            "broadcast, pipelined",
            "Ring.run(plan.chain_broadcast(K, 0, S))",
            CHAIN,
            chain_turns,
            lambda size, segments: (plan.chain_broadcast(size, 0, segments),),
        ),
        Case(
            "broadcast, MPI_Bcast",
            "mpi4py Comm.Bcast",
            "N/B",
            lambda size, _: 1,
        ),
        Case(
            "reduce, chain",
            'Ring.reduce(algorithm="ring")',
            CHAIN,
            chain_turns,
            lambda size, segments: (plan.chain_reduce(size, 0, segments),),
        ),
        Case(
            "reduce, star",
            'Ring.reduce(algorithm="direct")',
            "(K-1) N/B",
            lambda size, _: size - 1,
            lambda size, segments: (plan.star_reduce(size, 0, segments),),
        ),
        Case(
            "messages, both ways",
            "with Ring.group(): send to the right, recv from the left",
            "N/B",
            lambda size, _: 1,
            lambda size, _: (plan.chain_broadcast(2),),
        ),
        Case(
            "reduce-scatter, ring",
            'Ring.reduce_scatter(algorithm="ring")',
            "(K-1)/K N/B",
            _phase_turns,
            lambda size, _: (plan.ring_reduce_scatter(size),),
        ),
        Case(
            "all-gather, ring",
            'Ring.allgather(algorithm="ring")',
            "(K-1)/K N/B",
            _phase_turns,
            lambda size, _: (plan.ring_allgather(size),),
        ),
        Case(
            "all-reduce, ring",
            'Ring.allreduce(algorithm="ring")',
            "2 (K-1)/K N/B",
            _ring_turns,
            lambda size, _: (plan.ring_allreduce(size),),
        ),
        Case(
            "all-reduce, direct",
            'Ring.allreduce(algorithm="direct")',
            "2 (K-1)/K N/B",
            _ring_turns,
            lambda size, _: (plan.direct_allreduce(size),),
        ),
        Case(
            "all-reduce, ring, cut",
            "Ring(message_bytes=32768).allreduce",
            "2 (K-1)/K N/B",
            _ring_turns,
            lambda size, _: (plan.ring_allreduce(size),),
        ),
        Case(
            "all-reduce, direct, cut",
            "Ring(message_bytes=32768).allreduce",
            "2 (K-1)/K N/B",
            _ring_turns,
            lambda size, _: (plan.direct_allreduce(size),),
        ),
        Case(
            "all-reduce, MPI_Allreduce",
            "mpi4py Comm.Allreduce",
            "2 (K-1)/K N/B",
            _ring_turns,
        ),
        Case(
            "server, star",
            'Ring.broadcast and .reduce(algorithm="direct")',
            "2 (K-1) N/B",
            lambda size, _: 2 * (size - 1),
            lambda size, segments: (
                plan.star_broadcast(size),
                plan.star_reduce(size, 0, segments),
            ),
        ),
        Case(
            "server, star, async",
            'ParameterServer(mode="async")',
            "2 (K-1) N/B",
            lambda size, _: 2 * (size - 1),
            lambda size, _: (plan.star_broadcast(size), plan.star_reduce(size)),
        ),
        Case(
            "server, chain",
            'ParameterServer(mode="sync")',
            "2 (K+S-2) N/(S B)",
            lambda size, segments: 2 * chain_turns(size, segments),
            lambda size, segments: (
                plan.chain_broadcast(size, 0, segments),
                plan.chain_reduce(size, 0, segments),
            ),
        ),
    )
}
