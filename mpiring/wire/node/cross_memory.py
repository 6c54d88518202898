"""The memory of other processes on this host, by the system calls that Linux has for it ("cross memory attach").

``process_vm_readv`` and ``process_vm_writev`` copy between this process and another one: one copy, where a message
through shared memory is two.  :class:`Reach` is the calls, :func:`try_all` what one rank tries before it relies on
them; how the ranks of a ring agree on that is in :mod:`mpiring.wire.node.peer_memory`.

Rules: standard library only, so that ``mpiring doctor`` can ask before anything else is there; no message is sent.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

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


TOKEN_BYTES = 16

Peer = tuple[int, int, bytes]  # a process: its pid, the address of its token, the token


def try_all(reach: Reach, rank: int, peers: Sequence[Peer]) -> str:
    """Read and write what each peer has for it: "" if that works, else the first fault, in few words.

    Args:
        reach: does it.
        rank: this rank, whose place behind a token is written.
        peers: of all ranks, in order; each has room for a token of each rank behind its own.
    """
    got = ctypes.create_string_buffer(TOKEN_BYTES)
    here = ctypes.addressof(got)
    for other, (pid, address, token) in enumerate(peers):
        place = address + (1 + rank) * TOKEN_BYTES
        try:
            reach.read(pid, address, here, TOKEN_BYTES)
            if got.raw != token:
                return f"rank {rank} finds another process in place of rank {other}"
            reach.write(pid, place, here, TOKEN_BYTES)
            got.raw = bytes(TOKEN_BYTES)
            reach.read(pid, place, here, TOKEN_BYTES)
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


_NO = ("0", "no", "off", "false")
_YES = ("", "1", "yes", "on", "true")


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the user lets the ranks use it: ``MPIRING_PEER_MEMORY=0`` says no.

    Raises:
        ValueError: the variable says neither yes nor no.
    """
    value = environment.get(VARIABLE, "")
    word = value.lower()
    if word not in _NO + _YES:
        raise ValueError(
            f"{VARIABLE}={value[:40]!r} says neither yes nor no; known: {', '.join(_NO)}, {', '.join(_YES[1:])}"
        )
    return word in _YES
