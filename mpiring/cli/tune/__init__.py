"""``mpiring tune``: measures what suits this wire, and writes it into the profile that later rings read; under mpirun.

Here is the command line.  :mod:`~mpiring.cli.tune.settings` checks it, :mod:`~mpiring.cli.tune.run` is the run,
:mod:`~mpiring.cli.tune.contests` the measuring, which is that of :mod:`mpiring.cli.bench`, and
:mod:`~mpiring.cli.tune.choice` the rule.  What a profile is: :mod:`mpiring.wire.settings.profiles`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mpiring.cli import (
    BAD_NEWS,
    USAGE,
    UsageError,
    find_job,
    leave_together,
    one_voice,
)
from mpiring.cli.quantities import argument, as_bytes, as_seconds
from mpiring.errors import RingTimeout

from .settings import ask

if TYPE_CHECKING:
    from mpiring.cli import Subparsers

SUMMARY = "measure what is fastest on this wire, and keep it in a profile; under mpirun"

EPILOG = """\
examples:
  mpirun -n 4 mpiring tune                      seconds on a host, about a minute between slow ones
  mpirun -n 4 mpiring tune --quick              a look: fewer candidates and rounds
  mpirun -n 4 mpiring tune --output here.json --plot here.png
  MPIRING_PROFILE=here.json mpirun -n 4 python -m mpi4py program.py
  MPIRING_PROFILE=none mpirun -n 4 python -m mpi4py program.py
                                                the defaults, whatever profile there is

What is tried, one after the other, each on top of the choices before it:
  chunk_bytes   how long the chunks are in which a segment moves: 4 KiB to 4 MiB, or whole
  window        how many of them are on their way at a time: 1 to 4
  piece_bytes   how long the pieces are that go down a chain: of a broadcast, a reduce
  direct_bytes  up to which size every rank sends each segment straight to its home
  small_bytes   up to which size arrays ride in the exchange that opens every call
  staged_bytes  up to which size they go through memory that all ranks of a host have mapped
Another value than the default is taken if it is 1.05 times as fast or more, in the median of the
rounds, and faster in three rounds of four; so noise keeps the default.  At the end all choices
together are measured against the defaults; if they are slower, the defaults stay.
The bits of results are the same whatever is chosen.

The profile has an entry for each MPI (name and version), wire (node: all ranks on one host; or
network) and number of ranks; an older one for the same is replaced, the others stay.  A ring
takes the entry of its MPI and wire for as many ranks, else for half to twice as many, if these
are more than 2.  It looks, on rank 0, for
$MPIRING_PROFILE, else $XDG_CONFIG_HOME/mpiring/profile.json, else ~/.config/mpiring/profile.json,
which is where it is written unless --output says otherwise, in a folder that is there.
`mpiring doctor` tells what is taken.

Measure on an idle machine, on as many ranks and hosts as your programs have.  Exit code 1 if a
result was wrong; then nothing is written.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command line of ``mpiring tune``."""
    parser = subparsers.add_parser(
        "tune", help=SUMMARY, description=SUMMARY, epilog=EPILOG
    )
    add = parser.add_argument
    add("-o", "--output", type=Path, metavar="FILE",
        help="the profile to write to (default: the one that rings read)")  # fmt: skip
    add("--quick", action="store_true",
        help="try fewer candidates, in fewer rounds")  # fmt: skip
    add("--max-bytes", type=argument(as_bytes), default=16 << 20, metavar="BYTES",
        help="the longest buffer (default: 16Mi); one whose call takes longer than 0.25 s is left out")  # fmt: skip
    add("--timeout", type=argument(as_seconds), default=60.0, metavar="TIME",
        help="how long a call may take, before the job ends and names who was waited for (default: 60s)")  # fmt: skip
    add("--plot", type=Path, metavar="FILE.png",
        help="draw times against lengths, too; needs matplotlib")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Measure, choose, and write the profile."""
    with one_voice("tune"):
        settings = ask(args)
    comm = find_job()
    from .run import tune

    try:
        return tune(comm, settings)
    except UsageError as error:
        leave_together(f"mpiring tune: {error}" if comm.rank == 0 else "", USAGE)
    except RingTimeout as error:
        print(f"mpiring tune: {error}", file=sys.stderr, flush=True)
        comm.Abort(BAD_NEWS)
        raise
