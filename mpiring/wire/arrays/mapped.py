"""Host memory that several processes of a node have mapped, and how an array in it is recognised.

A :class:`Region` is one mapping of such memory.  NumPy arrays are made in it by :meth:`Region.array`; each holds
the region, and with the last of them the memory is unmapped.  Nothing else remains of it: a mapping needs no open
file, so that thousands of regions may be there at a time.

An array is recognised by its address alone (:func:`locate`).  So slices and views are found, and what another
library makes of an array without a copy.

Theory
    A finaliser may run in the middle of any line, in any thread, so it takes no lock: it only notes the address
    that goes, before it is unmapped.  Whoever looks an address up strikes out first what has been noted; an
    address that was given to other memory meanwhile is not taken for the old region.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from ..reduce.arithmetic import Array
from .host import as_dtype


class Place(NamedTuple):
    """Where an array begins, in words that every process that has mapped the region understands."""

    region: bytes
    offset: int  # in bytes


class Region:
    """A mapping of a file, which may be closed and have no name any more.

    Args:
        descriptor: of the open file, at least ``nbytes`` long before the memory is touched.
        nbytes: how much of it.
        identity: what the region is called in every process that maps it.

    Raises:
        OSError: if it cannot be mapped.
    """

    def __init__(self, descriptor: int, nbytes: int, identity: bytes) -> None:
        self.identity = identity
        self.nbytes = nbytes
        self.address = _map(descriptor, nbytes)
        self.__array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
        }
        # Not at exit: arrays may be in use until the very end.
        weakref.finalize(self, _gone_with, self.address, nbytes).atexit = False
        with _lock:
            _strike_out()
            _by_start[self.address] = weakref.ref(self)
            insort(
                _starts, self.address
            )  # last: who finds the address finds the region
            _by_identity[identity] = self

    def array(self, offset: int, count: int, dtype: Any) -> Array:
        """The flat array of ``count`` elements that begins there."""
        dtype = as_dtype(dtype)
        whole = np.asarray(self)
        return whole[offset : offset + count * dtype.itemsize].view(dtype)


def locate(address: int) -> Place | None:
    """Which region an address is in, and where; None if it is in none."""
    with _lock:
        _strike_out()
        place = bisect_right(_starts, address)
        region = _by_start[_starts[place - 1]]() if place else None
    if region is None or address >= region.address + region.nbytes:
        return None
    return Place(region.identity, address - region.address)


def region_named(identity: bytes) -> Region | None:
    """The region of that name, if this process has mapped it."""
    return _by_identity.get(identity)


# One that a signal handler may take in the middle of this thread's own.
_lock = threading.RLock()
_starts: list[int] = []  # addresses, in order
_by_start: dict[int, weakref.ref[Region]] = {}
_by_identity: weakref.WeakValueDictionary[bytes, Region] = weakref.WeakValueDictionary()
_gone: deque[int] = deque()  # addresses to be struck out


def _strike_out() -> None:
    while _gone:
        address = _gone.popleft()
        del _starts[bisect_left(_starts, address)]
        del _by_start[address]


def _gone_with(address: int, nbytes: int) -> None:
    _gone.append(address)
    _libc.munmap(address, nbytes)


# Python's mmap would keep a descriptor open for each mapping.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


def _map(descriptor: int, nbytes: int) -> int:
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(None, nbytes, protection, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(address)
