"""Cases of arguments, and of what a process is when it calls: B43 to B54, each a whole kind of fault on small input."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from mpiring import Ring
from mpiring.plan import schedule

from ranks import denormals
from ranks.denormals import DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, flushing
from ranks.reference import outcome, same_on_all_ranks

# ---- B43: one rank flushes denormal numbers to zero ---------------------------------------------------

needs_flushing = pytest.mark.skipif(
    bool(denormals.why_not()), reason=denormals.why_not()
)
BITS = pytest.mark.parametrize(
    "bits", [FLUSH_TO_ZERO, DENORMALS_ARE_ZERO, FLUSH_TO_ZERO | DENORMALS_ARE_ZERO]
)


def tiny(dtype, count):
    """The smallest numbers of a dtype."""
    found = np.zeros(count, dtype)
    found.view(f"u{found.itemsize}")[...] = 1
    return found


def reductions(ring, x, plan):
    """Each reduction, by name."""
    return {
        "allreduce": lambda: ring.allreduce(x),
        "reduce_scatter": lambda: ring.reduce_scatter(x),
        "reduce": lambda: ring.reduce(x, "prod", root=0),
        "run": lambda: ring.run(plan, x),
        "allreduce of maxima": lambda: ring.allreduce(x, "max", algorithm="ring"),
    }


@needs_flushing
@BITS
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
@pytest.mark.parametrize("count", [5, 5000, 500_000])
def test_b43_one_rank_flushes(comm, ring, bits, dtype, count):
    """The ring and its calls are there before the library is: the repeated calls notice, too."""
    x = tiny(dtype, count)
    plan = schedule("allreduce", comm.size, algorithm="ring")
    wanted = [ring.allreduce(x) for _ in range(3)]
    odd = comm.size - 1
    told = []
    for name, call in reductions(ring, x, plan).items():
        with flushing(bits) if comm.rank == odd else nullcontext():
            told.append((name, comm.allgather(outcome(call))))
            copied = ring.allgather(x[:3]), ring.broadcast(x.copy())
        assert copied[0].tobytes() == x[:3].tobytes() * comm.size
        assert copied[1].tobytes() == x.tobytes()
        wanted.append(ring.allreduce(x))
    assert all(x.tobytes() == wanted[0].tobytes() for x in wanted)
    for name, answers in told:
        assert set(answers) == {answers[0]}, (name, answers)
        kind, text = answers[0]
        assert kind == "ValueError", name
        assert text.startswith(f"{name.split()[0]}: rank {odd} takes denormal"), text
        assert "rank 0 does not" in text and "-ffast-math" in text


@needs_flushing
@BITS
@pytest.mark.ranks(2, 3)
def test_b43_when_the_ring_is_made(comm, bits):
    with flushing(bits) if comm.rank == 0 else nullcontext():
        told = comm.allgather(outcome(lambda: Ring(comm)))
    assert set(told) == {told[0]} and told[0][0] == "ValueError", told
    assert told[0][1].startswith("Ring: rank 0 takes denormal numbers for zero")
    assert Ring(comm).allreduce(1) == comm.size


@needs_flushing
@BITS
@pytest.mark.ranks(2, 3)
def test_b43_all_ranks_flush(comm, bits):
    """They go on, and have the same bytes; numbers that are not denormal are as ever."""
    results = []
    with flushing(bits), Ring(comm) as ring:
        for dtype in ("f4", "f8", "f2"):
            for count in (5, 5000, 500_000):
                x = tiny(dtype, count) + (np.arange(count) % 2).astype(dtype)
                for _ in range(3):
                    results.append(ring.allreduce(x))
                results.append(ring.allreduce(np.full(count, 8.0**comm.rank)))
    same_on_all_ranks(comm, results)
    assert (results[-1] == int("1" * comm.size, base=8)).all()


@needs_flushing
@pytest.mark.ranks(2, 3)
def test_b43_other_differences_are_told_as_ever(comm, ring):
    """Whole numbers go on; a call that differs in more than that is told by what it was asked for."""
    with flushing(FLUSH_TO_ZERO) if comm.rank == 0 else nullcontext():
        total = ring.allreduce(np.full(5, 8**comm.rank))
        told = comm.allgather(
            outcome(lambda: ring.allreduce(np.ones(5 + (comm.rank == 0))))
        )
    assert total.tolist() == [int("1" * comm.size, base=8)] * 5
    assert told[0][0] == "ValueError" and "float64[6]" in told[0][1], told
