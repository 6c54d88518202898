"""Memory that all ranks of a node reach: ``ring.empty``.

A call gives each rank an array of its own.  The arrays of the ranks of one node lie in one region, each in a
part of its own that begins at a page, and every rank of the node has mapped all of it.  Collectives on such
arrays move no data by message (:mod:`mpiring.wire.node.fused`).

How a region comes about.  All ranks go through the same exchanges, whatever happens to them in between, so that
what goes wrong on one raises on all:

1. the call opens like every other;
2. the lowest of the ranks that share memory, as the MPI says, opens a file without a name
   (:mod:`mpiring.wire.node.unnamed`), and says where it is;
3. the others open it.  Who cannot, shares no memory in truth, whatever the MPI says: two containers may have one
   host name.  Nobody shares with more ranks than the MPI says: hosts of a test may have one ``/proc``;
4. each rank reserves the space of its part and maps the whole.  Reserving takes the memory now, on the rank's
   own NUMA node, where a sparse file would end in SIGBUS at the first touch.

Where nobody shares, and on a rank without ``/dev/shm``, the array is an ordinary one.  A rank that is alone on its
host, while ranks of other hosts share, has a region all to itself: so a call finds the hosts by their regions
(:mod:`mpiring.wire.execute.hierarchy`).
"""

from __future__ import annotations

import errno
import mmap
import operator
import resource
import struct
from collections.abc import Callable
from math import prod
from typing import Any

from ..arrays import NUMPY
from ..arrays.mapped import Place, Region, locate, region_named
from ..opening.calls import Call
from ..opening.member import Member
from ..reduce.arithmetic import Array
from ..transport.position import Position
from ..transport.protocol import Program
from .unnamed import IDENTITY_BYTES, Backing, mib, refused


def empty(
    member: Member,
    shape: Any,
    dtype: Any,
    position: Position,
    made: Callable[[Backing], None],
    node: tuple[int, ...] = (),
) -> Program[Array]:
    """This rank's new array, in memory that all ranks of its node reach; see :meth:`mpiring.Ring.empty`.

    Args:
        member: this rank.
        shape, dtype: the same on every rank.
        position: in the opening exchange all the time: nothing here is wrong on one rank alone.
        made: is told of the file, which has to be closed however the call ends.
        node: the ranks that may share memory; by default those that the MPI says.
    """
    rank = member.transport.rank
    call = Call("empty")
    lengths: tuple[int, ...] = ()
    name = ""
    with call.local():
        lengths, name = _shape(shape), _dtype(dtype)
        call.fields = (("shape", str(list(lengths))), ("dtype", name))
    yield from member.open(call, always=True)
    nbytes = prod(lengths) * NUMPY.itemsize(name)
    node = node or member.node()
    backing: Backing | None = None
    where = b""
    with call.local():
        if rank == node[0] and len(node) > 1:
            backing = _created(made)
            where = b"" if backing is None else backing.where
    everywhere = yield from member.open(call, where, always=True)
    where = everywhere[node[0]]
    with call.local():
        if len(node) == 1 and any(everywhere):
            backing = _created(made)
        elif backing is None and where:
            backing = Backing.attach(where)
            if backing is not None:
                made(backing)
    is_there = b"" if backing is None else b"\1"
    there = yield from member.open(call, is_there, always=True)
    sharers = [other for other in node if there[other]]
    member.has_shared = member.has_shared or there.count(is_there) > 1
    array: Array = None
    with call.local():
        if backing is None or there.count(is_there) == 1:
            array = NUMPY.empty(lengths, name)
        else:
            part = sharers.index(rank)
            room = _pages(nbytes)
            region = _taken(backing, part, room, len(sharers))
            array = region.array(part * room, prod(lengths), name).reshape(lengths)
    yield from member.open(call, always=True)
    return array


def _created(made: Callable[[Backing], None]) -> Backing | None:
    """A new file, of which ``made`` is told; None if there is no place for it."""
    backing = Backing.create()
    if backing is not None:
        made(backing)
    return backing


def _taken(backing: Backing, part: int, nbytes: int, parts: int) -> Region:
    """Reserve the space of one part, and map all of them.

    Raises:
        MemoryError: if there is not enough.
    """
    # Of several members in a process the first maps it, for all.
    region = region_named(backing.identity)
    backing.reserve(part, nbytes, parts)
    try:
        return region or Region(backing.descriptor, parts * nbytes, backing.identity)
    except OSError as error:
        raise MemoryError(_not_mapped(error, nbytes, parts)) from error


def _not_mapped(error: OSError, nbytes: int, parts: int) -> str:
    """What to say of memory that is there, and cannot be mapped."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if error.errno == errno.ENOMEM and limit != resource.RLIM_INFINITY:
        why = f"the addresses of this process are limited to {mib(limit)} (ulimit -v), and each rank maps the memory "
        return refused(nbytes, parts, why + "of all; raise that limit")
    why = f"this process cannot map the memory of all: {error.strerror}; see vm.max_map_count and vm.overcommit_memory"
    return refused(nbytes, parts, why)


def place_of(kind: Any, flat: Array) -> Place | None:
    """Where a flat buffer lies in memory of this module; None if it is other memory."""
    return None if kind.is_device else locate(kind.pointer(flat))


def pack_place(place: Place | None) -> bytes:
    """A place as bytes for another rank; none if there is none."""
    return b"" if place is None else _PLACE.pack(*place)


def unpack_place(said: bytes) -> Place | None:
    """What :func:`pack_place` was given."""
    return Place(*_PLACE.unpack(said)) if said else None


_PLACE = struct.Struct(f"<{IDENTITY_BYTES}sQ")


def _shape(shape: Any) -> tuple[int, ...]:
    given = shape if isinstance(shape, (tuple, list)) else (shape,)
    try:
        lengths = tuple(map(operator.index, given))
    except TypeError:
        raise TypeError(
            f"shape must be an int or a tuple of ints, got {shape!r}"
        ) from None
    if min(lengths, default=0) < 0:
        raise ValueError(f"shape must have lengths of 0 or more, got {shape!r}")
    return lengths


def _dtype(dtype: Any) -> str:
    return NUMPY.dtype_name(NUMPY.empty(0, dtype))


def _pages(nbytes: int) -> int:
    """So many bytes as whole pages; an empty array has one too, to lie somewhere."""
    return max(-(-nbytes // mmap.PAGESIZE), 1) * mmap.PAGESIZE
