"""Arrays of ``ring.empty`` on several hosts: pretended ones, as all ranks are on this machine.

The members are told which ranks share memory with them, so that each pretended host has a region of its own.  That
the calls go this way is told by ``algorithm="shared"``.  Real hosts: tests/network/test_shared.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

from mpiring import Ring
from mpiring.wire.arrays import NUMPY
from mpiring.wire.execute import hierarchy
from mpiring.wire.node import fused
from mpiring.wire.node.shared import place_of

from ranks.reference import (
    DTYPES,
    balanced,
    ops_of,
    random_array,
    reduced,
    same_bits,
    same_on_all_ranks,
)
from ranks.test_promise_5_errors import all_raise
from ranks.test_promise_6_no_silent_hang import meet, text_without_rank_0
from ranks.test_shared import filled

SIZE = MPI.COMM_WORLD.size
ALL: dict[int, list[tuple[int, ...]]] = {
    3: [(2, 1), (1, 2)],
    4: [(2, 2), (1, 2, 1)],
    5: [(3, 2), (1, 4), (2, 1, 2)],
    8: [(4, 4), (3, 1, 4), (2, 2, 2, 2)],
}
LAYOUTS = ALL.get(SIZE, [])
pytestmark = pytest.mark.ranks(3, 4, 5, 8)


def on_hosts(ring, hosts):
    """Tell a ring's members, with one in each process, on which host their ranks are."""
    at, ranks = 0, []
    for count in hosts:
        ranks += [tuple(range(at, at + count))] * count
        at += count
    (member,) = ring._session.members
    member.node = lambda: ranks[member.transport.rank]


def in_chunks(ring, chunk_bytes):
    """From now on a ring's segments move in chunks of so many bytes."""
    (member,) = ring._session.members
    member.tuning = replace(member.tuning, chunk_bytes=chunk_bytes)


@pytest.fixture(params=LAYOUTS, ids=str)
def ring(comm, request):
    with Ring(comm, timeout=30) as ring:
        on_hosts(ring, request.param)
        yield ring


@pytest.mark.parametrize("dtype", DTYPES)
def test_promise_4_same_bits(comm, ring, dtype):
    """In whole segments and in chunks of some elements, in place and not, in both orders."""
    size, rank = comm.size, comm.rank
    count = 30 * size + 7
    inputs = [random_array(dtype, count, r, 21) for r in range(size)]
    x, y = ring.empty(count, dtype), ring.empty(count, dtype)
    mine = balanced(count, size)[rank]
    found = []
    for op in ops_of(dtype):
        for order in ("ring", "rank"):
            how = {"op": op, "order": order, "algorithm": "shared"}
            total = reduced(inputs, op, order)
            for chunk_bytes in (48, 1 << 20):
                in_chunks(ring, chunk_bytes)
                x[...] = inputs[rank]
                found.append((ring.allreduce(x, out=y, **how).copy(), total))
                found.append((ring.reduce_scatter(x, **how), total[mine]))
                found.append((x.copy(), inputs[rank]))
                found.append((ring.allreduce(x, out=x, **how).copy(), total))
    for number, (result, wanted) in enumerate(found):
        same_bits(result, wanted, number)
    same_on_all_ranks(comm, [result for result, _ in found[::4]])


def test_the_hosts_are_known_by_their_regions(comm, ring):
    x = ring.empty(3)
    places = comm.allgather(place_of(NUMPY, x))
    hosts = hierarchy.hosts_of(places)
    assert hosts in LAYOUTS and not fused.are_shared(places)


def test_many_calls_behind_each_other(comm, ring):
    """A rank writes its arrays as soon as it may, and they are short enough for ranks to run ahead."""
    size, rank = comm.size, comm.rank
    x, y = ring.empty(2000, "int64"), ring.empty(2000, "int64")
    sums = []
    for turn in range(200):
        x[...] = 8**rank * (turn + 1)
        out = x if turn % 3 else y
        result = ring.allreduce(x, out=out, algorithm="shared")
        sums.append((result.min(), result.max()))
        x[...] = y[...] = -turn
    total = int("1" * size, base=8)
    assert sums == [(total * (turn + 1),) * 2 for turn in range(200)]


def test_asynchronous_calls(comm, ring):
    xs = [filled(ring, np.full(5000, 8**comm.rank * n)) for n in range(1, 6)]
    work = [ring.allreduce(x, out=x, async_op=True) for x in xs]
    for n, w in enumerate(work, 1):
        assert (w.wait() == n * int("1" * comm.size, base=8)).all()


def test_long_arrays(comm, ring):
    """In chunks as between hosts, and longer than memory that is sure to be there."""
    in_chunks(ring, 32 << 10)
    inputs = [random_array("float32", 1_000_003, r, 3) for r in range(comm.size)]
    x = filled(ring, inputs[comm.rank])
    ring.allreduce(x, out=x, algorithm="shared")
    same_bits(x.copy(), reduced(inputs))


def test_errors_are_collective(comm, ring):
    is_last = comm.rank == comm.size - 1
    x = filled(ring, np.ones(5000))
    y = np.ones(5000) if is_last else x
    told = all_raise(comm, ring, lambda: ring.allreduce(y, out=y, algorithm="shared"))
    assert told[0] == "ValueError"
    assert f"rank {comm.size - 1} passed other memory" in told[1]
    told = all_raise(comm, ring, lambda: ring.allreduce(x[is_last:], out=x[is_last:]))
    assert told[0] == "ValueError" and "float64[4999]" in told[1]
    assert (ring.allreduce(y, out=y) == comm.size).all()


def test_a_rank_that_is_lost_on_the_way_is_named(comm, monkeypatch):
    """Rank 0 stops after the opening exchange, as if it had been killed."""
    ring = Ring(comm)
    on_hosts(ring, LAYOUTS[0])
    x = filled(ring, np.ones(5000))

    def call():
        ring.allreduce(x, out=x, algorithm="shared", timeout=0.2)

    def stopped(*_):
        meet(comm)
        return
        yield

    if comm.rank == 0:
        monkeypatch.setattr(hierarchy, "combine", stopped)
    text = text_without_rank_0(comm, ring, call)
    where = "hierarchical allreduce", "closing exchange"
    assert comm.rank == 0 or any(word in text for word in where), text
