"""Communicators of the ring's own, pooled by parent (promise 7).

A ring must never match the user's messages, so it works on a duplicate of the user's communicator.  Making
one is collective and MPIs have few (MPICH stops at about 2046), while rings may come and go by the thousand
and are often just dropped, at another moment on each rank.  So:

* the duplicates hang on their parent, as an attribute: two handles of one communicator share them, and
  freeing the parent frees them, at a moment that is the same on all ranks;
* a ring that is closed or dropped only *queues* its duplicate, a local act that calls no MPI;
* when the next ring is made, which is collective anyway, the ranks agree on the duplicates that all of them
  have queued.  One is reused, those beyond ``KEEP`` are freed, by all ranks in the same order;
* they carry none of the parent's hints that promise something, such as ``mpi_assert_no_any_source``: what the user
  does not do, a ring may do;
* a ring may outlive its parent, as any duplicate may.  Its communicator is then freed when the next ring of
  any parent is made.

The agreement runs on a control communicator, also a duplicate.  All of it is non-blocking inside, and waits
with a deadline; when that passes, the ranks may have got differently far, and the parent serves no more
rings.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ...errors import RingError

KEEP = 4  # queued duplicates that are kept for later rings
_COLLECT_ABOVE = (
    32  # live duplicates from which on a ring that is only garbage is looked for
)

_ASSERTION = "mpi_assert_"  # how MPI's hints begin that promise something

Wait = Callable[[MPI.Request, str], None]  # waits for a request or raises RingTimeout


class Lease:
    """A duplicate in use by one ring.

    Attributes:
        comm: the duplicate.
        persistent: the ring's persistent requests on it, freed before it serves another ring.
    """

    def __init__(self, pool: _Pool, number: int, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.persistent: list[MPI.Prequest] = []
        self._pool = pool
        self._number = number

    def give_back(self) -> None:
        """Queue it for reuse.  Local; calls no MPI, so a finaliser may call it at any time."""
        if self.persistent:
            _done_with.extend(self.persistent)
        if self._pool.parent_is_freed:
            _orphans.append(self.comm)
        else:
            self._pool.queued.add(self._number)

    def lose(self) -> None:
        """It will not come back: its ring is broken, and messages may be under way on it.  Local, too."""
        self._pool.lost.add(self._number)


class _Pool:
    """The duplicates of one parent.  All ranks number them alike, because they make them together."""

    def __init__(self) -> None:
        self.control: MPI.Intracomm = MPI.COMM_NULL  # type: ignore[assignment]
        self.live: dict[int, MPI.Intracomm] = {}
        self.queued: set[int] = set()
        self.lost: set[int] = set()  # of this rank's broken rings
        self.next_number = 0
        self.parent_is_freed = False
        self.stuck_in: Any = None  # a request whose deadline passed

    def free(self) -> None:
        """The parent goes: free what no ring uses."""
        self.parent_is_freed = True
        if self.stuck_in is None and self.control != MPI.COMM_NULL:
            self.control.Free()
        for number in self.queued:
            _free(self.live.pop(number))
        self.queued.clear()


_orphans: list[MPI.Intracomm] = []  # given back after their parent was freed
_done_with: list[MPI.Prequest] = []  # of rings that have gone


def lease(parent: MPI.Intracomm, wait: Wait) -> Lease:
    """A duplicate of ``parent``: collective over it.

    Args:
        parent: an intra-communicator.
        wait: waits for a request; what it raises (a timeout) passes through.

    Raises:
        RingError: if an earlier call on this parent did not come to its end.
    """
    while _orphans:
        _free(_orphans.pop())
    pool: Any = parent.Get_attr(_keyval())
    if pool is None:
        pool = _Pool()
        parent.Set_attr(_keyval(), pool)
        pool.control = _duplicate(parent, pool, wait)
    if pool.stuck_in is not None:
        raise RingError(
            "Ring: an earlier ring on this communicator was never completed, because a rank did not make "
            "it in time; use another communicator, such as comm.Dup()"
        )
    if len(pool.live) - len(pool.lost) >= _COLLECT_ABOVE:
        gc.collect()  # rings in reference cycles queue their duplicates now
    free = _queued_everywhere(pool, wait)
    for number in free[1 + KEEP :]:
        _free(pool.live.pop(number))
        pool.queued.discard(number)
    if free:
        number = free[0]
        pool.queued.discard(number)
    else:
        number = pool.next_number
        pool.next_number += 1
        pool.live[number] = _duplicate(parent, pool, wait)
    _free_requests()
    return Lease(pool, number, pool.live[number])


def _free(comm: MPI.Intracomm) -> None:
    _free_requests()  # which would keep it alive
    comm.Free()


def _free_requests() -> None:
    while _done_with:
        _done_with.pop().Free()


def _duplicate(parent: MPI.Intracomm, pool: _Pool, wait: Wait) -> MPI.Intracomm:
    comm, request = parent.Idup()
    _complete(request, pool, wait, "duplicating the communicator", comm)
    _take_back_assertions(comm)
    return comm


def _take_back_assertions(comm: MPI.Intracomm) -> None:
    """Forget what the user has promised of the parent, such as that nobody receives from any source.

    Some MPIs copy such hints, and ``Idup_with_info`` does not keep all of them from it.  Local, as far as we have seen.
    """
    given = comm.Get_info()
    promised = [
        key
        for key, value in given.items()
        if key.startswith(_ASSERTION) and value == "true"
    ]
    given.Free()
    if promised:
        info = MPI.Info.Create(dict.fromkeys(promised, "false"))
        comm.Set_info(info)
        info.Free()


def _complete(
    request: MPI.Request, pool: _Pool, wait: Wait, what: str, *held: object
) -> None:
    pool.stuck_in = (request, held)
    wait(request, what)
    pool.stuck_in = None


def _queued_everywhere(pool: _Pool, wait: Wait) -> list[int]:
    """The numbers of the duplicates that every rank has queued, in order."""
    numbers = sorted(pool.live)
    if not numbers:
        return []
    queued = np.array([number in pool.queued for number in numbers], np.uint8)
    request = pool.control.Iallreduce(MPI.IN_PLACE, [queued, MPI.UINT8_T], MPI.BAND)
    _complete(
        request, pool, wait, "agreeing on the communicators that are free", queued
    )
    return [number for number, everywhere in zip(numbers, queued) if everywhere]


_key: int | None = None


def _keyval() -> int:
    global _key
    if _key is None:
        _key = MPI.Comm.Create_keyval(delete_fn=_parent_is_freed)
    return _key


def _parent_is_freed(parent: Any, key: int, pool: _Pool) -> None:
    if not MPI.Is_finalized():
        pool.free()
