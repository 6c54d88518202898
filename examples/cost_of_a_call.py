"""What a small call costs, and how much of it is the opening exchange.

Run it with::

    mpirun -n 2 python -m mpi4py examples/cost_of_a_call.py

Each line is one message size: microseconds a call, the median of interleaved rounds, for mpi4py's
``Allreduce``, our ``allreduce`` without and with the check, and a ``barrier``, which is the opening exchange
and nothing else.  With more ranks than cores the ranks take turns, and everything is slower.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import mpiring

SIZES = (8, 256, 4096)  # bytes


def microseconds(call: Callable[[], object], calls: int) -> float:
    """Mean time of a call, after a warm-up."""
    for _ in range(calls // 10):
        call()
    MPI.COMM_WORLD.Barrier()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="interleaved rounds (default: 15)"
    )
    parser.add_argument(
        "--calls", type=int, default=200, help="calls a round (default: 200)"
    )
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    with mpiring.Ring() as checked, mpiring.Ring(check=False) as unchecked:
        if world.rank == 0:
            cores = (
                len(os.sched_getaffinity(0))
                if hasattr(os, "sched_getaffinity")
                else os.cpu_count()
            )
            print(f"{world.size} ranks on {cores} cores; microseconds a call, medians")
            print(
                f"{'bytes':>8} {'mpi4py':>10} {'unchecked':>10} {'checked':>10} {'opening':>10}"
            )
        for nbytes in SIZES:
            x = np.ones(nbytes // 8)
            out = np.empty_like(x)
            calls: dict[str, Callable[[], object]] = {
                "mpi4py": lambda: world.Allreduce(x, out),
                "unchecked": lambda: unchecked.allreduce(x, out=out),
                "checked": lambda: checked.allreduce(x, out=out),
                "opening": checked.barrier,
            }
            times: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(options.rounds):
                for name, call in calls.items():
                    times[name].append(microseconds(call, options.calls))
            if world.rank == 0:
                medians = "".join(
                    f"{statistics.median(t):>11.1f}" for t in times.values()
                )
                print(f"{nbytes:>8}{medians}")


if __name__ == "__main__":
    main()
