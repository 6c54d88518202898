"""Files in memory that several processes of a node open, and that never have a name.

One opens such a file (``O_TMPFILE``) and says which of its descriptors that is; the others open it through ``/proc``,
which lets processes of one user do so that see each other's numbers.  A number is another process's in another
container, or on another host of the same name.  So the file has to prove what it is: it begins with random bytes, which
its maker has said, too.

The kernel frees it with its last descriptor and mapping, however they end: at no moment could a crash, or a kill, leave
anything in ``/dev/shm``.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import struct
import weakref

DIRECTORY = "/dev/shm"
IDENTITY_BYTES = 8
# Where a file is: the pid of its maker as /proc has it, the descriptor there, and the identity that it begins with.
_WHERE = struct.Struct(f"<iI{IDENTITY_BYTES}s")


class Backing:
    """The file behind a region: it has no name, only descriptors.

    Attributes:
        identity: what the file, and then the region, is called on all ranks.
        where: what another rank of this node needs to open it.
        descriptor: of this process.
    """

    def __init__(self, where: bytes, descriptor: int) -> None:
        self.where = where
        *_, self.identity = _WHERE.unpack(where)
        self.descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def create(cls) -> Backing | None:
        """A new file; None if there is no place for one.

        Raises:
            MemoryError: if there is, and it is full.
        """
        identity = os.urandom(IDENTITY_BYTES)
        try:
            # Not by getpid(): /proc may be that of another pid namespace.
            pid = int(os.readlink("/proc/self"))
            flags = os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
            descriptor = os.open(DIRECTORY, flags, mode=0o600)
        except (OSError, AttributeError):  # a system that knows no O_TMPFILE
            return None
        backing = cls(_WHERE.pack(pid, descriptor, identity), descriptor)
        try:
            os.pwrite(descriptor, identity, 0)
        except OSError as error:
            raise MemoryError(_too_little(error, len(identity), 1)) from error
        return backing

    @classmethod
    def attach(cls, where: bytes) -> Backing | None:
        """The file that another rank made; None if it cannot be opened here."""
        pid, number, identity = _WHERE.unpack(where)
        try:
            # Only looked at first: to open what is no file may wait, or do something.
            handle = os.open(f"/proc/{pid}/fd/{number}", os.O_PATH | os.O_CLOEXEC)
            try:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                    return None
                flags = os.O_RDWR | os.O_CLOEXEC
                descriptor = os.open(f"/proc/self/fd/{handle}", flags)
            finally:
                os.close(handle)
            backing = cls(where, descriptor)
            is_it = os.pread(descriptor, len(identity), 0) == identity
        except OSError:
            return None
        return backing if is_it else None

    def close(self) -> None:
        """Close it.  Twice is fine; regions stay."""
        self._close()

    def reserve(self, part: int, nbytes: int, parts: int) -> None:
        """Take the memory of one part of so many, each of so many bytes.

        Raises:
            MemoryError: if there is not enough.
        """
        try:
            os.posix_fallocate(self.descriptor, part * nbytes, nbytes)
        except (OSError, OverflowError) as error:
            raise MemoryError(_too_little(error, nbytes, parts)) from error


def _too_little(error: Exception, nbytes: int, parts: int) -> str:
    """What to say of memory that cannot be reserved."""
    number = getattr(error, "errno", 0)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if number == errno.EFBIG and limit != resource.RLIM_INFINITY:
        return refused(
            nbytes,
            parts,
            f"this process may make no file longer than {mib(limit)} (ulimit -f), and such memory is one; raise that "
            "limit",
        )
    if number == errno.ENOMEM:
        return refused(
            nbytes,
            parts,
            "the system has no more memory for this process, or its memory cgroup has not; raise that limit",
        )
    status = os.statvfs(DIRECTORY)
    free, whole = (
        blocks * status.f_frsize for blocks in (status.f_bavail, status.f_blocks)
    )
    return refused(
        nbytes,
        parts,
        f"{DIRECTORY} has {mib(free)} free of {mib(whole)}; make it larger (docker run --shm-size=..., or mount -o "
        f"remount,size=... {DIRECTORY}), drop arrays of ring.empty that are not used any more",
    )


def refused(nbytes: int, parts: int, why: str) -> str:
    """What to say of memory that cannot be had."""
    return (
        f"{mib(nbytes)} of node-shared memory for each of the node's {parts} ranks do not fit: {why}, or use "
        "numpy.empty"
    )


def mib(nbytes: int) -> str:
    """So many bytes, in words."""
    return f"{nbytes / (1 << 20):.1f} MiB"
