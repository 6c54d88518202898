"""Rings with given settings, made the way users get them: from a profile of rank 0's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mpiring import Ring
from mpiring.cli import UsageError
from mpiring.wire.gpu_aware.loaded import find_library
from mpiring.wire.settings.profiles import NONE, VARIABLE, Entry, write_entry
from mpiring.wire.settings.tuning import DEFAULTS, Tuning

if TYPE_CHECKING:
    from types import TracebackType

    from mpi4py import MPI


class Rings:
    """Rings that have certain settings; each is made once and kept.  A context manager.

    Args:
        comm: for all of them.
        timeout: of their calls, in seconds.

    Attributes:
        wire: what is between the ranks.
        mpi: name and version.

    Raises:
        UsageError: on every rank, if rank 0 cannot keep a file.
    """

    def __init__(self, comm: MPI.Intracomm, timeout: float) -> None:
        self._comm, self._timeout = comm, timeout
        self._made: dict[Tuning, Ring] = {}
        self.mpi = find_library().name
        self._open = ExitStack()
        self._path = Path(self._folder(), "profile.json")
        with _named(NONE):
            ring = Ring(comm, timeout=timeout)
        self.wire = ring.wire
        self._made[ring.tuning] = self._open.enter_context(ring)

    def _folder(self) -> str:
        """Where rank 0 keeps the profile."""
        folder = told = ""
        if self._comm.rank == 0:
            try:
                folder = self._open.enter_context(tempfile.TemporaryDirectory())
            except OSError as error:
                told = str(error)
        if told := self._comm.bcast(told):
            raise UsageError(told)
        return folder

    def ring(self, tuning: Tuning) -> Ring:
        """The ring with these settings; collective when it is made.

        Raises:
            UsageError: on every rank, if rank 0 cannot keep a file.
        """
        if tuning not in self._made:
            if self._comm.rank == 0:
                # What cannot be written is seen below, on all ranks.
                with suppress(OSError):
                    entry = Entry(self.mpi, self.wire, self._comm.size, tuning)
                    write_entry(self._path, entry)
            try:
                with _named(str(self._path)):
                    ring = Ring(self._comm, timeout=self._timeout)
            except ValueError as error:
                raise UsageError(str(error)) from error
            self._made[tuning] = self._open.enter_context(ring)
            if ring.tuning != tuning:
                raise UsageError(f"{self._path}: cannot be written")
        return self._made[tuning]

    def forget(self) -> None:
        """Close the rings, but that of the defaults."""
        for tuning in [each for each in self._made if each != DEFAULTS[self.wire]]:
            self._made.pop(tuning).close()

    def __enter__(self) -> Rings:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, traceback)


@contextmanager
def _named(value: str) -> Iterator[None]:
    """While the environment names this profile."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = value
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before
