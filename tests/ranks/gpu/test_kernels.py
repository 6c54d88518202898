"""Every operation on every dtype on the device, against NumPy, bit for bit; and in ring order over the ranks.

NaN payloads, and the sign of a zero min or max, are unspecified (promise 3).  A complex product is compared with its
four real ones, each rounded: NumPy's own product of two complex arrays fuses two of them with the addition where the
CPU can, and rounds all four where it cannot.
"""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from mpiring.wire.arrays import device_kernels
from mpiring.wire.reduce.arithmetic import accumulator

from ranks.reference import (
    DTYPES,
    FLOATS,
    dtype_of,
    ops_of,
    random_array,
    reduced,
    same_on_all_ranks,
)
from wire.reference import apply, finished, widened

PAIRS = [(name, op) for name in DTYPES for op in ops_of(name)]
# Each is a kernel to compile, which takes a while: the ranks share them out.
MINE = PAIRS[MPI.COMM_WORLD.rank :: MPI.COMM_WORLD.size]


def edges(name):
    """Numbers where arithmetic has corners: zeros, subnormals, the largest, infinities, NaN."""
    dtype = dtype_of(name)
    if name == "bool":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array([0, 1, info.max, info.max - 1, info.min, info.min + 1], dtype)
    smallest = {"float16": 2.0**-24, "bfloat16": 2.0**-133}.get(name, 2.0**-149)
    largest = {"float16": 65504.0}.get(name, 3.0e38)
    reals = [0.0, -0.0, 1.0, -1.5, 1 / 3, smallest, -smallest, largest, -largest]
    reals += [np.inf, -np.inf, np.nan]
    values = np.array(reals, "f8")
    if dtype.kind == "c":
        pairs = np.empty((len(values), len(values)), complex)
        pairs.real, pairs.imag = values[:, None], values
        values = pairs.ravel()[::5]
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def operands(name, count):
    """As many arrays: every pair of edges meets in the first two, then random numbers."""
    corners = edges(name)
    n = len(corners)
    arrays = []
    for k in range(count):
        met = np.tile(corners, n) if k % 2 else np.repeat(corners, n)
        met = np.roll(met, 7 * (k // 2))
        arrays.append(np.concatenate([met, random_array(name, 999, k)]))
    return arrays


def comparable(x, op):
    """Bits, with one NaN, and one zero for min and max."""
    parts = x.view(x.real.dtype) if x.dtype.kind == "c" else x
    parts = parts.copy()
    if parts.dtype.kind in "fV" or parts.dtype.name == "bfloat16":
        parts[np.isnan(parts)] = np.nan
        if op in ("min", "max"):
            parts[parts == 0] = 0
    return parts.tobytes()


def folded(op, arrays):
    """On the host, one operand after the other."""
    total = widened(op, arrays[0])
    for array in arrays[1:]:
        if op == "prod" and total.dtype.kind == "c":
            total = product(total, array)
        else:
            total = apply(op, total, widened(op, array))
    return total


def product(a, b):
    """Of complex arrays, part by part."""
    both = np.empty_like(a)
    with np.errstate(all="ignore"):
        both.real = a.real * b.real - a.imag * b.imag
        both.imag = a.real * b.imag + a.imag * b.real
    return both


def check(cupy, name, op, count):
    arrays = operands(name, count)
    want = folded(op, arrays)
    wide = accumulator(op, name)
    assert want.dtype == dtype_of(wide)
    on_device = [cupy.asarray(array) for array in arrays]
    total = cupy.empty(want.size, want.dtype)
    device_kernels.fold(cupy, op, on_device, total)
    assert comparable(cupy.asnumpy(total), op) == comparable(want, op), (name, op)
    if wide == name:  # in place, on any of the operands
        device_kernels.fold(cupy, op, on_device, on_device[-1])
        placed = cupy.asnumpy(on_device[-1])
        assert comparable(placed, op) == comparable(want, op), (name, op)
    rounded = cupy.empty(want.size, dtype_of(name))
    device_kernels.finish(cupy, op, 3, total, rounded)
    want = finished(op, want, 3, dtype_of(name))
    assert comparable(cupy.asnumpy(rounded), op) == comparable(want, op), (name, op)


@pytest.mark.ranks(4)
def test_two_operands(cupy):
    for name, op in MINE:
        check(cupy, name, op, 2)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("count", [1, 3, 2 * device_kernels.MOST_OPERANDS + 1])
def test_other_numbers_of_operands(cupy, count):
    for name, op in [("float32", "sum"), ("float16", "avg"), ("bfloat16", "max")]:
        check(cupy, name, op, count)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", FLOATS)
def test_the_rings_order(cupy, comm, ring, name):
    """The bits of promise 4, from each path, of numbers that round."""
    count = 1000
    arrays = [random_array(name, count, rank) for rank in range(ring.size)]
    results = []
    for op in ("sum", "avg", "prod"):
        for algorithm in ("auto", "ring", "direct"):
            x = cupy.asarray(arrays[ring.rank])
            results.append((op, ring.allreduce(x, op, algorithm=algorithm)))
    on_host = [cupy.asnumpy(result) for _, result in results]
    for (op, _), result in zip(results, on_host):
        want = reduced(arrays, op, "ring")
        assert result.tobytes() == want.tobytes(), (name, op)
    same_on_all_ranks(comm, on_host)


def test_the_comparison_sees_one_bit():
    one = np.array([1.0, np.nan, -0.0], "f4")
    other = np.array([np.nextafter(np.float32(1), 2), np.nan, -0.0], "f4")
    assert comparable(one, "sum") != comparable(other, "sum")
    assert comparable(one, "min") == comparable(np.array([1, np.nan, 0], "f4"), "min")
    assert comparable(one, "sum") != comparable(np.array([1, np.nan, 0], "f4"), "sum")
