"""Whether a dtype can hold what an array has.

A float is rounded to a float, and nothing else may be lost: integers are held exactly or not at all, what is finite
stays finite, and an imaginary part that is not zero has a place in complex numbers only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..reduce.arithmetic import Array


def misfit(x: Array, dtype: Any) -> str:
    """The first element of an array in host memory that a dtype cannot hold, in words; nothing if it holds them all.

    >>> misfit(np.array([[1.0, 9.5]]), np.dtype("int64")), misfit(np.array(300), np.dtype("uint8"))
    ('9.5 at [0, 1]', '300')
    >>> misfit(np.array([9.0, -2.0]), np.dtype("int64")), misfit(np.array([0.1, np.inf]), np.dtype("float16"))
    ('', '')
    """
    with np.errstate(all="ignore"):
        wrong = _wrong(x, dtype)
    if not wrong.any():
        return ""
    at = np.unravel_index(int(np.argmax(wrong)), x.shape)
    return f"{x[at]}" + (f" at {list(map(int, at))}" if at else "")


def listed(given: Any, dtype: Any) -> Array:
    """A list of numbers, or one, as an array in host memory that is to become one of a dtype.

    Of integers some of which are too long for its own NumPy makes floats, or objects; here they stay what they are.

    Raises:
        ValueError, OverflowError: if one of those does not fit.

    >>> listed([1, 2**64 - 1], np.dtype("uint64")), listed(2**70, np.dtype("float32"))
    (array([                   1, 18446744073709551615], dtype=uint64), array(1.18059162e+21))
    """
    array = np.asarray(given)
    if array.dtype.kind not in "fO":
        return array
    exact = np.asarray(given, object)
    if not all(isinstance(number, int) for number in exact.flat):
        return array
    if dtype.kind not in "iu":
        return exact.astype(np.float64)
    if wrong := misfit(exact, dtype):
        raise ValueError(f"{dtype} cannot hold {wrong}")
    return exact.astype(dtype)


def _wrong(x: Array, dtype: Any) -> Array:
    """Where a dtype cannot hold an element."""
    if x.dtype.kind == "c" and dtype.kind != "c":
        return (x.imag != 0) | _wrong(x.real, dtype)
    if dtype.kind not in "iu":
        return np.isfinite(x) & ~np.isfinite(x.astype(dtype))
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    if x.dtype.kind in "biuO":
        return (x < least) | (x > most)
    if x.dtype.itemsize == 2:
        x = x.astype(np.float32)  # in which the limits are powers of two
    is_whole = x == np.trunc(x)  # no NaN is
    return ~(is_whole & (x >= float(least)) & (x < float(most + 1)))
