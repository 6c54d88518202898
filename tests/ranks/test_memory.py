"""Memory: scratch is a segment, is used again, and nothing grows with the number of calls."""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpiring import Ring, average_gradients

LINE = 64  # scratch comes in whole cache lines
MARGIN = 4 << 20  # bytes that an MPI and the allocator may move by


def test_the_scratch_of_a_ring_is_one_segment(comm, ring):
    scratch = ring._session.members[0].scratch
    x = np.ones(100_003, "f4")
    longest = -(-x.nbytes // 4 // comm.size) * 4
    for _ in range(3):
        ring.allreduce(x, algorithm="ring")
        ring.allreduce(x, out=x, algorithm="ring")
        ring.allreduce(x[:50], out=x[:50], algorithm="ring")
        assert scratch.nbytes <= longest + LINE
    assert comm.size == 1 or scratch.nbytes >= longest - 4


def test_the_scratch_of_every_path_is_bounded(comm):
    """Direct wants a landing for each other rank; 16-bit partials are 32 bits wide."""
    count = 10_000
    segment = -(-count // comm.size)
    for dtype, algorithm, segments, itemsize in [
        ("f4", "direct", comm.size - 1, 4),
        ("f2", "direct", comm.size, 4),
        ("f2", "ring", 3, 4),
        ("f8", "ring", 1, 8),
    ]:
        with Ring(comm) as ring:
            ring.allreduce(np.ones(count, dtype), algorithm=algorithm)
            most = segments * (segment * itemsize + LINE)
            assert ring._session.members[0].scratch.nbytes <= most, (dtype, algorithm)
        with Ring(comm) as ring:
            ring.allgather(np.ones(count, dtype), algorithm=algorithm)
            assert ring._session.members[0].scratch.nbytes <= LINE


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def give_back() -> None:
    """Give freed memory back to the system: what an earlier test left would hide a leak that fills it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def grown(ring, calls, call) -> tuple[int, int]:
    """Python objects, and bytes of all kinds, that ``calls`` more calls leave behind."""

    def after(calls):
        for _ in range(calls):
            call()
        ring.barrier()  # completes what was started
        gc.collect()
        give_back()
        return sys.getallocatedblocks(), resident()

    after(50)
    blocks, nbytes = after(10)
    blocks_after, nbytes_after = after(calls)
    return blocks_after - blocks, nbytes_after - nbytes


@pytest.mark.ranks(1, 2)
def test_nothing_grows_with_the_number_of_calls(comm, ring):
    x = np.ones(1 << 13)  # 64 KiB: 150 of them are more than the margin

    def wrong():
        with pytest.raises(ValueError):
            ring.allreduce(x, "mean")

    calls = {
        "in place": (2000, lambda: ring.allreduce(x, out=x, op="max")),
        "out of place": (300, lambda: ring.allreduce(x)),
        "others": (150, lambda: ring.allgather(ring.reduce_scatter(x))),
        "work": (150, lambda: ring.allreduce(x, async_op=True)),
        "gradients": (150, lambda: average_gradients([x, x[:9]], ring)),
        "errors": (150, wrong),
        "rings": (150, lambda: Ring(comm).close()),
    }
    for what, (count, call) in calls.items():
        blocks, nbytes = grown(ring, count, call)
        assert blocks < count / 2, what  # one object for each call would be more
        assert nbytes < MARGIN, what


def test_calls_that_are_forgotten_leave_no_messages_with_mpi(comm, ring):
    """Of other lengths again and again: more than a ring remembers, of what rides and of what goes through stages."""
    held = []
    for _ in range(3):
        for count in range(1, 301):
            ring.allreduce(np.ones(count, "u1"))
            ring.allreduce(np.ones(3000 + count, "u1"))
        held.append(len(ring._session.operations._lease.persistent))
    assert held[0] == held[2] <= 100


def test_grown_sees_a_leak(comm, ring):
    leak: list[object] = []
    blocks, nbytes = grown(ring, 150, lambda: leak.append(np.ones(1 << 13)))
    assert blocks >= 150 and nbytes > MARGIN
    blocks, nbytes = grown(ring, 150, lambda: np.ones(1 << 13))
    assert blocks < 75 and nbytes < MARGIN


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("wrong", [{"op": "mean"}, {"timeout": -1}, {"out": 3}, {}])
def test_an_error_holds_neither_arrays_nor_ring(comm, check, wrong):
    """No cycle through the traceback: memory comes back when the exception is gone, without gc."""
    ring = Ring(comm, check=check)
    x = np.ones(1000 + (comm.rank if check and not wrong else 0))
    gone: list[Any] = [weakref.ref(x), weakref.ref(ring)]
    gc.disable()
    try:
        ring.allreduce(x, **wrong)
    except (TypeError, ValueError):
        pass
    else:
        assert not wrong and (comm.size == 1 or not check)
    finally:
        gc.enable()
    del x, ring
    assert [ref() for ref in gone] == [None, None]
