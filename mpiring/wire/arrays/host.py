"""NumPy: the engine of every array in host memory, and what all kinds have in common."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...plan.segments import pieces
from ..reduce import arithmetic, kernels
from ..reduce.arithmetic import Array
from ..settings.packages import install
from . import fit

# Below so many bytes calling a kernel costs more than NumPy takes, but for 16-bit floats.
_KERNEL_BYTES = 32 << 10

_names: dict[Any, str] = {}  # by dtype: NumPy works a dtype's name out anew each time


_MOST_WORK = 1000  # candidates that NumPy tries to find a common element of two arrays


class Kind:
    """NumPy's arrays, and the face that every kind has.

    A kind sees a user's array as an array of its engine, which all methods but the first few take and return.

    Attributes:
        name: of the kind; on another rank it means the same.
        is_device: whether its memory is a device's, which the host cannot touch.
        names_streams: whether each array says itself on which stream it is worked on.
    """

    name = "numpy"
    is_device = False
    names_streams = False

    # ---- the user's arrays ------------------------------------------------------------------------

    def is_array(self, x: object) -> bool:
        """Whether ``x`` of this kind is an array that can be filled: no number, nothing immutable."""
        return isinstance(x, np.ndarray)

    def is_immutable(self, x: object) -> bool:
        """Whether ``x`` of this kind is an array that cannot be filled, so that a new one takes its place."""
        return False

    def as_array(self, x: Any) -> Array:
        """``x`` as an array of the engine without a copy; a number becomes a 0-d array."""
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError(
                "a masked array has elements that do not count: pass x.filled(...)"
            )
        return np.asarray(x)

    def bound(self, array: Array) -> Kind:
        """This kind for one call on ``array``: on its device, and in step with the stream that is current now."""
        return self

    def new(self, shape: int | tuple[int, ...], dtype: Any) -> tuple[Any, Array]:
        """New memory for a result: the user's array, and the same as an array of the engine.

        The user's array is None if its kind is immutable: :meth:`finished` makes it.
        """
        array = self.empty(shape, dtype)
        return array, array

    def finished(self, theirs: Any, array: Array) -> Any:
        """The user's array, ready for the user, when all work on ``array`` has been asked for.

        Args:
            theirs: None if :meth:`new` gave none: it is made now, of memory that nobody writes any more.
            array: the same as an array of the engine.
        """
        return theirs

    def written(self, theirs: Any) -> None:
        """Tell the array's library, if it wants to know, that the user's array was written behind its back."""

    # ---- what it is -------------------------------------------------------------------------------

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

    def itemsize(self, dtype: str) -> int:
        """Bytes of an element of the dtype of that name."""
        return int(as_dtype(dtype).itemsize)

    @property
    def place(self) -> str:
        """Where new memory is, in words: scratch of one place serves all kinds that are there."""
        return "the host"

    def device_of(self, x: Array) -> str:
        """Where its memory is, in words."""
        return "the host"

    def is_flat(self, x: Array) -> bool:
        """Whether the memory of ``x`` is a flat buffer already."""
        return bool(x.flags.c_contiguous and x.flags.aligned and x.dtype.isnative)

    def same_memory(self, a: Array, b: Array) -> bool:
        """Whether two flat buffers are the very same elements."""
        return bool(a.size == b.size and self.pointer(a) == self.pointer(b))

    def overlaps(self, a: Array, b: Array) -> bool:
        """Whether two arrays may share memory; never a wrong no."""
        return bool(np.may_share_memory(a, b))

    def span(self, x: Array) -> tuple[int, int]:
        """The addresses from the first of its bytes to behind the last one."""
        start = stop = self.pointer(x)
        if x.size == 0:
            return start, start
        for length, stride in zip(x.shape, x.strides):
            reach = (length - 1) * stride
            start, stop = start + min(reach, 0), stop + max(reach, 0)
        return start, stop + x.itemsize

    def meets(self, a: Array, b: Array) -> bool:
        """Whether two arrays have elements in common; also where that is hard to tell."""
        if not self.overlaps(a, b):
            return False
        try:
            work: Any = _MOST_WORK  # its types know two numbers only
            return bool(np.shares_memory(a, b, max_work=work))
        except RuntimeError:  # NumPy gives up
            return True

    def is_writeable(self, x: Array) -> bool:
        """Whether ``x`` may be written, and each of its elements has a place of its own."""
        return bool(x.flags.writeable) and has_own_places(x)

    def pointer(self, x: Array) -> int:
        """Address of its first element."""
        return int(x.__array_interface__["data"][0])

    def on_host(self, x: Array) -> Array:
        """``x`` in host memory, for the host to look at now."""
        return x

    def misfit(self, x: Array, dtype: str) -> str:
        """The first element of ``x`` that the dtype of that name cannot hold, in words; nothing if it holds them all.

        See :mod:`mpiring.wire.arrays.fit`.
        """
        wanted = as_dtype(dtype)
        if np.can_cast(x.dtype, wanted, "safe"):
            return ""
        return fit.misfit(self.on_host(x), wanted)

    def listed(self, given: Any, dtype: str) -> Array:
        """A list of numbers, or one, as an array that is to become one of the dtype of that name.

        See :func:`mpiring.wire.arrays.fit.listed`.
        """
        return self.as_array(fit.listed(given, as_dtype(dtype)))

    # ---- flat buffers -----------------------------------------------------------------------------

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        """New memory of the engine, not initialised; ``dtype`` a dtype of the engine or a name."""
        return np.empty(shape, as_dtype(dtype))

    def flat(self, x: Array) -> Array:
        """``x`` as a flat buffer: a view if its memory is one already, else a packed copy."""
        return x.reshape(-1) if self.is_flat(x) else self.copied(x)

    def copied(self, x: Array) -> Array:
        """A flat copy of ``x``."""
        flat = self.empty(x.size, self.dtype_name(x))
        self.copy(x, flat.reshape(x.shape))
        return flat

    def copy(self, source: Array, out: Array) -> None:
        """Copy elements, whatever the strides and dtypes; the shapes are equal."""
        out[...] = source

    def typed(self, raw: Array, dtype: Any, count: int) -> Array:
        """The first ``count`` elements of ``dtype`` in a buffer of bytes."""
        dtype = as_dtype(dtype)
        return raw[: count * dtype.itemsize].view(dtype)

    def message(self, piece: Array) -> Array:
        """A flat piece as bytes that a transport of this kind takes."""
        return piece.view(np.uint8)

    def join(self, arrays: Sequence[Any], out: Array) -> bool:
        """Copy users' arrays behind each other into a flat buffer, at once; False, and nothing, where that cannot be.

        It can be with NumPy's own arrays of the buffer's dtype.
        """
        if {*map(type, arrays), type(out)} != {np.ndarray}:
            return False
        dtype = out.dtype
        if not all([x.dtype == dtype for x in arrays]):
            return False
        flat = [x if x.ndim == 1 else x.reshape(-1) for x in arrays]
        np.concatenate(flat, out=out)
        return True

    # ---- arithmetic -------------------------------------------------------------------------------

    def fold(self, op: str, operands: Sequence[Array], out: Array) -> None:
        """``out = ((operands[0] op operands[1]) op ...)``; ``out`` may be one of the operands."""
        combine(op, operands, [out])

    def fold_to_all(
        self, op: str, size: int, operands: Sequence[Array], outs: Sequence[Array]
    ) -> None:
        """:meth:`fold` and :meth:`finish` in one pass, into each of ``outs``; each may be one of the operands."""
        combine(op, operands, outs, size)

    def finish(self, op: str, size: int, value: Array, out: Array) -> None:
        """Divide by ``size`` (average) and round to ``out``'s dtype; ``out`` may be ``value``."""
        if out is not value or op == "avg":
            combine(op, [value], [out], size)


NUMPY = Kind()


def layouts(xs: Collection[Any]) -> tuple[tuple[Any, tuple[int, ...]], ...] | None:
    """Dtype and shape of each of some NumPy arrays; None if there are none, or others among them."""
    if set(map(type, xs)) != {np.ndarray}:
        return None
    return tuple([(x.dtype, x.shape) for x in xs])


def are_fillable(xs: Collection[Any]) -> bool:
    """Whether NumPy arrays are packed and may be written, as mostly they are."""
    return all([x.flags.writeable and x.flags.c_contiguous for x in xs])


def combine(
    op: str, operands: Sequence[Array], outs: Sequence[Array], size: int = 1
) -> None:
    """Fold flat arrays in host memory from the left and write the result to each of ``outs``, in one pass over memory.

    ``out = ((operands[0] op operands[1]) op ...)``, divided by ``size`` and rounded.  By a kernel of ours if there is
    one and NumPy would be slower (:mod:`mpiring.wire.reduce.kernels`); the bits are the same either way.

    Args:
        op, operands, outs, size: see :func:`mpiring.wire.reduce.arithmetic.combine`.
    """
    if len(operands) > kernels.MOST or len(outs) > kernels.MOST:
        _combine_many(op, operands, outs, size)
        return
    fold = None
    if outs[0].nbytes >= _KERNEL_BYTES or 2 in [
        x.dtype.itemsize for x in (*operands, outs[0])
    ]:
        fold = by_addresses(op, operands, outs, size, _KERNEL_BYTES)
    if fold is None:
        with np.errstate(all="ignore"):
            arithmetic.combine(np, op, operands, outs, size)
    else:
        fold([NUMPY.pointer(x) for x in (*operands, *outs)])


def by_addresses(
    op: str,
    operands: Sequence[Array],
    outs: Sequence[Array],
    size: int,
    least: int = 0,
) -> Callable[[Sequence[int]], object] | None:
    """What does to arrays like these what :func:`combine` does, given where they are; None if NumPy has to.

    Called with the addresses of the operands and of the outputs behind them.

    Args:
        op, operands, outs, size: as for :func:`combine`.
        least: shorter outputs are NumPy's affair, as it is faster where addresses have to be asked for.
    """
    kernel, factor = _kernel(op, operands, outs, size, least)
    if kernel is None:
        return None
    last = [outs[0].size * factor, *([size] if op == "avg" and size != 1 else [])]
    return lambda addresses: kernel(*addresses, *last)


def plain(op: str, dtype: str) -> Callable[..., object] | None:
    """``step(a, b, out=out)``, which does ``out = a op b`` for short flat arrays and nothing else.

    For one thread at a time.  None where NumPy alone would not give the bits of :func:`combine`, or be slow.
    """
    arithmetic.check_op(op, dtype)
    if op == "avg" or dtype in arithmetic.HALVES:
        return None
    if (op == "prod" and dtype.startswith("complex")) or not _HAS_CONTEXT:
        return None
    # To enter np.errstate takes longer than the work; a context that has entered it does not.
    quiet = contextvars.copy_context()
    quiet.run(np.seterr, all="ignore")
    return partial(quiet.run, arithmetic.ufunc(np, op))


# Since NumPy 2 what a thread does on overflow is part of its context.
_HAS_CONTEXT = int(np.__version__.split(".")[0]) >= 2


def _combine_many(
    op: str, operands: Sequence[Array], outs: Sequence[Array], size: int
) -> None:
    """:func:`combine` of more arrays than a kernel takes: some by some, block by block."""
    dtype = as_dtype(arithmetic.accumulator(op, NUMPY.dtype_name(outs[0])))
    length = arithmetic.BLOCK_BYTES // dtype.itemsize
    block = np.empty(min(length, outs[0].size), dtype)
    for piece in pieces(outs[0].size, length):
        here, part = piece.slice, block[: piece.length]
        left = [x[here] for x in operands]
        while len(left) > kernels.MOST:
            combine(op, left[: kernels.MOST], [part])
            left = [part, *left[kernels.MOST :]]
        first, *others = (out[here] for out in outs)
        few = kernels.MOST - 1
        combine(op, left, [first, *others[:few]], size)
        for other in others[few:]:
            other[...] = first


def _kernel(
    op: str, operands: Sequence[Array], outs: Sequence[Array], size: int, least: int
) -> tuple[kernels.Kernel | None, int]:
    """What combines these arrays faster than NumPy, if anything does; and how many numbers make an element."""
    arrays, out = (*operands, *outs), outs[0]
    if not all([x.flags.c_contiguous and x.dtype.isnative for x in arrays]):
        return None, 1
    names = [NUMPY.dtype_name(x) for x in arrays]
    divides, factor = op == "avg" and size != 1, 1
    if arithmetic.HALVES.isdisjoint(names):
        is_plain = len(outs) == 1 and len(operands) + divides <= 2
        if is_plain or out.nbytes < least:
            return None, 1
        if out.dtype.kind == "c":
            if op == "prod":
                return None, 1
            names, factor = [out.real.dtype.name] * len(names), 2
    op = "sum" if op == "avg" and not divides else op
    dtypes = tuple(names[: len(operands)])
    return kernels.find(kernels.Form(op, dtypes, names[-1], len(outs))), factor


def numpy_kind(x: object) -> Kind | None:
    """The kind of a NumPy array, NumPy scalar or Python number; None if it is none."""
    is_mine = isinstance(x, (np.ndarray, np.generic, bool, int, float, complex))
    return NUMPY if is_mine else None


def as_dtype(dtype: Any) -> Any:
    """A NumPy dtype from one or from a name."""
    if dtype == "bfloat16" and isinstance(dtype, str):
        try:
            import ml_dtypes  # NumPy knows the name only after this
        except ImportError:
            raise TypeError(
                f"bfloat16 needs ml_dtypes: {install('ml_dtypes')}"
            ) from None
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def is_plain(x: object, out: object) -> bool:
    """Whether ``x`` is a flat array of NumPy itself, and ``out`` None, ``x`` or another one like it, apart from it."""
    if type(x) is not np.ndarray or not _is_flat(x):
        return False
    if out is None:
        return True
    if out is not x:
        if type(out) is not np.ndarray or out.dtype != x.dtype or out.shape != x.shape:
            return False
        if not _is_flat(out) or np.may_share_memory(x, out):
            return False
    return out.flags.writeable


def _is_flat(x: Array) -> bool:
    flags = x.flags
    return bool(flags.c_contiguous and flags.aligned)


def has_own_places(x: Array) -> bool:
    """Whether no two elements share memory, for any view that slicing and transposing can make."""
    reach = x.dtype.itemsize  # bytes that the dimensions so far span
    dimensions = [(abs(s), n) for s, n in zip(x.strides, x.shape) if n > 1]
    for stride, length in sorted(dimensions):
        if stride < reach:
            return bool(x.size == 0)
        reach += stride * (length - 1)
    return True
