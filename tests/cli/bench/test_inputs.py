"""The numbers of the benchmark are exact in every dtype, op and order, and a wrong one is counted."""

from __future__ import annotations

import doctest
import itertools
from typing import Any

import numpy as np
import pytest

from mpiring.cli.bench import inputs
from mpiring.cli.bench.inputs import PERIOD, Numbers, as_dtype, fill, spoil, wrong
from mpiring.wire.reduce.arithmetic import DTYPES, OPS, check_op

SIZES = [2, 3, 4, 5, 8, 16, 31, 100]


def is_possible(op, dtype):
    try:
        check_op(op, dtype)
    except TypeError:
        return False
    return True


KINDS = [
    (op, dtype)
    for op, dtype in itertools.product(OPS, sorted(DTYPES))
    if is_possible(op, dtype)
]
UFUNCS = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def combined(op, rows):
    """As an MPI would: in the dtype itself, one after the other, every partial result rounded."""
    total = rows[0].copy()
    for row in rows[1:]:
        total = UFUNCS[op](total, row).astype(row.dtype)
    if op == "avg":
        total = (total / total.dtype.type(len(rows))).astype(total.dtype)
    return total


@pytest.mark.parametrize("op, dtype", KINDS)
def test_any_order_gives_the_result(op, dtype):
    for size in SIZES:
        numbers = Numbers(op, dtype, size)
        orders = [range(size), range(size)[::-1], [*range(1, size), 0]]
        for order in orders:
            total = combined(op, [numbers.brought[rank] for rank in order])
            assert wrong(total, numbers.result) == 0, (size, order)


@pytest.mark.parametrize("op, dtype", KINDS)
def test_a_lost_rank_and_one_counted_twice_are_seen(op, dtype):
    for size in (2, 3, 4, 8):
        numbers = Numbers(op, dtype, size)
        for rank in range(size):
            others = [*numbers.brought[:rank], *numbers.brought[rank + 1 :]]
            if op == "avg":  # divided by the right number of ranks all the same
                others.append(np.zeros_like(others[0]))
            assert wrong(combined(op, others), numbers.result) > 0
            if op in ("sum", "prod"):
                twice = combined(op, [*numbers.brought, numbers.brought[rank]])
                assert wrong(twice, numbers.result) > 0


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_shifted_segment_is_seen(dtype):
    for op in [None, *(op for op in OPS if is_possible(op, dtype))]:
        numbers = Numbers(op, dtype, 4)
        pattern: Any = numbers.brought[1] if op is None else numbers.result
        whole = np.zeros(4096, pattern.dtype)
        fill(whole, pattern)
        for shift in (1, 1024):
            assert wrong(np.roll(whole, shift), pattern) > 10


@pytest.mark.parametrize("count", [0, 1, PERIOD, 70_000])
@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float32", "complex128"])
def test_fill_spoil_and_wrong_agree(dtype, count):
    pattern = Numbers(None, dtype, 3).brought[2]
    whole = np.resize(pattern, count + 5)
    array = np.zeros(count, as_dtype(dtype))
    fill(array, pattern, start=5)
    assert np.array_equal(array, whole[5:])
    assert wrong(array, pattern, 5) == 0
    spoil(array, pattern, 5)
    assert wrong(array, pattern, 5) == count
    fill(array, pattern, 5)
    for place in range(0, count, 997):
        array[place] = not array[place] if dtype == "bool" else 3
    expected = sum(place % 997 == 0 and _changes(whole[place + 5], dtype) for place in range(count))  # fmt: skip
    assert wrong(array, pattern, 5) == expected


def _changes(value, dtype):
    return dtype == "bool" or value != 3


def test_too_many_ranks_for_an_average_is_an_error():
    with pytest.raises(ValueError, match="no average of bfloat16 over 257 ranks"):
        Numbers("avg", "bfloat16", 257)
    assert Numbers("avg", "bfloat16", 256).result is not None


def test_doctests():
    failed, tried = doctest.testmod(inputs)
    assert failed == 0 and tried > 0
