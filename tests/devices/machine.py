"""The pretended computer of one test: its devices, what they have been asked to do, the memory they have.

One machine is *present* at a time.  The threads of a process share it, and each of them has a :class:`Context`: which
device and which streams are current.  Several ranks in one thread get a context each (:meth:`Machine.entered`).
"""

from __future__ import annotations

import bisect
import threading
import weakref
from collections.abc import Callable
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np

from devices.scheduler import Card, Choose, Line, Queue, seeded

NOISES = (0x5A, 0xFF, 0x81, 0x7E, 0xA5)  # large, NaN and -1, small and negative, ...
_ALIGNMENT = 512


class CUDARuntimeError(RuntimeError):
    """What CUDA says to a handle that it does not know."""


class Context:
    """What is current: a device and, on each device, a stream."""

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, Any] = {}
        self.stack: list[tuple[int, Any]] = []  # what to go back to


class Block:
    """A piece of memory.  It stays where it is as long as anything may touch it.

    ``kind`` is "device", "managed", "async" (of a stream-ordered pool) or "host" (pinned).
    """

    def __init__(self, nbytes: int, kind: str, device: int) -> None:
        whole = np.empty(nbytes + _ALIGNMENT, np.uint8)
        start = -whole.ctypes.data % _ALIGNMENT
        self.raw = whole[start : start + nbytes]
        self.ptr = self.raw.ctypes.data
        self.nbytes = nbytes
        self.kind = kind
        self.device = device


class Machine:
    """Two devices, their work and their memory."""

    def __init__(
        self, choose: Choose | None = None, spontaneous: bool = True, devices: int = 2
    ) -> None:
        self.queue = Queue(seeded(0) if choose is None else choose, spontaneous)
        self.cards = [Card(self.queue, number) for number in range(devices)]
        self.lines: weakref.WeakValueDictionary[int, Line] = (
            weakref.WeakValueDictionary()
        )
        self.allocators: list[Any] = []
        self.failure = 0  # of a kernel, which CUDA tells whoever asks for anything
        self._pools: dict[str, Any] = {}
        self._noises = count()
        self._starts: list[int] = []  # of blocks, in order
        self._blocks: weakref.WeakValueDictionary[int, Block] = (
            weakref.WeakValueDictionary()
        )
        self._threads = threading.local()

    # ---- what is current

    @property
    def context(self) -> Context:
        context = getattr(self._threads, "context", None)
        if context is None:
            context = self._threads.context = Context()
        return context

    @contextmanager
    def entered(self, context: Context):
        """Make another context this thread's."""
        before, self._threads.context = self.context, context
        try:
            yield context
        finally:
            self._threads.context = before

    def line(self, ptr: int, device: int | None = None) -> Line:
        """The line behind a stream's handle."""
        if ptr in (0, 1):  # the null stream of the current device, also by its name
            return self.cards[self.context.device if device is None else device].null
        line = self.lines.get(ptr)
        if line is None or not line.alive:
            raise CUDARuntimeError(
                f"cudaErrorInvalidResourceHandle: there is no stream {ptr:#x}"
            )
        return line

    # ---- memory

    def block(self, nbytes: int, kind: str, device: int = -1) -> Block:
        """New memory, full of noise."""
        block = Block(nbytes, kind, device)
        block.raw[...] = self.noise()
        self.note(block)
        return block

    def note(self, block: Block) -> None:
        """Know the block by its address.

        Also when it is used again: the garbage collector forgets what it gives back from a cycle.
        """
        with self.queue.lock:
            if block.ptr not in self._starts:
                bisect.insort(self._starts, block.ptr)
            self._blocks[block.ptr] = block

    def pool(self, name: str, make: Callable[[], Any]) -> Any:
        """The pool of that name, made when it is first asked for."""
        if name not in self._pools:
            self._pools[name] = make()
        return self._pools[name]

    def noise(self) -> int:
        """A byte that nobody wrote, another one each time."""
        return NOISES[next(self._noises) % len(NOISES)]

    def block_at(self, ptr: int) -> Block | None:
        """The block that has this address."""
        with self.queue.lock:
            while True:
                place = bisect.bisect_right(self._starts, ptr) - 1
                if place < 0:
                    return None
                block = self._blocks.get(self._starts[place])
                if block is not None:
                    inside = ptr < block.ptr + block.nbytes
                    return block if inside else None
                del self._starts[place]

    def pinned(self, ptr: int, nbytes: int) -> Any:
        """The bytes of pinned host memory at this address."""
        block = self.block_at(ptr)
        if block is None or block.kind != "host":
            raise ValueError(f"{ptr:#x} is not in pinned host memory")
        start = ptr - block.ptr
        if start + nbytes > block.nbytes:
            raise ValueError(
                f"{nbytes} bytes from {ptr:#x} reach over the end of the pinned memory"
            )
        return block.raw[start : start + nbytes]


_present: list[Machine] = []  # one at most: a test's, while it runs


def is_present() -> bool:
    """Whether a device is pretended in this test."""
    return bool(_present)


def present() -> Machine:
    """The machine of this test."""
    if not _present:
        raise CUDARuntimeError("cudaErrorNoDevice: no device is pretended here")
    return _present[0]
