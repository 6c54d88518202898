"""Who may call a ring now (promises 6 and 8).

A ring is a conversation: what one rank does next depends on what it has done before, and so do the others.  So

* a *process* that was forked off is no rank, and MPI does not work in it: it is refused;
* one *thread* makes the calls.  Two would make them in an order that differs from rank to rank.  It is the first that
  makes one; another thread may follow when that one has ended;
* a call from inside another call, as a signal handler could make it, is refused;
* when MPI has been finalised there is nobody to talk to.

To refuse changes nothing: no message is sent, and the call that is under way goes on.
"""

from __future__ import annotations

import os
import threading
import weakref
from threading import get_ident

from mpi4py import MPI

from ...errors import RingError, harmless

_is_finalized = MPI.Is_finalized


def refuse_stranger(name: str) -> None:
    """Raise where no ring can be made: in a process that was forked off, and when MPI has been finalised."""
    if _is_forked:
        raise RingError(
            f"{name}: this process was forked off a rank, and MPI does not work in it; make rings in the parent"
        )
    if _is_finalized():
        raise RingError(f"{name}: MPI has been finalised; make rings before that")


class Guard:
    """Lets one call at a time into a ring.

    A call sets ``is_inside`` itself, right before what it does and right after, with no line between that a signal
    handler could interrupt: the call of a method would be one.

    Attributes:
        is_inside: whether a call is under way.
    """

    __slots__ = ("is_inside", "_thread", "_lock", "__weakref__")

    def __init__(self) -> None:
        self._thread = _NOBODY  # which makes the calls
        self.is_inside = False
        # Held while it is decided which thread may call; a signal handler may come in between.
        self._lock = threading.RLock()
        _guards.add(self)

    def check(self, name: str) -> None:
        """Raise unless a call may begin.

        Raises:
            RingError: saying why not.
        """
        if self.is_inside or get_ident() != self._thread or _is_finalized():
            why_not = self._judge()
            if why_not:
                raise harmless(RingError(f"{name}: {why_not}"))

    @property
    def is_home(self) -> bool:
        """Whether this process made the ring, and MPI is still there."""
        return self._thread != _FORKED and not _is_finalized()

    @property
    def may_be_driven(self) -> bool:
        """Whether a call on another ring may go on with what was started on this one."""
        return not self.is_inside and get_ident() == self._thread and self.is_home

    def let_others_in(self) -> None:
        """The thread that made the calls needs the ring no more: any thread may make the last one."""
        if not self.is_inside:
            self._thread = _NOBODY

    def _judge(self) -> str:
        """Why a call may not begin; "" if it may, as that of the thread that calls from now on."""
        if self._thread == _FORKED:
            return (
                "a ring does not survive a fork: this process is a child of the rank that made it; "
                "call the ring in the parent, and hand the child arrays"
            )
        if _is_finalized():
            return "MPI has been finalised; close rings before that"
        with self._lock:
            # Makes a thread known to Python that some other library has started.
            me = threading.current_thread()
            theirs = _named(self._thread)
            if self._thread not in (_NOBODY, me.ident) and theirs:
                return (
                    f"thread {me.name} calls a ring that thread {theirs} calls, too, and their order would differ "
                    "between ranks; make a ring for each thread"
                )
            if self.is_inside:
                return (
                    "an earlier call on this ring has not ended, and this one comes from inside it, from a signal "
                    "handler, say; finish it first"
                )
            self._thread = get_ident()
        return ""


def _named(ident: int) -> str:
    """The name of a thread; "" if it has ended."""
    names = [thread.name for thread in threading.enumerate() if thread.ident == ident]
    return names[0] if names else ""


# No thread has these numbers.
_NOBODY, _FORKED = 0, -1

_guards: weakref.WeakSet[Guard] = weakref.WeakSet()
_is_forked = False


def _in_a_child() -> None:
    """What a process that was forked off does first: its thread has the number of the one that forked."""
    global _is_forked
    _is_forked = True
    for guard in _guards:
        guard._thread = _FORKED


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_child)
