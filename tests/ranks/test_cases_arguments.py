"""Cases of arguments, and of what a process is when it calls: B43 to B54, each a whole kind of fault on small input."""

from __future__ import annotations

import copy
import math
import pickle
from contextlib import nullcontext
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mpiring import Ring
from mpiring.plan import schedule
from mpiring.wire.transport import communicators

from ranks import denormals
from ranks.denormals import DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, flushing
from ranks.reference import outcome, same_on_all_ranks
from ranks.test_cases import raised_everywhere
from ranks.test_promise_6_no_silent_hang import meet, timed_out
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


# ---- B46: a copy of a ring ----------------------------------------------------------------------------

COPIES = (pickle.dumps, copy.copy, copy.deepcopy)


def test_b46_no_copies(comm, ring):
    x = np.full(3, 8.0**comm.rank)
    work = ring.allreduce(x, async_op=True)
    refused = [outcome(lambda: make(what)) for make in COPIES for what in (ring, work)]
    refused += [outcome(lambda: copy.deepcopy({"a": [ring]}))]
    results = work.wait(), ring.allreduce(x)
    for kind, text in refused:
        assert kind == "TypeError" and "cannot be copied or pickled" in text
    assert "mpiring.Ring(comm)" in refused[0][1] and "wait()" in refused[1][1]
    for result in results:
        assert result.tolist() == [int("1" * comm.size, base=8)] * 3


class Named(MPI.Intracomm):
    """A communicator of a user's own class, which cannot be made without a name."""

    def __new__(cls, comm, name):
        assert name
        return super().__new__(cls, comm)

    def Idup(self, info=None):
        raise AssertionError("the user's own, for the user's own purposes")


@pytest.mark.smoke
def test_b46_communicators_of_every_class(comm):
    size = comm.size
    around = [size - 1, 1 % size] if size > 1 else [0]
    neighbours = [(comm.rank - 1) % size, (comm.rank + 1) % size]
    index = [len(around) * (rank + 1) for rank in range(size)]
    edges = [(rank + step) % size for rank in range(size) for step in around]
    own = {
        "a subclass": lambda: Named(comm.Dup(), "boom-46"),
        "a grid": lambda: comm.Create_cart([size], periods=[True]),
        "a graph": lambda: comm.Create_graph(index, edges),
        "a distributed graph": lambda: comm.Create_dist_graph_adjacent(
            neighbours, neighbours
        ),
    }
    totals: list[int] = []
    kinds: list[type] = []
    for make in own.values():
        parent = make()
        for _ in range(2):
            with Ring(parent) as ring:
                totals.append(ring.allreduce(8**parent.rank))
            pool = parent.Get_attr(communicators._keyval())
            kinds += map(type, pool.live.values())
        parent.Free()
    assert totals == [int("1" * size, base=8)] * 8
    assert Named not in kinds


# ---- B47: MPI's hints ---------------------------------------------------------------------------------

HINTS = (
    "mpi_assert_no_any_source",
    "mpi_assert_no_any_tag",
    "mpi_assert_exact_length",
    "mpi_assert_allow_overtaking",
)


def promised(comm):
    """What is promised of a communicator."""
    info = comm.Get_info()
    found = [name for name in HINTS if info.get(name) == "true"]
    info.Free()
    return found


@pytest.mark.smoke
@pytest.mark.ranks(2, 3)
def test_b47_a_ring_takes_over_no_hints(comm):
    """Its own messages are received from any source, with room to spare, and in their order."""
    parent = comm.Dup()
    info = MPI.Info.Create(dict.fromkeys(HINTS, "true"))
    parent.Set_info(info)
    info.Free()
    given = promised(parent)
    rings = [Ring(parent) for _ in range(3)]
    pool = parent.Get_attr(communicators._keyval())
    found = [promised(each) for each in (pool.control, *pool.live.values())]
    totals = [
        ring.allreduce(np.full(n, 8**comm.rank)) for ring in rings for n in (1, 5000)
    ]
    error, _ = (
        timed_out(lambda: rings[0].barrier(timeout=0.2)) if comm.rank else (None, 0)
    )
    meet(comm)
    for ring in rings:
        ring.close()
    kept = promised(parent)
    parent.Free()
    assert found == [[]] * 4
    assert given and kept == given  # the parent is the user's
    assert all((total == int("1" * comm.size, base=8)).all() for total in totals)
    assert error is None or error.silent == (0,)
