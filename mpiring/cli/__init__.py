"""The command ``mpiring``, which is also ``python -m mpiring``.

Rules:

- A sub-command is a module with ``add_parser(subparsers)`` and ``run(args) -> int``, listed in
  ``COMMANDS``.  Importing it is cheap: neither MPI nor NumPy is loaded before ``run`` asks for it,
  so plans are shown and proven on a machine that has neither.
- Exit codes: 0 all is well, 1 the answer is bad news (a problem was found, a proof failed), 2 the
  command line cannot be understood.  The last is one line on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from mpiring import __version__

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

COMMANDS = ("show", "verify", "model", "doctor")

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; nothing else leaves this function.

    Args:
        argv: the words after ``mpiring``; by default those of this process.
    """
    try:
        try:
            args = make_parser().parse_args(argv)
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
