"""JAX: arrays on the CPU are seen as NumPy arrays of the same memory, on a GPU as CuPy arrays.

Rules:

* JAX's arrays are immutable: a result is a new one, on the device of the input, and committed to it if the input is;
* 64-bit arrays are made as such, also where JAX's ``jax_enable_x64`` is off: the dtype is the input's (promise 2);
* a tracer has no values, and an array of several devices no one place: both are refused, with what to do instead;
* what is on a device that CuPy does not see, on a TPU or, without CuPy, on a GPU, goes through host memory.

Theory: streams
    JAX has no stream that a user could see.  Its arrays go to CuPy by DLPack, which makes CuPy's current stream wait
    for what computes them, so X is CuPy's current stream.  A result goes back by DLPack with S current: JAX makes
    its own stream wait for it.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ..reduce.arithmetic import Array
from . import foreign
from .cupy import CupyKind
from .host import Kind

_LIBRARY = "jax"
_ALIGNMENT = 64  # bytes: what XLA asks of memory that it takes as it is


class JaxKind(Kind):
    """JAX's arrays as the host sees them; one for each array.

    Args:
        jax: the module.
        like: an array on whose device results are; None for the default device.
    """

    name = "jax"

    def __init__(self, jax: Any, like: Any = None) -> None:
        self.jax = jax
        self._sharding = None if like is None else like.sharding
        self._is_committed = like is not None and _is_committed(like)

    def is_array(self, x: object) -> bool:
        return False

    def is_immutable(self, x: object) -> bool:
        return True

    def as_array(self, x: Any) -> Array:
        _check(self.jax, x)
        return np.asarray(x)

    def new(self, shape: int | tuple[int, ...], dtype: Any) -> tuple[Any, Array]:
        array = self.empty(shape, dtype)
        raw = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
        start = -self.pointer(raw) % _ALIGNMENT
        aligned = raw[start : start + array.nbytes].view(array.dtype)
        return None, aligned.reshape(array.shape)

    def finished(self, theirs: Any, array: Array) -> Any:
        if theirs is not None:
            return theirs
        jax, sharding = self.jax, self._sharding
        if sharding is None:
            with _dtypes_of(jax, array):
                return jax.device_put(array)
        (device,) = sharding.device_set
        with _dtypes_of(jax, array), jax.default_device(device):
            if not self._is_committed:
                return jax.device_put(array)
            place = jax.sharding.SingleDeviceSharding
            return jax.device_put(
                array, place(device, memory_kind=sharding.memory_kind)
            )


class JaxCudaKind(CupyKind):
    """JAX's arrays on a GPU; one for each array.

    Args:
        jax, cupy: the modules.
    """

    name = "jax CUDA"

    def __init__(self, jax: Any, cupy: Any) -> None:
        super().__init__(cupy)
        self.jax = jax

    def is_array(self, x: object) -> bool:
        return False

    def is_immutable(self, x: object) -> bool:
        return True

    def as_array(self, x: Any) -> Array:
        _check(self.jax, x)
        return self.cupy.from_dlpack(x)

    def new(self, shape: int | tuple[int, ...], dtype: Any) -> tuple[Any, Array]:
        return None, super().new(shape, dtype)[1]

    def finished(self, theirs: Any, array: Array) -> Any:
        if theirs is None:
            with self._at_work(), _dtypes_of(self.jax, array):
                theirs = importlib.import_module("jax.dlpack").from_dlpack(array)
        self._leave()
        return theirs


def jax_kind(x: object) -> Kind | None:
    """The kind of a JAX array; None if it is none."""
    jax = sys.modules.get(_LIBRARY)
    if jax is None or not isinstance(x, jax.Array):
        return None
    if _is_on_a_gpu(jax, x):
        try:
            return JaxCudaKind(jax, foreign.cupy_to_see("a JAX array on a GPU"))
        except TypeError:  # no CuPy: through the host
            return JaxKind(jax, x)
    return JaxKind(jax, None if isinstance(x, jax.core.Tracer) else x)


def jax_here() -> Kind | None:
    """The kind of arrays on the default device, seen by the host; None if this process has not imported JAX."""
    jax = sys.modules.get(_LIBRARY)
    return None if jax is None else JaxKind(jax)


def jax_cuda_here() -> Kind | None:
    """The kind of arrays on a GPU, None if this process has not imported JAX and CuPy."""
    jax, cupy = sys.modules.get(_LIBRARY), sys.modules.get("cupy")
    return None if jax is None or cupy is None else JaxCudaKind(jax, cupy)


def _check(jax: Any, x: Any) -> None:
    """Raise unless an array has values, in one place, that others can read."""
    if isinstance(x, jax.core.Tracer):
        raise TypeError(
            "a JAX tracer has no values yet: call the ring outside of jit, grad, vmap and scan, on what they return"
        )
    devices = len(x.sharding.device_set)
    if devices > 1:
        raise TypeError(
            f"a JAX array on {devices} devices: pass what is on one of them, x.addressable_shards[0].data, or "
            f"move it, jax.device_put(x, jax.devices()[0]); with Ring(members={devices}) a process has a rank "
            "of the ring for each device"
        )
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        raise TypeError(
            f"dtype {x.dtype} is not supported: pass jax.random.key_data(x)"
        )


def _is_on_a_gpu(jax: Any, x: Any) -> bool:
    if isinstance(x, jax.core.Tracer) or len(x.sharding.device_set) > 1:
        return False
    (device,) = x.sharding.device_set
    return device.platform == "gpu" and x.sharding.memory_kind in ("device", None)


def _is_committed(x: Any) -> bool:
    """Whether the user has said on which device an array is."""
    return bool(getattr(x, "committed", getattr(x, "_committed", True)))


def _dtypes_of(jax: Any, array: Array) -> AbstractContextManager[Any]:
    """JAX with the dtype of an array: it makes 64-bit ones 32-bit ones unless it is told."""
    is_wide = array.dtype.itemsize // (2 if array.dtype.kind == "c" else 1) == 8
    if not is_wide or jax.config.jax_enable_x64:
        return nullcontext()
    enable = getattr(jax, "enable_x64", None)
    if enable is None:
        enable = importlib.import_module("jax.experimental").enable_x64
    context: AbstractContextManager[Any] = enable(True)
    return context
