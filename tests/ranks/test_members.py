"""Several members in one process: the lecture's process with nDev devices, and a big ring on a small machine.

A ring with ``members=n`` on K processes must give, bit for bit, what a ring of ``n * K`` processes gives.  That
is promise 4's plain loop over ``n * K`` ranks (``reference.reduced``); ``test_as_many_processes`` compares with
real processes, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpiring import ParameterServer, Ring, RingTimeout, average_gradients
from mpiring.plan import ring_allreduce

from ranks.reference import balanced, fold, outcome, random_array, reduced, same_bits
from ranks.test_cases import raised_everywhere
from ranks.test_promise_6_no_silent_hang import meet, timed_out


def check_ring(comm, ring, dtype: str, count: int, algorithm: str = "auto") -> None:
    """Every collective, against the plain loop over all members."""
    size, members = ring.size, ring.members
    mine = range(ring.rank, ring.rank + members)
    inputs = [random_array(dtype, count, rank) for rank in range(size)]
    xs = [inputs[rank].copy() for rank in mine]
    total = reduced(inputs)
    for result in ring.allreduce(xs, algorithm=algorithm):
        same_bits(result, total)
    for rank, part in zip(mine, ring.reduce_scatter(xs, algorithm=algorithm)):
        same_bits(part, total[balanced(count, size)[rank]])
    # the lengths of an allgather may differ
    ragged = [x[: count - rank % 3] for x, rank in zip(xs, mine)]
    joined = np.concatenate([inputs[r][: count - r % 3] for r in range(size)])
    for result in ring.allgather(ragged, algorithm=algorithm):
        same_bits(result, joined)
    for root in {size // 2, size - 1}:
        order = [(root + 1 + i) % size for i in range(size)]
        wanted = fold([inputs[rank] for rank in order], "sum")
        for rank, result in zip(mine, ring.reduce(xs, root=root, algorithm=algorithm)):
            assert rank != root or same_bits(result, wanted) is None
            assert rank == root or result is None
        rooms = [inputs[r].copy() if r == root else None for r in mine]
        down = "auto" if algorithm == "auto" else {"ring": "pipelined"}.get(algorithm)
        for result in ring.broadcast(rooms, root, algorithm=down or "direct"):
            same_bits(result, inputs[root])
    for x, rank in zip(xs, mine):
        same_bits(x, inputs[rank])
    for result in ring.allreduce(xs, "avg", out=xs, order="rank"):
        same_bits(result, reduced(inputs, "avg", "rank"))
    ring.barrier()


@pytest.mark.parametrize("algorithm", ["auto", "ring", "direct"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_collective(comm, dtype, algorithm):
    members = 4 if comm.size < 5 else 2
    with Ring(comm, members=members) as ring:
        assert (ring.rank, ring.size) == (comm.rank * members, comm.size * members)
        check_ring(comm, ring, dtype, 4 * ring.size + 3, algorithm)


@pytest.mark.ranks(8)
def test_as_many_processes(comm):
    """The bits of 8 processes are those of 2 processes with 4 members each."""
    inputs = [random_array("float32", 1001, rank) for rank in range(8)]
    with Ring(comm) as ring:
        wanted = [
            ring.allreduce(inputs[comm.rank]),
            ring.allreduce(inputs[comm.rank], "avg", order="rank"),
        ]
        part = ring.reduce_scatter(inputs[comm.rank])
        wanted.append(ring.allgather(part))
    two = comm.Split(0 if comm.rank < 2 else 1, comm.rank)
    if comm.rank < 2:
        with Ring(two, members=4) as ring:
            mine = inputs[4 * comm.rank : 4 * comm.rank + 4]
            found = [
                ring.allreduce(mine),
                ring.allreduce(mine, "avg", order="rank"),
                ring.allgather(ring.reduce_scatter(mine)),
            ]
        for per_member, want in zip(found, wanted):
            for result in per_member:
                same_bits(result, want)
    meet(comm)
    two.Free()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_a_ring_of_64_members(comm, algorithm):
    with Ring(comm, members=16) as ring:
        assert ring.size == 64
        check_ring(comm, ring, "float32", 131, algorithm)
        xs = [
            np.full(67, 1 << (rank % 62)) for rank in range(ring.rank, ring.rank + 16)
        ]
        expected = sum(1 << (rank % 62) for rank in range(64))
        for result in ring.run(ring_allreduce(64, 1), xs):
            assert result.tolist() == [expected] * 67


@pytest.mark.ranks(1, 2)
def test_the_most_members(comm):
    with Ring(comm, members=63) as ring:
        xs = [np.array([rank, 1]) for rank in range(ring.rank, ring.rank + 63)]
        size = 63 * comm.size
        for result in ring.allreduce(xs):
            assert result.tolist() == [size * (size - 1) // 2, size]
    kind, text = outcome(lambda: Ring(comm, members=64))
    assert kind == "ValueError" and "members must be 1 to 63, got 64" in text


@pytest.mark.ranks(1, 2, 3)
def test_lists_in_and_out(comm):
    with Ring(comm, members=2) as ring:
        xs = tuple(np.full(3, 8**rank) for rank in (ring.rank, ring.rank + 1))
        outs = [np.zeros((3, 2), int)[:, 1] for _ in xs]
        total = [int("1" * ring.size, base=8)] * 3
        results = ring.allreduce(xs, out=outs)
        assert type(results) is list and results[0] is outs[0]
        assert [result.tolist() for result in results] == [total] * 2
        mixed = ring.allreduce(list(xs), out=[None, outs[1]])
        assert mixed[1] is outs[1] and mixed[0].tolist() == total
        numbers = ring.allreduce([1, 2])
        assert [int(number) for number in numbers] == [3 * comm.size] * 2
        works = [ring.allreduce([x * n for x in xs], async_op=True) for n in (1, 2)]
        gathered = ring.allgather([ring.rank, ring.rank + 1])
        assert [g.tolist() for g in gathered] == [list(range(ring.size))] * 2
        for n, work in zip((1, 2), works):
            assert work.test()
            assert [r.tolist() for r in work.wait()] == [[n * t for t in total]] * 2


@pytest.mark.ranks(1, 2, 3)
def test_what_is_wrong_raises_everywhere(comm):
    last = comm.size - 1
    with Ring(comm, members=2) as ring:
        good = [np.ones(3), np.ones(3)]
        wrong: list[tuple[Any, Any, str, str]] = [
            (np.ones(3), None, "ValueError", "x must be a list of 2 arrays"),
            (good[:1], None, "ValueError", "got 1 of them"),
            ([*good, good[0]], None, "ValueError", "got 3 of them"),
            (None, None, "ValueError", "got NoneType"),
            (good, np.ones(3), "ValueError", "out must be a list of 2 arrays"),
            (good, [None, np.ones(4)], "ValueError", "out has shape (4,)"),
            ([good[0], np.ones(4)], None, "ValueError", "float64[4]"),
            ([good[0], "three"], None, "TypeError", "str"),
        ]
        for xs, outs, kind, words in wrong:
            is_odd = comm.rank == last
            x, out = (xs, outs) if is_odd else (good, None)
            told = comm.allgather(outcome(lambda: ring.allreduce(x, out=out)))
            assert set(told) == {told[0]} and told[0][0] == kind, told
            assert words in told[0][1] and "rank " in told[0][1], told[0]
            assert [r.tolist() for r in ring.allreduce(good)] == [[ring.size] * 3] * 2
        kind, text = outcome(lambda: ring.allreduce(good, algorithm="mpi"))
        assert kind == "ValueError" and "one member a process" in text
        for call in (
            lambda: ring.send(np.ones(3), 0),
            lambda: ParameterServer(ring, {"w": np.ones(3)}, print),
            lambda: average_gradients(good, ring),
        ):
            kind, text = outcome(call)
            assert kind == "RingError" and "one member a process" in text, text
        assert [r.tolist() for r in ring.allreduce(good)] == [[ring.size] * 3] * 2


@pytest.mark.ranks(2, 3)
def test_processes_with_unlike_members(comm, ring):
    members = 1 if comm.rank == comm.size - 1 else 2
    call = lambda: Ring(comm, members=members)  # noqa: E731
    raised_everywhere(comm, ring, call, "ValueError", "members 1", "members 2")


@pytest.mark.ranks(2, 3)
def test_a_timeout_names_the_members(comm):
    ring = Ring(comm, members=3)
    absent, x = comm.size - 1, [np.ones(3)] * 3
    if comm.rank != absent:
        error, _ = timed_out(lambda: ring.allreduce(x, timeout=0.1))
        ranks = (3 * absent, 3 * absent + 1, 3 * absent + 2)
        assert isinstance(error, RingTimeout) and error.silent == ranks
        first, text = 3 * comm.rank, str(error)
        assert text.startswith(f"allreduce: ranks {first} to {first + 2} waited 0.1 s")
        assert f"in no call of this ring: ranks {ranks[0]} to {ranks[2]}" in text
    meet(comm)
    ring.close()
