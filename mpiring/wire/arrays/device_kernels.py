"""The reductions on a GPU: CUDA C for CuPy's ``ElementwiseKernel``, with the bits of NumPy.

A fold of any number of operands is one kernel, and so is finishing: each element is read once from every
operand and written once.  Each thread reads all it needs of its element before it writes, so the output may be
any of the operands.

Rules (promises 3 and 4: the same bits as on the host):

* operands are converted to the output's type ``Y``, then combined from left to right;
* a product that is added up is rounded first: the compiler contracts ``a * b + c``, but not the intrinsics;
* NaN propagates through min and max; an average is a true division, of both parts of a complex number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ..reduce.arithmetic import Array

# In a kernel's signature a single letter stands for the type of what it is called with.
_TYPES = "ABCDEFGHIJKLMNOPQRSTUVWX"
MOST_OPERANDS = len(_TYPES)

_PREAMBLE = """
__device__ inline float mpiring_times(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double mpiring_times(double a, double b) { return __dmul_rn(a, b); }
"""
_STEPS = {
    "sum": "y = Y(y + z)",
    "prod": "y = Y(y * z)",
    "complex prod": (
        "y = Y(mpiring_times(y.real(), z.real()) - mpiring_times(y.imag(), z.imag()),"
        " mpiring_times(y.real(), z.imag()) + mpiring_times(y.imag(), z.real()))"
    ),
    "min": "y = y != y ? y : z != z || z < y ? z : y",
    "max": "y = y != y ? y : z != z || y < z ? z : y",
}


def fold(cupy: Any, op: str, operands: Sequence[Array], out: Array) -> None:
    """``out = ((operands[0] op operands[1]) op ...)`` in ``out``'s dtype, as one kernel on the current stream.

    Args:
        cupy: the module.
        op: of :data:`mpiring.wire.reduce.arithmetic.OPS`; ``"avg"`` sums.
        operands: flat arrays of one length and any dtypes, at least one.
        out: may be one of them.
    """
    while len(operands) > MOST_OPERANDS:
        part = cupy.empty(out.size, out.dtype)
        fold(cupy, op, operands[:MOST_OPERANDS], part)
        operands = [part, *operands[MOST_OPERANDS:]]
    step = "sum" if op == "avg" else op
    if step == "prod" and out.dtype.kind == "c":
        step = "complex prod"
    _fold_kernel(cupy, step, len(operands))(*operands, out)


def finish(cupy: Any, op: str, size: int, value: Array, out: Array) -> None:
    """Write the finished ``value`` to ``out``: divided by ``size`` for an average, rounded to its dtype.

    Args:
        cupy: the module.
        op, size: of the reduction.
        value: a flat array; ``out`` may be the same.
        out: a flat array of as many elements.
    """
    if op == "avg":
        real = value.real.dtype
        kernel = _average_kernel(cupy, value.dtype.kind == "c", real.name)
        kernel(value, real.type(size), out)
    elif value is not out:
        _fold_kernel(cupy, "sum", 1)(value, out)


@lru_cache(maxsize=256)
def _fold_kernel(cupy: Any, step: str, operands: int) -> Any:
    """A kernel for any dtypes."""
    lines = ["Y y = Y(x0)"]
    for i in range(1, operands):
        lines.append(f"{{ Y z = Y(x{i}); {_STEPS[step]}; }}")
    return cupy.ElementwiseKernel(
        ", ".join(f"{_TYPES[i]} x{i}" for i in range(operands)),
        "Y out",
        "; ".join([*lines, "out = y"]),
        f"mpiring_{step.replace(' ', '_')}_{operands}",
        preamble=_PREAMBLE,
    )


@lru_cache(maxsize=16)
def _average_kernel(cupy: Any, is_complex: bool, real: str) -> Any:
    quotient = "x.real() / size, x.imag() / size" if is_complex else "x / size"
    return cupy.ElementwiseKernel(
        f"X x, {real} size",
        "Y out",
        f"out = Y({quotient})",
        f"mpiring_{'complex_' if is_complex else ''}average_{real}",
    )
