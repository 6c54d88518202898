"""What the collectives promise, computed by plain loops over ranks: no schedule, no executor, no segment class.

The order of combination is promise 4's.  Accumulators and finishing are promise 3's: 16-bit floats add and multiply
in float32 and are rounded once; an average is a true division before that rounding, of both parts of a complex number.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HALVES = (np.dtype(np.float16), BFLOAT16)
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
DTYPES = ["bool", *INTEGERS, *FLOATS, *COMPLEX]


def dtype_of(name):
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def ops_of(name):
    """The operations that a dtype has."""
    if name == "bool":
        return ["min", "max"]
    if name in COMPLEX:
        return ["sum", "prod", "avg"]
    return ["sum", "prod", "min", "max"] + (["avg"] if name in FLOATS else [])


def apply(op, a, b):
    """One operation between two arrays."""
    with np.errstate(all="ignore"):
        return {
            "sum": np.add,
            "avg": np.add,
            "prod": np.multiply,
            "min": np.minimum,
            "max": np.maximum,
        }[op](a, b)


def widened(op, x):
    """As it is accumulated."""
    return (
        x.astype("float32") if x.dtype in HALVES and op in ("sum", "prod", "avg") else x
    )


def finished(op, total, size, dtype):
    with np.errstate(all="ignore"):
        if op == "avg":
            if total.dtype.kind == "c":
                parts = np.empty_like(total)
                parts.real, parts.imag = total.real / size, total.imag / size
                total = parts
            else:
                total = total / total.dtype.type(size)
        return total.astype(dtype)


def combined(op, values, order):
    """Evaluate an order of ranks, in which brackets may stand, from the left: Proof.orders' form."""
    tokens = iter(order)

    def fold():
        total = None
        for token in tokens:
            if token == ")":
                break
            value = fold() if token == "(" else widened(op, values[token])
            total = value if total is None else apply(op, total, value)
        return total

    return fold()


def bounds(count, size):
    """Where each rank's segment starts and stops: as even as can be, the longer ones first."""
    lengths = [count // size + (rank < count % size) for rank in range(size)]
    stops = np.cumsum(lengths).tolist()
    return [(stop - length, stop) for stop, length in zip(stops, lengths)]


def reduced_flat(op, arrays, order):
    """The flat reduction of the ranks' arrays, each segment in its order."""
    size, dtype = len(arrays), arrays[0].dtype
    flats = [array.ravel() for array in arrays]
    pieces = []
    for segment, (start, stop) in enumerate(bounds(flats[0].size, size)):
        ring = [(segment + 1 + i) % size for i in range(size)]
        ranks = list(range(size)) if order == "rank" else ring
        total = combined(op, [flat[start:stop] for flat in flats], ranks)
        pieces.append(finished(op, total, size, dtype))
    return np.concatenate(pieces)


def same_bits(a, b):
    """Whether two arrays are equal in dtype, shape and every bit."""
    return (
        isinstance(a, np.ndarray)
        and (a.dtype, a.shape) == (b.dtype, b.shape)
        and a.tobytes() == b.tobytes()
    )


def varied(name, shape, rank, seed=0):
    """Values whose sums and products depend on the order: no ones, no NaN."""
    random = np.random.default_rng([seed, rank])
    dtype = dtype_of(name)
    if name == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if name in INTEGERS:
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    values = random.standard_normal(shape) * 10.0 ** random.integers(-3, 3, shape)
    if name in COMPLEX:
        values = values + 1j * random.standard_normal(shape)
    return np.asarray(values).astype(dtype)
