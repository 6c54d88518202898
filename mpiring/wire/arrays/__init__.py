"""The kinds of array: the only package that knows NumPy from CuPy, torch, JAX or what speaks DLPack.

A *kind* answers what the rest of the wire needs to know of an array, without anyone else importing its
library: how to see it as one flat buffer, how to hand a piece of it to a transport, how to fold pieces, and
how a result becomes an array of the same library again.  There are two engines, and every kind uses one:

* arrays in host memory are seen as NumPy arrays (:mod:`.host`; :mod:`.torch`, :mod:`.jax` and :mod:`.dlpack`
  only look and hand back);
* arrays in a GPU's memory are seen as CuPy arrays (:mod:`.cupy`), whoever made them.

The kind is found from the array itself.  A library is looked up in ``sys.modules`` and never imported first:
who passes its array has imported it.

Rules (promises 1 and 2):

* a *flat* buffer is one-dimensional, contiguous, of native byte order; C order, whatever the strides;
* packing copies only what is not flat already; an ``out`` that is not flat is written back at the end;
* the result has the kind, dtype, shape and device of the input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .cupy import CupyKind, cupy_here
from .host import NUMPY, Kind

__all__ = ["KINDS", "NUMPY", "CupyKind", "Kind", "kind_named", "kind_of", "kinds_here"]

# Each looks its library up, and gives its kind if this process has imported it.
_FINDERS: dict[str, Callable[[], Kind | None]] = {
    "numpy": lambda: NUMPY,
    "cupy": cupy_here,
}
KINDS = tuple(_FINDERS)  # a place in here says a kind to another rank


def kind_of(x: object) -> Kind:
    """The kind of an array, found from the array.

    Raises:
        TypeError: if it is of no known kind, naming those that work.
    """
    if NUMPY.is_array(x):  # most of them
        return NUMPY
    for find in _FINDERS.values():
        kind = find()
        if kind is not None and kind.owns(x):
            return kind
    advice = ": pass np.asarray(x)" if isinstance(x, (list, tuple)) else ""
    raise TypeError(
        f"a {type(x).__module__}.{type(x).__qualname__} is no array mpiring knows{advice}; "
        "what works: NumPy and CuPy arrays, NumPy scalars and Python numbers"
    )


def kinds_here() -> tuple[str, ...]:
    """The names of the kinds that this process can make arrays of."""
    return tuple(name for name, find in _FINDERS.items() if find() is not None)


def kind_named(name: str) -> Kind:
    """The kind of that name: what :attr:`Kind.name` says on another rank.

    Raises:
        TypeError: if this process does not use its library.
    """
    find: Callable[[], Any] = _FINDERS.get(name, lambda: None)
    kind = find()
    if kind is None:
        raise TypeError(
            f"another rank has {name} arrays, which this one has not imported"
        )
    assert isinstance(kind, Kind)
    return kind
