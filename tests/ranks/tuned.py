"""Rings with other settings than the defaults, the way users get them: from a profile of rank 0's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

from mpiring.wire.gpu_aware.loaded import find_library
from mpiring.wire.settings.profiles import VARIABLE, Entry, write_entry
from mpiring.wire.settings.tuning import DEFAULTS, WIRES

SIZE = MPI.COMM_WORLD.size

# Far from the defaults, on both sides: nothing rides along and all is cut small; and all the other way about.  Without
# stages, which would take what is to be cut on one node; and with them for everything.
PROFILES = {
    "tiny chunks": {"chunk_bytes": 8, "piece_bytes": 8, "window": 1, "direct_bytes": 0, "small_bytes": 0,
                    "staged_bytes": 0},
    "odd chunks": {"chunk_bytes": 40, "piece_bytes": 24, "window": 5, "direct_bytes": 100, "small_bytes": 7,
                   "staged_bytes": 0},
    "all at once": {"window": 64, "direct_bytes": 1 << 30, "small_bytes": 32 << 10, "staged_bytes": 0},
    "all in stages": {"small_bytes": 0, "staged_bytes": 1 << 30},
}  # fmt: skip


def profile(directory: Path, settings: dict[str, int], ranks: int = SIZE) -> Path:
    """A profile in which this MPI has these settings on any wire."""
    path = directory / "profile.json"
    for wire in WIRES:
        tuning = replace(DEFAULTS[wire], **settings)
        write_entry(path, Entry(find_library().name, wire, ranks, tuning))
    return path


@contextmanager
def tuned(settings: dict[str, int]) -> Iterator[None]:
    """New rings over all ranks have these settings, as long as this lasts; the same call on every rank."""
    with tempfile.TemporaryDirectory() as directory, variable_on_rank_0(
        str(profile(Path(directory), settings))
    ):
        yield


@contextmanager
def variable_on_rank_0(value: str) -> Iterator[None]:
    """``MPIRING_PROFILE`` is this on rank 0; the others name what is no profile, of which nobody should hear."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "/dev/null" if MPI.COMM_WORLD.rank else value
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before
