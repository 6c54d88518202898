"""Memory of the pretended device, with CuPy's face: allocators, pointers, pinned memory, what a pointer points to.

The rules that a program can break:

* New memory holds noise, and the allocation queues an operation that writes noise, on the stream that is current then:
  memory is safe in the order of the stream that allocated it and in no other.
* A freed block goes back to the pool of the stream that allocated it, and the next allocation of its size on that
  stream gets it, whatever is still queued for it.
* A copy to the host writes noise there at once and the bytes when it is done; a copy from the host reads when it is done.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager

from devices.machine import CUDARuntimeError, present
from devices.streams import Device, current_device, current_line, line_of

_UNIT = 512  # CuPy's pool rounds up to it


class _Memory:
    """A block in use.  Queued operations hold the block's bytes, never this."""

    def __init__(self, block, size, device_id, raw=None):
        self._block = block
        self._raw = raw if raw is not None or block is None else block.raw
        self.ptr = 0 if self._raw is None else self._raw.ctypes.data
        self.size = size
        self.device_id = device_id

    @property
    def device(self):
        return Device(self.device_id)


class Memory(_Memory):
    """Memory of no pool."""


class ManagedMemory(_Memory):
    """Memory that the host may touch too, as CUDA sees it; here it may not."""


class UnownedMemory(_Memory):
    """Memory that somebody else holds, as long as ``owner`` lives."""

    def __init__(self, ptr, size, owner, device_id=-1):
        block = present().block_at(ptr)
        if block is None or block.kind == "host":
            raise CUDARuntimeError(
                f"cudaErrorInvalidValue: {ptr:#x} is no device memory"
            )
        start = ptr - block.ptr
        super().__init__(block, size, block.device, block.raw[start : start + size])
        self._owner = owner


class PooledMemory(_Memory):
    """Memory that goes back to where it is from."""

    def __init__(self, block, size, pool, arena):
        super().__init__(block, size, block.device)
        self._pool, self._arena = pool, arena
        pool._used += block.nbytes

    def __del__(self):
        self._arena.append(self._block)
        self._pool._used -= self._block.nbytes


class MemoryPool:
    """CuPy's pool: one arena for each stream of each device."""

    kind = "device"

    def __init__(self):
        self._arenas = {}  # (device, stream, bytes) -> free blocks
        self._used = 0

    def malloc(self, size):
        """Memory for the current stream: a block that was just freed, if there is one."""
        if not size:
            return MemoryPointer(Memory(None, 0, current_device()), 0)
        machine, line = present(), current_line()
        nbytes = -(-size // _UNIT) * _UNIT
        device = line.card.number
        arena = self._arenas.setdefault((device, line.ptr, nbytes), [])
        block = arena.pop() if arena else machine.block(nbytes, self.kind, device)
        raw, noise = block.raw, machine.noise()

        def write_noise():
            raw[...] = noise

        line.add(write_noise, "noise")
        return MemoryPointer(PooledMemory(block, size, self, arena), 0)

    def free_all_blocks(self, stream=None):
        for arena in self._arenas.values():
            arena.clear()

    def used_bytes(self):
        return self._used

    def free_bytes(self):
        return sum(b.nbytes for arena in self._arenas.values() for b in arena)

    def total_bytes(self):
        return self.used_bytes() + self.free_bytes()


class MemoryAsyncPool(MemoryPool):
    """CUDA's own stream-ordered pool: its memory cannot be shared between processes in the old way."""

    kind = "async"

    def __init__(self, pool_handles="current"):
        super().__init__()


def malloc_managed(size):
    machine, device = present(), current_device()
    if not size:
        return MemoryPointer(Memory(None, 0, device), 0)
    return MemoryPointer(
        ManagedMemory(machine.block(size, "managed", device), size, device), 0
    )


def malloc_async(size):
    return _pool("async", MemoryAsyncPool).malloc(size)


def get_default_memory_pool():
    return _pool("default", MemoryPool)


def get_default_pinned_memory_pool():
    return _pool("pinned", PinnedMemoryPool)


def _pool(name, make):
    pools = present().pools
    if name not in pools:
        pools[name] = make()
    return pools[name]


def alloc(size):
    """Memory from the current allocator."""
    return get_allocator()(size)


def get_allocator():
    allocators = present().allocators
    return allocators[-1] if allocators else get_default_memory_pool().malloc


def set_allocator(allocator=None):
    present().allocators[:] = [] if allocator is None else [allocator]


@contextmanager
def using_allocator(allocator=None):
    allocators = present().allocators
    allocators.append(allocator or get_default_memory_pool().malloc)
    try:
        yield
    finally:
        allocators.pop()


class MemoryPointer:
    """A place in device memory."""

    def __init__(self, mem, offset):
        self.mem = mem
        self._offset = offset
        self.ptr = mem.ptr + offset

    device_id = property(lambda self: self.mem.device_id)
    device = property(lambda self: self.mem.device)

    def __int__(self):
        return self.ptr

    def __add__(self, offset):
        return MemoryPointer(self.mem, self._offset + offset)

    def __sub__(self, offset):
        return self + -offset

    def _bytes(self, size):
        """The memory itself; an operation that holds it does not keep it allocated."""
        if not 0 <= self._offset <= self._offset + size <= self.mem.size:
            raise ValueError(
                f"{size} bytes from {self._offset} are not inside the {self.mem.size} of this memory"
            )
        return self.mem._raw[self._offset : self._offset + size]

    def copy_to_host_async(self, mem, size, stream=None):
        if not size:
            return
        machine = present()
        source, host = self._bytes(size), machine.pinned(_address(mem), size)
        host[...] = machine.noise()

        def copy():
            host[...] = source

        line_of(stream, self.device_id).add(copy, "copy to the host")

    def copy_from_host_async(self, mem, size, stream=None):
        if not size:
            return
        target, host = self._bytes(size), present().pinned(_address(mem), size)

        def copy():
            target[...] = host

        line_of(stream, self.device_id).add(copy, "copy from the host")

    def copy_from_device_async(self, src, size, stream=None):
        if not size:
            return
        target, source = self._bytes(size), src._bytes(size)

        def copy():
            target[...] = source

        line_of(stream, self.device_id).add(copy, "copy")

    def memset_async(self, value, size, stream=None):
        if not size:
            return
        target = self._bytes(size)

        def fill():
            target[...] = value

        line_of(stream, self.device_id).add(fill, "memset")


def _address(mem):
    return mem.value if isinstance(mem, ctypes.c_void_p) else int(mem)


# ---- pinned host memory


class PinnedMemoryPointer:
    """Pinned memory with the buffer protocol; may be longer than asked for, and goes back to its pool."""

    def __init__(self, block, pool):
        self._block, self._pool = block, pool
        self.mem = self
        self.ptr = block.ptr

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
