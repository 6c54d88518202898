"""The kinds of array: the only package that knows NumPy from CuPy, torch, JAX or what speaks DLPack.

A *kind* answers what the rest of the wire needs to know of an array, without anyone else importing its
library: how to see it as one flat buffer, how to hand a piece of it to a transport, how to fold pieces, and
how a result becomes an array of the same library again.  There are two engines, and every kind uses one:

* arrays in host memory are seen as NumPy arrays (:mod:`.host`);
* arrays in a GPU's memory are seen as CuPy arrays (:mod:`.cupy`), whoever made them (:mod:`.foreign`).

:mod:`.torch`, :mod:`.jax` and :mod:`.dlpack` only look and hand back.

The kind is found from the array itself.  A library is looked up in ``sys.modules`` and never imported first:
who passes its array has imported it.  The exception is CuPy, when another library's array on a GPU is passed.

Rules (promises 1 and 2):

* a *flat* buffer is one-dimensional, contiguous, of native byte order; C order, whatever the strides;
* packing copies only what is not flat already; an ``out`` that is not flat is written back at the end;
* the result has the kind, dtype, shape and device of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from . import cupy
from .cupy import CupyKind, cupy_here, cupy_kind
from .dlpack import libraries_here, other_kind, other_named
from .host import NUMPY, Kind, numpy_kind
from .jax import jax_cuda_here, jax_here, jax_kind
from .torch import torch_cuda_here, torch_here, torch_kind

__all__ = [
    "KINDS",
    "NUMPY",
    "CupyKind",
    "Kind",
    "as_at_call",
    "kind_code",
    "kind_named",
    "kind_of",
    "kinds_here",
    "libraries_here",
    "needed_for",
]

T = TypeVar("T")
R = TypeVar("R")

_SEEKERS = (numpy_kind, cupy_kind, torch_kind, jax_kind, other_kind)

# By name: the kind, if this process can make arrays of it; and what it has to import for that.
_MAKERS: dict[str, tuple[Callable[[], Kind | None], str]] = {
    "numpy": (lambda: NUMPY, "numpy"),
    "cupy": (cupy_here, "cupy"),
    "torch": (torch_here, "torch"),
    "torch CUDA": (torch_cuda_here, "torch and cupy"),
    "jax": (jax_here, "jax"),
    "jax CUDA": (jax_cuda_here, "jax and cupy"),
    "numba": (lambda: other_named("numba"), "numba.cuda and cupy"),
}
KINDS = (*_MAKERS, "another")  # a place in here says a kind to another rank


def kind_of(x: object) -> Kind:
    """The kind of an array, found from the array.

    Raises:
        TypeError: if it is of no known kind, naming those that work.
    """
    if NUMPY.is_array(x):  # most of them
        return NUMPY
    for kind_or_none in _SEEKERS:
        kind = kind_or_none(x)
        if kind is not None:
            return kind
    is_like_one = isinstance(x, (list, tuple)) or hasattr(x, "__array__")
    advice = ": pass np.asarray(x)" if is_like_one else ""
    raise TypeError(
        f"a {type(x).__module__}.{type(x).__qualname__} is no array mpiring knows{advice}; what works: arrays of "
        "NumPy, CuPy, torch, JAX, Numba and whatever has __dlpack__, NumPy scalars and Python numbers"
    )


def as_at_call(program: Generator[T, None, R], x: object) -> Generator[T, None, R]:
    """The program of a call on ``x``, which takes the stream that is current now for the one of the call.

    A program that starts at once needs no such care.
    """
    try:
        kind = kind_of(x)
        if isinstance(kind, CupyKind):
            return cupy.as_at_call(program, kind.bound(kind.as_array(x)))
    except TypeError:  # the program finds that too, and tells the other ranks
        pass
    return program


def kind_code(kind: Kind) -> int:
    """What says this kind to another rank: its place in :data:`KINDS`, the last one for what has no name there."""
    return KINDS.index(kind.name) if kind.name in KINDS else len(KINDS) - 1


def kinds_here() -> tuple[str, ...]:
    """The names of the kinds that this process can make arrays of; of those in :data:`KINDS`."""
    return tuple(name for name, (here, _) in _MAKERS.items() if here() is not None)


def kind_named(name: str) -> Kind:
    """The kind of that name: what :attr:`Kind.name` says on another rank.

    Raises:
        TypeError: if this process does not use its library.
    """
    here, libraries = _MAKERS.get(name, (lambda: other_named(name), name))
    kind = here()
    if kind is None:
        raise TypeError(
            f"another rank has {name} arrays, and this one has not imported {libraries}"
        )
    return kind


def needed_for(name: str) -> str:
    """What a process has to import to make arrays of a kind in :data:`KINDS`; nothing if it cannot at all."""
    return _MAKERS[name][1] if name in _MAKERS else ""
