"""Pinned host memory of the pretended device, and what it says about a pointer."""

from __future__ import annotations

import ctypes

from devices.machine import present

_UNIT = 512

# ---- pinned host memory


class PinnedMemoryPointer:
    """Pinned memory with the buffer protocol; may be longer than asked for, and goes back to its pool."""

    def __init__(self, block, pool):
        self._block, self._pool = block, pool
        self.ptr = block.ptr

    mem = property(lambda self: self)

    def __int__(self):
        return self.ptr

    def size(self):
        return self._block.nbytes

    def __del__(self):
        self._pool.give_back(self._block)


class PinnedMemoryPool:
    """CuPy's pool of pinned memory: a freed piece is handed out again at once, full of noise."""

    def __init__(self):
        self._free = {}  # bytes -> blocks
        self._types = {}  # bytes -> a type with the buffer protocol

    def malloc(self, size):
        nbytes = max(_UNIT, 1 << (size - 1).bit_length()) if size else _UNIT
        free = self._free.setdefault(nbytes, [])
        block = free.pop() if free else present().block(nbytes, "host")
        present().note(block)
        block.raw[...] = present().noise()
        if nbytes not in self._types:
            array = ctypes.c_ubyte * nbytes
            self._types[nbytes] = type(
                PinnedMemoryPointer.__name__, (PinnedMemoryPointer, array), {}
            )
        pointer = self._types[nbytes].from_buffer(block.raw)
        PinnedMemoryPointer.__init__(pointer, block, self)
        return pointer

    def give_back(self, block):
        self._free[block.nbytes].append(block)

    def free_all_blocks(self):
        for free in self._free.values():
            free.clear()

    def n_free_blocks(self):
        return sum(len(free) for free in self._free.values())


def alloc_pinned_memory(size):
    return get_default_pinned_memory_pool().malloc(size)


def get_default_pinned_memory_pool():
    return present().pool("pinned", PinnedMemoryPool)


# ---- what a pointer points to


class PointerAttributes:
    """``cudaPointerGetAttributes``."""

    def __init__(self, device, devicePointer, hostPointer, type):
        self.device = device
        self.devicePointer = devicePointer
        self.hostPointer = hostPointer
        self.type = type


_UNREGISTERED, _HOST, _DEVICE, _MANAGED = 0, 1, 2, 3
_TYPES = {"host": _HOST, "device": _DEVICE, "async": _DEVICE, "managed": _MANAGED}


def pointerGetAttributes(ptr):
    block = present().block_at(int(ptr))
    if block is None:
        return PointerAttributes(-2, 0, int(ptr), _UNREGISTERED)
    return PointerAttributes(
        max(block.device, 0),
        int(ptr),
        int(ptr) if block.kind in ("host", "managed") else 0,
        _TYPES[block.kind],
    )


class Driver:
    """In the place of ``ctypes.CDLL("libcuda.so.1")``: what it says about pointers.

    The numbers are cuda.h's ``CUpointer_attribute``.
    """

    MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, IS_LEGACY_CUDA_IPC_CAPABLE = 2, 8, 9, 10
    RANGE_START_ADDR, RANGE_SIZE, MAPPED = 11, 12, 13

    def cuPointerGetAttribute(self, out, attribute, ptr):
        """0 and the answer in ``out``, or CUDA_ERROR_INVALID_VALUE for other memory than the device's."""
        block = present().block_at(_number(ptr))
        attribute = _number(attribute)
        if block is None:
            return 1
        answers = {
            self.MEMORY_TYPE: 1 if block.kind == "host" else 2,
            self.IS_MANAGED: int(block.kind == "managed"),
            self.DEVICE_ORDINAL: max(block.device, 0),
            self.IS_LEGACY_CUDA_IPC_CAPABLE: int(block.kind == "device"),
            self.RANGE_START_ADDR: block.ptr,
            self.RANGE_SIZE: block.nbytes,
            self.MAPPED: 1,
        }
        if attribute not in answers:
            return 1
        target = out.contents if hasattr(out, "contents") else out._obj
        target.value = answers[attribute]
        return 0


def _number(x):
    return int(getattr(x, "value", x) or 0)
