"""Rings whose ranks reach into each other's memory, or go through stages, for arrays of any length."""

from __future__ import annotations

from typing import Any

import pytest

from mpiring import Ring
from mpiring.wire.node.cross_memory import Reach
from mpiring.wire.node.peer_memory import PeerMemory
from mpiring.wire.node.stages import Lengths, Stages


def reaching(comm: Any, **more: Any) -> Ring:
    """A ring in which no array is too short to go by the peers' memory."""
    ring = Ring(comm, **more)
    for member in ring._session.members:
        member.small_bytes = -1  # nor rides in the opening exchange
        member.ways.least_bytes = 0
        lengths = member.ways.stages.lengths
        why_not = "by the peers' memory only"
        member.ways.stages = Stages(ring.size, lengths, why_not)
    return ring


def short_lengths(size: int) -> Lengths:
    """Of stages through which arrays go as one-shot, as one block and as several, though they are short."""
    block = 4096 * size
    return Lengths(block, block, longest=1 << 20, one_shot=2048, kept=16 << 10)


def staging(comm: Any, lengths: Lengths | None = None, **more: Any) -> Ring:
    """A ring in which no array is too short to go through stages."""
    ring = reaching(comm, **more)
    for member in ring._session.members:
        why_not = "alone" if ring.size == 1 else ""
        given = lengths or member.ways.stages.lengths
        member.ways.stages = Stages(ring.size, given, why_not)
        member.ways.peer_memory = PeerMemory("through stages only")
    return ring


def why_not(ring: Ring) -> str:
    """Why the ranks of a ring do not reach into each other's memory; "" if they do, or have not tried."""
    return ring._session.members[0].ways.peer_memory.why_not


def need_reach(comm: Any) -> None:
    """Skip a test where the kernel does not let the ranks do it; collective."""
    with reaching(comm) as ring:
        ring.allreduce(1.0)
        if comm.size > 1 and why_not(ring):
            pytest.skip(f"the kernel does not allow it here: {why_not(ring)}")


class Moved:
    """Bytes that this rank has read of its peers and written to them, since it was asked last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._bytes = {"read": 0, "write": 0}
        for verb in self._bytes:
            monkeypatch.setattr(Reach, verb, self._counted(verb, getattr(Reach, verb)))

    def _counted(self, verb: str, move: Any) -> Any:
        def counted(
            reach: Reach, pid: int, theirs: int, mine: int, nbytes: int
        ) -> None:
            self._bytes[verb] += nbytes
            move(reach, pid, theirs, mine, nbytes)

        return counted

    def take(self) -> tuple[int, int]:
        """Bytes read and written."""
        found = self._bytes["read"], self._bytes["write"]
        self._bytes.update(read=0, write=0)
        return found
