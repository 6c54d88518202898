"""What the ranks of one ring may do with each other's memory, which they try before they rely on it.

Who may reach into another process (:mod:`mpiring.wire.node.cross_memory`) is the kernel's to decide: the same user,
one pid namespace, no Yama or seccomp that forbids it.  None of that can be told from outside.  So the ranks try
(:meth:`PeerMemory.is_there`), when a call first wants it and all ranks are known to be in that call:

1. each says its pid, and the address of a *token*: random bytes that nobody else has;
2. each reads the token of every other one.  What is there proves that it is the right process: a pid may be another
   process's in the namespace of another container, and two hosts may have one name;
3. each writes behind the token, at a place of its own, and reads that back;
4. where a rank is refused, all let themselves be traced, which is what Yama asks for, and try once more;
5. if one rank still is, none uses it.  Messages do the same, slower; ``mpiring doctor`` tells what the kernel says.

The token is not looked at again: a ring whose rank has ended is of no use anyhow.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from ...errors import RingError
from ..opening.calls import Call
from ..opening.member import Member
from ..transport.protocol import Program
from . import cross_memory
from .cross_memory import TOKEN_BYTES, Reach

# Why what the ranks have tried does not work any more.
_REASONS = {
    errno.ESRCH: "that process has ended",
    errno.EFAULT: "an array of this call has no memory there any more: it was given back during the call",
    errno.EPERM: "it could when the ring tried: one of the two processes has changed its user or given up privileges "
    "since, or may not be traced any more; do that before making a ring, or set MPIRING_PEER_MEMORY=0",
}

_MEETING = struct.Struct(f"<iQ{TOKEN_BYTES}s")  # what a rank says of itself
_FAULT_BYTES = 100  # of words that travel


class PeerMemory:
    """What a rank knows of the memory of its ring's other ranks.

    Attributes:
        why_not: why it is not used, as the ranks have agreed; "" if it is, or nobody has tried.
    """

    def __init__(self, why_not: str = "") -> None:
        self.why_not = why_not or (
            "" if cross_memory.is_known() else "not on this system"
        )
        self._reach = Reach()
        self._rank = 0
        self._pids: list[int] = []  # of the ranks, in order, when all have tried

    @property
    def has_tried(self) -> bool:
        """Whether the ranks have tried, and can."""
        return bool(self._pids)

    def is_there(self, member: Member) -> Program[bool]:
        """Whether every rank may read and write the memory of every other one: the same on all ranks.

        Collective the first time: all ranks have to be known to call it.
        """
        if not (self._pids or self.why_not):
            self._rank = member.transport.rank
            pids, self.why_not = yield from self._trial(member)
            self._pids = [] if self.why_not else pids
        return not self.why_not

    def read(self, rank: int, theirs: int, mine: int, nbytes: int) -> None:
        """Copy bytes of another rank to this one.

        Args:
            rank: the other one.
            theirs, mine: addresses, there and here.
            nbytes: how many.

        Raises:
            RingError: if that cannot be done any more.
        """
        try:
            self._reach.read(self._pids[rank], theirs, mine, nbytes)
        except OSError as error:
            raise self._lost("read", rank, error) from error

    def write(self, rank: int, theirs: int, mine: int, nbytes: int) -> None:
        """Copy bytes of this rank to another one; arguments and errors as for :meth:`read`."""
        try:
            self._reach.write(self._pids[rank], theirs, mine, nbytes)
        except OSError as error:
            raise self._lost("write", rank, error) from error

    def _lost(self, verb: str, rank: int, error: OSError) -> RingError:
        return RingError(
            f"rank {self._rank} cannot {verb} the memory of rank {rank} (process {self._pids[rank]}): "
            f"{error.strerror}; {_REASONS.get(error.errno or 0, 'it could when the ring tried')}"
        )

    def _trial(self, member: Member) -> Program[tuple[list[int], str]]:
        """The ranks' pids, and why they cannot reach each other."""
        rank, size = member.transport.rank, member.transport.size
        call = Call("trying the peers' memory")
        token = os.urandom(TOKEN_BYTES)
        # The token, and room for one of each rank.
        box = ctypes.create_string_buffer(token, (1 + size) * TOKEN_BYTES)
        mine = _MEETING.pack(os.getpid(), ctypes.addressof(box), token)
        said = yield from member.open(call, mine, always=True)
        peers = [_MEETING.unpack(item) for item in said]
        for may_be_traced in (False, True):
            if may_be_traced:
                cross_memory.let_peers_reach()
                yield from member.open(call, always=True)
            fault = cross_memory.try_all(self._reach, rank, peers).encode()
            faults = yield from member.open(call, fault[:_FAULT_BYTES], always=True)
            why_not = next((f.decode(errors="replace") for f in faults if f), "")
            if not why_not:
                break
        return [pid for pid, _, _ in peers], why_not
