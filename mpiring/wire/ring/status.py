"""What the ranks of a ring tell each other when one of them waits in vain.

A rank that gives up tells all others where it was, and that it has gone: its part of this call, and of all later ones,
will not be done.  A rank that still waits answers where *it* is.  Who says nothing is in no call of this ring, and is
most likely to blame; the neighbour waited for is often innocent.

The messages are small and never waited for, as the other rank may be gone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..transport.mpi import TAG_STATUS, MPITransport
from .immortal import keep_alive
from .operation import GRACE_SECONDS, Operation

_NAP_SECONDS = 1e-3


class Status(NamedTuple):
    """Where a rank is.

    Attributes:
        number, is_collective: of its call.
        text: the call, in words.
        gone: why the rank has left the ring, in words; "" if it waits.
        is_timeout: whether that was a deadline.
    """

    number: int
    is_collective: bool
    text: str
    gone: str = ""
    is_timeout: bool = False

    def against(self, mine: Status) -> str:
        """Where the rank is, seen from another one: in few words."""
        is_here = self[:2] == mine[:2]
        if not self.gone:
            return "waiting too" if is_here else "in another call"
        left = "given up" if self.is_timeout else f"gone ({self.gone})"
        return f"{left} too" if is_here else f"{left}, in another call"


class Statuses:
    """What one process has told the others of itself, and heard of them."""

    def __init__(self, transport: MPITransport) -> None:
        self._transport = transport
        self._answered: set[int] = set()
        self._told: set[int] = set()  # that this rank has left
        self._heard: dict[int, Status] = {}
        self._in_vain_since: float | None = None

    def answer(self, operation: Operation[Any]) -> None:
        """Hear what there is, and tell those who have spoken where this rank waits."""
        while (message := self._transport.take_status()) is not None:
            source = self._take(message)
            if source not in self._answered:
                self._answered.add(source)
                self._tell(source, status_of(operation))

    def gone_before(self, operation: Operation[Any]) -> tuple[int, Status] | None:
        """A rank without which an operation has not ended, though it has had a while since that one was heard to go."""
        gone = {rank: status for rank, status in self._heard.items() if status.gone}
        found = _needed(operation, gone)
        if found is None:
            return None
        now = time.monotonic()
        if self._in_vain_since is None:
            self._in_vain_since = now
        is_over = now - self._in_vain_since > GRACE_SECONDS
        return (found, gone[found]) if is_over else None

    def leave(self, mine: Status, gone: str, is_timeout: bool = False) -> None:
        """Tell all others that this rank has left the ring, in which call, and why."""
        for rank in self._others:
            if rank not in self._told:
                self._tell(rank, mine._replace(gone=gone, is_timeout=is_timeout))
                self._told.add(rank)

    def gather(
        self, operation: Operation[Any]
    ) -> tuple[tuple[int, ...], dict[int, Status]]:
        """Who is silent, and what the others say: after giving them a moment to answer.

        Ranks that have done all that was asked of them are neither.
        """
        until = time.monotonic() + GRACE_SECONDS
        asked = [r for r in self._others if r not in operation.position.excused]
        while True:
            while (message := self._transport.take_status()) is not None:
                self._take(message)
            silent = tuple(rank for rank in asked if rank not in self._heard)
            if not silent or time.monotonic() > until:
                return silent, {r: s for r, s in self._heard.items() if r in asked}
            time.sleep(_NAP_SECONDS)

    @property
    def _others(self) -> Iterable[int]:
        return (r for r in range(self._transport.size) if r != self._transport.rank)

    def _take(self, message: tuple[int, bytes]) -> int:
        source, text = message
        self._heard[source] = Status(*json.loads(text))
        return source

    def _tell(self, rank: int, status: Status) -> None:
        text = json.dumps(status).encode()
        keep_alive(self._transport.post_send(text, rank, TAG_STATUS))


def status_of(operation: Operation[Any]) -> Status:
    """Where this rank is, if that is what it waits for."""
    return Status(operation.number, operation.position.is_collective, str(operation))


def _needed(operation: Operation[Any], gone: dict[int, Status]) -> int | None:
    """One of the ranks that have gone, if an operation cannot end without it.

    A collective needs those that went in this call or in an earlier one: what a later one needs is its own affair.
    Messages need whom they wait for.
    """
    if operation.position.is_collective:
        for rank, status in gone.items():
            its_last = status.number + (not status.is_collective)
            if its_last <= operation.number:
                return rank
    elif operation.waits_for is not None and operation.waits_for.peers <= gone.keys():
        return min(operation.waits_for.peers)
    return None
