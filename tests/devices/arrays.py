"""CuPy's ``ndarray`` on the pretended device.

The memory behind an array is host memory, so ``__cuda_array_interface__`` hands an MPI a pointer that it can read.
The host itself has no way in: no buffer protocol, and ``numpy.asarray`` raises TypeError.  What an array's operators do
is queued on the current stream, and NumPy does it when its turn comes.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from devices.machine import present
from devices.memory import MemoryPointer, alloc
from devices.streams import (
    Device,
    current_device,
    current_line,
    get_current_stream,
    line_of,
)

_Flags = namedtuple("_Flags", "c_contiguous f_contiguous owndata")


class ndarray:
    """An array in the memory of the pretended device."""

    __module__ = "cupy"  # by which a library is found from its array
    __slots__ = ("data", "base", "_memory", "__weakref__")  # CuPy's takes no attributes
    __array_ufunc__ = None  # NumPy's functions refuse it
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        like = np.empty(0, dtype)
        if memptr is None:
            memptr = alloc(int(np.prod(shape, dtype=int)) * like.itemsize)
        self._set(memptr, shape, like.dtype, strides, order, None)

    def _set(self, data, shape, dtype, strides, order, base):
        self.data = data
        self.base = base
        mem = data.mem
        room = np.empty(0, np.uint8) if mem._raw is None else mem._raw
        offset = data.ptr - mem.ptr if room.size else 0
        self._memory = np.ndarray(shape, dtype, room, offset, strides, order)

    # ---- what it is

    shape = property(lambda self: self._memory.shape)
    dtype = property(lambda self: self._memory.dtype)
    strides = property(lambda self: self._memory.strides)
    size = property(lambda self: self._memory.size)
    ndim = property(lambda self: self._memory.ndim)
    nbytes = property(lambda self: self._memory.nbytes)
    itemsize = property(lambda self: self._memory.itemsize)
    device = property(lambda self: Device(self.data.device_id))

    @property
    def flags(self):
        flags = self._memory.flags
        return _Flags(flags.c_contiguous, flags.f_contiguous, self.base is None)

    @property
    def __cuda_array_interface__(self):
        memory = self._memory
        return {
            "shape": memory.shape,
            "typestr": memory.dtype.str,
            "descr": memory.dtype.descr,
            "data": (self.data.ptr if memory.size else 0, False),
            "strides": None if memory.flags.c_contiguous else memory.strides,
            "version": 3,
            "stream": get_current_stream(self.data.device_id).ptr or 1,
        }

    def __len__(self):
        return len(self._memory)

    def __repr__(self):
        return f"deferred.ndarray({self.dtype}{list(self.shape)})"

    def __array__(self, *args, **kwargs):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    # ---- views

    def _view(self, memory):
        new = object.__new__(ndarray)
        start = memory.__array_interface__["data"][0] - self.data.mem.ptr
        new.data = (
            MemoryPointer(self.data.mem, start) if self.data.mem.ptr else self.data
        )
        new.base = self if self.base is None else self.base
        new._memory = memory
        return new

    def __bool__(self):
        return bool(self.get())

    def __getitem__(self, index):
        return self._view(self._memory[_basic(index)])

    def reshape(self, *shape, order="C"):
        memory = self._memory.reshape(*shape, order=order)
        if memory.size and not np.shares_memory(memory, self._memory):
            return self.copy(order).reshape(*shape, order=order)
        return self._view(memory)

    def ravel(self, order="C"):
        return self.reshape(-1, order=order)

    def transpose(self, *axes):
        return self._view(self._memory.transpose(*axes))

    def view(self, dtype=None):
        return self._view(self._memory if dtype is None else self._memory.view(dtype))

    T = property(lambda self: self._view(self._memory.T))
    real = property(lambda self: self._view(self._memory.real))

    @property
    def imag(self):
        if self.dtype.kind == "c":
            return self._view(self._memory.imag)
        zeros = ndarray(self.shape, self.dtype)
        zeros.fill(0)
        return zeros

    # ---- work for the stream

    def __setitem__(self, index, value):
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        assign(self[index], value)

    def astype(self, dtype, order="K", casting="unsafe", subok=None, copy=True):
        dtype = np.dtype(dtype)
        if not copy and dtype == self.dtype:
            return self
        if order in ("K", "A"):
            flags = self.flags
            order = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
        new = ndarray(self.shape, dtype, order=order)
        assign(new, self)
        return new

    def copy(self, order="C"):
        return self.astype(self.dtype, order)

    def fill(self, value):
        self[...] = value

    # ---- to and from the host

    def get(self, stream=None, order="C", out=None, blocking=True):
        """A copy on the host, of what the array holds when the stream has done its work."""
        if out is None:
            out = np.empty(self.shape, self.dtype, order="C" if order == "A" else order)
        elif out.shape != self.shape or out.dtype != self.dtype:
            raise ValueError(
                f"{out.dtype}{out.shape} cannot take {self.dtype}{self.shape}"
            )
        if self.size:
            source = self._memory
            if out.flags.contiguous:
                out.reshape(-1, order="A").view(np.uint8)[...] = present().noise()

            def copy():
                out[...] = source

            node = line_of(stream, self.data.device_id).add(copy, "copy to the host")
            if blocking:
                present().queue.finish([node])
        return out

    def set(self, arr, stream=None):
        """Queue a copy of what the host's array holds now."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if arr.shape != self.shape:
            raise ValueError(
                f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}"
            )
        if self.size:
            target, source = self._memory, arr.copy()

            def copy():
                target[...] = source

            line_of(stream, self.data.device_id).add(copy, "copy from the host")

    def item(self):
        return self.get().item()


def _basic(index):
    """The index as one that gives a view, of one element too."""
    index = index if isinstance(index, tuple) else (index,)
    for part in index:
        if not (
            part is None
            or part is Ellipsis
            or isinstance(part, (int, np.integer, slice))
            and not isinstance(part, bool)
        ):
            raise TypeError(f"the pretended device knows no index {part!r}")
    return index if any(part is Ellipsis for part in index) else (*index, Ellipsis)


def launch(action, name, *arrays):
    """Queue a kernel that touches these arrays, on the current stream."""
    device = current_device()
    for array in arrays:
        if isinstance(array, ndarray) and array.data.device_id != device:
            raise ValueError(
                "Array device must be same as the current device: "
                f"array device = {array.data.device_id} while current = {device}"
            )
    return current_line().add(action, name)


def assign(out, value):
    """``out[...] = value``, a number or an array of the device."""
    place = out._memory
    source = memory_of(value)
    if not isinstance(value, ndarray):
        with np.errstate(all="ignore"):
            source = np.asarray(source).astype(place.dtype)
    np.broadcast_to(source, place.shape)  # refuse a wrong shape at once

    def copy():
        place[...] = source

    if place.size:
        launch(copy, "assign", out, value)


def memory_of(x):
    """What an operation works on: an array's memory, or a number."""
    if isinstance(x, ndarray):
        return x._memory
    if isinstance(x, (bool, int, float, complex, np.generic)):
        return x
    if isinstance(x, np.ndarray) and not x.ndim:
        return x.copy()
    raise TypeError(f"Unsupported type {type(x)}")
