"""How fast arrays in memory are folded: NumPy against the kernels, on one core.

    python lab/folds.py

A figure is bytes of all operands / time, in GB/s, the median of interleaved rounds of two calls, of which the second
counts.  The columns:

    np.add      float32, K - 1 calls over whole arrays: what a 16-bit float is to be as fast as
    NumPy       our fold where there is no llvmlite, block by block
    kernel      our fold with it
    / float32   kernel against float32 in bytes a second: against np.add, and against our own fold of float32

All ranks of a node that fold at the same time share its memory, so run one for each core to see that. The bits of all
ways are compared, and the exit status is 1 if they differ.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mpiring.cli.quantities import argument, as_bytes, bytes_text
from mpiring.wire.arrays.host import as_dtype, combine
from mpiring.wire.reduce import arithmetic, kernels

Array = np.ndarray[Any, np.dtype[Any]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = argument(as_bytes)
    parser.add_argument(
        "--sizes",
        type=size,
        nargs="+",
        default=[1 << 20, 16 << 20],
        help="bytes of an operand (default: 1Mi 16Mi)",
    )
    parser.add_argument(
        "--operands", type=int, nargs="+", default=[2, 4], help="K (default: 2 4)"
    )
    parser.add_argument(
        "--op", default="sum", choices=arithmetic.OPS, help="default: sum"
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="interleaved rounds (default: 15)"
    )
    options = parser.parse_args()
    began = time.perf_counter()
    problem = kernels.missing()
    if problem:
        print(f"no kernels, both are NumPy: {problem}")
    else:
        print(f"LLVM was ready after {time.perf_counter() - began:.2f} s")
    print(
        f"{'operands':>14} {'dtype':>9} {'np.add':>8} {'NumPy':>8} {'kernel':>8}",
        end="",
    )
    print(f" {'/ float32: np.add':>18} {'ours':>6}")
    wrong = 0
    for nbytes in options.sizes:
        for operands in options.operands:
            wrong += measure(nbytes, operands, options.op, options.rounds)
    if wrong:
        print(
            f"lab/folds.py: {wrong} results differ between NumPy and the kernels",
            file=sys.stderr,
        )
    return int(wrong > 0)


def measure(nbytes: int, operands: int, op: str, rounds: int) -> int:
    """Print the lines for ``operands`` arrays of ``nbytes``; how many dtypes came out wrong."""
    ways: dict[tuple[str, str], Callable[[], object]] = {}
    wrong = 0
    for dtype in ("float32", "float16", "bfloat16"):
        random = np.random.default_rng(1)
        kind = as_dtype(dtype)
        arrays = [
            random.standard_normal(nbytes // kind.itemsize, np.float32).astype(kind)
            for _ in range(operands)
        ]
        by_numpy, by_kernel = np.empty_like(arrays[0]), np.empty_like(arrays[0])
        if dtype == "float32":
            ways[dtype, "np.add"] = partial(chain, arrays, by_numpy)
        ways[dtype, "NumPy"] = partial(
            arithmetic.combine, np, op, arrays, [by_numpy], operands
        )
        ways[dtype, "kernel"] = partial(combine, op, arrays, [by_kernel], operands)
        for way in ("NumPy", "kernel"):
            ways[dtype, way]()
        wrong += by_numpy.tobytes() != by_kernel.tobytes()
    times: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for which, call in ways.items():
            call()  # so that what was before does not matter
            began = time.perf_counter()
            call()
            times[which].append(time.perf_counter() - began)
    rate = {
        which: operands * nbytes / statistics.median(taken) / 1e9
        for which, taken in times.items()
    }
    for dtype in ("float32", "float16", "bfloat16"):
        line = f"{operands:>3} x {bytes_text(nbytes):>8} {dtype:>9}"
        for way in ("np.add", "NumPy", "kernel"):
            text = f"{rate[dtype, way]:.1f}" if (dtype, way) in rate else ""
            line += f" {text:>8}"
        if dtype != "float32":
            kernel = rate[dtype, "kernel"]
            line += f" {kernel / rate['float32', 'np.add']:>18.2f}"
            line += f" {kernel / rate['float32', 'kernel']:>6.2f}"
        print(line, flush=True)
    return wrong


def chain(arrays: list[Array], out: Array) -> None:
    """What a user of NumPy writes."""
    np.add(arrays[0], arrays[1], out=out)
    for array in arrays[2:]:
        np.add(out, array, out=out)


if __name__ == "__main__":
    sys.exit(main())
