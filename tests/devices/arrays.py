"""CuPy's ``ndarray`` on the pretended device, and the functions that make one.

The memory behind an array is host memory, so ``__cuda_array_interface__`` hands an MPI a pointer that it can read.
The host itself has no way in: no buffer protocol, and ``numpy.asarray`` raises TypeError.  What an array's operators do
is queued on the current stream, and NumPy does it when its turn comes.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from devices.machine import present
from devices.memory import MemoryPointer, UnownedMemory, alloc
from devices.streams import (
    Device,
    _External,
    current_device,
    current_line,
    get_current_stream,
    line_of,
)

_Flags = namedtuple("_Flags", "c_contiguous f_contiguous owndata")


class ndarray:
    """An array in the memory of the pretended device."""

    __array_ufunc__ = None  # NumPy's functions refuse it
    __hash__ = None

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
        return zeros(self.shape, self.dtype)

    # ---- work for the stream

    def __setitem__(self, index, value):
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        assign(self[index], value)

    def astype(self, dtype, order="K", casting="unsafe", subok=None, copy=True):
        dtype = np.dtype(dtype)
        if not copy and dtype == self.dtype:
            return self
        new = empty_like(self, dtype, order)
        assign(new, self)
        return new

    def copy(self, order="C"):
        return self.astype(self.dtype, order)

    def fill(self, value):
        self[...] = value

    def __iadd__(self, other):
        return add(self, other, out=self)

    def __isub__(self, other):
        return subtract(self, other, out=self)

    def __imul__(self, other):
        return multiply(self, other, out=self)

    def __itruediv__(self, other):
        return divide(self, other, out=self)

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


def _elementwise(ufunc, name):
    def function(a, b, out=None):
        left, right = memory_of(a), memory_of(b)
        if out is None:
            shape = np.broadcast_shapes(np.shape(left), np.shape(right))
            with np.errstate(all="ignore"):
                dtype = ufunc(*(_one(x) for x in (left, right))).dtype
            out = empty(shape, dtype)
        place = out._memory

        def compute():
            place[...] = ufunc(left, right)

        if place.size:
            launch(compute, name, a, b, out)
        return out

    function.__name__ = name
    return function


def _one(x):
    return np.ones(1, x.dtype) if isinstance(x, (np.ndarray, np.generic)) else x


add = _elementwise(np.add, "add")
subtract = _elementwise(np.subtract, "subtract")
multiply = _elementwise(np.multiply, "multiply")
divide = _elementwise(np.divide, "divide")
minimum = _elementwise(np.minimum, "minimum")
maximum = _elementwise(np.maximum, "maximum")
equal = _elementwise(np.equal, "equal")
not_equal = _elementwise(np.not_equal, "not_equal")

for _name, _function in (
    ("add", add),
    ("sub", subtract),
    ("mul", multiply),
    ("truediv", divide),
    ("eq", equal),
    ("ne", not_equal),
):
    setattr(ndarray, f"__{_name}__", lambda self, other, f=_function: f(self, other))
    if _name not in ("eq", "ne"):
        setattr(
            ndarray, f"__r{_name}__", lambda self, other, f=_function: f(other, self)
        )


# ---- new arrays


def empty(shape, dtype=float, order="C"):
    return ndarray(shape, dtype, order=order)


def full(shape, fill_value, dtype=None, order="C"):
    new = empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, order)
    new.fill(fill_value)
    return new


def zeros(shape, dtype=float, order="C"):
    return full(shape, 0, dtype, order)


def ones(shape, dtype=float, order="C"):
    return full(shape, 1, dtype, order)


def empty_like(a, dtype=None, order="K", subok=None, shape=None):
    fortran = a.flags.f_contiguous and not a.flags.c_contiguous
    if order in ("K", "A"):
        order = "F" if fortran else "C"
    return empty(
        a.shape if shape is None else shape, a.dtype if dtype is None else dtype, order
    )


def zeros_like(a, dtype=None, order="K", subok=None, shape=None):
    new = empty_like(a, dtype, order, subok, shape)
    new.fill(0)
    return new


def arange(*args, dtype=None):
    return asarray(np.arange(*args, dtype=dtype))


def array(
    obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False
):
    """An array of the device with these values: of the host, of the device, or of another library there."""
    if not isinstance(obj, ndarray) and hasattr(obj, "__cuda_array_interface__"):
        obj = _foreign(obj)
    if isinstance(obj, ndarray):
        return obj.astype(obj.dtype if dtype is None else dtype, order, copy=copy)
    source = np.array(obj, dtype, order=order, ndmin=ndmin)
    source = source.astype(source.dtype.newbyteorder("="), copy=False)
    fortran = source.flags.f_contiguous and not source.flags.c_contiguous
    new = empty(source.shape, source.dtype, "F" if fortran else "C")
    new.set(source)
    if blocking:
        get_current_stream().synchronize()
    return new


def asarray(a, dtype=None, order=None, *, blocking=False):
    return array(a, dtype, copy=False, order=order or "K", blocking=blocking)


def ascontiguousarray(a, dtype=None):
    new = asarray(a, dtype)
    return new if new.flags.c_contiguous else new.copy("C")


def _foreign(obj):
    """The view of another library's array; waits for its stream, as the interface asks."""
    interface = obj.__cuda_array_interface__
    if interface.get("stream") is not None:
        _External(interface["stream"], -1).synchronize()
    ptr, _ = interface["data"]
    shape, dtype = interface["shape"], np.dtype(interface["typestr"])
    if not ptr:
        return empty(shape, dtype)
    block = present().block_at(ptr)
    size = 0 if block is None else block.ptr + block.nbytes - ptr
    memory = UnownedMemory(ptr, size, obj)
    return ndarray(shape, dtype, MemoryPointer(memory, 0), interface.get("strides"))


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    if isinstance(a, ndarray):
        return a.get(stream, order, out, blocking)
    return np.asarray(a, order=order)


def broadcast_to(a, shape):
    memory = np.broadcast_to(a._memory, shape)
    new = a._view(memory)
    return new


def may_share_memory(a, b, max_work=None):
    return np.may_share_memory(a._memory, b._memory)


def shares_memory(a, b, max_work=None):
    return np.shares_memory(a._memory, b._memory)
