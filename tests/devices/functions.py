"""CuPy's functions on arrays of the pretended device: arithmetic, done by NumPy when its turn comes, and new arrays."""

from __future__ import annotations

import numpy as np

from devices.arrays import launch, memory_of, ndarray
from devices.machine import present
from devices.memory import MemoryPointer, UnownedMemory
from devices.streams import _External, get_current_stream


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
):
    setattr(ndarray, f"__{_name}__", lambda a, b, f=_function: f(a, b))
    setattr(ndarray, f"__r{_name}__", lambda a, b, f=_function: f(b, a))
    setattr(ndarray, f"__i{_name}__", lambda a, b, f=_function: f(a, b, out=a))
ndarray.__eq__ = lambda a, b: equal(a, b)
ndarray.__ne__ = lambda a, b: not_equal(a, b)


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


def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    return array(a, dtype, bool(copy), order or "K", blocking=blocking)


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
