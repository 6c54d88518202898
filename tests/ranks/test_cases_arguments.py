"""Cases of arguments, and of what a process is when it calls: B43 to B54, each a whole kind of fault on small input."""

from __future__ import annotations

import math
from contextlib import nullcontext
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mpiring import Ring
from mpiring.plan import schedule

from ranks import denormals
from ranks.denormals import DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, flushing
from ranks.reference import outcome, same_on_all_ranks
from ranks.test_cases import raised_everywhere
from ranks.tuned import tuned

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


# ---- B45: many dimensions, and NumPy's numbers --------------------------------------------------------


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    "shape", [(1,) * 13, (2,) * 13, (2,) * 15 + (1,) * 49, (3, 0) * 32]
)
def test_b45_many_dimensions(comm, ring, shape):
    """With the shortest payloads, too, and where the array is in memory that all reach."""
    x = np.full(shape, 8.0**comm.rank)
    total = np.full(shape, int("1" * comm.size, base=8))
    with tuned({"small_bytes": 0, "staged_bytes": 0}):
        short = Ring(comm)
    found = []
    for ring_of in (ring, short):
        space = ring_of.empty(shape, "float64")
        space[...] = x
        of_last = np.full(shape, 8.0 ** (comm.size - 1))
        is_root = comm.rank == comm.size - 1
        for y in (x.copy(), space, x.copy() if is_root else None):
            found.append((ring_of.broadcast(y, comm.size - 1), of_last))
        found.append((ring_of.allreduce(x), total))
        if is_root:
            found.append((ring_of.reduce(x, root=comm.size - 1), total))
        else:
            ring_of.reduce(x, root=comm.size - 1)
        gathered = ring_of.allgather(x)
        found.append((gathered[-len(x) :], of_last))
    short.close()
    for number, (got, want) in enumerate(found):
        assert got.shape == want.shape and np.array_equal(got, want), number


@pytest.mark.ranks(2, 3)
def test_b45_numbers_of_numpy(comm):
    """One rank passes Python's numbers and the others NumPy's."""
    whole = int if comm.rank == 0 else np.int64
    seconds = [Fraction(20), np.float32(20), Decimal(20)][comm.rank]
    with Ring(
        comm, timeout=seconds, members=whole(1), message_bytes=whole(1 << 20)
    ) as ring:
        x = np.full(3, 8.0**comm.rank)
        last = comm.size - 1
        sent = ring.broadcast(x if comm.rank == last else None, whole(last))
        total = ring.reduce(x, root=whole(last), timeout=seconds)
        out = np.zeros(3)
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        with ring.group(timeout=seconds):
            ring.send(x, np.uint8(right), tag=np.int16(7))
            ring.recv(out, np.int32(left), tag=7)
        work = ring.allreduce(x, async_op=True)
        assert work.wait(np.float64(20)).tolist() == [int("1" * comm.size, 8)] * 3
    assert sent.tolist() == [8**last] * 3 and out.tolist() == [8**left] * 3
    assert total is None or total.tolist() == [int("1" * comm.size, 8)] * 3


@pytest.mark.ranks(2, 3)
def test_b45_true_and_text_are_no_numbers(comm, ring):
    x = np.ones(3)
    work = ring.allreduce(x, async_op=True)
    wrongs: list[Any] = ["x", "1", math.nan, -1, True, np.True_, []]
    waits = [outcome(lambda: work.wait(wrong)) for wrong in wrongs]
    total = work.wait(timeout=20)
    for kind, text in waits:
        assert kind == "ValueError" and "timeout must be seconds" in text
    assert (total == comm.size).all()
    wrongs = [True, np.True_, "0", 0.0, None]
    for wrong in wrongs:
        for call in (
            lambda: ring.broadcast(x.copy(), root=wrong),
            lambda: ring.reduce(x, root=wrong),
        ):
            raised_everywhere(comm, ring, call, "ValueError", "root must be 0 to")
        kind, text = outcome(lambda: ring.send(x, 0, tag=wrong))
        assert kind == "ValueError", text
        for name in ("members", "message_bytes"):
            told = comm.allgather(outcome(lambda: Ring(comm, **{name: wrong})))
            assert set(told) == {told[0]} and f"{name} must be 1 to" in told[0][1]
