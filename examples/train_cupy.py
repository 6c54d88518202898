"""Train the network of train_digits.py on GPUs; its gradients travel around the ring from device to device.

    mpirun -n 4 python -m mpi4py examples/train_cupy.py

The network, the training and the comparison are those of ``train_digits.py``: there ``xp`` is NumPy, here it is
CuPy.  Nothing else differs: a ring takes the arrays where they are.  Parameters, gradients and images live in
the GPU's memory, the GPU adds what other ranks send, and the host sees a number where one is printed.

Each rank takes the GPU of its place among the ranks of its host; where there are more ranks than GPUs, they
share.  Where a rank has no GPU, or no CuPy, all ranks train with NumPy on the CPU, and say why.
"""

from __future__ import annotations

import sys
from typing import Any

import mpiring

CHOSEN = mpiring.choose_device()  # before MPI: one that takes device memory starts CUDA

from mpi4py import MPI  # noqa: E402

import job  # noqa: E402
import train_digits  # noqa: E402
from train_digits import Workers  # noqa: E402


def main() -> int:
    """One rank's part; the exit status is 0 if both trainings gave the same model."""
    comm = MPI.COMM_WORLD
    args = job.arguments(
        comm, train_digits.command_line("train_cupy", ", on GPUs where there are some")
    )
    job.need_packages(comm, train_digits.PACKAGES)
    status: int = train_digits.run(comm, args, choose_workers(comm))
    return status


def choose_workers(comm: MPI.Intracomm) -> Workers:
    """The GPUs, or the CPU's cores where not every rank has a GPU; rank 0 says which, and why."""
    cupy, problem = find_cupy()
    problems = comm.allgather(problem)
    lacking = [rank for rank, problem in enumerate(problems) if problem]
    if lacking:
        if comm.rank == 0:
            who = "" if len(lacking) == comm.size else f" for rank {lacking[0]}"
            why = problems[lacking[0]]
            print(f"{why}{who}, so NumPy trains on the CPU", flush=True)
        return Workers(train_digits.np, job.cores(comm), "core")
    cards = comm.allgather((MPI.Get_processor_name(), CHOSEN))
    if comm.rank == 0:
        properties = cupy.cuda.runtime.getDeviceProperties(0)
        print(f"CuPy trains on {properties['name'].decode()}", flush=True)
    return Workers(cupy, len(set(cards)), "GPU")


def find_cupy() -> tuple[Any, str]:
    """CuPy, or why there is none to train with."""
    try:
        import cupy
    except ImportError:
        return None, "CuPy is not installed here (pip install 'cupy-cuda12x[ctk]')"
    try:
        if cupy.cuda.runtime.getDeviceCount() > 0:
            return cupy, ""
        return None, "there is no GPU here"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return None, f"there is no GPU here ({error})"


if __name__ == "__main__":
    sys.exit(main())
