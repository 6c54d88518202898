"""``mpiring verify``: prove a schedule, and say what has been proven.

The proof is :func:`mpiring.plan.verify`'s; here are its words.  1024 ranks have two million steps,
so there is a progress bar where a person is looking.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from mpiring.cli import BAD_NEWS, OK, UsageError
from mpiring.cli.plans import (
    add_schedule,
    as_ranks,
    make_schedule,
    order_text,
    steps_of,
    traffic_text,
)
from mpiring.plan import Proof, Schedule, ScheduleError, Step, verify

if TYPE_CHECKING:
    from mpiring.cli import Subparsers

SUMMARY = "prove that a schedule does what its collective promises, and never deadlocks"

EPILOG = """\
examples:
  mpiring verify allreduce --ranks 64                       seconds
  mpiring verify allreduce --ranks 2-32                     every number of ranks from 2 to 32
  mpiring verify allreduce --ranks 5 --count 12             bytes for 12 elements, unevenly cut
  mpiring verify reduce_scatter --ranks 8 --algorithm direct --order rank
  mpiring verify broadcast --ranks 2-32 --root 1 --segments 16
  mpiring verify reduce --ranks 64 --algorithm direct
  mpiring verify my_ring.py:make --ranks 2-8                your own: make(size) returns a Schedule

Exit code 1 with the step, rank and segment at fault if the schedule is refused.
"""

# What the postcondition of each collective says.
DONE = {
    "allreduce": "every rank ends with the result of every segment",
    "reduce_scatter": "each rank ends with the result of the segment it owns",
    "allgather": "every rank ends with every segment",
    "broadcast": "every rank ends with every segment of the root",
    "reduce": "the root ends with the result of every segment",
}

# What a schedule's stated order says of all sizes.
ORDERS = {
    "ring": "around the ring, the owner of the segment last: segment s ends with ... op x[owner]",
    "rank": "x[0] op x[1] op ...",
    None: "its own",
}

BATCH = 256  # steps between two updates of the progress
QUIET = 1.0  # seconds before a bar appears
PLAIN = 10.0  # seconds between two lines where there is no bar


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command line of ``mpiring verify``."""
    parser = subparsers.add_parser(
        "verify", help=SUMMARY, description=SUMMARY, epilog=EPILOG
    )
    add_schedule(parser)
    parser.add_argument(
        "--ranks",
        type=as_ranks,
        default=range(4, 5),
        metavar="K",
        help="how many, or a range such as 2-32 (default: 4)",
    )
    parser.add_argument(
        "--count",
        type=int,
        metavar="N",
        help="elements in the buffer, for the bytes (default: one in each segment)",
    )


def run(args: argparse.Namespace) -> int:
    """Prove each size in turn; stop at the first that is refused."""
    if args.count is not None and args.count < 0:
        raise UsageError(f"--count {args.count}: expected 0 or more elements")
    started = time.perf_counter()
    proof, schedule = None, None
    for size in args.ranks:
        schedule = make_schedule(args, size)
        begun = time.perf_counter()
        try:
            with watch(schedule) as watched:
                proof = verify(watched, args.count)
        except ScheduleError as refusal:
            print(f"mpiring verify: refused: {refusal}", file=sys.stderr)
            return BAD_NEWS
        if len(args.ranks) > 1:
            seconds = time.perf_counter() - begun
            word = "rank, " if size == 1 else "ranks,"
            head = f"{size:5} {word} {steps_of(args, schedule):5} steps"
            print(f"{head}: {traffic_text(proof)}; {seconds:.2f} s")
    assert proof is not None and schedule is not None  # a range is never empty
    seconds = time.perf_counter() - started
    print(statement(proof, args.ranks, steps_of(args, schedule), seconds))
    return OK


def statement(proof: Proof, ranks: range, steps: int, seconds: float) -> str:
    """What has been proven, in words."""
    schedule = proof.schedule
    sizes = (
        f"{ranks[0]} to {ranks[-1]} ranks" if len(ranks) > 1 else f"{ranks[0]} ranks"
    )
    if ranks == range(1, 2):
        sizes = "1 rank"
    done, order = DONE[schedule.collective], order_text(proof)
    if order:
        done += ", each contribution in it exactly once"
    lines = [
        f"{schedule.algorithm} {schedule.collective}, {sizes}: proven in {seconds:.2f} s",
        f"  complete     {done}",
    ]
    if len(ranks) > 1 and order:
        order = ORDERS[schedule.order]
        if schedule.order == "ring" and schedule.root is not None:
            order = "around the ring, the root last: x[root+1] op ... op x[root]"
    if order:
        lines.append(f"  order        {order}")
    if order and schedule.root is None:
        lines.append("               the same on every rank, so that bits agree")
    lines.append(
        "  no deadlock  in any order of progress, even when every send waits for its receive"
    )
    if len(ranks) == 1:
        lines.append(f"  steps        {steps}")
        lines.append(f"  bytes        {traffic_text(proof)}")
    return "\n".join(lines)


@contextmanager
def watch(schedule: Schedule) -> Iterator[Schedule]:
    """The same schedule, which shows its progress while its steps are read.

    With tqdm and a terminal as a bar, else as a line every ten seconds; nothing for short proofs.
    """
    total = schedule.size * sum(1 for _ in schedule.steps(0))
    with reporter(f"{schedule.size} ranks", total) as report:

        def program(rank: int) -> Iterator[Step]:
            number = 0
            for number, step in enumerate(schedule.steps(rank), 1):
                yield step
                if number % BATCH == 0:
                    report(BATCH)
            report(number % BATCH)

        yield replace(schedule, program=program)


@contextmanager
def reporter(title: str, total: int) -> Iterator[Callable[[int], object]]:
    """A function that takes how many more of ``total`` are done."""
    bar = None
    if sys.stderr.isatty():
        try:
            from tqdm import tqdm

            bar = tqdm(total=total, desc=title, unit="step", delay=QUIET, leave=False)
        except ImportError:
            pass
    if bar is not None:
        with bar:
            yield bar.update
        return
    done, due = 0, time.monotonic() + PLAIN

    def report(more: int) -> None:
        nonlocal done, due
        done += more
        if time.monotonic() >= due:
            due += PLAIN
            share = min(1.0, done / total)
            print(f"mpiring verify: {title}: {share:.0%} of the steps", file=sys.stderr)

    yield report
