"""Ring: the collectives that a user calls.

Names, defaults and what they mean.  How a ring is made and ends, and how a call becomes an operation, is in
:mod:`mpiring.wire.ring.session`; what a collective does on one rank in :mod:`mpiring.wire.collectives.reductions`;
which segment goes where in :mod:`mpiring.plan`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import RingError, is_harmless
from .plan.schedules import Schedule
from .wire.collectives import custom, gather, rooted
from .wire.collectives.reductions import Collectives
from .wire.ring.messages import Message
from .wire.ring.session import Session
from .wire.transport import mpi
from .wire.transport.device import Carriage
from .wire.transport.position import Position
from .wire.transport.protocol import Program

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _call(method: F) -> F:
    """Make a method one call on the ring: one at a time, and what cuts it off breaks the ring.

    See :mod:`mpiring.wire.ring.guard`, and :mod:`mpiring.errors` for the errors that leave the ring as it was.
    """
    name = method.__name__.lstrip("_")

    @wraps(method)
    def call(self: Ring, /, *args: Any, **kwargs: Any) -> Any:
        operations = self._session.operations
        guard = operations.guard
        is_inside = False
        try:
            operations.check(name)
            guard.is_inside = is_inside = True
            result = method(self, *args, **kwargs)
            guard.is_inside = False
        except BaseException as error:
            # At once: the next line may be interrupted, too.
            if is_inside:
                operations.cut = name, error
            elif not is_harmless(error):
                operations.cut = name, error
            operations.settle()
            raise
        return result

    return call  # type: ignore[return-value]


class Ring:
    """The ranks of a communicator, and collectives over them.

    Making a ring is collective over ``comm``; :meth:`close` and dropping it are local.  Use it as a context
    manager.  Operations on one ring run in call order.  One thread makes the calls, in the process that made the ring.
    An exception in the middle of a call that is not all ranks' own, as Ctrl-C or a signal handler raises, breaks it.

    Args:
        comm: an mpi4py intra-communicator; None is ``MPI.COMM_WORLD``.  Ranks are this communicator's.
        timeout: seconds a rank waits for a call before it raises :class:`RingTimeout`, for calls that state none;
            None waits for ever.  Set it where a hang would cost more than a job that ends.
        check: whether every collective opens with the exchange that makes errors collective.  Turn it off
            only where you measured that small calls need it: then a call that differs between ranks hangs
            or gives garbage.  On one host only calls that name a schedule as their ``algorithm`` do without it:
            with ``"auto"`` it also tells where the ranks' memory is.
        members: ranks of the ring that this process holds, as one process may hold several devices.  Above
            1, collectives take and return lists, process p holds the ranks ``p * members`` and on, and
            ``size`` counts members.
        device_transport: how arrays in a GPU's memory travel.  ``"direct"`` hands them to an MPI that takes
            device memory, ``"staged"`` moves them through pinned host memory; ``"auto"`` takes ``"direct"`` where
            the MPI says that it can.  The same on every rank; ``mpiring doctor`` tells what was found.
        message_bytes: longest single MPI message; longer buffers are split.  At most 2**31 - 1.

    Attributes:
        rank, size: this process's first rank, and the number of ranks.
        members: how many ranks this process holds.
        device_transport: what was decided for device memory: its ``transport``, and ``why``.
        wire: ``"node"`` if all ranks are on one host, else ``"network"``.
        tuning: what ``auto`` goes by on this wire: a profile of ``mpiring tune``, which rank 0 finds by
            ``MPIRING_PROFILE`` or in its user's configuration, else the defaults.  The same on every rank.

    Raises:
        TypeError, ValueError: for a wrong argument, on every rank of ``comm`` where that is possible; for a profile of
            rank 0's that cannot be read or is wrong.
    """

    def __init__(
        self,
        comm: MPI.Comm | None = None,
        *,
        timeout: float | None = None,
        check: bool = True,
        members: int = 1,
        device_transport: str = "auto",
        message_bytes: int = 1 << 30,
    ) -> None:
        self._session = Session(
            comm, timeout, check, members, device_transport, message_bytes
        )
        self.members = len(self._session.members)
        self.device_transport = self._session.device_transport
        self.wire = self._session.wire
        self.tuning = self._session.tuning
        transport = self._session.members[0].transport
        self.rank: int = transport.rank
        self.size: int = transport.size

    # ---- collectives ------------------------------------------------------------------------------

    @_call
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
            algorithm: ``"auto"``, ``"ring"``, ``"direct"``, ``"shared"``: the same bits from each.  ``"mpi"`` is
                the MPI's own, which promises no bits.  ``"shared"`` moves no data by message, and takes arrays
                of :meth:`empty`; ``"auto"`` does without messages for ordinary arrays too, where it can.
            async_op: return a :class:`Work` at once.  No thread works for it: it goes on when this rank waits in a
                call of this ring, or asks.  Call ``work.test()`` between pieces of the computing, such as after
                each layer; what nobody asks for is all done in ``wait()``.
            timeout: seconds, for this call.

        Returns:
            the result, an array of the kind, dtype and shape of ``x``; or a :class:`Work`.

        Raises:
            TypeError, ValueError: on every rank, naming the rank, if any rank passed what cannot work or
                ranks passed different things.  The ring is usable afterwards.
            RingTimeout: the ring is broken afterwards.
        """
        op, session = mpi.op_name(op), self._session
        how = op, out, order, algorithm, async_op, timeout
        result = session.repeated(x, *how)
        if result is not None:
            return result

        def body(member: Collectives, x: Any, out: Any, at: Position) -> Program[Any]:
            return member.allreduce(x, op, out, order, algorithm, at)

        return session.collective("allreduce", body, x, out, async_op, timeout)

    @_call
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

        return self._session.collective(
            "reduce_scatter", body, x, out, async_op, timeout
        )

    @_call
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

        return self._session.collective(
            "reduce", body, x, out, async_op, timeout, root=root
        )

    @_call
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
                or None, for a new one.  What cannot be filled, as JAX's arrays, says only what comes.
            root: the rank that has it.
            algorithm: ``"naive"`` sends the whole array down a chain, ``"pipelined"`` in pieces, ``"direct"``
                from the root to each rank; ``"shared"`` and ``"mpi"`` as for :meth:`allreduce`.
            async_op, timeout: as for :meth:`allreduce`.

        Returns:
            ``x``, or the new array; or a :class:`Work`.

        Raises:
            TypeError, ValueError, RingTimeout: as for :meth:`allreduce`.
        """

        def body(member: Collectives, x: Any, _: Any, at: Position) -> Program[Any]:
            return rooted.broadcast(member, x, root, algorithm, at)

        return self._session.collective(
            "broadcast", body, x, None, async_op, timeout, fills_x=True
        )

    @_call
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
            return custom.run(member, schedule, x, op, out, at)

        root, fills_x = custom.filled_by(schedule, out)
        return self._session.collective(
            "run", body, x, out, async_op, timeout, root, fills_x
        )

    @_call
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
            algorithm: ``"auto"``, ``"ring"``, ``"direct"``, ``"shared"`` or ``"mpi"``.
            async_op, timeout: as for :meth:`allreduce`.

        Returns:
            the joined array, or a :class:`Work`.

        Raises:
            TypeError, ValueError, RingTimeout: as for :meth:`allreduce`.
        """

        def body(member: Collectives, x: Any, out: Any, at: Position) -> Program[Any]:
            return gather.allgather(member, x, out, algorithm, at)

        return self._session.collective("allgather", body, x, out, async_op, timeout)

    @_call
    def barrier(self, timeout: float | None = None) -> None:
        """Return when every rank has called it.

        Raises:
            RingTimeout: naming the ranks that did not.
        """

        def body(member: Collectives, x: Any, out: Any, at: Position) -> Program[None]:
            return member.barrier(at)

        nothing = None if self.members == 1 else [None] * self.members
        self._session.collective("barrier", body, nothing, None, False, timeout)

    @_call
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
        session = self._session
        try:
            for what, given in (("name", name), ("text", text)):
                if not isinstance(given, str):
                    raise TypeError(
                        f"{what} is a {type(given).__name__}, expected a str"
                    )
            session.refuse_in_group()
            name, text = str.__str__(name), str.__str__(text)
        except (RingError, TypeError) as error:
            name = str.__str__(name) if isinstance(name, str) else "exchange"
            failure, text = failure or error, ""
        programs = [member.exchange(name, text, failure) for member in session.members]
        same = session.start(name, programs, Position(), session.timeout)
        return bool(same[0] if isinstance(same, list) else same)

    @_call
    def perform(
        self, name: str, program: Callable[[Carriage, Position], Program[T]]
    ) -> T:
        """Run a program of your own over this ring's transport, as one operation.

        For what is built on a ring and is no collective, such as a parameter server.

        Args:
            name: for messages.
            program: makes the program from this rank's carriage, whose ``inner`` is the transport, and its
                position.  The ring's timeout counts from the call, and again each time the program sets
                ``position.has_moved``.

        Raises:
            RingError: if this process has several members, or inside :meth:`group`.
            RingTimeout: the ring is broken afterwards.
        """
        session = self._session
        session.need_one_member(name)
        session.refuse_in_group()
        position = Position(is_collective=False)
        running = program(session.members[0].carriage, position)
        result: T = session.start(name, [running], position, session.timeout)
        return result

    def composed(self, name: str) -> AbstractContextManager[None]:
        """Several calls that are one to the user: what cuts it off breaks the ring, between the calls too.

        Args:
            name: for messages.
        """
        return _Composed(self, name)

    # ---- memory -----------------------------------------------------------------------------------

    @_call
    def empty(
        self, shape: Any, dtype: Any = "float32", *, timeout: float | None = None
    ) -> Any:
        """A new array on each rank, in memory that all ranks of a node reach: the fast path of the collectives.

        Collective.  Where all ranks are on one node and pass such arrays, a collective moves no data by message:
        each rank combines its segment of all ranks' arrays where they are, in the order of promise 4, and stores it
        to all.  That takes the arrays of one call, or contiguous views of them, as ``x`` and, for an all-reduce, as
        ``out`` (of one call too, be it another one): ``out=x`` is the fastest.  Anything else goes the ordinary
        way, to the same bits; ``algorithm="shared"`` makes it an error instead.

        On several hosts the memory is shared within each.  If the ranks of each host lie behind each other, an
        all-reduce or a reduce-scatter combines inside the hosts and sends between them only, to the same bits; the
        other collectives take the ordinary way.  Without ``/dev/shm``, or where the ranks of a host cannot see each
        other's, the array is an ordinary one.

        The memory is reserved now, in ``/dev/shm``, and freed with the last array and view on any rank; each rank
        may drop its own when it likes, and arrays may outlive the ring.  No file is left behind, whatever happens.

        Args:
            shape: an int or a tuple of ints, the same on every rank.
            dtype: a NumPy dtype or its name, the same on every rank.
            timeout: seconds, for this call.

        Returns:
            a NumPy array, not initialised; with several members a list of them.

        Raises:
            MemoryError: on every rank, if the memory of one of them does not fit.
            TypeError, ValueError, RingTimeout: as for :meth:`allreduce`.
        """
        return self._session.empty(shape, dtype, timeout)

    # ---- point to point ---------------------------------------------------------------------------

    @_call
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
        self._session.message(Message(True, x, dest, tag), timeout)

    @_call
    def recv(
        self, out: Any, source: int, tag: int = 0, *, timeout: float | None = None
    ) -> Any:
        """Receive an array from one rank into ``out``, and return it.

        Inside :meth:`group` it only notes the message: ``out`` is filled when the group has ended.

        Args:
            out: a writeable array of the sender's dtype and count; the shape is its own affair.  One that cannot
                be filled, as JAX's arrays, stays as it is: what arrives is in the array returned.
            source, tag, timeout: as for :meth:`send`.

        Raises:
            ValueError: here alone, naming both, if the sender's dtype or count is another one.
            TypeError, RingTimeout: as for :meth:`send`.
        """
        return self._session.message(Message(False, out, source, tag), timeout)

    def group(self, timeout: float | None = None) -> AbstractContextManager[None]:
        """Sends and receives inside are posted together when it ends, so that no order deadlocks.

        Nothing starts before; an exception inside drops them all.  Collectives inside raise.

        Args:
            timeout: seconds, for all of them.
        """
        return _Group(self, timeout)

    @_call
    def _group(self, timeout: float | None) -> None:
        messages = self._session.end_group()
        if messages:
            self._session.exchange("group", messages, timeout)

    # ---- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the ring: complete what was started, then let its communicator serve later rings.

        Closing twice is fine.  Local on a broken ring, and where nothing asynchronous is left.
        """
        self._session.close()

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # With an exception in flight the other ranks may be anywhere: no word to them.
        self._session.close(drain=kind is None)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(
            "a Ring cannot be copied or pickled: it holds communicators and messages of this process, which a copy "
            "would share, and close; use the ring itself, or make another one on every rank: mpiring.Ring(comm)"
        )

    def __repr__(self) -> str:
        state = self._session.state
        return f"<mpiring.Ring rank {self.rank} of {self.size}{', ' + state if state else ''}>"


class _Group(AbstractContextManager[None]):
    """Messages of a ring that are posted together, at its end."""

    def __init__(self, ring: Ring, timeout: float | None) -> None:
        self._ring, self._timeout = ring, timeout

    def __enter__(self) -> None:
        self._ring._session.begin_group()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._ring._group(self._timeout)
        else:
            self._ring._session.end_group()


class _Composed(AbstractContextManager[None]):
    """A collective that is made of several."""

    def __init__(self, ring: Ring, name: str) -> None:
        self._ring, self._name = ring, name

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._ring._session.operations.cut_off(self._name, error)
