"""Ring: the collectives that a user calls.

Semantics only: names, defaults, deadlines, life and death.  What a collective does on one rank is in
:mod:`mpiring.wire.collectives`; which segment goes where is in :mod:`mpiring.plan`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from mpi4py import MPI

from .errors import RingError, RingTimeout
from .plan.schedules import Schedule
from .wire import communicators, mpi, rooted
from .wire.agree import Opening
from .wire.calls import Call
from .wire.collectives import Collectives
from .wire.execute import Position
from .wire.messages import Message
from .wire.messages import exchange as exchange_messages
from .wire.operations import Operations, Work, yield_core
from .wire.transport import Program, Transport, together

T = TypeVar("T")


class Ring:
    """The ranks of a communicator, and collectives over them.

    Making a ring is collective over ``comm``; :meth:`close` and dropping it are local.  Use it as a context
    manager.  Operations on one ring run in call order.  A ring is for one thread at a time.

    Args:
        comm: an mpi4py intra-communicator; None is ``MPI.COMM_WORLD``.  Ranks are this communicator's.
        timeout: seconds a call may take before it raises :class:`RingTimeout`, for calls that state none;
            None waits for ever.  Set it where a hang would cost more than a job that ends.
        check: whether every collective opens with the exchange that makes errors collective.  Turn it off
            only where you measured that small calls need it: then a call that differs between ranks hangs
            or gives garbage.
        members: ranks of the ring that this process holds, as one process may hold several devices.  Above
            1, collectives take and return lists, process p holds the ranks ``p * members`` and on, and
            ``size`` counts members.
        message_bytes: longest single MPI message; longer buffers are split.  At most 2**31 - 1.

    Attributes:
        rank, size: this process's first rank, and the number of ranks.
        members: how many ranks this process holds.

    Raises:
        TypeError, ValueError: for a wrong argument, on every rank of ``comm`` where that is possible.
    """

    def __init__(
        self,
        comm: MPI.Comm | None = None,
        *,
        timeout: float | None = None,
        check: bool = True,
        members: int = 1,
        message_bytes: int = 1 << 30,
    ) -> None:
        parent = _intracomm(MPI.COMM_WORLD if comm is None else comm)
        call = Call("Ring")
        seconds: float | None = None
        with call.local():
            call.fields = (
                ("check", str(check)),
                ("members", str(members)),
                ("message_bytes", str(message_bytes)),
            )
            seconds = _seconds(timeout)
            if not isinstance(check, bool):
                raise TypeError(f"check must be True or False, got {check!r}")
            _check_range("members", members, mpi.MOST_MEMBERS)
            _check_range("message_bytes", message_bytes, (1 << 31) - 1)
        deadline = None if seconds is None else time.monotonic() + seconds
        lease = communicators.lease(
            parent, lambda request, what: _wait(request, what, deadline)
        )
        self._timeout = seconds
        self._operations = Operations(mpi.MPITransport(lease.comm), lease)
        self._group: list[Message] | None = None
        self._closed = False
        # What the ranks mean by a ring is compared by one member each: they may differ in how many.
        self._members = [_member(lease.comm, check is not False)]
        self._start(
            "Ring", [self._members[0].open(call, always=True)], Position(), seconds
        )
        self._members = [
            _member(lease.comm, check, members, place, message_bytes)
            for place in range(members)
        ]
        self.members = self._operations.members = members
        self.rank: int = self._members[0].transport.rank
        self.size: int = self._members[0].transport.size
        if lease.comm.size > 1:
            mpi.install_excepthook()

    # ---- collectives ------------------------------------------------------------------------------

    def allreduce(
        self,
        x: Any,
        op: Any = "sum",
        *,
        out: Any = None,
        order: str = "ring",
        algorithm: str = "auto",
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Combine the ranks' arrays element by element; every rank gets the result.

        Args:
            x: an array, of the same shape and dtype on every rank; any strides.  Numbers are 0-d arrays.
            op: ``"sum"``, ``"prod"``, ``"min"``, ``"max"``, ``"avg"``, or mpi4py's ``MPI.SUM`` and so on.
                16-bit floats accumulate in float32 and are rounded once.
            out: where the result goes and what is returned; ``out=x`` works in place.  None: a new array.
            order: ``"ring"``: segment s is combined as ``((x[s+1] op x[s+2]) op ...) op x[s]``.  ``"rank"``:
                ``x[0], x[1], ...`` everywhere, so that bits do not depend on the count either.
            algorithm: ``"auto"``, ``"ring"``, ``"direct"``: the same bits from each.  ``"mpi"`` is the
                MPI's own, which promises no bits.
            async_op: return a :class:`Work` at once.
            timeout: seconds, for this call.

        Returns:
            the result, an array of the kind, dtype and shape of ``x``; or a :class:`Work`.

        Raises:
            TypeError, ValueError: on every rank, naming the rank, if any rank passed what cannot work or
                ranks passed different things.  The ring is usable afterwards.
            RingTimeout: the ring is broken afterwards.
        """
        op = mpi.op_name(op)

        def body(member: Collectives, x: Any, out: Any, at: Position) -> Program[Any]:
            return member.allreduce(x, op, out, order, algorithm, at)

        return self._collective("allreduce", body, x, out, async_op, timeout)

    def reduce_scatter(
        self,
        x: Any,
        op: Any = "sum",
        *,
        out: Any = None,
        order: str = "ring",
        algorithm: str = "auto",
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Combine the ranks' arrays; each rank gets its segment of the flat result.

        Segment r of ``Segments(x.size, size)``: the segments are balanced to one element, the longer ones
        first, and may be empty.

        Args:
            x: as for :meth:`allreduce`; seen flat, in C order.
            out: a 1-D array as long as this rank's segment; this rank's segment of ``x`` itself is fine.
            op, order, algorithm, async_op, timeout: as for :meth:`allreduce`.

        Returns:
            a 1-D array: ``joined = concatenate(results of all ranks)`` is the flat all-reduce.

        Raises:
            TypeError, ValueError, RingTimeout: as for :meth:`allreduce`.
        """
        op = mpi.op_name(op)

        def body(member: Collectives, x: Any, out: Any, at: Position) -> Program[Any]:
            return member.reduce_scatter(x, op, out, order, algorithm, at)

        return self._collective("reduce_scatter", body, x, out, async_op, timeout)

    def reduce(
        self,
        x: Any,
        op: Any = "sum",
        root: int = 0,
        *,
        out: Any = None,
        order: str = "ring",
        algorithm: str = "auto",
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Combine the ranks' arrays element by element; the root gets the result.

        Args:
            root: the rank that gets it.  It is combined as ``((x[root+1] op x[root+2]) op ...) op x[root]``.
            algorithm: ``"ring"`` sends partial sums along the ring, in pieces; ``"direct"`` sends each array
                to the root, whose link then carries ``size - 1`` of them.
            x, op, out, order, async_op, timeout: as for :meth:`allreduce`; ``out`` matters on the root only.

        Returns:
            the result on the root, None elsewhere; or a :class:`Work`.

        Raises:
            TypeError, ValueError, RingTimeout: as for :meth:`allreduce`.
        """
        op = mpi.op_name(op)

        def body(member: Collectives, x: Any, out: Any, at: Position) -> Program[Any]:
            return rooted.reduce(member, x, op, root, out, order, algorithm, at)

        return self._collective("reduce", body, x, out, async_op, timeout)

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        algorithm: str = "auto",
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """The root's array on every rank.

        Args:
            x: on the root, what to send.  Elsewhere an array of the same dtype and shape, which is filled;
                or None, for a new one.
            root: the rank that has it.
            algorithm: ``"naive"`` sends the whole array down a chain, ``"pipelined"`` in pieces, ``"direct"``
                from the root to each rank; ``"mpi"`` is the MPI's own.
            async_op, timeout: as for :meth:`allreduce`.

        Returns:
            ``x``, or the new array; or a :class:`Work`.

        Raises:
            TypeError, ValueError, RingTimeout: as for :meth:`allreduce`.
        """

        def body(member: Collectives, x: Any, _: Any, at: Position) -> Program[Any]:
            return rooted.broadcast(member, x, root, algorithm, at)

        return self._collective("broadcast", body, x, None, async_op, timeout)

    def run(
        self,
        schedule: Schedule,
        x: Any,
        op: Any = "sum",
        *,
        out: Any = None,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Run a schedule of your own, once :func:`mpiring.plan.verify` has accepted it.

        Args:
            schedule: the same on every rank.
            x: the input of the collective it states; for an allgather of one shape on all ranks.
            op, async_op, timeout: as for :meth:`allreduce`.
            out: as for the stated collective.  A broadcast fills it in place of ``x``, on the root too.

        Returns:
            what the stated collective returns.  With an ownership offset ``o`` rank r has segment ``r + o``.

        Raises:
            ScheduleError: on every rank, if the schedule does not do what it states.
            TypeError, ValueError, RingTimeout: as for :meth:`allreduce`.
        """
        op = mpi.op_name(op)

        def body(member: Collectives, x: Any, out: Any, at: Position) -> Program[Any]:
            return rooted.run(member, schedule, x, op, out, at)

        return self._collective("run", body, x, out, async_op, timeout)

    def allgather(
        self,
        x: Any,
        *,
        out: Any = None,
        algorithm: str = "auto",
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """The ranks' arrays behind each other along axis 0, in rank order, on every rank.

        Args:
            x: an array; lengths along axis 0 may differ between ranks, the other dimensions may not.
                0-d arrays give one of shape ``(size,)``.
            out: an array of the joined shape; ``x`` may be this rank's part of it.
            algorithm: ``"auto"``, ``"ring"``, ``"direct"`` or ``"mpi"``.
            async_op, timeout: as for :meth:`allreduce`.

        Returns:
            the joined array, or a :class:`Work`.

        Raises:
            TypeError, ValueError, RingTimeout: as for :meth:`allreduce`.
        """

        def body(member: Collectives, x: Any, out: Any, at: Position) -> Program[Any]:
            return member.allgather(x, out, algorithm, at)

        return self._collective("allgather", body, x, out, async_op, timeout)

    def barrier(self, timeout: float | None = None) -> None:
        """Return when every rank has called it.

        Raises:
            RingTimeout: naming the ranks that did not.
        """

        def body(member: Collectives, x: Any, out: Any, at: Position) -> Program[None]:
            return member.barrier(at)

        nothing = None if len(self._members) == 1 else [None] * len(self._members)
        self._collective("barrier", body, nothing, None, False, timeout)

    def exchange(self, name: str, text: str, failure: Exception | None = None) -> bool:
        """Whether every rank says the same: the opening exchange for a collective built on this ring.

        Args:
            name: of that collective, for messages.
            text: what must agree; of any length.
            failure: what went wrong on this rank before the call.

        Returns:
            True if the texts of all ranks are equal: the same answer on every rank.

        Raises:
            Exception: on every rank, the failure of the lowest rank that has one.
        """
        position = Position()
        if self._group is not None:
            failure = failure or _in_group()
        programs = [member.exchange(name, text, failure) for member in self._members]
        same = self._start(name, programs, position, self._timeout)
        return bool(same[0] if isinstance(same, list) else same)

    def perform(
        self, name: str, program: Callable[[Transport, Position], Program[T]]
    ) -> T:
        """Run a program of your own over this ring's transport, as one operation.

        For what is built on a ring and is no collective, such as a parameter server.

        Args:
            name: for messages.
            program: makes the program from this rank's transport and position.  The ring's timeout counts
                from the call, and again each time the program sets ``position.has_moved``.

        Raises:
            RingError: if this process has several members, or inside :meth:`group`.
            RingTimeout: the ring is broken afterwards.
        """
        self._need_one_member(name)
        if self._group is not None:
            raise _in_group()
        position = Position(is_collective=False)
        result: T = self._start(
            name,
            [program(self._members[0].transport, position)],
            position,
            self._timeout,
        )
        return result

    # ---- point to point ---------------------------------------------------------------------------

    def send(
        self, x: Any, dest: int, tag: int = 0, *, timeout: float | None = None
    ) -> None:
        """Send an array to one rank; returns when ``x`` may be used again.

        Inside :meth:`group` it only notes the message.

        Args:
            x: an array of any strides.
            dest: a rank; inside a group also this one, which receives from itself.
            tag: 0 to 16383; messages from one rank with one tag match in order.
            timeout: seconds, for this call.

        Raises:
            TypeError, ValueError: here alone, for a wrong argument.
            RingTimeout: the ring is broken afterwards.
        """
        self._message(Message(True, x, dest, tag), timeout)

    def recv(
        self, out: Any, source: int, tag: int = 0, *, timeout: float | None = None
    ) -> Any:
        """Receive an array from one rank into ``out``, and return it.

        Inside :meth:`group` it only notes the message: ``out`` is filled when the group has ended.

        Args:
            out: a writeable array of the sender's dtype and count; the shape is its own affair.
            source, tag, timeout: as for :meth:`send`.

        Raises:
            ValueError: here alone, naming both, if the sender's dtype or count is another one.
            TypeError, RingTimeout: as for :meth:`send`.
        """
        self._message(Message(False, out, source, tag), timeout)
        return out

    @contextmanager
    def group(self, timeout: float | None = None) -> Iterator[None]:
        """Sends and receives inside are posted together when it ends, so that no order deadlocks.

        Nothing starts before; an exception inside drops them all.  Collectives inside raise.

        Args:
            timeout: seconds, for all of them.
        """
        if self._group is not None:
            raise RingError("group: groups do not nest; end the one that is open first")
        self._group = []
        try:
            yield
            messages = self._group
        finally:
            self._group = None
        if messages:
            self._exchange_messages("group", messages, timeout)

    def _message(self, message: Message, timeout: float | None) -> None:
        if self._group is not None:
            self._group.append(message)
        else:
            self._exchange_messages(
                "send" if message.is_send else "recv", [message], timeout
            )

    def _exchange_messages(
        self, name: str, messages: list[Message], timeout: float | None
    ) -> None:
        self._need_one_member(name)
        seconds = self._timeout if timeout is None else _seconds(timeout)
        transport = self._members[0].transport
        program = exchange_messages(transport, messages, is_group=name == "group")
        self._start(name, [program], Position(is_collective=False), seconds)

    def _need_one_member(self, name: str) -> None:
        if self.members > 1:
            raise RingError(
                f"{name}: works on rings of one member a process, this one has {self.members}"
            )

    # ---- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the ring: complete what was started, then let its communicator serve later rings.

        Closing twice is fine.  Local on a broken ring, and where nothing asynchronous is left.
        """
        if not self._closed:
            self._operations.drain()
            self._closed = True
            self._operations.release()

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif not self._closed:  # the other ranks may be anywhere: no word to them
            self._closed = True
            self._operations.release()

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._operations.broken and "broken"
        return f"<mpiring.Ring rank {self.rank} of {self.size}{', ' + state if state else ''}>"

    # ---- the one way in ---------------------------------------------------------------------------

    def _collective(
        self,
        name: str,
        body: Body,
        x: Any,
        out: Any,
        async_op: bool,
        timeout: float | None,
    ) -> Any:
        """Start a collective on each member, with its part of ``x`` and ``out``."""
        position = Position()
        call = Call(name)
        seconds = self._timeout
        # A wrong timeout or list is for all ranks to hear of, like any other argument.
        with call.local():
            if self._group is not None:
                raise _in_group()
            seconds = self._timeout if timeout is None else _seconds(timeout)
            count = len(self._members)
            inputs, outputs = _per_member("x", x, count), _per_member("out", out, count)
            programs = [
                body(member, mine, place, position)
                for member, mine, place in zip(self._members, inputs, outputs)
            ]
        if call.failure is not None:
            programs = [member.open(call) for member in self._members]
        return self._start(name, programs, position, seconds, async_op)

    def _start(
        self,
        name: str,
        programs: list[Program[Any]],
        position: Position,
        seconds: float | None,
        async_op: bool = False,
    ) -> Any:
        if self._closed:
            raise RingError(f"{name}: this ring is closed; make a new one")
        program = programs[0] if len(programs) == 1 else together(programs)
        operation = self._operations.start(name, program, position, seconds)
        if async_op:
            return Work(self._operations, operation)
        try:
            return self._operations.wait(operation)
        finally:
            operation.forget()


Body = Callable[[Collectives, Any, Any, Position], Program[Any]]


def _member(
    comm: MPI.Intracomm,
    check: bool,
    members: int = 1,
    place: int = 0,
    message_bytes: int = 1 << 30,
) -> Collectives:
    transport = mpi.MPITransport(comm, message_bytes, members, place)
    opening = Opening(transport, mpi.TAG_OPEN)
    library = mpi.library(transport) if members == 1 else None
    return Collectives(transport, opening, mpi.TAG_STEP, check=check, library=library)


def _per_member(what: str, given: Any, members: int) -> list[Any]:
    """The members' arrays: the one given, or as many as there are members."""
    if members == 1:
        return [given]
    if given is None and what == "out":
        return [None] * members
    if not isinstance(given, (list, tuple)) or len(given) != members:
        shown = (
            f"{len(given)} of them"
            if isinstance(given, (list, tuple))
            else type(given).__name__
        )
        raise ValueError(
            f"{what} must be a list of {members} arrays, one for each member of this process, got {shown}"
        )
    return list(given)


def _check_range(what: str, value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{what} must be 1 to {most}, got {value!r}")


def _in_group() -> RingError:
    return RingError("a collective inside group(): only send and recv may stand there")


def _intracomm(comm: Any) -> MPI.Intracomm:
    if not isinstance(comm, MPI.Comm):
        raise TypeError(
            f"Ring: comm must be an mpi4py communicator, got {type(comm).__name__}"
        )
    if comm == MPI.COMM_NULL:
        raise ValueError(
            "Ring: comm is COMM_NULL: this rank is not in the communicator, so it makes no ring"
        )
    if comm.Is_inter():
        raise ValueError(
            "Ring: comm is an inter-communicator; a ring needs one group: use comm.Merge()"
        )
    assert isinstance(comm, MPI.Intracomm)
    return comm


def _seconds(timeout: Any) -> float | None:
    if timeout is None:
        return None
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, (int, float))
        or not timeout >= 0
    ):
        raise ValueError(
            f"timeout must be seconds of 0 or more, or None, got {timeout!r}"
        )
    return None if math.isinf(timeout) else float(timeout)


def _wait(request: MPI.Request, what: str, deadline: float | None) -> None:
    while not request.Test():
        if deadline is not None and time.monotonic() > deadline:
            raise RingTimeout(
                f"Ring: the deadline passed while {what}: not every rank makes a ring"
            )
        yield_core()
