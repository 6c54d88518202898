"""MPI as a transport, and the few things of MPI that a ring needs besides: the only file that imports it.

* :class:`MPITransport` moves bytes over a communicator that is the ring's own, so nothing here can match
  a message of the user's.
* :func:`op_name` takes mpi4py's operations for ours.
* :func:`library` is ``algorithm="mpi"``: the MPI's own non-blocking collectives.
* :func:`install_excepthook` ends the whole job when one rank dies of an exception.

Tags 0 to 16383 are the user's, for ``send`` and ``recv``; ours lie above.  MPI grants at least 32767.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from traceback import format_exception
from types import TracebackType
from typing import Any

from mpi4py import MPI

from .protocol import Buffer, Persistent, Program, Request, Transport, wait

TAG_UPPER_USER = 1 << 14  # the first tag that is not the user's
TAG_STEP, TAG_OPEN, TAG_STATUS, TAG_SERVER = range(TAG_UPPER_USER, TAG_UPPER_USER + 4)
# Members of one process are told apart by their messages' tags: four for each pair of members.
MOST_MEMBERS = 63

_OPS = {
    "sum": MPI.SUM,
    "avg": MPI.SUM,
    "prod": MPI.PROD,
    "min": MPI.MIN,
    "max": MPI.MAX,
}
_TYPES = {
    "bool": MPI.UINT8_T,
    "float32": MPI.FLOAT,
    "float64": MPI.DOUBLE,
    "complex64": MPI.C_FLOAT_COMPLEX,
    "complex128": MPI.C_DOUBLE_COMPLEX,
    **{f"int{bits}": getattr(MPI, f"INT{bits}_T") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": getattr(MPI, f"UINT{bits}_T") for bits in (8, 16, 32, 64)},
}


def op_name(op: object) -> object:
    """``MPI.SUM`` and friends by our names, and any text as plain text; anything else unchanged."""
    if type(op) is str:  # most of them
        return op
    if isinstance(op, MPI.Op):
        for name in ("sum", "prod", "min", "max"):
            if op == _OPS[name]:
                return name
        return "an MPI.Op that is not MPI.SUM, PROD, MIN or MAX"
    # The str() of an Enum's member is not its value.
    return str.__str__(op) if isinstance(op, str) else op


class MPIRequest(Request):
    """One MPI message, and its buffer: held until the message is complete."""

    __slots__ = ("verb", "peer", "_request")

    def __init__(self, verb: str, peer: int, request: MPI.Request) -> None:
        self.verb = verb
        self.peer = peer
        self._request = request

    def test(self) -> bool:
        # A request that was complete is MPI_REQUEST_NULL, which tests true.
        return self._request.Test()


class MPIPersistent(Persistent):
    """A persistent request of MPI, and its buffer.  Starting one costs a fraction of posting a message anew."""

    __slots__ = ("verb", "peer", "start", "test", "_buffer")

    def __init__(
        self, verb: str, peer: int, request: MPI.Prequest, buffer: Buffer
    ) -> None:
        self.verb = verb
        self.peer = peer
        self._buffer = buffer
        # MPI's own, without a call of ours between.
        self.start = request.Start  # type: ignore[method-assign]
        self.test = request.Test  # type: ignore[method-assign]


class MPITransport(Transport):
    """The ranks of a communicator of our own, or one of several ranks that each of its processes holds.

    Args:
        comm: the communicator.
        message_bytes: longest message.
        members: ranks in each process.
        place: which of them this is; its rank is ``comm.rank * members + place``.
        persistent: takes note of the persistent requests that are made, for whoever frees the communicator.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        message_bytes: int = 1 << 30,
        members: int = 1,
        place: int = 0,
        persistent: list[MPI.Prequest] | None = None,
    ) -> None:
        rank = comm.Get_rank() * members + place
        super().__init__(rank, comm.Get_size() * members, message_bytes)
        self.comm = comm
        self._members = members
        self._place = place
        self._persistent = [] if persistent is None else persistent

    def post_send(self, buffer: Buffer, dest: int, tag: int) -> Request:
        request = self.comm.Isend(*self._to(buffer, dest, tag))
        return MPIRequest("send to", dest, request)

    def post_receive(self, buffer: Buffer, source: int, tag: int) -> Request:
        request = self.comm.Irecv(*self._from(buffer, source, tag))
        return MPIRequest("receive from", source, request)

    def persistent_send(self, buffer: Buffer, dest: int, tag: int) -> Persistent:
        request = self.comm.Send_init(*self._to(buffer, dest, tag))
        self._persistent.append(request)
        return MPIPersistent("send to", dest, request, buffer)  # type: ignore[abstract]

    def persistent_receive(self, buffer: Buffer, source: int, tag: int) -> Persistent:
        request = self.comm.Recv_init(*self._from(buffer, source, tag))
        self._persistent.append(request)
        return MPIPersistent(  # type: ignore[abstract]
            "receive from", source, request, buffer
        )

    def _to(self, buffer: Buffer, dest: int, tag: int) -> tuple[Any, int, int]:
        """What MPI calls a message from here to another rank: buffer, process and tag."""
        process, place = divmod(dest, self._members)
        tag += 4 * (self._place * self._members + place)
        return [buffer, len(buffer), MPI.BYTE], process, tag

    def _from(self, buffer: Buffer, source: int, tag: int) -> tuple[Any, int, int]:
        process, place = divmod(source, self._members)
        tag += 4 * (place * self._members + self._place)
        return [buffer, len(buffer), MPI.BYTE], process, tag

    def take_status(self) -> tuple[int, bytes] | None:
        """A status message that has arrived, as (source, text), or None; never blocks."""
        status = MPI.Status()
        if not self.comm.Iprobe(MPI.ANY_SOURCE, TAG_STATUS, status):
            return None
        text = bytearray(status.Get_count(MPI.BYTE))
        self.comm.Recv([text, len(text), MPI.BYTE], status.Get_source(), TAG_STATUS)
        return status.Get_source(), bytes(text)


def node_of(comm: MPI.Intracomm, members: int) -> tuple[int, ...]:
    """The ranks, in order, that share memory with this process as the MPI says, itself among them: collective."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    group, whole = node.Get_group(), comm.Get_group()
    processes = group.Translate_ranks(group=whole)
    for handle in (group, whole, node):
        handle.Free()
    return tuple(
        process * members + place for process in processes for place in range(members)
    )


def library(transport: MPITransport) -> dict[str, Callable[..., Program[None]]]:
    """The MPI's own non-blocking collectives on flat buffers, as programs, by name.

    ``allreduce(x, op, dtype)`` works in place; ``reduce_scatter(x, op, out, dtype, counts)`` gives each
    rank its elements; ``allgather(out, counts)`` gathers bytes, mine already in their place;
    ``reduce(x, op, dtype, root)`` leaves the result in the root's ``x``; ``broadcast(x, root)`` moves bytes.
    ``avg`` sums.
    """
    comm = transport.comm

    def allreduce(x: Any, op: str, dtype: str) -> Program[None]:
        return _finished(comm.Iallreduce(MPI.IN_PLACE, [x, _TYPES[dtype]], _OPS[op]))

    def reduce_scatter(
        x: Any, op: str, out: Any, dtype: str, counts: list[int]
    ) -> Program[None]:
        kind = _TYPES[dtype]
        return _finished(comm.Ireduce_scatter([x, kind], [out, kind], counts, _OPS[op]))

    def allgather(out: Any, counts: list[int]) -> Program[None]:
        return _finished(comm.Iallgatherv(MPI.IN_PLACE, [out, counts, MPI.BYTE]))

    def reduce(x: Any, op: str, dtype: str, root: int) -> Program[None]:
        kind = _TYPES[dtype]
        source = MPI.IN_PLACE if comm.rank == root else [x, kind]
        return _finished(comm.Ireduce(source, [x, kind], _OPS[op], root))

    def broadcast(x: Any, root: int) -> Program[None]:
        return _finished(comm.Ibcast([x, MPI.BYTE], root))

    return {
        "allreduce": allreduce,
        "reduce_scatter": reduce_scatter,
        "allgather": allgather,
        "reduce": reduce,
        "broadcast": broadcast,
    }


def _finished(request: MPI.Request) -> Program[None]:
    yield from wait(
        MPIRequest("finish the MPI's own collective with", MPI.PROC_NULL, request)
    )


_previous_hook: Any = None
_hooked_process = 0
# When a rank aborts, MPICH's launcher drops what it has not read yet of its output.
_LAST_WORDS_SECONDS = 0.2


def install_excepthook() -> None:
    """Abort the job when an exception ends this rank: the others would wait for it for ever.

    Chained: the hook that was there runs first, so the traceback is printed as ever.  Whatever that hook does, and
    whatever the program has made of ``sys.stdout`` and ``sys.stderr``, the job ends: a failure on the way there would
    leave the others waiting all the same.

    Of the main thread only: Python ends a thread by an exception, and goes on, so a ring does the same.
    """
    global _previous_hook, _hooked_process
    if _previous_hook is None:
        _previous_hook, _hooked_process = sys.excepthook, os.getpid()
        sys.excepthook = _abort_after_report


def _abort_after_report(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    try:
        if _previous_hook is sys.__excepthook__:
            _print(error, traceback)
        else:
            _previous_hook(kind, error, traceback)
    except BaseException as wrong:  # SystemExit too
        if not isinstance(wrong, SystemExit):
            _print(wrong, wrong.__traceback__)
        _print(error, traceback)
    finally:
        with suppress(BaseException):  # None, closed, a full disk, no file at all
            sys.stdout.flush()
        with suppress(BaseException):
            sys.stderr.flush()
        # A forked child has the hook, but is no rank.
        if os.getpid() == _hooked_process:
            _abort()


def _print(error: BaseException, traceback: TracebackType | None) -> None:
    """What Python prints of an exception, on ``sys.stderr`` if that takes it, else where the process began to write."""
    text = "".join(format_exception(type(error), error, traceback))
    try:
        sys.stderr.write(text)
        if hasattr(sys.stderr, "flush"):
            sys.stderr.flush()
    except BaseException:
        with suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))


def _abort() -> None:
    if MPI.Is_initialized() and not MPI.Is_finalized():
        try:
            time.sleep(_LAST_WORDS_SECONDS)
        finally:  # whoever interrupts that
            MPI.COMM_WORLD.Abort(1)
