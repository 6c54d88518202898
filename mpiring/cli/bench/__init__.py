"""``mpiring bench``: mpiring and its peers, measured in the same run, under mpirun.

Here is the command line.  :mod:`~mpiring.cli.bench.settings` checks it, :mod:`~mpiring.cli.bench.run` is the run,
:mod:`~mpiring.cli.bench.measure` the measuring, :mod:`~mpiring.cli.bench.peers` says against whom,
:mod:`~mpiring.cli.bench.inputs` what is reduced and how a wrong result is seen.

The job's ranks are all this command: what is wrong with its command line is said by rank 0, and all end together.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mpiring.cli import USAGE, UsageError, find_job, leave_together, one_voice
from mpiring.cli.quantities import argument, as_bytes, as_seconds
from mpiring.plan import COLLECTIVES
from mpiring.wire.reduce.arithmetic import OPS

from .settings import ALL, MEMORIES, NAMES_OF_DTYPES, NONE, ORDERS, PEER_NAMES, ask

if TYPE_CHECKING:
    from mpiring.cli import Subparsers

SUMMARY = (
    "measure collectives against the MPI's own and others, in one run; under mpirun"
)

EPILOG = """\
examples:
  mpirun -n 4 mpiring bench allreduce
  mpirun -n 2 mpiring bench allreduce -b 1Mi -e 256Mi -f 4 --peers mpi,sliced,copy
  mpirun -n 2 mpiring bench allreduce --dtype float16,bfloat16,float32 --plot halves.png
  mpirun -n 4 mpiring bench all --op all --dtype all -b 1Mi -e 1Mi --peers none
  mpirun -n 4 mpiring bench allreduce --json figures.json --plot figures.png

The columns are nccl-tests': size and count of the whole buffer, root -1 for none, and out of
place and in place
  time    of one call on the slowest rank, the median of all rounds
  algbw   size / time
  busbw   algbw times a factor of the collective (all-reduce 2 (K-1)/K, reduce_scatter and
          allgather (K-1)/K, else 1): comparable with the speed of a link
  #wrong  elements that differ from the exact result, on all ranks, in the first and last call
Below each table the peers: their time, and in brackets that over mpiring's, the median of the
ratios in each round: above 1 mpiring is faster.

NAMES are one name or several, such as sum,max.  The peers (--peers):
  mpi      the MPI's own collective, one call through mpi4py
  sliced   its all-reduce in slices of the length that is fastest here, tried once
  ring     the ring that Open MPI has, made to be taken on a communicator of its own
  lecture  two loops of Irecv, Send, Wait and Sendrecv in plain mpi4py
  gloo     PyTorch's collectives on CPUs, where torch is installed
  copy     every rank copies the buffer once, at the same time: the limit, no collective

16 KiB are 16Ki, 16K are 16000 bytes.  With more ranks than cores, times say little; for Open MPI
set OMPI_MCA_mpi_yield_when_idle=1 then.  Exit code 1 if a result of mpiring's was wrong.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command line of ``mpiring bench``."""
    parser = subparsers.add_parser(
        "bench", help=SUMMARY, description=SUMMARY, epilog=EPILOG
    )
    add = parser.add_argument
    add(
        "collectives",
        nargs="+",
        metavar="COLLECTIVE",
        help=f"{', '.join(COLLECTIVES)}, or {ALL}",
    )
    size = argument(as_bytes)
    add("-b", "--begin", type=size, default=4 << 10, metavar="BYTES",
        help="the smallest buffer (default: 4Ki)")  # fmt: skip
    add("-e", "--end", type=size, default=64 << 20, metavar="BYTES",
        help="the largest one (default: 64Mi)")  # fmt: skip
    add("-f", "--factor", type=int, default=4, metavar="F",
        help="from one size to the next (default: 4)")  # fmt: skip
    add("--dtype", default="float32", metavar="NAMES",
        help=f"{', '.join(NAMES_OF_DTYPES)}, or {ALL} (default: float32)")  # fmt: skip
    add("--op", default="sum", metavar="NAMES",
        help=f"{', '.join(OPS)}, or {ALL} (default: sum)")  # fmt: skip
    add("--algorithm", default="auto", metavar="NAME",
        help="of mpiring's calls, as Ring takes it (default: auto)")  # fmt: skip
    add("--order", choices=ORDERS, default="ring",
        help="of combination, in mpiring's calls (default: ring)")  # fmt: skip
    add("--memory", choices=MEMORIES, default="ordinary",
        help="of mpiring's buffers; shared is Ring.empty's, where there is one (default: ordinary)")  # fmt: skip
    add("--peers", default=ALL, metavar="NAMES",
        help=f"{', '.join(PEER_NAMES)}, {ALL} or {NONE} (default: {ALL})")  # fmt: skip
    add("--rounds", type=int, default=20, metavar="N",
        help="of each size, at most (default: 20)")  # fmt: skip
    add("--time", type=argument(as_seconds), default=2.0, metavar="TIME",
        help="for the rounds of a size, such as 500ms; 3 rounds are made in any case (default: 2s)")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write all figures, too")
    add("--plot", type=Path, metavar="FILE.png",
        help="draw busbw against size, too; needs matplotlib")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Measure what the command line asks for."""
    with one_voice("bench"):
        settings = ask(args)
    comm = find_job()
    from .run import bench

    try:
        return bench(comm, settings)
    except UsageError as error:
        leave_together(f"mpiring bench: {error}" if comm.rank == 0 else "", USAGE)
