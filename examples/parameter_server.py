"""The same training three ways: all-reduce, and a parameter server that is synchronous or not.

    mpirun -n 4 python -m mpi4py examples/parameter_server.py

The lecture (sections 1.4 and 3.2) has two arguments against a parameter server:

* it *synchronises twice* a step: the workers wait for the parameters (pull, a broadcast), and the server
  waits for the gradients (push, a reduce).  All-reduce synchronises once, and every rank updates for itself;
* the *server's link* carries all of it: ``2 (K - 1) N`` bytes a step of ``N`` bytes of parameters, if all
  ``K - 1`` workers talk to it.  A ring's all-reduce sends ``2 (K - 1) / K N`` through each rank.

This prints both next to what they cost here.  The synchronous server of :mod:`mpiring` answers the second:
its broadcast and reduce go along a chain, so that no link carries more than ``2 N``.  The asynchronous one
answers the first: no worker waits for another; but its workers do talk to the server one by one, and they
compute with parameters that others have changed meanwhile.

The network, the images and the step are those of ``train_digits.py``.  One rank serves and the others work,
each on its shard of every batch; so the synchronous server's model is that of the all-reduce, but for
rounding, and this program checks it.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import train_digits as digits  # first: it tells NumPy to leave the cores to the ranks

import numpy as np  # isort: skip
from mpi4py import MPI  # isort: skip

import mpiring  # isort: skip
from mpiring.plan import Schedule, Segments, price, schedule  # isort: skip

import job  # isort: skip

PACKAGES = {"sklearn": "scikit-learn", "tqdm": "tqdm"}
SERVER = 0

Advance = Callable[[float], None]


class Run(NamedTuple):
    """One training: its parameters (on rank 0), and the median seconds of a step on this rank."""

    parameters: digits.Arrays
    seconds: float


def all_batches(
    data: digits.Digits, args: argparse.Namespace
) -> Iterator[digits.Array]:
    """The batches of all epochs, the same on every rank."""
    for epoch in range(args.epochs):
        yield from digits.batches(data, args.batch, args.seed + 1 + epoch)


def train_by_allreduce(
    ring: mpiring.Ring, data: digits.Digits, args: argparse.Namespace, advance: Advance
) -> Run:
    """Every rank works, and updates for itself."""
    trainer = digits.Trainer(data, args.seed, digits.team(ring))
    times = []
    for batch in all_batches(data, args):
        began = time.perf_counter()
        trainer.step(batch)
        times.append(time.perf_counter() - began)
        advance(1)
    return Run(trainer.parameters, statistics.median(times))


def train_by_server(
    ring: mpiring.Ring,
    data: digits.Digits,
    args: argparse.Namespace,
    advance: Advance,
    mode: str,
) -> Run:
    """One rank serves, the others work."""
    parameters = digits.new_parameters(args.seed)
    velocity = {name: np.zeros_like(p) for name, p in parameters.items()}
    workers = ring.size - 1
    # A synchronous update has the gradients of a whole batch, an asynchronous one of a worker's shard.
    part = 1 if mode == "sync" else 1 / workers

    def update(params: digits.Arrays, grads: digits.Arrays) -> None:
        digits.descend(params, velocity, grads, digits.LEARNING_RATE)
        advance(part)

    server = mpiring.ParameterServer(ring, parameters, update, root=SERVER, mode=mode)
    if ring.rank == SERVER:
        return Run(server.serve(), 0.0)
    times = []
    for batch in all_batches(data, args):
        began = time.perf_counter()
        parameters = server.pull()
        shard = Segments(len(batch), workers)[(ring.rank - SERVER) % ring.size - 1]
        mine = batch[shard.slice]
        _, gradients = digits.loss_and_gradients(
            parameters, data.images[mine], data.labels[mine]
        )
        # The mean over the batch; and small batches take small steps.
        weight = min(1, len(batch) / 256) / len(batch)
        server.push({name: g * weight for name, g in gradients.items()})
        times.append(time.perf_counter() - began)
    server.done()
    return Run(parameters, statistics.median(times))


# ---- what is measured, and what is counted --------------------------------------------------------


def through_busiest_rank(plans: list[Schedule], count: int, itemsize: int) -> int:
    """Bytes through the link of the busiest rank, in its busier direction, for schedules one after another.

    >>> count = 400
    >>> through_busiest_rank([schedule("allreduce", 4)], count, itemsize=8)           # 2 (K-1)/K N
    4800
    >>> star = [schedule(name, 4, algorithm="direct") for name in ("broadcast", "reduce")]
    >>> through_busiest_rank(star, count, itemsize=8)                                 # 2 (K-1) N
    19200
    """
    prices = [price(plan, count, itemsize) for plan in plans]
    return max(
        sum(max(p.sent_bytes[rank], p.received_bytes[rank]) for p in prices)
        for rank in range(plans[0].size)
    )


def byte_rows(size: int, parameters: digits.Arrays) -> Iterator[tuple[str, str, str]]:
    """What a step moves, from the schedules that run."""
    count = sum(p.size for p in parameters.values())
    itemsize = next(iter(parameters.values())).itemsize
    forms = {
        "all-reduce": (["allreduce"], ["ring"], "2 (K-1)/K N, through every rank"),
        "server, sync": (
            ["broadcast", "reduce"],
            ["pipelined", "ring"],
            "2 N: pull and push go along a chain",
        ),
        "server, async": (
            ["broadcast", "reduce"],
            ["direct", "direct"],
            "2 (K-1) N: the server talks to every worker, the lecture's bottleneck",
        ),
    }
    for name, (collectives, algorithms, remark) in forms.items():
        plans = [
            schedule(collective, size, algorithm=algorithm)
            for collective, algorithm in zip(collectives, algorithms)
        ]
        nbytes = through_busiest_rank(plans, count, itemsize)
        yield f"bytes a step, {name}", f"{nbytes:,}", remark


def accuracy_rows(
    data: digits.Digits, runs: dict[str, Run]
) -> Iterator[tuple[str, str, str]]:
    """How well each model does, and how far it is from the all-reduce's."""
    reference = runs["all-reduce"].parameters
    new = len(data.test)
    for name, run in runs.items():
        right = digits.right_answers(run.parameters, data)
        remark = f"{right} of {new} new images"
        if name != "all-reduce":
            off = digits.largest_difference(run.parameters, reference)
            verdict = "rounding" if off <= digits.ROUNDING else "another path"
            remark += f"; parameters off by {off:.1e}: {verdict}"
        yield f"test accuracy, {name}", f"{right / new:.4f}", remark


def second_rows(
    seconds: dict[str, float], size: int, cores: int
) -> Iterator[tuple[str, str, str]]:
    """What a step takes."""
    remarks = {
        "all-reduce": "one synchronisation: all-reduce of the gradients",
        "server, sync": "two: pull (broadcast) and push (reduce)",
        "server, async": "none between workers",
    }
    for name, value in seconds.items():
        yield f"seconds a step, {name}", f"{value:.4f}", remarks[name]
    if size > cores:
        yield "", "", f"{size} ranks take turns on {job.plural(cores, 'core')}"


# ---- the program ----------------------------------------------------------------------------------


def main() -> int:
    """One rank's part; the exit status is 0 if the synchronous server's model is the all-reduce's."""
    comm = MPI.COMM_WORLD
    args = job.arguments(comm, command_line())
    job.need_packages(comm, PACKAGES)
    if comm.size < 2:
        print(
            "this example needs 2 ranks or more, a server and workers: "
            "mpirun -n 4 python -m mpi4py examples/parameter_server.py",
            file=sys.stderr,
        )
        return 1
    data = comm.bcast(digits.load_digits(args.seed) if comm.rank == 0 else None)
    cores = job.cores(comm)
    steps = len(list(all_batches(data, args)))
    if comm.rank == 0:
        print(
            f"{steps} steps with batches of {args.batch} images, three times; "
            f"{comm.size} ranks on {job.plural(cores, 'core')}",
            flush=True,
        )
    runs = {}
    with mpiring.Ring(comm) as ring, step_bar(comm, 3 * steps) as advance:
        runs["all-reduce"] = train_by_allreduce(ring, data, args, advance)
        for mode in ("sync", "async"):
            runs[f"server, {mode}"] = train_by_server(ring, data, args, advance, mode)
    everyone = comm.allgather([run.seconds for run in runs.values()])
    status = 0
    if comm.rank == SERVER:
        workers = everyone[1:]
        seconds = {
            name: statistics.median(times) for name, times in zip(runs, zip(*workers))
        }
        off = digits.largest_difference(
            runs["server, sync"].parameters, runs["all-reduce"].parameters
        )
        status = 0 if off <= digits.ROUNDING else 1
        print()
        job.print_table(
            [
                *accuracy_rows(data, runs),
                *second_rows(seconds, comm.size, cores),
                *byte_rows(comm.size, runs["all-reduce"].parameters),
            ]
        )
        count = sum(p.size for p in runs["all-reduce"].parameters.values())
        print(
            f"\nK = {comm.size} ranks, N = {8 * count:,} bytes of parameters.  Bytes are those through the "
            "link of the busiest\nrank, in its busier direction; they are what costs on a network. "
            " On one machine all ranks share its memory."
        )
    return int(comm.bcast(status))


def command_line() -> argparse.ArgumentParser:
    """What the user may choose."""
    parser = argparse.ArgumentParser(
        usage="mpirun -n 4 python -m mpi4py examples/parameter_server.py [options]",
        description="Train the digits with all-reduce and with a parameter server.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=job.positive, default=20, help="times through all images")
    add("--batch", type=job.positive, default=256, help="images in a batch")
    add("--seed", type=int, default=0, help="of the parameters and of the shuffling")
    return parser


@contextlib.contextmanager
def step_bar(comm: MPI.Intracomm, steps: int) -> Iterator[Advance]:
    """A progress bar on rank 0; gives what to call with each step, or part of one."""
    if comm.rank > 0:
        yield lambda part: None
        return
    from tqdm import tqdm

    form = "{l_bar}{bar}| {n:.0f}/{total_fmt} [{elapsed}<{remaining}]"
    with tqdm(total=steps, desc="training", ncols=88, bar_format=form) as bar:

        def advance(part: float) -> None:
            bar.update(part)

        yield advance


if __name__ == "__main__":
    sys.exit(main())
