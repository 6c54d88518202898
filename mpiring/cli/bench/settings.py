"""What a command line of ``mpiring bench`` asks for: checked here, before MPI is started.

Neither NumPy nor MPI is needed to find that a command line makes no sense.
"""

from __future__ import annotations

import argparse
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from mpiring.cli import UsageError
from mpiring.plan import COLLECTIVES
from mpiring.wire.reduce.arithmetic import DTYPES, OPS, check_op

ALL, NONE = "all", "none"
REDUCING = ("allreduce", "reduce_scatter", "reduce")
ROOTED = ("broadcast", "reduce")
NAMES_OF_DTYPES = tuple(sorted(DTYPES))
MEMORIES = ("ordinary", "shared")
ORDERS = ("ring", "rank")
PEER_NAMES = ("mpi", "sliced", "ring", "lecture", "gloo", "copy")
LEAST_ROUNDS = 3  # a median of fewer says nothing


@dataclass(frozen=True)
class Settings:
    """All that decides what is measured; the same on every rank.

    Attributes:
        kinds: (collective, dtype, op) in the order of the report; op is None where nothing is reduced.
        begin, end, factor: sizes in bytes.
        algorithm, order, memory: of mpiring's calls.
        rounds: at most this many of each size.
        seconds: of rounds for each size, after which there are no more of them.
        peers: whom to measure beside.
        json, plot: where the figures go too.
    """

    kinds: tuple[tuple[str, str, str | None], ...]
    begin: int
    end: int
    factor: int
    algorithm: str
    order: str
    memory: str
    rounds: int
    seconds: float
    peers: tuple[str, ...]
    json: Path | None
    plot: Path | None

    @property
    def sizes(self) -> list[int]:
        """The sizes in bytes."""
        return sizes(self.begin, self.end, self.factor)


def sizes(begin: int, end: int, factor: int) -> list[int]:
    """From ``begin`` to at most ``end``, each ``factor`` times the one before.

    >>> sizes(4096, 70000, 4)
    [4096, 16384, 65536]
    """
    found = [begin]
    while found[-1] * factor <= end:
        found.append(found[-1] * factor)
    return found


def whole(nbytes: int, itemsize: int) -> int:
    """The bytes of as many elements as fit, one at least.

    >>> whole(1001, 4), whole(8, 16)
    (1000, 16)
    """
    return max(1, nbytes // itemsize) * itemsize


def ask(args: argparse.Namespace) -> Settings:
    """The settings of a command line.

    Raises:
        UsageError: for what cannot be measured.
    """
    if args.begin < 1 or args.end < args.begin:
        raise UsageError(
            f"--begin {args.begin} --end {args.end}: expected 1 byte or more, and an end that is not before"
        )
    if args.factor < 2:
        raise UsageError(f"--factor {args.factor}: expected 2 or more")
    if args.rounds < LEAST_ROUNDS:
        raise UsageError(f"--rounds {args.rounds}: expected {LEAST_ROUNDS} or more")
    if not args.time > 0:
        raise UsageError(f"--time {args.time:g}s: expected more than 0")
    collectives = chosen("collective", args.collectives, COLLECTIVES)
    dtypes = chosen("--dtype", [args.dtype], NAMES_OF_DTYPES)
    kinds, problems = combine(collectives, dtypes, chosen("--op", [args.op], OPS))
    if not kinds:
        raise UsageError(problems[0])
    bfloat16 = any(dtype == "bfloat16" for _, dtype, _ in kinds)
    if bfloat16 and importlib.util.find_spec("ml_dtypes") is None:
        raise UsageError(
            "--dtype bfloat16 needs ml_dtypes, which is not installed: pip install ml_dtypes"
        )
    if args.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "--plot needs matplotlib, which is not installed: pip install matplotlib"
        )
    for option, path in (("--json", args.json), ("--plot", args.plot)):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"{option} {path}: there is no folder {path.parent}")
    return Settings(
        kinds,
        args.begin,
        args.end,
        args.factor,
        args.algorithm,
        args.order,
        args.memory,
        args.rounds,
        args.time,
        () if args.peers == NONE else chosen("--peers", [args.peers], PEER_NAMES),
        args.json,
        args.plot,
    )


def chosen(option: str, words: list[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """The names that words such as ``a,b c`` or ``all`` mean, each once.

    >>> chosen("--op", ["max,sum", "max"], ("sum", "max"))
    ('max', 'sum')
    """
    names = [name for word in words for name in word.split(",") if name]
    unknown = [name for name in names if name not in (*known, ALL)]
    if unknown or not names:
        wrong = unknown[0] if unknown else ""
        raise UsageError(f"{option} {wrong!r}: known are {', '.join(known)} and {ALL}")
    return tuple(known) if ALL in names else tuple(dict.fromkeys(names))


def combine(
    collectives: tuple[str, ...], dtypes: tuple[str, ...], ops: tuple[str, ...]
) -> tuple[tuple[tuple[str, str, str | None], ...], list[str]]:
    """What there is to measure, and why the other combinations make no sense."""
    kinds: list[tuple[str, str, str | None]] = []
    problems: list[str] = []
    for collective in collectives:
        for dtype in dtypes:
            if collective not in REDUCING:
                kinds.append((collective, dtype, None))
                continue
            for op in ops:
                try:
                    check_op(op, dtype)
                except TypeError as error:
                    problems.append(str(error))
                else:
                    kinds.append((collective, dtype, op))
    return tuple(kinds), problems
