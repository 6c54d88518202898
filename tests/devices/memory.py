"""Memory of the pretended device, with CuPy's face: allocators, pointers, pinned memory, what a pointer points to.

The rules that a program can break:

* New memory holds noise, and the allocation queues an operation that writes noise, on the stream that is current then:
  memory is safe in the order of the stream that allocated it and in no other.
* A freed block goes back to the pool of the stream that allocated it, and the next allocation of its size on that
  stream gets it, whatever is still queued for it.
* A copy to the host writes noise there at once and the bytes when its turn comes; a copy from the host reads when its
  turn comes.
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
        present().note(block)
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
    return present().pool("async", MemoryAsyncPool).malloc(size)


def get_default_memory_pool():
    return present().pool("default", MemoryPool)


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
