"""The pretended device's memory: noise until it is written, and safe in the order of its stream alone."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

from devices import deferred
from devices.deferred import is_noise, reach
from devices.trials import (
    device,
    every_way,
    free_stream,
    number,
    outcomes,
    settled,
    wait_for_it,
)


@pytest.fixture
def cupy():
    """A device that does nothing before it must."""
    with device() as cupy:
        yield cupy


# ---- memory ---------------------------------------------------------------------------------------


def test_freed_memory_is_handed_out_again_on_its_stream_only(cupy):
    x = cupy.zeros(100)
    where = x.data.ptr
    part = x[3:]
    del x
    assert cupy.empty(100).data.ptr != where  # a view holds it
    del part
    with free_stream(cupy):
        assert cupy.empty(100).data.ptr != where
    y = cupy.empty(90, "f8")  # as many units of 512 bytes
    assert y.data.ptr == where
    pool = cupy.get_default_memory_pool()
    assert pool.used_bytes() == 1024 and pool.free_bytes() == 2 * 1024
    del y
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


def used_elsewhere(wait):
    """A result allocated on the user's stream, and written on another; what is in it at the end."""

    def program(cupy):
        other = free_stream(cupy)
        scratch = settled(cupy, 1)
        user = scratch + scratch
        del scratch  # the kernel that reads it may be queued still
        result = cupy.empty(2, "f4")
        if wait:
            wait_for_it(cupy, cupy.cuda.get_current_stream(), other)
        with other:
            result.fill(3)
        return number(cupy, result), number(cupy, user)

    some = every_way(program, spontaneous=False)
    return {x for x, _ in some} - {3.0}, {y for _, y in some}


def test_memory_is_safe_in_the_order_of_its_stream_and_in_no_other():
    wrong_result, read = used_elsewhere(wait=False)
    assert wrong_result and read == {2.0, 6.0}  # noise; the freed block overwritten
    assert used_elsewhere(wait=True) == (set(), {2.0})


def test_queued_work_outlives_its_arrays(cupy):
    x = cupy.full(1000, 3.0)
    y = x * 2
    del x
    cupy.get_default_memory_pool().free_all_blocks()
    gc.collect()
    assert y.get().tolist() == [6.0] * 1000


def test_noise_is_not_always_the_same(cupy):
    some = [cupy.empty(1, "u1") for _ in range(5)]
    assert len({bytes(reach(x)) for x in some}) == 5
    assert not is_noise(np.arange(2)) and not is_noise(np.zeros(2))


def test_kinds_of_memory(cupy):
    driver = deferred.Driver()

    def facts(ptr):
        out = ctypes.c_int(-1)
        answers = [cupy.cuda.runtime.pointerGetAttributes(ptr).type]
        for attribute in (driver.IS_MANAGED, driver.IS_LEGACY_CUDA_IPC_CAPABLE):
            known = driver.cuPointerGetAttribute(
                ctypes.byref(out), attribute, ctypes.c_void_p(ptr)
            )
            answers.append(out.value if known == 0 else None)
        return answers

    with cupy.cuda.Device(1):
        x = cupy.empty(3)
        assert cupy.cuda.runtime.pointerGetAttributes(x.data.ptr + 5).device == 1
    assert facts(x[1:].data.ptr) == [2, 0, 1]
    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        managed = cupy.empty(3)
    assert facts(managed.data.ptr) == [3, 1, 0]
    for allocator in (cupy.cuda.malloc_async, cupy.cuda.MemoryAsyncPool().malloc):
        with cupy.cuda.using_allocator(allocator):
            pooled = cupy.empty(3)
        assert facts(pooled.data.ptr) == [2, 0, 0]
    assert facts(cupy.cuda.alloc_pinned_memory(3).ptr) == [1, 0, 0]
    assert facts(np.zeros(3).ctypes.data) == [0, None, None]
    cupy.cuda.set_allocator(cupy.cuda.malloc_managed)
    assert facts(cupy.empty(3).data.ptr) == [3, 1, 0]
    cupy.cuda.set_allocator()
    assert facts(cupy.empty(3).data.ptr) == [2, 0, 1]


def test_arrays_of_other_libraries(cupy):
    class Foreign:
        def __init__(self, x, stream):
            self.interface = {**x.__cuda_array_interface__, "stream": stream}

        __cuda_array_interface__ = property(lambda self: self.interface)

    stream = free_stream(cupy)
    with stream:
        x = cupy.full((2, 3), 5.0)
    seen = cupy.asarray(Foreign(x.T, stream.ptr))
    assert seen.data.ptr == x.data.ptr and seen.strides == x.T.strides
    assert reach(seen).tolist() == [[5.0, 5.0]] * 3  # it waited for the stream
    seen[...] = 6
    assert reach(cupy.asarray(Foreign(x, None))).tolist() == [[5.0] * 3] * 2


# ---- pinned memory --------------------------------------------------------------------------------


def pinned(cupy, values):
    values = np.asarray(values, "f4")
    memory = cupy.cuda.alloc_pinned_memory(values.nbytes)
    view = np.frombuffer(memory, values.dtype, values.size)
    view[...] = values
    return memory, view


def test_a_copy_to_pinned_memory_is_noise_until_it_is_done(cupy):
    x = settled(cupy, 1)
    memory, view = pinned(cupy, [8, 8])
    x.data.copy_to_host_async(memory.ptr, 8)
    assert is_noise(view)
    cupy.cuda.get_current_stream().synchronize()
    assert view.tolist() == [1, 1]


@pytest.mark.parametrize("wait, seen", [(True, {1}), (False, {1, 2})])
def test_pinned_memory_used_again_too_early_is_seen(wait, seen):
    def program(cupy):
        x, stream = settled(cupy, 0), free_stream(cupy)
        memory, view = pinned(cupy, [1, 1])
        x.data.copy_from_host_async(memory.ptr, 8, stream)
        event = stream.record()
        if wait:
            event.synchronize()
        else:
            event.done
        view[...] = 2
        return number(cupy, x)

    assert outcomes(program) == seen


def test_freed_pinned_memory_is_handed_out_again_at_once(cupy):
    memory, view = pinned(cupy, [1, 1])
    where = memory.ptr
    del memory
    other = cupy.cuda.alloc_pinned_memory(8)
    assert other.ptr != where  # a view holds it
    del view
    again = cupy.cuda.alloc_pinned_memory(8)
    assert again.ptr == where and is_noise(np.frombuffer(again, "u1"))
    assert again.size() >= 8 and len(memoryview(again)) == again.size()


def test_copies_stay_inside_and_on_pinned_memory(cupy):
    x = settled(cupy, 1)
    memory, view = pinned(cupy, [1, 1])
    for wrong in (
        lambda: x.data.copy_to_host_async(np.zeros(2).ctypes.data, 8),
        lambda: x.data.copy_to_host_async(memory.ptr, 12),
        lambda: (x.data + 4).copy_from_host_async(memory.ptr, 8),
        lambda: x.data.copy_from_host_async(memory.ptr + memory.size(), 8),
    ):
        with pytest.raises(ValueError):
            wrong()
    y = settled(cupy, 5)
    (y.data + 4).copy_from_device_async(x.data, 4)
    y.data.memset_async(0, 4)
    assert y.get().tolist() == [0, 1]
