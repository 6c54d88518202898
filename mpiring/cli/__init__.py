"""The command ``mpiring``, which is also ``python -m mpiring``.

Rules:

- A sub-command is a module with ``add_parser(subparsers)`` and ``run(args) -> int``, listed in
  ``COMMANDS``.  Importing it is cheap: neither MPI nor NumPy is loaded before ``run`` asks for it,
  so plans are shown and proven on a machine that has neither.
- A command of ``JOBS`` is started once for each rank.  What is said about its command line is said once, by rank 0.
- Exit codes: 0 all is well, 1 the answer is bad news (a problem was found, a proof failed), 2 the
  command line cannot be understood.  The last is one line on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mpiring import __version__

if TYPE_CHECKING:
    from mpi4py import MPI

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

COMMANDS = ("show", "verify", "model", "bench", "tune", "doctor")
JOBS = ("bench", "tune")

OK, BAD_NEWS, USAGE = 0, 1, 2

DESCRIPTION = (
    "Ring all-reduce over MPI: schedules as data, proven, priced, drawn and run."
)

EPILOG = """\
examples:
  mpiring show allreduce --ranks 4       the ring's table: who holds which sum after each step
  mpiring verify allreduce --ranks 64    its proof
  mpiring model allreduce --ranks 64 --bytes 400M --alpha 5us --bandwidth 25GB/s
                                         what each schedule costs, and which one wins where
  mpirun -n 4 mpiring bench allreduce    how fast it is here, next to the MPI's own
  mpirun -n 4 mpiring tune               measures what is fastest here, for all later rings
  mpiring doctor                         which MPI is this, and what is wrong with it?
  mpirun -n 4 mpiring doctor             the same for a job: launcher, hosts, shared memory

exit codes: 0 well, 1 a problem was found or a proof failed, 2 not understood
"""


class UsageError(Exception):
    """What the user asked for makes no sense; the message is the one line they see."""


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` whose complaint is one line and whose epilog keeps its line breaks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message} (try {self.prog} --help)\n")


def make_parser() -> Parser:
    """The parser with all sub-commands; each stores its module's name as ``command``."""
    parser = Parser(prog="mpiring", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"mpiring {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f"mpiring.cli.{name}").add_parser(subparsers)
    return parser


@contextmanager
def one_voice(command: str) -> Iterator[None]:
    """Around what may end with words on the command line: in a job only rank 0 is heard, and all leave together."""
    from mpiring.cli.doctor.launch import find_launcher
    from mpiring.wire.settings.launchers import find_ancestors

    is_job = command in JOBS
    launcher = find_launcher(os.environ, find_ancestors()) if is_job else None
    if launcher is None or (launcher.size or 1) == 1:
        yield
        return
    is_heard = launcher.rank == 0
    try:
        with ExitStack() as silent:
            if not is_heard:
                nowhere = silent.enter_context(open(os.devnull, "w", encoding="utf-8"))
                silent.enter_context(redirect_stdout(nowhere))
                silent.enter_context(redirect_stderr(nowhere))
            yield
    except UsageError as error:
        leave_together(f"mpiring {command}: {error}" if is_heard else "", USAGE)
    except SystemExit as leaving:
        leave_together("", leaving.code)


def find_job() -> MPI.Intracomm:
    """The ranks of this job: COMM_WORLD.

    Raises:
        UsageError: if there is but one, or no MPI.
    """
    from mpiring.wire.settings.packages import need_mpi

    try:
        need_mpi("this command")
    except ImportError as error:
        raise UsageError(str(error)) from None
    from mpi4py import MPI

    if MPI.COMM_WORLD.size == 1:
        program = sys.argv[0] if Path(sys.argv[0]).name == "mpiring" else "mpiring"
        words = " ".join([program, *sys.argv[1:]])
        raise UsageError(
            f"this is one rank, and a collective needs more: mpirun -n 4 {words} "
            "(if you did that, mpirun and the MPI do not fit: `mpiring doctor` tells)"
        )
    return MPI.COMM_WORLD


def leave_together(message: str, status: str | int | None) -> NoReturn:
    """Say a line, if there is one, and leave when every rank of the job has come here.

    A launcher, and ``python -m mpi4py``, end all ranks as soon as one leaves with another status than 0, whether
    the others have said what they had to say or not.
    """
    if message:
        print(message, file=sys.stderr, flush=True)
    sys.stdout.flush()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # then there is nobody to wait for
        pass
    else:
        MPI.COMM_WORLD.Barrier()
    raise SystemExit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; nothing else leaves this function.

    Args:
        argv: the words after ``mpiring``; by default those of this process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        # Names of files, and variables, need not be text; what is said about them has to come out.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            with one_voice(words[0] if words else ""):
                args = make_parser().parse_args(words)
            command = importlib.import_module(f"mpiring.cli.{args.command}")
            return int(command.run(args))
        except UsageError as error:
            print(f"mpiring {args.command}: {error}", file=sys.stderr)
            return USAGE
        except SystemExit as leaving:  # argparse's --help, --version and errors
            return leaving.code if isinstance(leaving.code, int) else OK
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) is gone: nothing more can be said, not even as Python leaves.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # what a shell reports for a program ended by SIGPIPE
    except KeyboardInterrupt:
        return 128 + 2
