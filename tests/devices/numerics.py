"""What a program for GPUs does besides calling mpiring, on the pretended device: linear algebra, sums, indices.

NumPy does it, when its turn on the stream comes.  ``add(cupy, monkeypatch)`` gives it to an installed
:mod:`devices.deferred`, so that examples and benchmarks run here as they stand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from devices.arrays import launch, memory_of, ndarray

CARD = "the pretended device"
_FUNCTIONS: dict[str, Any] = {"exp": np.exp, "log": np.log, "sqrt": np.sqrt}
_METHODS: dict[str, Any] = {
    "__matmul__": np.matmul,
    "__gt__": np.greater,
    "__neg__": np.negative,
    "__abs__": np.absolute,
    "max": np.max,
    "sum": np.sum,
    "argmax": np.argmax,
}


def add(cupy, monkeypatch):
    """Give it to this CuPy for one test."""
    for name, function in _FUNCTIONS.items():
        monkeypatch.setattr(cupy, name, _queued(cupy, function, name), raising=False)
    for name, function in _METHODS.items():
        queued = _queued(cupy, function, name)
        monkeypatch.setattr(ndarray, name, queued, raising=False)
    take = _queued(cupy, lambda array, *index: array[index], "take")
    view, assign = ndarray.__getitem__, ndarray.__setitem__

    def get(self, index):
        index = index if isinstance(index, tuple) else (index,)
        return take(self, *index) if _is_fancy(index) else view(self, index)

    def put(self, index, value):
        index = index if isinstance(index, tuple) else (index,)
        if not _is_fancy(index):
            return assign(self, index, value)
        place, where, source = self._memory, [_input(i) for i in index], _input(value)

        def copy():
            place[tuple(where)] = source

        launch(copy, "put", self, value)

    monkeypatch.setattr(ndarray, "__getitem__", get)
    monkeypatch.setattr(ndarray, "__setitem__", put)
    for kind in (int, float):
        convert = lambda self, kind=kind: kind(self.get())  # noqa: E731
        monkeypatch.setattr(ndarray, f"__{kind.__name__}__", convert, raising=False)
    told = lambda self: self.get().tobytes()  # noqa: E731
    monkeypatch.setattr(ndarray, "tobytes", told, raising=False)
    runtime = cupy.cuda.runtime
    properties = lambda device: {"name": CARD.encode()}  # noqa: E731
    monkeypatch.setattr(runtime, "getDeviceProperties", properties, raising=False)
    monkeypatch.setattr(runtime, "driverGetVersion", lambda: 0, raising=False)
    monkeypatch.setattr(runtime, "runtimeGetVersion", lambda: 0, raising=False)


def _queued(cupy, function, name):
    """The function on arrays of the device, which tells the shape of its result from that for zeros."""

    def later(*args, **kwargs):
        inputs = [_input(arg) for arg in args]
        with np.errstate(all="ignore"):
            like = function(*map(_zeros, inputs), **kwargs)
        out = cupy.empty(like.shape, like.dtype)
        place = out._memory

        def compute():
            place[...] = function(*inputs, **kwargs)

        if place.size:
            launch(compute, name, *args, out)
        return out

    return later


def _input(x):
    return x.copy() if isinstance(x, np.ndarray) else memory_of(x)


def _zeros(x):
    return np.zeros_like(x) if isinstance(x, np.ndarray) else x


def _is_fancy(index):
    return any(isinstance(part, (np.ndarray, ndarray)) for part in index)
