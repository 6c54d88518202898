"""The kinds of array: the only file that knows NumPy from CuPy.

A *kind* answers what the rest of the wire needs to know of an array, without anyone else importing its
library: how to see it as one flat buffer, how to hand a piece of it to a transport, how to fold pieces.
The kind is found from the array itself.  CuPy is looked up in ``sys.modules`` and never imported first:
who passes a CuPy array has imported it.

Rules (promises 1 and 2):

* a *flat* buffer is one-dimensional, contiguous, of native byte order; C order, whatever the strides;
* packing copies only what is not flat already; an ``out`` that is not flat is written back at the end;
* the result has the kind, dtype, shape and device of the input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import arithmetic
from .arithmetic import Array

_DEVICE_LIBRARY = "cupy"
_names: dict[Any, str] = {}  # by dtype: NumPy works a dtype's name out anew each time


class Kind:
    """NumPy, and what other kinds have in common with it."""

    name = "numpy"
    xp: Any = np

    def owns(self, x: object) -> bool:
        """Whether ``x`` is an array of this kind."""
        return isinstance(x, (np.ndarray, np.generic, bool, int, float, complex))

    def is_array(self, x: object) -> bool:
        """Whether ``x`` of this kind is an array, that can be filled, and not a number."""
        return isinstance(x, np.ndarray)

    def as_array(self, x: Any) -> Array:
        """``x`` as an array without a copy; a number becomes a 0-d array."""
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError(
                "a masked array has elements that do not count: pass x.filled(...)"
            )
        return np.asarray(x)

    def dtype_name(self, x: Array) -> str:
        """The name of its dtype, whatever the byte order; ``TypeError`` if no collective takes it."""
        name = _names.get(x.dtype)
        if name is None:
            name = x.dtype.name
            if x.dtype.kind in "biufcV" and name in arithmetic.DTYPES:
                _names[x.dtype] = name
        if name in arithmetic.DTYPES:
            return str(name)
        raise TypeError(
            f"dtype {x.dtype} is not supported; supported: {', '.join(sorted(arithmetic.DTYPES))}"
        )

    def flat(self, x: Array) -> Array:
        """``x`` as a flat buffer: a view if its memory is one already, else a packed copy."""
        return x.reshape(-1) if self.is_flat(x) else self.copied(x)

    def copied(self, x: Array) -> Array:
        """A flat copy of ``x``."""
        flat = self.empty(x.size, self.dtype_name(x))
        flat.reshape(x.shape)[...] = x
        return flat

    def is_flat(self, x: Array) -> bool:
        """Whether the memory of ``x`` is a flat buffer already."""
        return bool(x.flags.c_contiguous and x.flags.aligned and x.dtype.isnative)

    def write_back(self, flat: Array, out: Array) -> None:
        """Copy a flat buffer into ``out``, whatever its strides."""
        out[...] = flat.reshape(out.shape)

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """New memory, not initialised; ``dtype`` a dtype of this kind or a name."""
        return self.xp.empty(shape, _dtype(dtype))

    def itemsize(self, dtype: str) -> int:
        """Bytes of an element of the dtype of that name."""
        return int(_dtype(dtype).itemsize)

    def typed(self, raw: Array, dtype: Any, count: int) -> Array:
        """The first ``count`` elements of ``dtype`` in a buffer of bytes."""
        dtype = _dtype(dtype)
        return raw[: count * dtype.itemsize].view(dtype)

    def same_memory(self, a: Array, b: Array) -> bool:
        """Whether two flat buffers are the very same elements."""
        return bool(a.size == b.size and _pointer(a) == _pointer(b))

    def overlaps(self, a: Array, b: Array) -> bool:
        """Whether two arrays may share memory; never a wrong no."""
        return bool(np.may_share_memory(a, b))

    def is_writeable(self, x: Array) -> bool:
        """Whether ``x`` may be written, and each of its elements has a place of its own."""
        return bool(x.flags.writeable) and _has_own_places(x)

    def message(self, piece: Array) -> Array:
        """A flat piece as bytes that a transport takes, its memory ready for the transport."""
        return piece.view(np.uint8)

    def fold(self, op: str, operands: Sequence[Array], out: Array) -> None:
        """``out = ((operands[0] op operands[1]) op ...)``; ``out`` may be one of the operands."""
        with np.errstate(all="ignore"):
            arithmetic.fold_in_blocks(np, op, operands, out)

    def finish(self, op: str, size: int, value: Array, out: Array) -> None:
        """Divide by ``size`` (average) and round to ``out``'s dtype; ``out`` may be ``value``."""
        with np.errstate(all="ignore"):
            arithmetic.finish(np, op, size, value, out)


class CupyKind(Kind):
    """CuPy over an MPI that takes device memory: the device folds, MPI reads and writes its memory."""

    name = "cupy"

    def __init__(self, cupy: Any) -> None:
        self.xp = cupy

    def owns(self, x: object) -> bool:
        return isinstance(x, self.xp.ndarray)

    def is_array(self, x: object) -> bool:
        return True

    def as_array(self, x: Any) -> Array:
        return x

    def overlaps(self, a: Array, b: Array) -> bool:
        return bool(self.xp.may_share_memory(a, b))

    def is_writeable(self, x: Array) -> bool:
        return _has_own_places(x)

    def is_flat(self, x: Array) -> bool:
        return bool(x.flags.c_contiguous)

    def message(self, piece: Array) -> Array:
        # MPI knows nothing of streams: kernels that write the piece, or still read it, must be done.
        self.xp.cuda.get_current_stream().synchronize()
        return piece.view(np.uint8)

    def fold(self, op: str, operands: Sequence[Array], out: Array) -> None:
        if len(operands) > 2 and any(
            self.same_memory(operand, out) for operand in operands
        ):
            total = self.empty(out.size, out.dtype)
            arithmetic.fold(self.xp, op, operands, total)
            out[...] = total
        else:
            arithmetic.fold(self.xp, op, operands, out)

    def finish(self, op: str, size: int, value: Array, out: Array) -> None:
        arithmetic.finish(self.xp, op, size, value, out)


NUMPY = Kind()
KINDS = (
    NUMPY.name,
    CupyKind.name,
)  # all names: a place in here says a kind to another rank
_device_kinds: dict[int, CupyKind] = {}  # by the module object


def kind_of(x: object) -> Kind:
    """The kind of an array, found from the array.

    Raises:
        TypeError: if it is of no known kind, naming those that work.
    """
    if isinstance(x, np.ndarray):
        return NUMPY
    cupy = sys.modules.get(_DEVICE_LIBRARY)
    if cupy is not None:
        kind = _cupy_kind(cupy)
        if kind.owns(x):
            return kind
    if NUMPY.owns(x):
        return NUMPY
    advice = ": pass np.asarray(x)" if isinstance(x, (list, tuple)) else ""
    raise TypeError(
        f"a {type(x).__module__}.{type(x).__qualname__} is no array mpiring knows{advice}; "
        "what works: NumPy and CuPy arrays, NumPy scalars and Python numbers"
    )


def kinds_here() -> tuple[str, ...]:
    """The names of the kinds that this process can make arrays of."""
    return (NUMPY.name, *([CupyKind.name] if _DEVICE_LIBRARY in sys.modules else []))


def kind_named(name: str) -> Kind:
    """The kind of that name: what :attr:`Kind.name` says on another rank.

    Raises:
        TypeError: if this process does not use its library.
    """
    if name == NUMPY.name:
        return NUMPY
    cupy = sys.modules.get(_DEVICE_LIBRARY)
    if name != CupyKind.name or cupy is None:
        raise TypeError(
            f"another rank has {name} arrays, which this one has not imported"
        )
    return _cupy_kind(cupy)


def _cupy_kind(cupy: Any) -> CupyKind:
    kind = _device_kinds.get(id(cupy))
    if kind is None:
        kind = _device_kinds[id(cupy)] = CupyKind(cupy)
    return kind


def _dtype(dtype: Any) -> Any:
    if dtype == "bfloat16" and isinstance(dtype, str):
        import ml_dtypes  # NumPy knows the name only after this

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def _has_own_places(x: Array) -> bool:
    """Whether no two elements share memory, for any view that slicing and transposing can make."""
    reach = x.dtype.itemsize  # bytes that the dimensions so far span
    dimensions = [(abs(s), n) for s, n in zip(x.strides, x.shape) if n > 1]
    for stride, length in sorted(dimensions):
        if stride < reach:
            return bool(x.size == 0)
        reach += stride * (length - 1)
    return True


def _pointer(x: Array) -> int:
    interface = getattr(x, "__array_interface__", None) or x.__cuda_array_interface__
    return int(interface["data"][0])
