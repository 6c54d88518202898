"""What a command line of ``mpiring tune`` asks for, and what is tried: checked here, before anything is measured."""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mpiring.cli import UsageError
from mpiring.wire.settings.files import read_small, try_to_write
from mpiring.wire.settings.profiles import MOST_BYTES, VARIABLE, find_path, parsed
from mpiring.wire.settings.tuning import WHOLE

LEAST_BYTES = 64 << 10  # of the longest buffer: a shorter one has nothing to be cut
STEP = 4  # from one size to the next

# What is tried; of chunks and pieces those that are shorter than what they would cut.
LENGTHS = (*(1 << power for power in range(12, 23)), WHOLE)  # 4 KiB to 4 MiB
QUICK_LENGTHS = (16 << 10, 128 << 10, 1 << 20, WHOLE)
WINDOWS = (1, 2, 3, 4)
SMALL_SIZES = tuple(1 << power for power in range(8, 16))  # 256 B to 32 KiB
DIRECT_SIZES = tuple(1 << power for power in range(12, 21, 2))  # 4 KiB to 1 MiB
STAGED_SIZES = tuple(1 << power for power in range(18, 25))  # 256 KiB to 16 MiB


@dataclass(frozen=True)
class Settings:
    """All that decides what is measured; the same on every rank.

    Attributes:
        path: of the profile that is written.
        is_usual: whether nobody has named it: it is in the user's configuration, whose folder may have to be made.
        most_bytes: of the longest buffer.
        rounds, seconds: of each task at most so many, and so long.
        long_sizes: so many of the longest sizes are measured where segments are cut.
        lengths, windows, small_sizes, direct_sizes, staged_sizes: what is tried.
        timeout: seconds that a call may take.
        plot: where the picture goes.
    """

    path: Path
    is_usual: bool
    most_bytes: int
    rounds: int
    seconds: float
    long_sizes: int
    lengths: tuple[int, ...]
    windows: tuple[int, ...]
    small_sizes: tuple[int, ...]
    direct_sizes: tuple[int, ...]
    staged_sizes: tuple[int, ...]
    timeout: float
    plot: Path | None


def ask(args: argparse.Namespace) -> Settings:
    """The settings of a command line.

    Raises:
        UsageError: for what cannot be measured or has nowhere to go.
    """
    if args.max_bytes < LEAST_BYTES:
        raise UsageError(
            f"--max-bytes {args.max_bytes}: expected {LEAST_BYTES} or more"
        )
    if not args.timeout > 0:
        raise UsageError(f"--timeout {args.timeout:g}s: expected more than 0")
    if args.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "--plot needs matplotlib, which is not installed: pip install matplotlib"
        )
    if args.plot is not None and not args.plot.absolute().parent.is_dir():
        raise UsageError(f"--plot {args.plot}: there is no folder {args.plot.parent}")
    every = 2 if args.quick else 1
    path, is_usual = (args.output, False) if args.output else usual_path()
    return Settings(
        path=path,
        is_usual=is_usual,
        most_bytes=args.max_bytes,
        rounds=7 if args.quick else 15,
        seconds=0.25 if args.quick else 1.0,
        long_sizes=2 if args.quick else 3,
        lengths=QUICK_LENGTHS if args.quick else LENGTHS,
        windows=WINDOWS[::every],
        small_sizes=SMALL_SIZES[::every],
        direct_sizes=DIRECT_SIZES[::every],
        staged_sizes=STAGED_SIZES[::every],
        timeout=args.timeout,
        plot=args.plot,
    )


def usual_path() -> tuple[Path, bool]:
    """The profile that rings read, and whether nobody has named it."""
    path, is_named = find_path(os.environ)
    if path is not None:
        return path, not is_named
    why = f"{VARIABLE} says that there is none" if is_named else "no home is known"
    raise UsageError(f"no profile to write to, since {why}: give one, --output FILE")


def trouble(settings: Settings) -> str:
    """Why the profile or the plot cannot be written; empty if they can.  Nothing is made."""
    path, plot = settings.path, settings.plot
    try:
        parsed(read_small(path, MOST_BYTES))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        return (
            f"{path} is no profile that an entry could be added to: {words_of(error)}; "
            "mend or remove it, or give another one: --output FILE"
        )
    folder = path.absolute().parent
    if not settings.is_usual and not folder.exists():
        return f"{path}: there is no folder {path.parent}; make it, or give another file: --output FILE"
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return f"{path}: {words_of(error)}"
    try:
        if plot is not None:
            try_to_write(plot)
    except OSError as error:
        return f"--plot {plot}: {words_of(error)}"
    return ""


def words_of(error: Exception) -> str:
    """What an error says, without the file, which is named anyway."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
