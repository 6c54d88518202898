"""What outlives a call on a device: pinned chunks, scratch, the marks that are polled; what a failed one says."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from mpiring.wire.arrays import cuda_driver, kind_of
from mpiring.wire.arrays.scratch import Scratch
from mpiring.wire.transport import device
from mpiring.wire.transport.protocol import AnyOf

from devices import local
from devices.deferred import lazy, machine_of_this_test, reach

pytestmark = pytest.mark.untraced  # tests/ranks/test_device.py is traced


@pytest.fixture
def cupy(monkeypatch):
    return local.install(monkeypatch, choose=lazy, spontaneous=False)


def bound(array) -> Any:
    return kind_of(array).bound(array)


def test_a_kernel_that_died_is_an_error_and_no_endless_wait(cupy):
    """CuPy's ``Event.done`` is False for ever then."""
    mark = bound(cupy.asarray(np.ones(3))).mark()
    machine_of_this_test().failure = 700  # cudaErrorIllegalAddress
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="700"):
        assert not mark.done
    machine_of_this_test().failure = 0
    machine_of_this_test().queue.finish([mark.event._node])
    assert mark.done


def test_a_chunk_outlives_its_ring_while_the_device_reads_it(cupy):
    """Pinned memory goes back to its pool at once, and the next who takes it writes to it."""
    piece = cupy.asarray(np.zeros(64, "u1"))
    kind = bound(piece)
    chunks = device.Chunks(64)
    chunks.reserve(kind, 1)
    chunk: Any = chunks.take()
    chunk[...] = 7
    kind.store(chunk, piece)
    chunks.give(chunk, kind.mark())
    del chunks, chunk
    gc.collect()
    taken = np.frombuffer(cupy.cuda.alloc_pinned_memory(64), np.uint8, 64)
    taken[...] = 9
    cupy.cuda.Device().synchronize()
    assert set(reach(piece)) == {7}
    device.Chunks(64).reserve(kind, 1)  # the copy is done: nobody holds it
    assert device._orphaned == []


def test_scratch_that_cannot_go_direct_is_not_used_by_a_later_call(cupy):
    """The first call had another allocator around it."""
    scratch = Scratch()
    x = cupy.asarray(np.ones(3))
    with cupy.cuda.using_allocator(cupy.cuda.malloc_async):
        (block,) = scratch.take(bound(x), [100])
        assert not cuda_driver.is_plain(block.data.ptr)
    (block,) = scratch.take(bound(x), [100])
    assert cuda_driver.is_plain(block.data.ptr)


def test_one_stream_of_ours_whichever_thread_comes_first(cupy, monkeypatch):
    """Another thread makes one while this one does."""
    x = cupy.asarray(np.ones(3))
    make, kinds = cupy.cuda.Stream, []

    def slow(*args, **kwargs):
        monkeypatch.setattr(cupy.cuda, "Stream", make)
        kinds.append(bound(x))
        return make(*args, **kwargs)

    monkeypatch.setattr(cupy.cuda, "Stream", slow)
    kinds.append(bound(x))
    assert kinds[0]._ours is kinds[1]._ours


def test_waiting_for_the_device_beside_other_waits(cupy):
    """As a rank does that holds several."""
    requests = [device._Work(bound(cupy.asarray(np.ones(3)))) for _ in "ab"]
    assert str(AnyOf(requests)) == "finish the device's work"
