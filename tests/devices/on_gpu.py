"""Libraries besides CuPy that have arrays in a GPU's memory, with the face that tests use: torch, JAX, Numba.

``HERE`` are the same libraries' arrays in host memory, where they have any: what is tried with those runs everywhere,
and so a mistake in a test for GPUs shows where there is none.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from typing import Any

import numpy as np

from wire import libraries
from wire.libraries import JAX, TORCH


class TorchCuda(libraries.Torch):
    """Tensors on the current CUDA device."""

    def asarray(self, x: Any) -> Any:
        return super().asarray(x).cuda()

    def asnumpy(self, x: Any) -> Any:
        assert x.is_cuda and x.device.index == self.xp.cuda.current_device()
        return super().asnumpy(x.cpu())


class JaxCuda(libraries.Jax):
    """Arrays on JAX's default device, a GPU."""

    def asnumpy(self, x: Any) -> Any:
        (device,) = x.devices()
        assert device.platform == "gpu"
        return super().asnumpy(x)


class NumbaCuda(libraries.Library):
    """Numba's device arrays."""

    module = "numba.cuda"
    dtypes = tuple(d for d in libraries.NUMPY.dtypes if d != "bfloat16")

    def __str__(self) -> str:
        return "numba"

    @property
    def ndarray(self) -> Any:
        return self.xp.cudadrv.devicearray.DeviceNDArray

    def asarray(self, x: Any) -> Any:
        return self.xp.to_device(np.array(x))

    def asnumpy(self, x: Any) -> Any:
        return x.copy_to_host()

    def strided(self, x: Any) -> Any:
        return self.asarray(np.repeat(x, 2, axis=1))[:, ::2]


ON_GPU = {"torch": TorchCuda(), "jax": JaxCuda(), "numba": NumbaCuda()}
HERE = {"torch": TORCH, "jax": JAX}


def problem(name: str, where: str) -> str:
    """Why a library's arrays cannot be tried here, or nothing."""
    if importlib.util.find_spec(name) is None:
        return f"{name} is not installed"
    if where != "real":
        return "" if name in HERE else f"{name} has no arrays in host memory"
    if name == "torch":
        import torch

        found = torch.cuda.is_available()
    elif name == "jax":
        # Ranks share a card, of which each JAX would take three quarters.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax

        found = jax.default_backend() == "gpu"
    else:
        from numba import cuda

        found = cuda.is_available()
    return "" if found else f"this {name} has no CUDA"


@contextlib.contextmanager
def on_a_stream(library: Any):
    """With a stream of torch's own, that is not the default one, as the current stream; where there are any."""
    if not isinstance(library, TorchCuda):
        yield
        return
    cuda = library.xp.cuda
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        yield
    cuda.current_stream().wait_stream(stream)


def late(library: Any, value: float, count: int, turns: int) -> Any:
    """An array of float32 that the device has still to fill: behind ``turns`` products of large matrices.

    A library that computes in step with the host fills it at once.
    """
    xp = library.xp
    side = max(2, int(count**0.5))
    if isinstance(library, libraries.Torch):
        make = {"device": "cuda" if isinstance(library, TorchCuda) else "cpu"}
        x = xp.full((side, side), 1 / side, dtype=xp.float32, **make)
        for _ in range(turns):
            x = x @ x
        return (x * 0).flatten()[:1].expand(count) + value
    x = xp.numpy.full((side, side), np.float32(1 / side))
    for _ in range(turns):
        x = x @ x
    return xp.numpy.broadcast_to((x * 0).ravel()[:1], (count,)) + np.float32(value)
