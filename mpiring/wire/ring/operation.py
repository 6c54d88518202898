"""One call on a ring, from its first message to its outcome."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Generic, TypeVar

from ...errors import is_harmless
from ..transport.position import Position
from ..transport.protocol import Program, Request

T = TypeVar("T")

# For what comes late through nobody's fault: the answers of other ranks, and calls that nobody had time to drive.
GRACE_SECONDS = 1.0
_COUNTED = 0.1  # of its timeout, at most: how much of an absence between two looks an operation counts as waiting


class Operation(Generic[T]):
    """One call on a ring.

    Its deadline counts from when its rank waits for it: at once for a blocking call, from the first ``wait`` or
    ``test`` for an asynchronous one.  A rank that looks now and then, and computes in between, is not waiting then.

    Args:
        name: of the call.
        number: of the collectives on this ring, as all ranks count them.
        program: does it.
        position: kept up to date by the program.
        timeout: seconds; None for no deadline.
        is_async: whether nobody waits yet.

    Attributes:
        done: whether it has an outcome.
        waits_for: the message that it waits for.
        deadline: when its time is over, once its rank waits and if it has a timeout.
        patience: how long that is in all, in seconds.
        used: what it uses besides its arrays.
        cut_off: whether the program has been entered and not left, so that nobody knows how far it is.
    """

    def __init__(
        self,
        name: str,
        number: int,
        program: Program[T],
        position: Position,
        timeout: float | None,
        is_async: bool,
    ) -> None:
        self.name = name
        self.number = number
        self.position = position
        self.done = False
        self.waits_for: Request | None = None
        self.used: object = None
        self.cut_off = False
        self.patience = timeout
        self.deadline: float | None = None
        self._seen = 0.0  # when its rank last looked
        if timeout is not None:
            self._seen = time.monotonic()
            if not is_async:
                self.deadline = self._seen + timeout
        self._program: Program[T] | None = program
        self._result: T | None = None
        self._error: BaseException | None = None
        # Where the program was when it failed: its buffers, which MPI may still use, are held by its frames.
        self._stopped_in: TracebackType | None = None

    def advance(self) -> None:
        """Go on until it waits or is done.

        Raises:
            BaseException: what came up in the middle and is no outcome of a call.
        """
        assert self._program is not None
        self.cut_off = True
        try:
            self.waits_for = next(self._program)
        except StopIteration as stop:
            self.finish(stop.value, None)
        except BaseException as error:
            self.fail(error)
            if not is_harmless(error):
                raise
        self.cut_off = False
        if self.position.has_moved:
            self.position.has_moved = False
            if self.deadline is not None and self.patience is not None:
                self.deadline = time.monotonic() + self.patience

    def is_late(self) -> bool:
        """Its rank looks after it: whether its time is over, which counts from the first look on."""
        if self.patience is None:
            return False
        now = time.monotonic()
        absence = now - self._seen
        self._seen = now
        if self.deadline is None:
            if absence > self.patience:
                self.patience = max(self.patience, GRACE_SECONDS)
            self.deadline = now + self.patience
        elif absence > (counted := _COUNTED * self.patience):
            self.deadline += absence - counted
        return now > self.deadline

    def fail(self, error: BaseException) -> None:
        """Keep an error, and where it came up."""
        self._stopped_in = error.__traceback__
        self.finish(None, error)

    def finish(self, result: T | None, error: BaseException | None) -> None:
        """Keep the outcome and let go of everything else."""
        self._result, self._error = result, error
        self._program = self.waits_for = None
        self.done = True

    def outcome(self) -> T:
        """The result, or the error raised."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def forget(self) -> None:
        """Let go of the outcome: an error's traceback holds us, and with us the ring and the arrays."""
        self._result = self._error = self._stopped_in = None

    @property
    def held(self) -> tuple[Any, ...]:
        """What holds its buffers, whether it waits or has failed."""
        return self._program, self._stopped_in

    def __str__(self) -> str:
        waits = "" if self.waits_for is None else f", waiting to {self.waits_for}"
        after = "" if self.position.is_collective else "after "
        return f"{self.name} ({after}call {self.number} on this ring; {self.position}{waits})"
