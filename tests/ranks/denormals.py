"""What a library built with -ffast-math does to the thread that loads it: denormal numbers are zero from then on."""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Of MXCSR: results that are denormal become zero, and operands count as zero.
FLUSH_TO_ZERO, DENORMALS_ARE_ZERO = 1 << 15, 1 << 6

# stmxcsr [rdi]; ret and ldmxcsr [rdi]; ret.
_READ, _WRITE = b"\x0f\xae\x1f\xc3", b"\x0f\xae\x17\xc3"


def why_not() -> str:
    """Why this processor cannot be told to flush, in words; empty if it can."""
    is_there = platform.machine().lower() in ("x86_64", "amd64")
    return "" if is_there else "the two instructions here are those of x86-64"


@contextmanager
def flushing(bits: int) -> Iterator[None]:
    """This thread flushes as the bits say, as long as this lasts."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=7) as code:
        code.write(_READ + _WRITE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(code))
        kind: Callable[..., Any] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        read, write = kind(start), kind(start + len(_READ))
        state = ctypes.c_uint32()
        read(ctypes.addressof(state))
        before = ctypes.c_uint32(state.value)
        state.value |= bits
        write(ctypes.addressof(state))
        try:
            yield
        finally:
            write(ctypes.addressof(before))
