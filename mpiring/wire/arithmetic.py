"""What an operation means for a dtype: which are allowed, what they accumulate in, how they finish.

Rules (promise 3):

* integers wrap, NaN propagates through min and max: both as NumPy's ufuncs do;
* 16-bit floats add and multiply in float32 and are rounded once, when a segment is finished;
* an average divides the sum by the size before that rounding: a true division, for complex numbers of
  both parts;
* what has no good answer (the average of integers, the sum of bools, the largest complex number) is a
  ``TypeError`` that says what to do.

The functions take the array namespace ``xp`` (``numpy`` or ``cupy``) and its arrays, and know neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..plan.segments import pieces

Array = Any  # an array of any kind; only wire.arrays knows which

OPS = ("sum", "prod", "min", "max", "avg")
_UFUNC = {
    "sum": "add",
    "avg": "add",
    "prod": "multiply",
    "min": "minimum",
    "max": "maximum",
}

_INTEGERS = frozenset(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64))
HALVES = frozenset(("float16", "bfloat16"))
_COMPLEX = frozenset(("complex64", "complex128"))
DTYPES = _INTEGERS | HALVES | _COMPLEX | {"bool", "float32", "float64"}

# Elements folded at a time on the host: 32 Ki of float32 are 128 KiB, which stay in a core's L2 cache
# together with the operands' pieces.
_BLOCK = 1 << 15
# Bytes of each operand folded at a time where the result goes on to several outputs.  Measured between 32 and 512 KiB
# with two and four operands: shorter blocks cost calls, longer ones leave a core's L2 cache of 1 or 2 MiB.
_FUSED_BYTES = 256 << 10


def check_op(op: str, dtype: str) -> None:
    """Raise unless ``op`` has an answer for ``dtype`` (both by name).

    >>> check_op("avg", "int32")
    Traceback (most recent call last):
    TypeError: op 'avg' of int32 would need rounding: convert to float64 first, or use 'sum'
    """
    if op not in OPS:
        raise ValueError(
            f"unknown op {op!r}; known: {', '.join(OPS)}, and MPI.SUM, PROD, MIN, MAX"
        )
    if op == "avg" and (dtype in _INTEGERS or dtype == "bool"):
        raise TypeError(
            f"op 'avg' of {dtype} would need rounding: convert to float64 first, or use 'sum'"
        )
    if dtype == "bool" and op in ("sum", "prod"):
        raise TypeError(
            f"op {op!r} of bool has two meanings: use 'max' for or, 'min' for and, "
            "or convert to int64 to count"
        )
    if dtype in _COMPLEX and op in ("min", "max"):
        raise TypeError(
            f"op {op!r} of {dtype} does not exist, complex numbers have no order: "
            "reduce the absolute values or the parts"
        )


def accumulator(op: str, dtype: str) -> str:
    """The dtype in which partial results are kept and travel."""
    return "float32" if dtype in HALVES and op in ("sum", "prod", "avg") else dtype


def library_dtype(op: str, dtype: str) -> str:
    """The dtype in which the MPI's own reduction is asked to combine.

    Few MPIs have 16-bit floats.  Open MPI's vector code for 8- and 16-bit integers saturates where NumPy, and
    its own scalar code, wrap: in 32 bits nothing saturates, and cutting off the upper ones wraps.
    """
    if dtype in HALVES:
        return "float32"
    narrow = dtype in _INTEGERS and dtype.endswith(("int8", "int16"))
    return "int32" if narrow and op in ("sum", "prod") else dtype


def fold(xp: Any, op: str, operands: Sequence[Array], out: Array) -> None:
    """``out = ((operands[0] op operands[1]) op ...)``, in ``out``'s dtype, on whole arrays.

    The operands may be narrower than ``out``; ``out`` may be one of them only if there are two.
    """
    ufunc = getattr(xp, _UFUNC[op])
    left, *rest = (_in_dtype_of(out, operand) for operand in operands)
    if not rest:
        out[...] = left
    for right in rest:
        if _differs_in_place(op, out):
            out[...] = ufunc(left, right)
        else:
            ufunc(left, right, out=out)
        left = out


def fold_in_blocks(xp: Any, op: str, operands: Sequence[Array], out: Array) -> None:
    """:func:`fold` for host memory: in one pass, block by block; ``out`` may be any of the operands."""
    if (
        len(operands) == 2
        and all(operand.dtype == out.dtype for operand in operands)
        and not _differs_in_place(op, out)
    ):
        getattr(xp, _UFUNC[op])(operands[0], operands[1], out=out)
        return
    block = xp.empty(min(_BLOCK, out.size), out.dtype)
    for piece in pieces(out.size, _BLOCK):
        part = block[: piece.length]
        fold(xp, op, [operand[piece.slice] for operand in operands], part)
        out[piece.slice] = part


def fold_to_all(
    xp: Any,
    op: str,
    size: int,
    operands: Sequence[Array],
    outs: Sequence[Array],
    wide: Any,
) -> None:
    """``out = finish((operands[0] op operands[1]) op ...)`` for each of ``outs``, in one pass over host memory.

    Block by block, so that a block stays in the core's cache until it is combined, finished and stored to all.

    Args:
        size: what an average divides by.
        operands: one or more, of the dtype of the outputs.
        outs: one or more; each may be one of the operands.
        wide: the dtype in which partial results are kept.
    """
    ufunc = getattr(xp, _UFUNC[op])
    out, *others = outs
    is_wide = out.dtype != wide
    differs = _differs_in_place(op, out)
    step = max(1, _FUSED_BYTES // wide.itemsize)
    needs_block = is_wide or len(operands) > 2
    block = xp.empty(min(step, out.size) if needs_block else 0, wide)
    for piece in pieces(out.size, step):
        here = piece.slice
        result = out[here]
        kept = block[: piece.length]
        value = operands[0][here]
        for turn, operand in enumerate(operands[1:], 2):
            # An output may be an operand: nothing is written there before the last one is read.
            place = kept if is_wide or turn < len(operands) else result
            right = operand[here]
            if is_wide:
                value, right = _in_dtype_of(kept, value), _in_dtype_of(kept, right)
            if differs:
                value = ufunc(value, right)
            else:
                value = ufunc(value, right, out=place)
        if is_wide and value.dtype != wide:
            value = _in_dtype_of(kept, value)
        if op == "avg" or value is not result:
            finish(xp, op, size, value, result)
        for other in others:
            other[here] = result


def finish(xp: Any, op: str, size: int, value: Array, out: Array) -> None:
    """Write the finished ``value`` to ``out``: divided by ``size`` for an average, rounded to its dtype.

    A ``value`` wider than ``out`` is used up.
    """
    if op != "avg":
        if value is not out:
            out[...] = value
        return
    if (
        value.dtype.kind == "c"
    ):  # divide the parts: complex division would round otherwise
        real = value.real.dtype
        value, out = value.view(real), out.view(real)
    divisor = value.dtype.type(size)
    if value.dtype == out.dtype:
        xp.divide(value, divisor, out=out)
    else:
        xp.divide(value, divisor, out=value)
        out[...] = value


def _differs_in_place(op: str, out: Array) -> bool:
    """Whether bits may depend on where the result goes (promise 4 says they must not).

    NumPy multiplies complex numbers with fused multiply-adds where the CPU has them, but a single number
    in place without.
    """
    return bool(op == "prod" and out.dtype.kind == "c")


def _in_dtype_of(out: Array, operand: Array) -> Array:
    return operand if operand.dtype == out.dtype else operand.astype(out.dtype)
