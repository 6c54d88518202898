"""``mpiring show``: the lecture's table of a schedule, and its picture.

Above is what :mod:`mpiring.plan.draw` draws, below it what :func:`mpiring.plan.verify` has shown: a
schedule that is not proven gets no table.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
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
from mpiring.plan import Proof, ScheduleError, svg, table, verify

if TYPE_CHECKING:
    from mpiring.cli import Subparsers

SUMMARY = "draw a schedule: which rank holds which sum after each step"

EPILOG = """\
examples:
  mpiring show allreduce --ranks 4                      the ring, as this package runs it
  mpiring show allreduce --ranks 4 --offset 1           as the lecture's slides and C code have it
  mpiring show reduce_scatter --ranks 3 --algorithm direct --order rank
  mpiring show allreduce --ranks 4 --svg ring.svg       the picture as well
  mpiring show broadcast --ranks 4 --segments 4         the pipeline, four pieces in a row
  mpiring show reduce --ranks 4 --root 2 --algorithm direct
  mpiring show my_ring.py:make --ranks 4                one of your own: make(4) returns it

Rank 0 starts with a0 a1 a2 ..., rank 1 with b0 b1 b2 ...; a sum is written in the order in which
it is combined, and * marks a finished result.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command line of ``mpiring show``."""
    parser = subparsers.add_parser(
        "show", help=SUMMARY, description=SUMMARY, epilog=EPILOG
    )
    add_schedule(parser)
    parser.add_argument(
        "--ranks",
        type=as_ranks,
        default=range(4, 5),
        metavar="K",
        help="how many (default: 4)",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture, too")


def run(args: argparse.Namespace) -> int:
    """Print the table and the summary; write the picture."""
    if len(args.ranks) != 1:
        raise UsageError(
            "--ranks: one number of ranks fits on a page; `mpiring verify` takes ranges"
        )
    schedule = make_schedule(args, args.ranks[0])
    try:
        proof = verify(schedule)
        page, picture = table(schedule), svg(schedule) if args.svg else ""
    except ScheduleError as refusal:
        print(f"mpiring show: {refusal}", file=sys.stderr)
        return BAD_NEWS
    except ValueError as error:
        raise UsageError(str(error)) from error
    print(f"{page}\n\n{summary(proof, steps_of(args, schedule))}")
    if args.svg:
        try:
            args.svg.write_text(picture, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--svg: {error}") from error
        print(f"picture: {args.svg}")
    return OK


def summary(proof: Proof, steps: int) -> str:
    """Steps, bytes and order of combination, a line for each."""
    lines = [f"steps: {steps}", f"bytes: {traffic_text(proof)}"]
    order = order_text(proof)
    return "\n".join([*lines, f"order: {order}"] if order else lines)
