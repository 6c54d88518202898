"""What mpiring raises, and nothing else: standard library only, so that every layer may use it.

Wrong arguments raise Python's own ``TypeError`` and ``ValueError``, on every rank, with a message that
names the rank and the values.  The classes here are for what Python has no word for.

An error is *harmless* if the ring is as good as before: all ranks raise it alike, or it came up before anything was
sent.  Who raises such an error marks it.  Any other one may have come from anywhere, such as a signal handler in the
middle of a line: messages may be under way that nobody waits for, and the ranks are out of step.
"""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def harmless(error: E) -> E:
    """The same error, marked as one that leaves the ring usable."""
    error._leaves_ring_usable = True  # type: ignore[attr-defined]
    return error


def is_harmless(error: BaseException) -> bool:
    """Whether an error was marked by :func:`harmless`."""
    return getattr(error, "_leaves_ring_usable", False)


class RingError(RuntimeError):
    """A ring cannot do what was asked: it is closed or broken, or another rank failed."""


class RingTimeout(RingError, TimeoutError):
    """A deadline passed before the other ranks did their part.

    The message names the collective, the step and the segment, whom this rank was waiting for, and which
    ranks were found in no call or in another one.

    Attributes:
        silent: ranks that answered nothing, so are in no call of this ring; empty if unknown.
    """

    def __init__(self, message: str, silent: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.silent = silent


class ScheduleError(ValueError):
    """A schedule does not do what its collective promises.

    Attributes:
        rank, step, segment: where the fault shows, or None where it has no such place.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        step: int | None = None,
        segment: int | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.step = step
        self.segment = segment


class DeadlockError(ScheduleError):
    """Every rank that is left waits for another one.

    Attributes:
        cycle: the ranks that wait for each other, in order, the first one not repeated.
    """

    def __init__(self, message: str, cycle: tuple[int, ...] = ()) -> None:
        super().__init__(message, rank=cycle[0] if cycle else None)
        self.cycle = cycle
