"""What every rank brings to a benchmark, and what has to come out: numbers whose answer is exact.

Rules: the inputs are whole numbers (of an average, such that it can be represented), and so small that every partial
result is exact in the dtype itself, in whatever order it is combined; so a result is right or wrong, and no tolerance
is needed.  All ranks bring different numbers, and numbers repeat after a prime period, so that a lost rank, a rank
counted twice and a segment in the wrong place are all seen.

Results are compared by value: -0 is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any  # a NumPy array; of a dtype that NumPy may have from ml_dtypes

PERIOD = 1021  # elements after which the numbers repeat: a prime, which divides no segment's length
BLOCK = PERIOD * 64  # elements that are written and compared at a time

# Whole numbers up to these are exact, and so is all that stays below in between.
LIMITS = {
    "bool": 1,
    "int8": 127,
    "uint8": 255,
    "int16": 1 << 14,
    "uint16": 1 << 15,
    "bfloat16": 1 << 8,
    "float16": 1 << 11,
}
OTHERS = 1 << 24  # float32's, and enough for all that are wider

SEED = 17
FACTORS = 3  # ranks that bring more than a sign to a product
TURNS = (1, 1j, -1, -1j)  # of a product of complex numbers


def as_dtype(name: str) -> Any:
    """The dtype of that name.

    Raises:
        ImportError: for bfloat16 without ml_dtypes.
    """
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


class Numbers:
    """The patterns of all ranks, ``PERIOD`` elements each, and that of the result.

    >>> numbers = Numbers("sum", "int8", 3)
    >>> bool((sum(numbers.brought) == numbers.result).all())
    True

    Args:
        op: None for a collective that only moves.
        dtype: its name.
        size: number of ranks.

    Attributes:
        brought: for each rank the pattern it brings.
        result: the pattern of the result, if there is an op.

    Raises:
        ValueError: if there are no such numbers: an average over very many ranks in a small dtype.
    """

    def __init__(self, op: str | None, dtype: str, size: int) -> None:
        self.dtype = as_dtype(dtype)
        draw = np.random.default_rng(SEED)
        whole = _whole(draw, op, dtype, size)
        if dtype.startswith("complex"):
            if op == "prod":
                turns = draw.integers(0, 4, whole.shape)
                whole = abs(whole) * np.choose(turns, TURNS)
            else:
                whole = whole + 1j * _whole(draw, op, dtype, size)
        self.brought = [row.astype(self.dtype) for row in whole]
        self.result = None if op is None else _combined(op, whole).astype(self.dtype)


def _whole(draw: np.random.Generator, op: str | None, dtype: str, size: int) -> Array:
    """A row of whole numbers for each rank."""
    limit = LIMITS.get(dtype, OTHERS)
    shape = (size, PERIOD)
    is_signed = not dtype.startswith(("u", "bool"))
    if op in (None, "min", "max"):
        return draw.integers(-limit if is_signed else 0, limit + 1, shape)
    ranks, places = np.indices(shape)
    if op == "prod":
        factors = 2 ** draw.integers(0, 3, shape)
        factors[(ranks + places) % size >= FACTORS] = 1
        return factors * draw.choice((-1, 1) if is_signed else (1,), shape)
    # An average: what is left of the size once all twos are divided out has to divide the sum.
    unit = size // (size & -size) if op == "avg" else 1
    most = limit // unit  # ranks that may bring a unit each
    if most == 0:
        raise ValueError(
            f"no average of {dtype} over {size} ranks is exact in every order: take fewer ranks or another dtype"
        )
    stride = -(-size // most)  # each rank brings something to each stride-th element
    highest = most // -(-size // stride)
    drawn = draw.integers(-highest if is_signed else 0, highest + 1, shape) * unit
    drawn[(ranks + places) % stride != 0] = 0
    return drawn


def _combined(op: str, whole: Array) -> Array:
    if op in ("sum", "avg"):
        total = whole.sum(axis=0)
        return total / len(whole) if op == "avg" else total
    return getattr(whole, op)(axis=0)


def fill(array: Array, pattern: Array, start: int = 0) -> None:
    """Write the numbers of a flat buffer's elements from ``start`` on."""
    block = np.resize(np.roll(pattern, -start), min(BLOCK, array.size))
    for at in range(0, array.size, BLOCK):
        part = array[at : at + BLOCK]
        part[...] = block[: part.size]


def spoil(array: Array, pattern: Array, start: int = 0) -> None:
    """Make every element wrong, so that what a collective forgets to write is seen."""
    if pattern.dtype == bool:
        fill(array, ~pattern, start)
    else:
        fill(array, (~pattern.view(np.uint8)).view(pattern.dtype), start)


def wrong(array: Array, pattern: Array, start: int = 0) -> int:
    """How many elements are not what :func:`fill` would write.

    >>> row = Numbers("sum", "float32", 4).result
    >>> found = np.resize(row, 3000)
    >>> found[[5, 2999]] += 1
    >>> wrong(found, row)
    2
    """
    block = np.resize(np.roll(pattern, -start), min(BLOCK, array.size))
    found = 0
    for at in range(0, array.size, BLOCK):
        part = array[at : at + BLOCK]
        found += int(np.count_nonzero(part != block[: part.size]))
    return found
