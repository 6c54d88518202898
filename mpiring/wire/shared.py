"""Memory that all ranks of a node reach: ``ring.empty``.

A call gives each rank an array of its own.  The arrays of the ranks of one node lie in one region, each in a
part of its own that begins at a page, and every rank of the node has mapped all of it.  Collectives on such
arrays move no data by message (:mod:`mpiring.wire.fused`).

How a region comes about.  All ranks go through the same exchanges, whatever happens to them in between, so that
what goes wrong on one raises on all:

1. the call opens like every other;
2. the lowest of the ranks that share memory, as the MPI says, makes an empty file and says its name;
3. the others open it.  Who cannot, shares no memory in truth, whatever the MPI says: two containers may have one
   host name.  Nobody shares with more ranks than the MPI says: hosts of a test may have one ``/dev/shm``;
4. the file loses its name.  From here on a crash leaves nothing behind, nor does any other end;
5. each rank reserves the space of its part and maps the whole.  Reserving takes the memory now, on the rank's
   own NUMA node, where a sparse file would end in SIGBUS at the first touch.

Where nobody shares, and on a rank without ``/dev/shm``, the array is an ordinary one.  A rank that is alone on its
host, while ranks of other hosts share, has a region all to itself: so a call finds the hosts by their regions
(:mod:`mpiring.wire.hierarchy`).
"""

from __future__ import annotations

import mmap
import operator
import os
import stat
import struct
import weakref
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from .arithmetic import Array
from .arrays import NUMPY
from .arrays.mapped import Place, Region, locate, region_named
from .calls import Call
from .execute import Position
from .transport import Program

if TYPE_CHECKING:
    from .collectives import Collectives

DIRECTORY = "/dev/shm"
_PREFIX = "mpiring-"
_IDENTITY_BYTES = 8


class Backing:
    """The file behind a region: it has a name as long as ranks open it, then only a descriptor.

    Attributes:
        identity: what the file, and then the region, is called on all ranks.
    """

    def __init__(self, identity: bytes, descriptor: int, path: str) -> None:
        self.identity = identity
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)
        # Also at exit: the name may not outlive this process.
        self._unlink = weakref.finalize(self, _unlink, path)

    @classmethod
    def create(cls) -> Backing:
        """A new, empty file; ``OSError`` if there is no place for it."""
        identity = os.urandom(_IDENTITY_BYTES)
        path = _path(identity)
        return cls(identity, _open(path, os.O_CREAT | os.O_EXCL), path)

    @classmethod
    def attach(cls, identity: bytes) -> Backing | None:
        """The file that another rank made; None if it is not to be found here."""
        path = _path(identity)
        try:
            backing = cls(identity, _open(path, 0), path)
        except OSError:
            return None
        backing._unlink.detach()  # its maker's affair
        status = os.fstat(backing._descriptor)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        return backing if is_ours else None

    def unlink(self) -> None:
        """Take its name away, if this rank has made it.  Twice is fine."""
        self._unlink()

    def close(self) -> None:
        """Close it, and unlink it.  Twice is fine; regions stay."""
        self._unlink()
        self._close()

    def take(self, part: int, nbytes: int, parts: int) -> Region:
        """Reserve the space of one part, and map all of them.

        Raises:
            MemoryError: if there is not enough.
        """
        try:
            os.posix_fallocate(self._descriptor, part * nbytes, nbytes)
            # Of several members in a process the first maps it, for all.
            known = region_named(self.identity)
            return known or Region(self._descriptor, parts * nbytes, self.identity)
        except (OSError, OverflowError) as error:
            raise MemoryError(_too_little(part, nbytes, parts)) from error


def empty(
    member: Collectives,
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
    identity = b""
    if rank == node[0] and len(node) > 1:
        backing = _created(made)
        identity = b"" if backing is None else backing.identity
    identities = yield from member.open(call, identity, always=True)
    identity = identities[node[0]]
    if len(node) == 1 and any(identities):
        backing = _created(made)
    elif backing is None and identity:
        backing = Backing.attach(identity)
        if backing is not None:
            made(backing)
    is_there = b"" if backing is None else b"\1"
    there = yield from member.open(call, is_there, always=True)
    sharers = [other for other in node if there[other]]
    array: Array = None
    with call.local():
        if backing is None or there.count(is_there) == 1:
            array = NUMPY.empty(lengths, name)
        else:
            backing.unlink()
            part = sharers.index(rank)
            room = _pages(nbytes)
            region = backing.take(part, room, len(sharers))
            array = region.array(part * room, prod(lengths), name).reshape(lengths)
    yield from member.open(call, always=True)
    return array


def _created(made: Callable[[Backing], None]) -> Backing | None:
    """A new file, of which ``made`` is told; None if there is no place for it."""
    try:
        backing = Backing.create()
    except OSError:
        return None
    made(backing)
    return backing


def place_of(kind: Any, flat: Array) -> Place | None:
    """Where a flat buffer lies in memory of this module; None if it is other memory."""
    return None if kind.is_device else locate(kind.pointer(flat))


def pack_place(place: Place | None) -> bytes:
    """A place as bytes for another rank; none if there is none."""
    return b"" if place is None else _PLACE.pack(*place)


def unpack_place(said: bytes) -> Place | None:
    """What :func:`pack_place` was given."""
    return Place(*_PLACE.unpack(said)) if said else None


_PLACE = struct.Struct(f"<{_IDENTITY_BYTES}sQ")


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


def _path(identity: bytes) -> str:
    return os.path.join(DIRECTORY, _PREFIX + identity.hex())


def _open(path: str, flags: int) -> int:
    flags |= os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, mode=0o600)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _too_little(part: int, nbytes: int, parts: int) -> str:
    status = os.statvfs(DIRECTORY)
    free, whole = (
        blocks * status.f_frsize for blocks in (status.f_bavail, status.f_blocks)
    )
    return (
        f"{_mib(nbytes)} of node-shared memory for each of the node's {parts} ranks do not fit: {DIRECTORY} has "
        f"{_mib(free)} free of {_mib(whole)}; make it larger (docker run --shm-size=..., or mount -o "
        f"remount,size=... {DIRECTORY}), drop arrays of ring.empty that are not used any more, or use numpy.empty"
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"
