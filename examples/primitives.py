"""The lecture's primitives, one after the other: what every rank puts in, and what it gets.

    mpirun -n 4 python -m mpi4py examples/primitives.py              # all of them
    mpirun -n 4 python -m mpi4py examples/primitives.py broadcast    # one of: NAMES below

NCCL's call in the lecture's chapter 2, and ours:

==============  ================  ======================================================
lecture         NCCL              here
==============  ================  ======================================================
2.1.1, 2.2      ncclBroadcast     ``ring.broadcast(x, root)``
2.1.2           ncclReduce        ``ring.reduce(x, op, root)``
2.1.3           ncclReduceScatter ``ring.reduce_scatter(x, op)``
2.1.4           ncclAllGather     ``ring.allgather(x)``
2.1.5           ncclAllReduce     ``ring.allreduce(x, op)``
2.1.6           ncclGroupStart    ``with ring.group(): ring.send(...); ring.recv(...)``
2.2             nDev devices      ``Ring(members=nDev)``: lists in, lists out
==============  ================  ======================================================

Rank 0 brings ones, rank 1 tens, rank 2 hundreds; the digit is 1 in element 0, 2 in element 1.  So the digits
of a sum say who is in it.  Every result is compared with NumPy's; the exit status is 1 if one differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import mpiring
from mpiring import plan

import job

MOST_RANKS = 9  # a rank is a decimal digit
PIECES = 3  # of the pipelined broadcast that is drawn
DEVICES = 2  # of a process

Array = np.ndarray[Any, np.dtype[Any]]


def brought(rank: int, size: int) -> Array:
    """What a rank brings.

    >>> brought(2, 3)
    array([100, 200, 300])
    """
    return np.array([(s + 1) * 10**rank for s in range(size)])


def total(size: int) -> Array:
    """What all ranks bring, added up.

    >>> total(3)
    array([111, 222, 333])
    """
    return _added([brought(rank, size) for rank in range(size)])


class Page:
    """What is shown, by rank 0, and whether all of it was right, on any rank."""

    def __init__(self, ring: mpiring.Ring) -> None:
        self.ring = ring
        self.rank, self.size = ring.rank, ring.size
        self.right = True
        self.mine = brought(self.rank, self.size)

    def say(self, line: str = "") -> None:
        """Print on rank 0."""
        if self.rank == 0:
            print(line, flush=True)

    def show(self, x: Any, result: Any, expected: Any) -> None:
        """A line for each rank: in, and out; notes a wrong result."""
        right = (
            (result is None) if expected is None else np.array_equal(result, expected)
        )
        lines = MPI.COMM_WORLD.gather((_text(x), _text(result), bool(right)))
        if lines is not None:
            width = max(len(x) for x, _, _ in lines)
            for rank, (x, result, right) in enumerate(lines):
                wrong = "" if right else "   WRONG"
                print(f"  rank {rank}   {x:{width}}  ->  {result}{wrong}", flush=True)
                self.right &= right

    def check(self, right: bool, claim: str) -> None:
        """A claim that has to hold on every rank."""
        ranks = MPI.COMM_WORLD.gather(right)
        if ranks is not None:
            print(f"  {claim}: {sum(ranks)} of {len(ranks)} ranks", flush=True)
            self.right &= all(ranks)


def _text(x: Any) -> str:
    return "nothing" if x is None else " ".join(map(str, np.ravel(x))) or "nothing"


# ---- the primitives -------------------------------------------------------------------------------


def broadcast(page: Page) -> None:
    """2.1.1: ring.broadcast(x, root=0)"""
    x = page.mine if page.rank == 0 else None
    page.show(x, page.ring.broadcast(x, root=0), brought(0, page.size))


def reduce(page: Page) -> None:
    """2.1.2: ring.reduce(x, "sum", root=0)"""
    result = page.ring.reduce(page.mine, "sum", root=0)
    page.show(page.mine, result, total(page.size) if page.rank == 0 else None)


def reduce_scatter(page: Page) -> None:
    """2.1.3: ring.reduce_scatter(x, "sum")"""
    result = page.ring.reduce_scatter(page.mine, "sum")
    page.show(page.mine, result, total(page.size)[page.rank : page.rank + 1])


def allgather(page: Page) -> None:
    """2.1.4: ring.allgather(x)"""
    x = page.mine[page.rank : page.rank + 1]
    diagonal = [brought(rank, page.size)[rank] for rank in range(page.size)]
    page.show(x, page.ring.allgather(x), np.array(diagonal))


def allreduce(page: Page) -> None:
    """2.1.5: ring.allreduce(x, "sum"), which is two other pairs of primitives"""
    ring = page.ring
    page.show(page.mine, ring.allreduce(page.mine, "sum"), total(page.size))
    x = np.random.default_rng(page.rank).normal(size=1000).astype(np.float32)
    whole = ring.allreduce(x)
    scattered = ring.allgather(ring.reduce_scatter(x))
    page.check(
        whole.tobytes() == scattered.tobytes(),
        "all-reduce = reduce-scatter + all-gather, bit for bit",
    )
    # A reduce adds in one order, a ring in another for each segment; by rank both add alike.
    whole = ring.allreduce(x, order="rank")
    reduced = ring.reduce(x, root=0, order="rank")
    page.check(
        whole.tobytes() == ring.broadcast(reduced, root=0).tobytes(),
        'all-reduce = reduce + broadcast, bit for bit with order="rank"',
    )


def messages(page: Page) -> None:
    """2.1.6: with ring.group(): ring.send(x, right); ring.recv(out, left)"""
    right, left = (page.rank + 1) % page.size, (page.rank - 1) % page.size
    out = np.zeros_like(page.mine)
    with page.ring.group():
        page.ring.send(page.mine, right)
        page.ring.recv(out, left)
    page.show(page.mine, out, brought(left, page.size))


def chain(page: Page) -> None:
    """2.2: ring.broadcast(x, algorithm="naive"), and "pipelined" in 3 pieces"""
    for pieces in (1, PIECES):
        schedule = plan.chain_broadcast(page.size, 0, pieces)
        drawn = plan.table(schedule).split("\n\n")
        page.say(
            f"  S = {pieces}: {page.size + pieces - 2} turns; before the last one and after it"
        )
        page.say(
            "\n".join("    " + line for line in "\n\n".join(drawn[-2:]).split("\n"))
        )
        result = page.ring.run(schedule, page.mine)
        page.show(page.mine, result, brought(0, page.size))


def devices(page: Page) -> None:
    """2.2, one process with nDev devices: Ring(members=2), lists in, lists out"""
    with mpiring.Ring(members=DEVICES) as ring:
        xs = [_noise(ring.rank + i) for i in range(DEVICES)]
        results = ring.allreduce(xs)
        everyone = [_noise(rank) for rank in range(ring.size)]
        size = ring.size
    expected = np.empty_like(xs[0])
    for s, segment in enumerate(plan.Segments(expected.size, size)):
        order = [(s + 1 + i) % size for i in range(size)]
        parts = [everyone[rank][segment.slice] for rank in order]
        expected[segment.slice] = _added(parts)
    page.say(f"  {page.size} processes with {DEVICES} members each: a ring of {size}")
    page.check(
        all(result.tobytes() == expected.tobytes() for result in results),
        f"every member has the bits of a ring of {size} processes",
    )


def _noise(rank: int) -> Array:
    noise: Array = np.random.default_rng(rank).normal(size=1000).astype(np.float32)
    return noise


def _added(parts: list[Array]) -> Array:
    """Added from the left: promise 4's order."""
    result: Array = parts[0].copy()
    for part in parts[1:]:
        result += part
    return result


NAMES: dict[str, Callable[[Page], None]] = {
    each.__name__: each
    for each in (
        broadcast,
        reduce,
        reduce_scatter,
        allgather,
        allreduce,
        messages,
        chain,
        devices,
    )
}


def main() -> int:
    """One rank's part."""
    comm = MPI.COMM_WORLD
    parser = argparse.ArgumentParser(
        usage="mpirun -n 4 python -m mpi4py examples/primitives.py [NAME ...]",
        description="The lecture's primitives: what every rank puts in, and what it gets.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of {', '.join(NAMES)} (default: all)",
    )
    names = job.arguments(comm, parser).names or list(NAMES)
    trouble = ""
    if unknown := [name for name in names if name not in NAMES]:
        trouble = f"no primitive is called {unknown[0]!r}; there are {', '.join(NAMES)}"
    elif not 2 <= comm.size <= MOST_RANKS:
        trouble = f"2 to {MOST_RANKS} ranks, please, so that a rank is a digit; not {comm.size}"
    if trouble:
        if comm.rank == 0:
            print(f"primitives: {trouble}", file=sys.stderr, flush=True)
        comm.Barrier()
        return 2
    with mpiring.Ring() as ring:
        page = Page(ring)
        for name in names:
            page.say(f"{name}, {NAMES[name].__doc__}")
            NAMES[name](page)
            page.say()
    right = bool(comm.bcast(page.right))
    page.say("All as NumPy has it." if right else "NOT all as NumPy has it.")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
