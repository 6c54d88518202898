"""The libraries whose arrays mpiring takes, with one face: what a test that is for all of them uses.

``LIBRARIES`` are pytest parameters, of those that are installed; test_kinds.py skips a test for each of the others.  A
library is imported when it is first used, so that collecting tests imports none.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from wire import reference
from wire.reference import BFLOAT16


class Library:
    """A library's arrays.

    ``asarray`` makes one with the values of a NumPy array, ``asnumpy`` gives the values back, ``strided`` makes one
    that is not flat.  ``dtypes`` are those that it has, ``fills`` says whether an array can be written.
    """

    module = "numpy"
    dtypes: tuple[str, ...] = tuple(reference.DTYPES)
    fills = True

    def __str__(self) -> str:
        return self.module

    @cached_property
    def xp(self) -> Any:
        return importlib.import_module(self.module)

    @property
    def ndarray(self) -> Any:
        return np.ndarray

    def asarray(self, x: Any) -> Any:
        return np.array(x)

    def asnumpy(self, x: Any) -> Any:
        return np.asarray(x)

    def strided(self, x: Any) -> Any:
        """An array that is not contiguous, of two dimensions or more."""
        return self.asarray(np.repeat(x, 2, axis=1))[:, ::2]


class Torch(Library):
    module = "torch"

    @cached_property
    def xp(self) -> Any:
        torch = importlib.import_module("torch")
        torch.set_num_threads(1)  # ranks and other tests share the cores
        return torch

    @property
    def ndarray(self) -> Any:
        return self.xp.Tensor

    def asarray(self, x: Any) -> Any:
        x = np.array(x)
        if x.dtype == BFLOAT16:
            bits = self.xp.tensor(x.view(np.int16), dtype=self.xp.int16)
            return bits.view(self.xp.bfloat16)
        return self.xp.tensor(x, dtype=getattr(self.xp, x.dtype.name))

    def asnumpy(self, x: Any) -> Any:
        x = x.detach().resolve_conj().resolve_neg()
        if x.dtype == self.xp.bfloat16:
            return x.view(self.xp.int16).numpy().copy().view(BFLOAT16)
        return x.numpy().copy()


class Jax(Library):
    module = "jax"
    fills = False

    @property
    def ndarray(self) -> Any:
        return self.xp.Array

    def asarray(self, x: Any) -> Any:
        with self.xp.enable_x64(True):
            return self.xp.numpy.asarray(np.array(x))

    def strided(self, x: Any) -> Any:
        return self.asarray(x)  # it has no others


class Strict(Library):
    """array_api_strict, which does what the array API standard says, and no more."""

    module = "array_api_strict"
    dtypes = tuple(d for d in reference.DTYPES if d not in ("float16", "bfloat16"))

    @property
    def ndarray(self) -> Any:
        return type(self.xp.asarray(0))

    def asarray(self, x: Any) -> Any:
        return self.xp.asarray(np.array(x))

    def asnumpy(self, x: Any) -> Any:
        return np.from_dlpack(x)


NUMPY = Library()
TORCH, JAX, STRICT = Torch(), Jax(), Strict()


KNOWN = (TORCH, JAX, STRICT)
OTHERS = tuple(x for x in KNOWN if importlib.util.find_spec(x.module))  # installed
LIBRARIES = [pytest.param(library, id=library.module) for library in OTHERS]


def need(library: Library) -> None:
    """At the top of a file: skip all of it where the library is not installed."""
    if library not in OTHERS:
        pytest.skip(f"{library} is not installed", allow_module_level=True)


def pairs(things: Iterable[Any], fits: Callable[[Library, Any], bool]) -> list[Any]:
    """Parameters (library, thing) for what fits each other."""
    return [
        pytest.param(library, thing, id=f"{library}-{thing}")
        for library in OTHERS
        for thing in things
        if fits(library, thing)
    ]


def check(library: Library, result: Any, want: Any, what: object = "") -> None:
    """Raise unless ``result`` is an array of the library with the dtype, shape and bits of a NumPy array."""
    assert isinstance(result, library.ndarray), f"{what}: a {type(result)}"
    values = library.asnumpy(result)
    assert values.dtype == want.dtype, f"{what}: {values.dtype}, not {want.dtype}"
    assert values.shape == want.shape, f"{what}: {values.shape}, not {want.shape}"
    assert values.tobytes() == want.tobytes(), f"{what}: {values}, not {want}"
