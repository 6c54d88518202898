"""The deferred device: a CuPy whose device is host memory, and which does its work late, early or in between.

Most machines that build and test mpiring have no GPU.  What goes wrong with one is order: a message sent before the
kernel that writes it has run, scratch used again under a running copy, a stream that did not wait.  Here each of these
gives a wrong number.

* **An MPI takes its arrays for device memory**: they say where they are by ``__cuda_array_interface__`` alone, so
  mpi4py goes the way that it goes for a GPU.  The pointer is one into host memory, which every MPI can read.
* **Work is queued**, on streams with CUDA's rules, and done when ``choose`` says within these rules
  (:mod:`devices.scheduler`).
* **Memory is noise until it is written**, and safe only in the order of the stream that allocated it
  (:mod:`devices.memory`).
* **The host cannot touch it** (:mod:`devices.arrays`).
* **Kernels are the real ones**: CUDA C, compiled for the host (:mod:`devices.kernels`).

``install(monkeypatch)`` makes it ``sys.modules["cupy"]`` for one test.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

from devices import (
    arrays,
    compiled,
    functions,
    kernels,
    machine,
    memory,
    pointers,
    streams,
)
from devices.machine import NOISES, Context, Machine, present
from devices.pointers import Driver
from devices.scheduler import eager, lazy, seeded

__all__ = [
    "Driver",
    "eager",
    "install",
    "is_noise",
    "lazy",
    "machine_of_this_test",
    "on_a_stream_of_its_own",
    "reach",
    "seeded",
]

_FUNCTIONS = """empty full zeros ones empty_like zeros_like arange array asarray ascontiguousarray asnumpy
    broadcast_to may_share_memory shares_memory add subtract multiply divide minimum maximum equal
    not_equal""".split()
_DTYPES = """bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128
    dtype""".split()
_STREAMS = "Stream ExternalStream Event Device get_current_stream".split()
_MEMORY = """Memory ManagedMemory UnownedMemory MemoryPointer MemoryPool MemoryAsyncPool malloc_managed
    malloc_async alloc get_allocator set_allocator using_allocator""".split()
_POINTERS = "PinnedMemoryPointer PinnedMemoryPool alloc_pinned_memory".split()


def install(monkeypatch, choose=None, spontaneous=True, devices=2):
    """Be ``cupy`` for one test, with nothing queued and all memory new.

    Args:
        choose: answers what CUDA leaves open: ``lazy``, ``eager``, ``seeded(seed)`` or a test's own.  None:
            ``seeded(0)``.
        spontaneous: whether work may also be done while the host does not ask.
        devices: how many.

    Without a compiler for the kernels the test is skipped.
    """
    missing = compiled.no_compiler()
    if missing:
        pytest.skip(missing)
    monkeypatch.setattr(machine, "_present", [Machine(choose, spontaneous, devices)])
    module: Any = types.ModuleType("cupy")
    module.__version__ = "14.0.0"
    module.ndarray = arrays.ndarray
    _fill(module, functions, _FUNCTIONS)
    _fill(module, np, _DTYPES)
    module.ElementwiseKernel = kernels.ElementwiseKernel
    module.get_default_memory_pool = memory.get_default_memory_pool
    module.get_default_pinned_memory_pool = pointers.get_default_pinned_memory_pool
    module.cuda = types.ModuleType("cupy.cuda")
    _fill(module.cuda, streams, _STREAMS)
    _fill(module.cuda, memory, _MEMORY)
    _fill(module.cuda, pointers, _POINTERS)
    module.cuda.is_available = lambda: True
    module.cuda.runtime = _runtime()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setitem(sys.modules, "cupy.cuda", module.cuda)
    return module


def _fill(module, source, names):
    for name in names:
        setattr(module, name, getattr(source, name))


def _runtime():
    runtime: Any = types.ModuleType("cupy.cuda.runtime")
    runtime.CUDARuntimeError = machine.CUDARuntimeError
    runtime.getDeviceCount = lambda: len(present().cards)
    runtime.getDevice = streams.current_device
    runtime.setDevice = lambda device: streams.Device(device).use()
    runtime.eventQuery = streams.query_event
    runtime.deviceSynchronize = lambda: streams.Device().synchronize()
    runtime.pointerGetAttributes = pointers.pointerGetAttributes
    runtime.PointerAttributes = pointers.PointerAttributes
    runtime.memoryTypeUnregistered, runtime.memoryTypeHost = 0, 1
    runtime.memoryTypeDevice, runtime.memoryTypeManaged = 2, 3
    runtime.is_hip = False
    return runtime


def machine_of_this_test() -> Machine:
    """What is behind it: ``.queue.counts``, ``.queue.history``."""
    return present()


def reach(buffer):
    """The memory behind a buffer as an MPI sees it: with what has been done so far, and no more."""
    if not isinstance(buffer, arrays.ndarray):
        return buffer
    present().queue.moment()
    return buffer._memory


def is_noise(buffer):
    """Whether nobody has written this memory."""
    data = bytes(
        np.ascontiguousarray(getattr(buffer, "_memory", buffer)).view(np.uint8)
    )
    return len(set(data)) <= 1 and all(byte in NOISES for byte in data)


def on_a_stream_of_its_own(program, non_blocking=False, device=0):
    """A rank's program, with a current device and current streams that are this rank's alone.

    Its stream is a new one: what another rank waits for does nothing for it.  Where no device is pretended the program
    runs as it is.
    """
    if not machine.is_present():
        return (yield from program)
    own = Context()
    with present().entered(own):
        streams.Device(device).use()
        streams.Stream(non_blocking=non_blocking).use()
    while True:
        with present().entered(own):
            try:
                request = next(program)
            except StopIteration as stop:
                return stop.value
        yield request
