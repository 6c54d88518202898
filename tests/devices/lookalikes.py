"""Libraries with arrays on the deferred device that are not CuPy's: what mpiring sees of torch, JAX and Numba.

Each has memory of its own and an order of its own for the work on it, which CuPy knows nothing of: torch a current
stream of torch's, Numba the stream that its arrays name, JAX one that nobody sees.  So whoever waits for CuPy's stream
instead gives a wrong number.

``torch(monkeypatch, cupy)`` and so on make one the module in ``sys.modules`` for one test.  Arrays are made by
``module.asarray`` and given back by ``module.asnumpy``, like those of a case.
"""

from __future__ import annotations

import sys
import types
import weakref
from contextlib import contextmanager
from typing import Any

from devices.machine import present
from wire.reference import DTYPES, dtype_of


class _Streams:
    """A library's current stream: one for each rank, and not CuPy's."""

    def __init__(self, cupy):
        self.cupy = cupy
        self._of: Any = weakref.WeakKeyDictionary()

    def current(self, device):
        mine = self._of.setdefault(present().context, {})
        if device not in mine:
            with self.cupy.cuda.Device(device):
                mine[device] = self.cupy.cuda.Stream(non_blocking=True)
        return mine[device]

    @contextmanager
    def at(self, stream):
        """Another current stream, also of CuPy's: the work that a library queues is CuPy's here."""
        mine = self._of.setdefault(present().context, {})
        before = mine.get(stream.device_id)
        mine[stream.device_id] = stream
        with self.cupy.cuda.Device(stream.device_id), stream:
            yield
        mine[stream.device_id] = before


# ---- torch -----------------------------------------------------------------------------------------


def torch(monkeypatch, cupy):
    """A torch whose tensors are all on CUDA."""
    module: Any = types.ModuleType("torch")
    streams = _Streams(cupy)
    for name in DTYPES:
        setattr(module, name, _TorchDtype(name))

    class Tensor:
        is_cuda, is_nested, layout = True, False, "strided"
        __hash__ = object.__hash__

        def __init__(self, array, is_lazy=False):
            self.array = array
            self.is_lazy = is_lazy
            self.version = 0

        shape = property(lambda self: self.array.shape)
        dtype = property(lambda self: getattr(module, self.array.dtype.name))
        device = property(
            lambda self: types.SimpleNamespace(index=self.array.device.id, type="cuda")
        )

        def stride(self):
            return tuple(s // self.array.itemsize for s in self.array.strides)

        def data_ptr(self):
            return self.array.data.ptr if self.array.size else 0

        def detach(self):
            return self

        def is_conj(self):
            return self.is_lazy

        def is_neg(self):
            return False

        def resolve_conj(self):
            if not self.is_lazy:
                return self
            with module.queueing(self.array.device.id):
                return Tensor(self.array.copy())

        def resolve_neg(self):
            return self

        def __getitem__(self, index):
            return Tensor(self.array[index])

        def reshape(self, shape):
            return Tensor(self.array.reshape(shape))

        T = property(lambda self: Tensor(self.array.T))

        def __setitem__(self, index, value):
            with module.queueing(self.array.device.id):
                self.array[index] = value

        def __add__(self, other):
            with module.queueing(self.array.device.id):
                return Tensor(self.array + other.array)

        def __mul__(self, number):
            with module.queueing(self.array.device.id):
                return Tensor(self.array * number)

    def empty(shape, dtype, device):
        number = device.partition(":")[2] or cupy.cuda.Device().id
        with module.queueing(int(number)):
            return Tensor(cupy.empty(shape, dtype_of(dtype.name)))

    def asarray(x):
        with module.queueing(cupy.cuda.Device().id):
            return Tensor(cupy.asarray(x))

    def asnumpy(x):
        with module.queueing(x.array.device.id):
            return x.array.get()

    def count(tensor):
        tensor.version += 1

    module.strided = "strided"
    module.Tensor = module.ndarray = Tensor
    module.empty, module.asarray, module.asnumpy = empty, asarray, asnumpy
    module.queueing = lambda device: streams.at(streams.current(device))
    module.version = types.SimpleNamespace(cuda="13.0")
    graph = types.SimpleNamespace(increment_version=count)
    module.autograd = types.SimpleNamespace(graph=graph)
    module.cuda = types.SimpleNamespace(
        current_stream=lambda device: _TorchStream(streams.current(device)),
        stream=lambda stream: streams.at(stream.behind),
        is_initialized=lambda: True,
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


class _TorchDtype:
    def __init__(self, name):
        self.name = name

    def __str__(self):
        return f"torch.{self.name}"


class _TorchStream:
    def __init__(self, behind):
        self.behind = behind
        self.cuda_stream = behind.ptr


# ---- Numba -----------------------------------------------------------------------------------------


def numba(monkeypatch, cupy):
    """A Numba whose arrays name the stream that works on them."""
    module: Any = types.ModuleType("numba.cuda")
    streams = _Streams(cupy)

    class DeviceNDArray:
        def __init__(self, array, stream, read_only=False):
            self.array, self.stream = array, stream
            self._read_only = read_only

        shape = property(lambda self: self.array.shape)

        @property
        def __cuda_array_interface__(self):
            seen = {**self.array.__cuda_array_interface__, "stream": self.stream.ptr}
            seen["data"] = (seen["data"][0], self._read_only)
            return seen

        @contextmanager
        def queueing(self):
            with cupy.cuda.Device(self.array.device.id), self.stream:
                yield

        def __getitem__(self, index):
            return DeviceNDArray(self.array[index], self.stream)

        def __setitem__(self, index, value):
            with self.queueing():
                self.array[index] = value

        def __add__(self, other):
            with self.queueing():
                return DeviceNDArray(self.array + other.array, self.stream)

        def __mul__(self, number):
            with self.queueing():
                return DeviceNDArray(self.array * number, self.stream)

    DeviceNDArray.__module__ = "numba.cuda.cudadrv.devicearray"

    def as_cuda_array(x, sync=True):
        assert not sync, "it would make the host wait"
        handle = x.__cuda_array_interface__["stream"]
        return DeviceNDArray(x, cupy.cuda.Stream.from_external(_Handle(handle)))

    def asarray(x, **more):
        stream = streams.current(cupy.cuda.Device().id)
        with stream:
            return DeviceNDArray(cupy.asarray(x), stream, **more)

    def asnumpy(x):
        with x.queueing():
            return x.array.get()

    module.ndarray, module.as_cuda_array = DeviceNDArray, as_cuda_array
    module.asarray, module.asnumpy = asarray, asnumpy
    monkeypatch.setitem(sys.modules, "numba.cuda", module)
    return module


class _Handle:
    def __init__(self, ptr):
        self._ptr = ptr

    def __cuda_stream__(self):
        return 0, self._ptr


# ---- JAX -------------------------------------------------------------------------------------------


class _Card:
    platform = "gpu"


def jax(monkeypatch, cupy):
    """A JAX on a GPU, and CuPy's ``from_dlpack``, with the order that DLPack promises between the two."""
    module: Any = types.ModuleType("jax")
    dlpack: Any = types.ModuleType("jax.dlpack")
    streams = _Streams(cupy)
    card = _Card()
    sharding = types.SimpleNamespace(device_set={card}, memory_kind="device")

    class Tracer:
        pass

    class Array:
        def __init__(self, array):
            self.array = array
            self.sharding = sharding

        shape = property(lambda self: self.array.shape)
        dtype = property(lambda self: self.array.dtype)

        def __mul__(self, number):
            with streams.at(streams.current(self.array.device.id)):
                return Array(self.array * number)

    def waits_for(waiting, other):
        event = cupy.cuda.Event(disable_timing=True)
        event.record(other)
        waiting.wait_event(event)

    def to_cupy(x):
        """The consumer's current stream waits for the producer."""
        device = x.array.device.id
        waits_for(cupy.cuda.get_current_stream(device), streams.current(device))
        return x.array[...]

    def to_jax(x):
        device = x.device.id
        waits_for(streams.current(device), cupy.cuda.get_current_stream(device))
        return Array(x)

    def asarray(x):
        with streams.at(streams.current(cupy.cuda.Device().id)):
            return Array(cupy.asarray(x))

    def asnumpy(x):
        with streams.at(streams.current(x.array.device.id)):
            return x.array.get()

    module.Array = module.ndarray = Array
    module.asarray, module.asnumpy = asarray, asnumpy
    module.core = types.SimpleNamespace(Tracer=Tracer)
    module.config = types.SimpleNamespace(jax_enable_x64=True)
    module.dtypes = types.SimpleNamespace(issubdtype=lambda a, b: False, extended=None)
    module.dlpack, dlpack.from_dlpack = dlpack, to_jax
    monkeypatch.setattr(cupy, "from_dlpack", to_cupy, raising=False)
    monkeypatch.setitem(sys.modules, "jax", module)
    monkeypatch.setitem(sys.modules, "jax.dlpack", dlpack)
    return module
