"""Memory whose address is of no use to an MPI goes through the host, whatever the transport, and comes out right."""

from __future__ import annotations

import numpy as np
import pytest

from mpiring import Ring
from mpiring.wire.arrays import CupyKind, kind_of

from devices import cases

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is staged through the host:RuntimeWarning"
)

ALLOCATORS = {
    "the pool": lambda cupy: cupy.get_default_memory_pool().malloc,
    "a pool of one's own": lambda cupy: cupy.cuda.MemoryPool().malloc,
    "a stream-ordered pool": lambda cupy: cupy.cuda.MemoryAsyncPool().malloc,
    "malloc_async": lambda cupy: cupy.cuda.malloc_async,
    "managed memory": lambda cupy: cupy.cuda.malloc_managed,
}
PLAIN = ("the pool", "a pool of one's own")


@pytest.fixture(params=ALLOCATORS)
def memory(request):
    return request.param


@pytest.fixture
def allocator(memory, cupy, comm):
    """The allocator; skipped where the device or driver has none such."""
    try:
        found = ALLOCATORS[memory](cupy)
        problem = ""
        with cupy.cuda.using_allocator(found):
            cupy.empty(1)
    except RuntimeError as error:
        problem = f"{memory}: {error}"
    problems = [told for told in comm.allgather(problem) if told]
    if problems:
        pytest.skip(problems[0])
    return found


@pytest.mark.ranks(1, 2)
def test_what_the_driver_says_of_it(cupy, allocator, memory):
    with cupy.cuda.using_allocator(allocator):
        x = cupy.zeros(100)
        inside = x[50:]
    for array in (x, inside):
        kind = kind_of(array)
        assert isinstance(kind, CupyKind)
        assert kind.goes_direct(array) == (memory in PLAIN)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("count", [5, 100_000])
def test_it_comes_out_right(cupy, ring, allocator, count):
    """Input, result and scratch are all of this memory."""
    with cupy.cuda.using_allocator(allocator):
        x = cupy.asarray(np.full(count, 8.0**ring.rank))
        total = ring.allreduce(x)
        joined = ring.allgather(cupy.asarray(np.full(count, ring.rank)))
        sent = ring.broadcast(x, 1)
    cases.check(cupy, total, np.full(count, float(int("1" * ring.size, base=8))))
    cases.check(cupy, joined, np.repeat(np.arange(ring.size), count))
    cases.check(cupy, sent, np.full(count, 8.0))


@pytest.mark.ranks(2, 3)
def test_on_one_rank_only(cupy, ring, allocator):
    """The others send as that one receives: messages are as short on both ends."""
    pool = cupy.get_default_memory_pool().malloc
    with cupy.cuda.using_allocator(allocator if ring.rank == 1 else pool):
        x = cupy.asarray(np.full(300_000, 8.0**ring.rank))
        total = ring.allreduce(x)
        out = cupy.zeros(300_000)
        with ring.group():
            ring.send(total, (ring.rank + 1) % ring.size)
            ring.recv(out, (ring.rank - 1) % ring.size)
    want = np.full(300_000, float(int("1" * ring.size, base=8)))
    cases.check(cupy, total, want)
    cases.check(cupy, out, want)


@pytest.mark.ranks(2, 3)
def test_the_result_alone(cupy, ring, allocator):
    """The allocator has changed since the input was made."""
    x = cupy.asarray(np.full(100_000, 8.0**ring.rank))
    with cupy.cuda.using_allocator(allocator):
        total = ring.allreduce(x)
    cases.check(cupy, total, np.full(100_000, float(int("1" * ring.size, base=8))))


@pytest.mark.parametrize("check", [True, False])
def test_b50_one_rank_has_its_array_in_host_memory(comm, cupy, check):
    """Those in host memory would ride in the opening exchange, or go by the peers' memory; the other one cannot."""
    total = int("1" * comm.size, base=8)
    found = []
    with Ring(comm, check=check, timeout=20) as ring:
        for count in (0, 1, 10, 1000, 5000):
            for odd in (0, comm.size - 1):
                module = np if comm.rank == odd else cupy
                x = module.full(count, 8.0**comm.rank)
                found.append((ring.allreduce(x), count, total))
                found.append((ring.reduce(x, root=odd), count, total))
                part = ring.reduce_scatter(x)
                found.append((ring.allgather(part), count, total))
                found.append((ring.broadcast(x, root=odd), count, 8**odd))
    for result, count, value in found:
        if result is not None:
            result = result if isinstance(result, np.ndarray) else result.get()
            assert result.tolist() == [value] * count
