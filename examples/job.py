"""The edges of a job of many ranks: one command line, one voice, and waiting that costs nothing."""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import sys
import time

from mpi4py import MPI


def arguments(
    comm: MPI.Intracomm, parser: argparse.ArgumentParser
) -> argparse.Namespace:
    """The command line, read by rank 0, so that it answers once; ends all ranks alike."""
    said: argparse.Namespace | int | str | None = None
    if comm.rank == 0:
        try:
            said = parser.parse_args()
        except SystemExit as leaving:
            said = leaving.code
    said = comm.bcast(said)
    if not isinstance(said, argparse.Namespace):
        sys.exit(said)
    return said


def need_packages(comm: MPI.Intracomm, packages: dict[str, str]) -> None:
    """End with a sentence where a package (module: its name on PyPI) is missing."""
    missing = [packages[m] for m in packages if importlib.util.find_spec(m) is None]
    missing = comm.bcast(missing)
    if missing:
        if comm.rank == 0:
            print(
                f"this example needs {', '.join(missing)}: pip install {' '.join(missing)}",
                file=sys.stderr,
                flush=True,
            )
        comm.Barrier()
        sys.exit(1)


def cores(comm: MPI.Intracomm) -> int:
    """How many cores the job may use, on all its hosts together."""
    if hasattr(os, "sched_getaffinity"):
        mine = os.sched_getaffinity(0)
    else:
        mine = set(range(os.cpu_count() or 1))
    host = socket.gethostname()
    return len(set().union(*comm.allgather({(host, core) for core in mine})))


def wait_idle(comm: MPI.Intracomm) -> None:
    """A barrier that leaves the cores to those who work; an MPI's own keeps them busy."""
    arrival = comm.Ibarrier()
    while not arrival.Test():
        time.sleep(0.005)


def positive(text: str) -> int:
    """An int of 1 or more, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def plural(count: int, word: str) -> str:
    """A number and its noun.

    >>> plural(1, "rank"), plural(2, "rank")
    ('1 rank', '2 ranks')
    """
    return f"{count} {word}" + ("" if count == 1 else "s")


def print_table(rows: list[tuple[str, str, str]]) -> None:
    """Name, value, remark: the values to the right.

    >>> print_table([("accuracy", "0.97", "good"), ("time", "3 s", "")])
    accuracy  0.97  good
    time       3 s
    """
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    for name, value, remark in rows:
        print(f"{name:{first}}  {value:>{second}}  {remark}".rstrip())
