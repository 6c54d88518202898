"""``ring.empty`` between processes: memory that all ranks of a node reach, and what becomes of it.

That the collectives take it is told by ``algorithm="shared"``, which is an error where they cannot.  More is tried
in one process (tests/wire/test_shared.py), and in whole jobs (tests/jobs/test_shared_memory.py).
"""

from __future__ import annotations

import errno
import gc
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiring import Ring
from mpiring.wire.node import fused, unnamed
from mpiring.wire.opening import closing

from ranks.reference import (
    DTYPES,
    balanced,
    fold,
    ops_of,
    random_array,
    reduced,
    same_bits,
    same_on_all_ranks,
)
from ranks.test_promise_5_errors import all_raise
from ranks.test_promise_6_no_silent_hang import (
    is_over,
    meet,
    text_without_rank_0,
    timed_out,
)


@pytest.fixture(scope="module", autouse=True)
def directory(comm):
    """A place for the files of this job alone; at the end it has to be empty."""
    before, made = unnamed.DIRECTORY, ""
    if comm.rank == 0:
        made = tempfile.mkdtemp(dir=before)
    unnamed.DIRECTORY = comm.bcast(made)
    yield
    comm.Barrier()
    if comm.rank == 0:
        os.rmdir(made)
    unnamed.DIRECTORY = before


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count(unnamed.DIRECTORY)


def filled(ring, value):
    array = ring.empty(value.shape, value.dtype)
    array[...] = value
    return array


# ---- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_collective_gives_the_bits_of_the_written_order(comm, ring, dtype):
    """Past a block of 128 KiB, so that segments are several blocks and a piece."""
    size, rank = comm.size, comm.rank
    count = 70_001 if size < 5 else 5 * size + 1
    inputs = [random_array(dtype, count, r, 11) for r in range(size)]
    results = []
    x, y = ring.empty(count, dtype), ring.empty(count, dtype)
    mine = balanced(count, size)[rank]
    ops = ops_of(dtype) if size < 5 else ops_of(dtype)[-1:]
    for op in ops:
        for order in ("ring", "rank"):
            how = {"op": op, "order": order, "algorithm": "shared"}
            total = reduced(inputs, op, order)
            x[...] = inputs[rank]
            results.append((ring.allreduce(x, out=y, **how).copy(), total))
            results.append((ring.reduce_scatter(x, **how), total[mine]))
            results.append((x.copy(), inputs[rank]))
            results.append((ring.allreduce(x, out=x, **how).copy(), total))
            root = size - 1
            chain = inputs if order == "rank" else [*inputs[root + 1 :], *inputs]
            for out in (None, y, x):
                x[...] = inputs[rank]
                found = ring.reduce(x, root=root, out=out, **how)
                if rank == root:
                    results.append((found.copy(), fold(chain[:size], op)))
    x[...] = inputs[rank]
    results.append(
        (
            ring.allgather(x[:40], algorithm="shared"),
            np.concatenate([i[:40] for i in inputs]),
        )
    )
    ring.broadcast(x, root=size // 2, algorithm="shared")
    results.append((x, inputs[size // 2]))
    for number, (found, wanted) in enumerate(results):
        same_bits(found, wanted, number)
    if size > 1 and dtype == "float32":
        same_on_all_ranks(comm, [r for r, _ in results[:1]])


@settings(max_examples=25)
@given(data=st.data())
def test_any_arrays_of_any_calls(comm, agreed, data):
    """Slices at any place of arrays of several calls, and ordinary ones; another choice on each rank.

    They are too long to ride in the opening exchange.
    """
    size, rank = comm.size, comm.rank
    count = data.draw(st.integers(1050, 1100), "count")
    kinds = ["x", "a", "a, elsewhere", "b", "ordinary", "strided"]
    chosen = [
        (data.draw(st.sampled_from(kinds)), data.draw(st.sampled_from(kinds)))
        for _ in range(size)
    ]
    inputs = [random_array("float32", count, r, 12) for r in range(size)]

    def made(ring, kind):
        return {
            "a": a[:count],
            "a, elsewhere": a[1200 + rank :][:count],
            "b": b[7 : 7 + count],
            "ordinary": np.empty(count, "f4"),
            "strided": a[3000::2][:count],
        }[kind]

    with Ring(comm) as ring:
        a, b = ring.empty(6000), ring.empty(6000)
        kind, kind_of_out = chosen[rank]
        x = made(ring, "a" if kind == "x" else kind)
        x[...] = inputs[rank]
        out = x if kind_of_out in ("x", kind) else made(ring, kind_of_out)
        result = ring.allreduce(x, out=out)
        is_same = result is out
    with agreed():
        assert is_same
        same_bits(np.ascontiguousarray(result), reduced(inputs))


def test_it_is_shared_between_the_processes_and_nobody_else(comm, ring):
    x = ring.empty(3, "int64")
    x[...] = comm.rank
    places = comm.allgather(fused.are_shared([place(x)]))
    ring.barrier()
    assert places == [comm.size > 1] * comm.size
    assert (x == comm.rank).all()


def place(x):
    from mpiring.wire.arrays import NUMPY
    from mpiring.wire.node.shared import place_of

    return place_of(NUMPY, x)


@pytest.mark.ranks(3, 4, 5)
def test_rings_of_other_communicators_take_the_same_arrays(comm, ring):
    """Fewer ranks, in another order: the arrays of one call, by another ring."""
    x = filled(ring, np.array([8.0**comm.rank] * 3))
    some = comm.Split(comm.rank % 2, key=-comm.rank)
    with Ring(some) as other:
        other.allreduce(x, out=x, algorithm="shared")
    some.Free()
    wanted = sum(8.0**r for r in range(comm.size) if r % 2 == comm.rank % 2)
    assert x.tolist() == [wanted] * 3


@pytest.mark.ranks(1, 2, 3)
def test_members(comm):
    with Ring(comm, members=3) as ring:
        xs = ring.empty((2, 5), "float16")
        inputs = [random_array("float16", (2, 5), r) for r in range(ring.size)]
        for member, x in enumerate(xs):
            x[...] = inputs[ring.rank + member]
        results = ring.allreduce(xs, "avg", out=xs, algorithm="shared")
    for x, result in zip(xs, results):
        assert x is result
        same_bits(x, reduced(inputs, "avg"))


def test_asynchronous_calls(comm, ring):
    xs = [filled(ring, np.full(1000, 8**comm.rank * n)) for n in range(1, 6)]
    work = [ring.allreduce(x, out=x, async_op=True) for x in xs]
    for n, w in enumerate(work, 1):
        assert (w.wait() == n * int("1" * comm.size, base=8)).all()


# ---- errors ---------------------------------------------------------------------------------------


@pytest.mark.ranks(2, 3, 4)
def test_errors_are_collective(comm, ring):
    last = comm.size - 1
    is_last = comm.rank == last
    for call, kind, words in [
        (lambda: ring.empty(-1 if is_last else 3), "ValueError", "0 or more"),
        (lambda: ring.empty(4 if is_last else 3), "ValueError", "shape [4]"),
        (lambda: ring.empty(3, "f8" if is_last else "f4"), "ValueError", "float64"),
        (lambda: ring.empty(3, "M8[s]" if is_last else "f4"), "TypeError", "datetime"),
        (lambda: ring.barrier() if is_last else ring.empty(3), "ValueError", "empty"),
        (lambda: ring.empty(1 << 60), "MemoryError", "/dev/shm"),
        (lambda: ring.empty(3, timeout="soon" if is_last else 9), "ValueError", "soon"),
    ]:
        told = all_raise(comm, ring, call)
        assert told[0] == kind and words in told[1], told
    x = filled(ring, np.ones(3))
    y = np.ones(3) if is_last else x
    told = all_raise(comm, ring, lambda: ring.allreduce(y, out=y, algorithm="shared"))
    assert told[0] == "ValueError" and f"rank {last} passed other memory" in told[1]
    told = all_raise(comm, ring, lambda: ring.broadcast(y, algorithm="shared"))
    assert told[0] == "ValueError" and f"rank {last} passed other memory" in told[1]
    assert (ring.allreduce(y, out=y) == comm.size).all()


@pytest.mark.ranks(2, 3, 4)
def test_too_little_memory_on_one_rank(comm, ring, monkeypatch):
    kept = filled(ring, np.full(7, 8**comm.rank))
    reserve = os.posix_fallocate

    def full(descriptor, offset, length):
        if comm.rank == comm.size - 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(descriptor, offset, length)

    gc.collect()  # what an earlier test has left
    before = mappings()
    monkeypatch.setattr(os, "posix_fallocate", full)
    told = all_raise(comm, ring, lambda: ring.empty(1 << 20))
    monkeypatch.setattr(os, "posix_fallocate", reserve)
    gc.collect()
    assert told[0] == "MemoryError"
    assert f"rank {comm.size - 1}: 4.0 MiB of node-shared memory" in told[1]
    assert mappings() == before
    again = ring.empty(1 << 20)
    again[...] = kept[0]
    for x in (kept, again):
        ring.allreduce(x, out=x, algorithm="shared")
        assert (x == int("1" * comm.size, base=8)).all()


@pytest.mark.ranks(2, 3, 4)
def test_an_absent_rank_is_named(comm):
    """In ``empty``, and in a collective on its arrays; no file is left."""
    for name in ("empty", "allreduce"):
        ring = Ring(comm)
        x = filled(ring, np.ones(3))
        if comm.rank:
            call = {
                "empty": lambda: ring.empty(3, timeout=0.1),
                "allreduce": lambda: ring.allreduce(x, out=x, timeout=0.1),
            }[name]
            error, _ = timed_out(call)
            assert error.silent == (0,) and str(error).startswith(f"{name}: rank ")
            is_over(ring)
        meet(comm)
        ring.close()


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("timeout", [0.1, None])
def test_a_rank_that_is_lost_on_the_way_is_named(comm, monkeypatch, timeout):
    """One rank stops between the opening and the closing exchange, as if it had been killed.

    With the ring's timeout the call is one with little around it.
    """
    ring = Ring(comm, timeout=1)
    x = filled(ring, np.ones(3))

    def call():
        ring.allreduce(x, out=x, algorithm="shared", timeout=timeout)

    def stopped(*_):
        meet(comm)
        return
        yield

    if comm.rank == 0:
        monkeypatch.setattr(closing.Closing, "exchange", stopped)
    text = text_without_rank_0(comm, ring, call)
    assert comm.rank == 0 or "closing exchange" in text, text


# ---- life -----------------------------------------------------------------------------------------


@pytest.mark.limit(120)
def test_thousands_come_and_go(comm, ring):
    """Dropped at other times on each rank, some kept: no file, no mapping, no open file remains."""
    ring.empty(10)
    gc.collect()  # the stages of rings that earlier tests have dropped
    before = len(os.listdir("/proc/self/fd")), mappings()
    kept: list[np.ndarray | None] = []
    for turn in range(1000):
        kept.append(ring.empty(10, "int64"))
        if turn % (comm.rank + 2) == 0:
            kept[turn // 2] = None
    assert len(os.listdir("/proc/self/fd")) == before[0]
    alive = [x for x in kept if x is not None]
    assert comm.size == 1 or mappings() == before[1] + len(alive)
    last = alive[-1]
    last[...] = 8**comm.rank
    ring.allreduce(last, out=last)
    assert (last == int("1" * comm.size, base=8)).all()
    kept.clear()
    alive.clear()
    del last
    gc.collect()
    assert (len(os.listdir("/proc/self/fd")), mappings()) == before
    ring.barrier()


def test_arrays_outlive_their_ring(comm):
    with Ring(comm) as ring:
        x = filled(ring, np.full(5, 8**comm.rank))
    del ring
    gc.collect()
    assert (x == 8**comm.rank).all()
    with Ring(comm) as ring:
        ring.allreduce(x, out=x, algorithm="shared" if comm.size > 1 else "auto")
    assert (x == int("1" * comm.size, base=8)).all()


def test_the_space_is_reserved_when_asked_for(comm, ring, monkeypatch):
    """Each rank reserves its own part, in whole pages."""
    reserve, reserved = os.posix_fallocate, []

    def noted(descriptor, offset, length):
        reserved.append((offset, length))
        reserve(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", noted)
    ring.empty(3, "float64")
    ring.empty((5, 1000))
    if comm.size > 1:
        assert reserved == [(comm.rank * n * 4096, n * 4096) for n in (1, 5)]
