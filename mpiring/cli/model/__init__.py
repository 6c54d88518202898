"""``mpiring model``: what each schedule of a collective costs on a machine, and which to choose.

Here is the command line; :mod:`~mpiring.cli.model.question` holds what was asked and what the formulas answer,
:mod:`~mpiring.cli.model.page` says it in words, :mod:`~mpiring.cli.model.plot` draws it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from mpiring.cli import OK
from mpiring.cli.quantities import argument, as_bytes, as_seconds, as_speed
from mpiring.plan import COLLECTIVES

from .question import DTYPES, ask

if TYPE_CHECKING:
    from mpiring.cli import Subparsers

SUMMARY = "predict what each schedule of a collective costs, and which one wins where"

EPILOG = """\
examples:
  mpiring model allreduce --ranks 64 --bytes 400M --alpha 5us --bandwidth 25GB/s
  mpiring model allreduce --ranks 100000 --bytes 1G --alpha 5us --bandwidth 25GB/s --json
  mpiring model broadcast --ranks 8 --bytes 4MiB --alpha 50us --bandwidth 1Gbit/s --segments 32
  mpiring model reduce --ranks 8 --bytes 4M --alpha 50us --bandwidth 1Gbit/s --gamma 5GB/s
  mpiring model broadcast --ranks 8 --bytes 4M --fit measured.json --plot broadcast.png

--fit FILE takes alpha and the bandwidth from measured messages; the file is JSON with the key
  "point_to_point": [{"bytes": 8, "seconds": 2.1e-05}, {"bytes": 1048576, "seconds": 0.0113}]
where seconds are those from a message's start to its arrival, half of a ping-pong.  The line
laid through them weighs relative errors, so that small messages count; other keys are ignored.

The model: a message of n bytes takes alpha + n / bandwidth; a rank's link carries one stream
in and one out; latencies of messages that are under way at once overlap.  It knows of no
network that slows down when a rank talks to many at once: the column "at once" says to how
many it does.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command line of ``mpiring model``."""
    parser = subparsers.add_parser(
        "model", help=SUMMARY, description=SUMMARY, epilog=EPILOG
    )
    add = parser.add_argument
    add(
        "collective",
        choices=COLLECTIVES,
        metavar="COLLECTIVE",
        help=", ".join(COLLECTIVES),
    )
    add(
        "--ranks",
        type=int,
        required=True,
        metavar="K",
        help="how many, up to millions",
    )
    add(
        "--bytes",
        type=argument(as_bytes),
        required=True,
        metavar="N",
        help="the buffer, such as 400M or 32KiB",
    )
    add(
        "--alpha",
        type=argument(as_seconds),
        metavar="TIME",
        help="of an empty message, such as 5us",
    )
    add(
        "--bandwidth",
        type=argument(as_speed),
        metavar="SPEED",
        help="of a rank's link, one way, such as 25GB/s or 100Mbit/s",
    )
    add(
        "--fit",
        type=Path,
        metavar="FILE",
        help="alpha and bandwidth from a measured run instead (see below)",
    )
    add(
        "--gamma",
        type=argument(as_speed),
        metavar="SPEED",
        help="at which a rank adds up what came, such as 10GB/s (default: in no time)",
    )
    add(
        "--segments",
        type=int,
        metavar="S",
        help="of the pipelined ones (default: the best number at each size)",
    )
    add(
        "--algorithm",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one; can be given again for another",
    )
    add(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="partial sums of 16-bit floats travel in 32 bits (default: float32)",
    )
    add("--json", action="store_true", help="print JSON, in bytes and seconds")
    add(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="draw time against size, too; needs matplotlib",
    )


def run(args: argparse.Namespace) -> int:
    """Answer what the command line asks."""
    question = ask(args)
    if args.json:
        print(json.dumps(question.answer(), indent=2))
    else:
        from .page import page

        print(page(question))
    if args.plot:
        from .plot import write_plot

        write_plot(question, args.plot)
        if not args.json:
            print(f"\nplot: {args.plot}")
    return OK
