"""What an operation means for a dtype: which are allowed, what they accumulate in, how they finish.

Rules (promise 3):

* integers wrap, NaN propagates through min and max: both as NumPy's ufuncs do;
* 16-bit floats add and multiply in float32 and are rounded once, when a segment is finished; a NaN comes out positive
  and without payload;
* an average divides the sum by the size before that rounding: a true division, for complex numbers of
  both parts;
* what has no good answer (the average of integers, the sum of bools, the largest complex number) is a
  ``TypeError`` that says what to do.

The functions take the array namespace ``xp`` (``numpy`` or ``cupy``) and its arrays, and know neither.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from ...plan.segments import pieces

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

# Folded at a time on the host, of each operand.  Measured between 32 and 512 KiB with two and four operands: shorter
# blocks cost calls, longer ones leave a core's L2 cache of 1 or 2 MiB.
BLOCK_BYTES = 256 << 10


# The smallest float64, from its bits: a compiler that flushes would read the literal as 0.
_TINY: float = struct.unpack("<d", b"\1" + bytes(7))[0]
_ONE = 1.0


def flushes() -> bool:
    """Whether this thread takes denormal numbers for zero, or makes them zero: then its sums have other bits."""
    return _TINY * _ONE == 0.0


def may_underflow(dtype: str) -> bool:
    """Whether numbers of a dtype, or those that they accumulate in, may be denormal."""
    return dtype.startswith(("float", "bfloat", "complex"))


def check_op(op: str, dtype: str) -> None:
    """Raise unless ``op`` has an answer for ``dtype`` (both by name).

    >>> check_op("avg", "int32")
    Traceback (most recent call last):
    TypeError: op 'avg' of int32 would need rounding: convert to float64 first, or use 'sum'
    """
    if not isinstance(op, str) or op not in OPS:
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


def any_order(op: str, dtype: str, size: int) -> bool:
    """Whether arrays of so many ranks give the same bits in whatever order they are combined.

    But for what promise 3 leaves open, the payload of a NaN and the sign of a zero.

    >>> any_order("sum", "float32", 3), any_order("sum", "float32", 2), any_order("prod", "int8", 3)
    (False, True, True)
    """
    if op in ("min", "max") or dtype in _INTEGERS or dtype == "bool":
        return True  # nothing is rounded
    # Two of them commute; but complex products do not where a processor multiplies and adds in one.
    return size <= 2 and not (op == "prod" and dtype in _COMPLEX)


def ufunc(xp: Any, op: str) -> Any:
    """The function of an array namespace that combines two arrays."""
    return getattr(xp, _UFUNC[op])


def itemsize(dtype: str) -> int:
    """Bytes of an element, by its name; whether or not this process can make one.

    >>> [itemsize(name) for name in ("bool", "bfloat16", "complex128")]
    [1, 2, 16]
    """
    bits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(bits) // 8 if bits else 1


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


def combine(
    xp: Any, op: str, operands: Sequence[Array], outs: Sequence[Array], size: int = 1
) -> None:
    """Fold ``operands`` from the left and write the result to each of ``outs``, in one pass over memory.

    Args:
        xp: the array namespace.
        op: of :data:`OPS`.
        operands: flat arrays of one length, at least one.  16-bit floats may come with float32, which a sum or
            product of them is accumulated in.
        outs: flat arrays of that length and one dtype, at least one: a sum, product or average of 16-bit floats that
            goes to float32 is not rounded yet.  Each is apart from all operands or the very same elements as one.
        size: what an average is divided by, before it is rounded: 1 leaves it a sum.
    """
    out = outs[0]
    step, wide = ufunc(xp, op), out.dtype
    if wide.itemsize == 2 and wide.name in HALVES:  # names take long
        wide = xp.dtype(accumulator(op, wide.name))
    rounds, divides = wide != out.dtype, op == "avg" and size != 1
    # Bits must not depend on where the result goes (promise 4), but NumPy multiplies complex numbers with fused
    # multiply-adds where the CPU has them, and a single number in place without.
    is_free = not (op == "prod" and wide.kind == "c")
    goes_straight = is_free and not rounds
    is_short = len(outs) == 1 or out.nbytes <= BLOCK_BYTES
    if goes_straight and not divides and len(operands) == 2 and is_short:
        left, right = operands
        if left.dtype == right.dtype == wide:
            step(left, right, out=out)
            for other in outs[1:]:
                other[...] = out
            return
    length = BLOCK_BYTES // wide.itemsize
    needs_block = rounds or len(operands) > 2
    block = xp.empty(min(length, out.size) if needs_block else 0, wide)
    for piece in pieces(out.size, length):
        part = block[: piece.length]
        place, *others = (out[piece.slice] for out in outs)
        total, *rest = (_as_dtype(wide, x[piece.slice]) for x in operands)
        for number, right in enumerate(rest, start=1):
            # When the last operand is combined, all have been read.
            is_last = number == len(rest)
            target = place if goes_straight and is_last else part
            total = step(total, right, out=target if is_free else None)
        if divides:
            total = _divided(xp, total, size, part if rounds else place)
        if rounds:
            _round(total, place)
        elif total is not place:
            place[...] = total
        for other in others:
            other[...] = place


def _divided(xp: Any, value: Array, size: int, out: Array) -> Array:
    """``value / size`` in ``out``; of complex numbers both parts, as their own division would round otherwise."""
    real = value.real.dtype
    xp.divide(value.view(real), real.type(size), out=out.view(real))
    return out


def _round(value: Array, out: Array) -> None:
    """Round float32 to 16 bits, to the nearest, ties to even.

    A NaN becomes *the* NaN, positive and quiet: which payload a sum of two has, compilers choose, and in a call that
    every rank computes for itself the bits have to be the same on all.
    """
    out[...] = value
    largest = value.max() if value.size else 0
    if largest != largest:
        out[value != value] = out.dtype.type(float("nan"))


def _as_dtype(dtype: Any, x: Array) -> Array:
    return x if x.dtype == dtype else x.astype(dtype)
