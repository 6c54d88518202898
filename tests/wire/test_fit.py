"""Whether a dtype holds what an array has, against a plain rule in Python's own numbers."""

from __future__ import annotations

import doctest
import math

import ml_dtypes
import numpy as np
import pytest

from mpiring.wire.arrays import NUMPY, fit
from mpiring.wire.reduce.arithmetic import DTYPES

LARGEST = {
    "float16": 65504.0,
    "bfloat16": float(ml_dtypes.finfo("bfloat16").max),
    "float32": float(np.finfo("f4").max),
    "float64": float(np.finfo("f8").max),
}
NUMBERS = [0, 1, -1, 0.5, -9.5, 255, 256, -129, 65504, 65519, 65520, 2**31, 2**53 + 1]
NUMBERS += [2**63 - 1, 2**63, -(2**63), 2**64 - 1, 1e38, 1e39, 1e308]
NUMBERS += [float("inf"), float("-inf"), float("nan")]
VALUES = [*NUMBERS, 3 + 0j, 2j, complex(1, float("nan")), complex(float("inf"), 0)]


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def holds(name, value):
    """Whether a dtype holds a number of Python's: exactly, but for the rounding of a float."""
    if isinstance(value, complex):
        if name.startswith("complex"):
            part = {"complex64": "float32", "complex128": "float64"}[name]
            finite = math.isfinite(value.real) and math.isfinite(value.imag)
            return not finite or (holds(part, value.real) and holds(part, value.imag))
        return value.imag == 0 and holds(name, value.real)
    if name.startswith("complex"):
        return holds({"complex64": "float32", "complex128": "float64"}[name], value)
    if name in LARGEST:
        if not math.isfinite(value):
            return True
        with np.errstate(over="ignore"):
            return abs(float(np.float64(value).astype(dtype_of(name)))) <= LARGEST[name]
    info = np.iinfo(name)
    return (
        math.isfinite(value) and value == int(value) and info.min <= value <= info.max
    )


@pytest.mark.parametrize("given", sorted(DTYPES))
def test_every_dtype_into_every_other(given):
    for value in VALUES:
        with np.errstate(all="ignore"):
            array = np.zeros((2, 3), dtype_of(given))
            try:
                array[1, 2] = value
            except (TypeError, ValueError, OverflowError):
                continue  # this dtype has no such number
        held = array[1, 2].item()
        for dtype in sorted(DTYPES - {"bool"}):
            wrong = NUMPY.misfit(array, dtype)
            expected = "" if holds(dtype, held) else f"{array[1, 2]} at [1, 2]"
            assert wrong == expected, (given, dtype, held)


def test_doctests():
    failed, tried = doctest.testmod(fit)
    assert tried > 0 and failed == 0
