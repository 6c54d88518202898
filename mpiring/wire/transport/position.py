"""Where a running collective is, for messages about a hang (promise 6)."""

from __future__ import annotations

_NOBODY: frozenset[int] = frozenset()


class Position:
    """Where a running collective is, for messages about a hang.

    Attributes:
        phase: what it does, in words.
        step: the number of the step, None outside the schedule.
        segment: the segment of the message that is waited for.
        is_collective: whether every rank makes this call; a message is the affair of two.
        has_moved: set by a program whose deadline counts from its last message, when one has come.
        excused: ranks that it waits for no more, or never does: they are not to blame if it waits in vain.
    """

    __slots__ = ("phase", "step", "segment", "is_collective", "has_moved", "excused")

    def __init__(self, is_collective: bool = True) -> None:
        self.phase = "opening exchange" if is_collective else "messages"
        self.step: int | None = None
        self.segment: int | None = None
        self.is_collective = is_collective
        self.has_moved = False
        self.excused = _NOBODY

    def __str__(self) -> str:
        if self.step is None:
            return self.phase
        return f"{self.phase}, step {self.step}, segment {self.segment}"
