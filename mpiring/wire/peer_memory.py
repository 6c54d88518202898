"""The memory of other processes of this host, by the system calls that Linux has for it ("cross memory attach").

``process_vm_readv`` and ``process_vm_writev`` copy between this process and another one: one copy, where a message
through shared memory is two.  :class:`Reach` is the calls.  :class:`PeerMemory` is what the ranks of one ring may do
with them, which they try before they rely on it.

Who may do it is the kernel's to decide: the same user, one pid namespace, no Yama or seccomp that forbids it.  None
of that can be told from outside.  So the ranks try (:meth:`PeerMemory.is_there`), when a call first wants it and all
ranks are known to be in that call:

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
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import RingError
from .calls import Call
from .transport import Program

if TYPE_CHECKING:
    from .collectives import Collectives

VARIABLE = "MPIRING_PEER_MEMORY"

# In one system call, which no signal interrupts; Linux moves 2 GiB at most.
_MOST_BYTES = 64 << 20


class _Piece(ctypes.Structure):  # struct iovec
    _fields_ = [("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t)]


def _system_call(name: str) -> Any:
    """A function of the C library; None where it is not there."""
    if sys.platform != "linux":
        return None
    try:
        function: Any = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return None
    many, pointer = ctypes.c_ulong, ctypes.c_void_p
    function.argtypes = [ctypes.c_int, pointer, many, pointer, many, many]
    function.restype = ctypes.c_ssize_t
    return function


_readv = _system_call("process_vm_readv")
_writev = _system_call("process_vm_writev")


def is_known() -> bool:
    """Whether this system has the calls at all."""
    return _readv is not None and _writev is not None


class Reach:
    """Reads and writes the memory of other processes.  For one thread at a time."""

    def __init__(self) -> None:
        self._mine, self._theirs = _Piece(), _Piece()
        self._places = (ctypes.addressof(self._mine), ctypes.addressof(self._theirs))

    def read(self, pid: int, theirs: int, mine: int, nbytes: int) -> None:
        """Copy bytes of process ``pid`` to this one.

        Args:
            pid: of the process.
            theirs, mine: addresses, there and here.
            nbytes: how many.

        Raises:
            OSError: if the process is not there, may not be reached, or has no memory there.
        """
        self._move(_readv, pid, theirs, mine, nbytes)

    def write(self, pid: int, theirs: int, mine: int, nbytes: int) -> None:
        """Copy bytes of this process to process ``pid``; arguments and errors as for :meth:`read`."""
        self._move(_writev, pid, theirs, mine, nbytes)

    def _move(
        self, system_call: Any, pid: int, theirs: int, mine: int, nbytes: int
    ) -> None:
        here, there = self._mine, self._theirs
        at_here, at_there = self._places
        while nbytes > 0:
            here.address, there.address = mine, theirs
            here.nbytes = there.nbytes = min(nbytes, _MOST_BYTES)
            moved = system_call(pid, at_here, 1, at_there, 1, 0)
            if moved <= 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            # It may be less than was asked for.
            mine, theirs, nbytes = mine + moved, theirs + moved, nbytes - moved


class PeerMemory:
    """What a rank knows of the memory of its ring's other ranks.

    Attributes:
        why_not: why it is not used, as the ranks have agreed; "" if it is, or nobody has tried.
    """

    def __init__(self, why_not: str = "") -> None:
        self.why_not = why_not or ("" if is_known() else "not on this system")
        self._reach = Reach()
        self._rank = 0
        self._pids: list[int] = []  # of the ranks, in order, when all have tried

    def is_there(self, member: Collectives) -> Program[bool]:
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
            f"{error.strerror}; that process has ended, or has given the memory of an array back during a call"
        )

    def _trial(self, member: Collectives) -> Program[tuple[list[int], str]]:
        """The ranks' pids, and why they cannot reach each other."""
        rank, size = member.transport.rank, member.transport.size
        call = Call("trying the peers' memory")
        token = os.urandom(_TOKEN_BYTES)
        # The token, and room for one of each rank.
        box = ctypes.create_string_buffer(token, (1 + size) * _TOKEN_BYTES)
        mine = _MEETING.pack(os.getpid(), ctypes.addressof(box), token)
        said = yield from member.open(call, mine, always=True)
        peers = [_MEETING.unpack(item) for item in said]
        for may_be_traced in (False, True):
            if may_be_traced:
                let_peers_reach()
                yield from member.open(call, always=True)
            fault = try_all(self._reach, rank, peers).encode()
            faults = yield from member.open(call, fault, always=True)
            why_not = next((f.decode() for f in faults if f), "")
            if not why_not:
                break
        return [pid for pid, _, _ in peers], why_not


_TOKEN_BYTES = 16
_MEETING = struct.Struct(f"<iQ{_TOKEN_BYTES}s")  # what a rank says of itself

Peer = tuple[int, int, bytes]  # a process: its pid, the address of its token, the token


def try_all(reach: Reach, rank: int, peers: Sequence[Peer]) -> str:
    """Read and write what each peer has for it: "" if that works, else the first fault, in few words.

    Args:
        reach: does it.
        rank: this rank, whose place behind a token is written.
        peers: of all ranks, in order; each has room for a token of each rank behind its own.
    """
    got = ctypes.create_string_buffer(_TOKEN_BYTES)
    here = ctypes.addressof(got)
    for other, (pid, address, token) in enumerate(peers):
        place = address + (1 + rank) * _TOKEN_BYTES
        try:
            reach.read(pid, address, here, _TOKEN_BYTES)
            if got.raw != token:
                return f"rank {rank} finds another process in place of rank {other}"
            reach.write(pid, place, here, _TOKEN_BYTES)
            got.raw = bytes(_TOKEN_BYTES)
            reach.read(pid, place, here, _TOKEN_BYTES)
            if got.raw != token:
                return f"what rank {rank} writes does not come to rank {other}"
        except OSError as error:
            return f"rank {rank} may not reach rank {other}: {error.strerror}"[:100]
    return ""


# linux/prctl.h
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


def let_peers_reach() -> None:
    """Let processes of the same user reach this one's memory, where Yama asks for that; nothing where there is none.

    MPIs that copy large messages this way do the same.
    """
    if sys.platform == "linux":
        zero = ctypes.c_ulong(0)
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, zero, zero, zero)


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the user lets the ranks use it: ``MPIRING_PEER_MEMORY=0`` says no."""
    return environment.get(VARIABLE, "1") != "0"
