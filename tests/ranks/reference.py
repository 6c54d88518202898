"""What a collective must give, worked out without mpiring, and how results are compared.

``reduced(inputs, op, order)`` is promise 4 as a plain loop over ranks: segment ``s`` of the flat buffer is
``((x[s+1] op x[s+2]) op ...) op x[s]``, ranks modulo size; order ``"rank"`` is ``x[0], x[1], ...`` everywhere.
16-bit floats add and multiply in float32; an average is divided before the one rounding.

Rules:

* nothing here is imported from mpiring, so that a mistake there cannot hide here;
* a rank's array follows from dtype, shape, rank and seed, so every rank knows the inputs of all;
* each operation is done on whole segments, never element by element: NumPy's complex product of two
  scalars differs in the last bit from that of two arrays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
DTYPES = (*FLOATS, *COMPLEX, *INTEGERS, "bool")

_FUNCTIONS: dict[str, Any] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def dtype_of(name: str) -> np.dtype:
    """The NumPy dtype of that name."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def ops_of(name: str) -> tuple[str, ...]:
    """The operations that a dtype has."""
    if name in FLOATS:
        return ("sum", "prod", "min", "max", "avg")
    if name in COMPLEX:
        return ("sum", "prod", "avg")
    if name in INTEGERS:
        return ("sum", "prod", "min", "max")
    return ("min", "max")


def balanced(count: int, size: int) -> list[slice]:
    """The segments of a flat buffer: balanced to one element, the longer ones first."""
    lengths = [count // size + (s < count % size) for s in range(size)]
    stops = [sum(lengths[: s + 1]) for s in range(size)]
    return [slice(stop - length, stop) for stop, length in zip(stops, lengths)]


def random_array(
    name: str, shape: int | tuple[int, ...], rank: int, seed: int = 0
) -> np.ndarray:
    """What rank ``rank`` brings: real random floats over many binades, or integers over all their range."""
    rng = np.random.default_rng([seed, rank])
    if name == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if name in INTEGERS:
        info = np.iinfo(name)
        return rng.integers(info.min, info.max, shape, name, endpoint=True)
    parts = [
        rng.standard_normal(shape) * np.exp2(rng.integers(-3, 4, shape))
        for _ in range(2)
    ]
    values = parts[0] + 1j * parts[1] if name in COMPLEX else parts[0]
    return np.asarray(values, dtype_of(name))


def fold(operands: Sequence[np.ndarray], op: str) -> np.ndarray:
    """``((operands[0] op operands[1]) op ...)``, finished: the loop that everything is measured by."""
    dtype = operands[0].dtype
    is_half = dtype.name in HALVES and op in ("sum", "prod", "avg")
    accumulator = np.dtype("float32") if is_half else dtype
    with np.errstate(all="ignore"):
        total = operands[0].astype(accumulator)
        for operand in operands[1:]:
            total = _FUNCTIONS[op](total, operand.astype(accumulator))
        if op == "avg" and total.dtype.kind == "c":
            size = total.real.dtype.type(len(operands))
            total = np.stack([total.real / size, total.imag / size], -1)
            return total.view(dtype)[..., 0]
        if op == "avg":
            total = total / accumulator.type(len(operands))
        return total.astype(dtype)


def reduced(
    inputs: Sequence[np.ndarray], op: str = "sum", order: str = "ring"
) -> np.ndarray:
    """What ``allreduce`` must give for ``inputs[rank]``, to the bit."""
    size = len(inputs)
    flat = [np.ascontiguousarray(x).reshape(-1) for x in inputs]
    result = np.empty_like(flat[0])
    for s, part in enumerate(balanced(flat[0].size, size)):
        first = s + 1 if order == "ring" else 0
        ranks = [(first + i) % size for i in range(size)]
        result[part] = fold([flat[rank][part] for rank in ranks], op)
    return result.reshape(inputs[0].shape)


def same_bits(actual: Any, expected: np.ndarray, what: object = "") -> None:
    """Raise unless ``actual`` is an array of the kind, dtype, shape and bits of ``expected``."""
    assert type(actual) is np.ndarray, f"{what}: a {type(actual).__name__}"
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: {actual.shape}, {expected.shape}"
    if actual.tobytes() != expected.tobytes():
        pairs = list(zip(actual.reshape(-1), expected.reshape(-1)))
        wrong = [i for i, (a, b) in enumerate(pairs) if a.tobytes() != b.tobytes()]
        at = wrong[0]
        raise AssertionError(
            f"{what}: {len(wrong)} of {len(pairs)} elements differ, the first at {at}: "
            f"{pairs[at][0]!r}, expected {pairs[at][1]!r}"
        )


def same_on_all_ranks(comm: Any, arrays: Sequence[Any]) -> None:
    """Raise, on every rank, unless all ranks have the same bytes in ``arrays``: collective."""
    mine = [hashlib.sha256(np.asarray(a).tobytes()).hexdigest() for a in arrays]
    everyone = comm.allgather(mine)
    for rank, theirs in enumerate(everyone):
        differ = [i for i, (a, b) in enumerate(zip(theirs, everyone[0])) if a != b]
        assert len(theirs) == len(mine), f"rank {rank} has {len(theirs)} results"
        assert not differ, f"rank {rank} and rank 0 differ in results {differ[:5]}"


def outcome(call: Callable[[], Any]) -> tuple[str, str]:
    """What a call raised: the name of the exception's type and its text; empty if it returned."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""
