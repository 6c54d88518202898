"""A CuPy whose device is the host's memory: what the device seam is tried with where there is no GPU.

Its arrays have CuPy's face as far as mpiring uses it, and three properties of device arrays that matter:

* **An MPI takes them for device memory**: they say where they are by ``__cuda_array_interface__`` alone, so mpi4py goes
  the way that it goes for a GPU.  The pointer is one into host memory, which every MPI can read.
* **The host cannot touch them**: no buffer protocol, and ``numpy.asarray`` raises TypeError as CuPy's arrays do.
* **Work is queued**: an operation is done when its stream is synchronised, not before, and what looks at the memory
  itself, as an MPI does, sees the old bytes until then.  New memory holds noise.  A stream counts its
  synchronisations.

``install(monkeypatch)`` makes it ``sys.modules["cupy"]`` for one test.
"""

from __future__ import annotations

import sys
import types
from collections import namedtuple
from contextlib import contextmanager
from typing import Any

import numpy as np

NOISE = 0x5A
_Flags = namedtuple("_Flags", "c_contiguous f_contiguous")


class Stream:
    """Operations that wait to be done, in order."""

    def __init__(self):
        self._queue = []
        self.synchronisations = 0

    @property
    def pending(self):
        return len(self._queue)

    def enqueue(self, operation):
        self._queue.append(operation)

    def synchronize(self):
        self.synchronisations += 1
        self.finish()

    def finish(self):
        """Do all that waits, uncounted: for a look at an array."""
        queue, self._queue = self._queue, []
        with np.errstate(all="ignore"):
            for operation in queue:
                operation()


_current = [Stream()]


def get_current_stream():
    return _current[-1]


@contextmanager
def using(stream):
    """Make a stream the current one."""
    _current.append(stream)
    try:
        yield stream
    finally:
        _current.pop()


class ndarray:
    """An array in the memory of the pretended device."""

    __array_ufunc__ = None  # NumPy's functions refuse it

    def __init__(self, memory, base=None):
        self._memory = memory
        self.base = base

    # ---- what it is

    shape = property(lambda self: self._memory.shape)
    dtype = property(lambda self: self._memory.dtype)
    strides = property(lambda self: self._memory.strides)
    size = property(lambda self: self._memory.size)
    ndim = property(lambda self: self._memory.ndim)
    nbytes = property(lambda self: self._memory.nbytes)

    @property
    def flags(self):
        return _Flags(self._memory.flags.c_contiguous, self._memory.flags.f_contiguous)

    @property
    def __cuda_array_interface__(self):
        memory = self._memory
        return {
            "shape": memory.shape,
            "typestr": memory.dtype.str,
            "descr": memory.dtype.descr,
            "data": (
                memory.__array_interface__["data"][0] if memory.size else 0,
                False,
            ),
            "strides": None if memory.flags.c_contiguous else memory.strides,
            "version": 3,
            "stream": 1,
        }

    def __len__(self):
        return len(self._memory)

    def __repr__(self):
        return f"host_cupy.ndarray({self.dtype}{list(self.shape)})"

    def __array__(self, *args, **kwargs):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    # ---- views

    def _view(self, memory):
        return ndarray(memory, self if self.base is None else self.base)

    def __getitem__(self, index):
        return self._view(np.asarray(self._memory[index]))

    def reshape(self, *shape):
        memory = self._memory.reshape(*shape)
        if memory.size and not np.shares_memory(memory, self._memory):
            return self.copy().reshape(*shape)
        return self._view(memory)

    def ravel(self):
        return self.reshape(-1)

    def view(self, dtype):
        return self._view(self._memory.view(dtype))

    T = property(lambda self: self._view(self._memory.T))
    real = property(lambda self: self._view(self._memory.real))
    imag = property(lambda self: self._view(self._memory.imag))

    # ---- work for the stream

    def __setitem__(self, index, value):
        if isinstance(value, np.ndarray):
            raise TypeError("non-scalar numpy.ndarray cannot be used for fill")
        place, source = self._memory[index], _memory_of(value)
        np.broadcast_to(source, place.shape)  # refuse a wrong shape at once

        def assign():
            place[...] = source

        get_current_stream().enqueue(assign)

    def astype(self, dtype, copy=True):
        new = empty(self.shape, dtype)
        new[...] = self
        return new

    def copy(self):
        return self.astype(self.dtype)

    def fill(self, value):
        self[...] = value

    def __add__(self, other):
        return add(self, other)

    def __mul__(self, other):
        return multiply(self, other)

    __radd__, __rmul__ = __add__, __mul__

    def get(self):
        """A copy on the host, of what the array holds when the stream has done its work."""
        get_current_stream().finish()
        return self._memory.copy()


def empty(shape, dtype=float):
    raw = np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, NOISE, np.uint8)
    return ndarray(raw.view(dtype).reshape(shape))


def asarray(x):
    """The host's ``x`` on the device; done at once, as a copy from pageable memory is."""
    if isinstance(x, ndarray):
        return x
    return ndarray(np.array(x, order="K"))


def asnumpy(x):
    return x.get()


def may_share_memory(a, b):
    return np.may_share_memory(a._memory, b._memory)


def _memory_of(x):
    if isinstance(x, ndarray):
        return x._memory
    if isinstance(x, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    return x


def _elementwise(ufunc):
    def function(a, b, out=None):
        left, right = _memory_of(a), _memory_of(b)
        if out is None:
            shape = np.broadcast_shapes(np.shape(left), np.shape(right))
            out = empty(shape, np.result_type(left, right))
        place = out._memory

        def compute():
            place[...] = ufunc(left, right)

        get_current_stream().enqueue(compute)
        return out

    function.__name__ = ufunc.__name__
    return function


add = _elementwise(np.add)
multiply = _elementwise(np.multiply)
minimum = _elementwise(np.minimum)
maximum = _elementwise(np.maximum)
divide = _elementwise(np.divide)


def reach(buffer):
    """The memory behind a buffer, as an MPI sees it: what is queued has not been done."""
    return buffer._memory if isinstance(buffer, ndarray) else buffer


def install(monkeypatch):
    """Be ``cupy`` for one test, with an empty stream; returns the module."""
    module: Any = types.ModuleType("cupy")
    for thing in (ndarray, empty, asarray, asnumpy, may_share_memory):
        setattr(module, thing.__name__, thing)
    for function in (add, multiply, minimum, maximum, divide):
        setattr(module, function.__name__, function)
    module.cuda = types.SimpleNamespace(
        get_current_stream=get_current_stream, Stream=Stream
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(sys.modules[__name__], "_current", [Stream()])
    return module
