"""One rank's hold on a ring: its communicator, its members, and its operations (promises 6 to 8).

Everything that a :class:`mpiring.Ring` has besides its collectives: how it is made and ends, the deadlines of
its calls, the members of this process, the messages that wait for their group to end, and the one way in
which any call becomes an operation.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

from mpi4py import MPI

from ...errors import RingError, RingTimeout, harmless
from ..arrays import as_at_call
from ..arrays.operands import check_apart
from ..collectives import small
from ..collectives.reductions import Collectives
from ..collectives.repeated import Repeated
from ..gpu_aware import decision
from ..gpu_aware.evidence import find_facts
from ..node.cross_memory import is_wanted
from ..node.peer_memory import PeerMemory
from ..node.shared import empty
from ..node.stages import Stages, lengths_for
from ..node.unnamed import Backing
from ..opening.agree import PAYLOAD_BYTES, Opening
from ..opening.calls import Call
from ..reduce import arithmetic
from ..settings import profiles, tuning
from ..settings.arguments import seconds_of, whole_number
from ..transport import communicators, mpi
from ..transport.position import Position
from ..transport.protocol import Program, together
from .guard import refuse_stranger
from .messages import Message, exchange
from .operations import Operations, Work, drive_rings, yield_core

T = TypeVar("T")
Body = Callable[[Collectives, Any, Any, Position], Program[Any]]


class Session:
    """One rank's hold on a ring.  Making one is collective; :meth:`close` and dropping it are local.

    Args:
        comm, timeout, check, members, device_transport, message_bytes: as :class:`mpiring.Ring` takes them.

    Attributes:
        members: the ranks of the ring that this process holds.
        device_transport: how device memory travels, and why.
        wire: one of ``tuning.WIRES``: what is between the ranks.
        tuning: its settings, as rank 0 has found them.
        timeout: seconds for calls that state none, or None.
    """

    def __init__(
        self,
        comm: Any,
        timeout: Any,
        check: Any,
        members: Any,
        device_transport: Any,
        message_bytes: Any,
    ) -> None:
        refuse_stranger("Ring")
        parent = _intracomm(MPI.COMM_WORLD if comm is None else comm)
        call = Call("Ring")
        seconds: float | None = None
        with call.local():
            seconds = seconds_of(timeout)
            if not isinstance(check, bool):
                raise TypeError(f"check must be True or False, got {check!r}")
            members = whole_number("members", members, 1, mpi.MOST_MEMBERS)
            message_bytes = whole_number(
                "message_bytes", message_bytes, 1, (1 << 31) - 1
            )
            call.fields = (
                ("check", str(check)),
                ("members", str(members)),
                ("message_bytes", str(message_bytes)),
            )
        deadline = None if seconds is None else time.monotonic() + seconds
        lease = communicators.lease(
            parent, lambda request, what: _wait(request, what, deadline)
        )
        self.timeout = seconds
        self.is_closed = False
        self.operations = Operations(mpi.MPITransport(lease.comm), lease)
        self._group: list[Message] | None = None
        # What the ranks mean by a ring is compared by one member each: they may differ in how many.
        first = _member(lease, check is not False)
        self.operations.uses(first)
        meeting = _meet(first, call, device_transport, members)
        try:
            self.wire, self.tuning, wants_peers, self.device_transport = self.start(
                "Ring", [meeting], Position(), seconds
            )
        except BaseException as error:
            self.operations.cut_off("Ring", error)
            raise
        node = _once(lambda: mpi.node_of(lease.comm, members))
        self.members = [
            _member(
                lease,
                check,
                members,
                place,
                message_bytes,
                self.device_transport.transport,
                self.tuning,
                node,
                self.wire == tuning.NODE,
                wants_peers,
            )
            for place in range(members)
        ]
        self.operations.members = members
        self.operations.uses(self.members)
        self._repeated = Repeated(self.members[0]) if members == 1 else None
        if lease.comm.size > 1:
            mpi.install_excepthook()

    @property
    def state(self) -> str:
        """ "closed", "broken" or nothing."""
        return (
            "closed" if self.is_closed else "broken" if self.operations.broken else ""
        )

    # ---- calls become operations ------------------------------------------------------------------

    def start(
        self,
        name: str,
        programs: list[Program[Any]],
        position: Position,
        seconds: float | None,
        async_op: bool = False,
    ) -> Any:
        """Start programs, one for each member, as one operation; wait for it, or return its work."""
        if self.is_closed:
            raise harmless(RingError(f"{name}: this ring is closed; make a new one"))
        program = programs[0] if len(programs) == 1 else together(programs)
        if not async_op:
            return self.operations.run(name, program, position, seconds)
        operation = self.operations.start(name, program, position, seconds)
        return Work(self.operations, operation)

    def collective(
        self,
        name: str,
        body: Body,
        x: Any,
        out: Any,
        async_op: bool,
        timeout: float | None,
        root: Any = None,
        fills_x: bool = False,
    ) -> Any:
        """Start a collective on each member, with its part of ``x`` and ``out``.

        Of members that may not share memory, ``root`` is the only one whose ``out`` counts, and ``fills_x`` says
        that ``x`` is filled.
        """
        position = Position()
        call = Call(name)
        seconds, is_async = self.timeout, False
        # A wrong timeout or list is for all ranks to hear of, like any other argument.
        with call.local():
            self.refuse_in_group()
            seconds = self.timeout if timeout is None else seconds_of(timeout)
            count = len(self.members)
            inputs, outputs = _per_member("x", x, count), _per_member("out", out, count)
            if count > 1:
                first = self.members[0].transport.rank
                check_apart(inputs, outputs, first, root, fills_x)
            programs = [
                body(member, mine, place, position)
                for member, mine, place in zip(self.members, inputs, outputs)
            ]
            if is_async := bool(async_op):
                programs = list(map(as_at_call, programs, inputs))
        if call.failure is not None:
            programs = [member.open(call) for member in self.members]
        return self.start(name, programs, position, seconds, is_async)

    def repeated(
        self,
        x: Any,
        op: Any,
        out: Any,
        order: Any,
        algorithm: Any,
        async_op: bool,
        timeout: float | None,
    ) -> Any:
        """What an all-reduce gives that can do with little around it; None if it has to be an ordinary one."""
        if self._repeated is None or self._group is not None:
            return None
        if not (async_op is False or async_op is True):
            return None
        seconds = self.timeout
        if timeout is not None:
            try:
                seconds = seconds_of(timeout)
            except ValueError:  # for all ranks to hear of
                return None
        position = Position()
        program = self._repeated.allreduce(x, op, out, order, algorithm, position)
        if program is None:
            return None
        return self.start("allreduce", [program], position, seconds, async_op)

    def empty(self, shape: Any, dtype: Any, timeout: float | None) -> Any:
        """An array for each member, in memory that all ranks of its node reach."""
        backings: list[Backing] = []

        def body(member: Collectives, x: Any, out: Any, at: Position) -> Program[Any]:
            return empty(member, shape, dtype, at, backings.append)

        count = len(self.members)
        nothing = None if count == 1 else [None] * count
        try:
            return self.collective("empty", body, nothing, None, False, timeout)
        finally:
            for backing in backings:
                backing.close()

    # ---- messages ---------------------------------------------------------------------------------

    def message(self, message: Message, timeout: float | None) -> Any:
        """Exchange a message now, or note it if a group is open; gives its array."""
        if self._group is not None:
            self._group.append(message)
            return message.array
        name = "send" if message.is_send else "recv"
        return self.exchange(name, [message], timeout)[0]

    def begin_group(self) -> None:
        """Note messages from now on, which nobody sends before the group ends."""
        if self._group is not None:
            raise RingError("group: groups do not nest; end the one that is open first")
        self._group = []

    def end_group(self) -> list[Message]:
        """The messages that have been noted."""
        messages, self._group = self._group, None
        return messages or []

    def refuse_in_group(self) -> None:
        """Raise if a group is open."""
        if self._group is not None:
            raise harmless(
                RingError(
                    "a collective inside group(): only send and recv may stand there"
                )
            )

    def need_one_member(self, name: str) -> None:
        """Raise if this process has several members."""
        if len(self.members) > 1:
            raise harmless(
                RingError(
                    f"{name}: works on rings of one member a process, this one has {len(self.members)}"
                )
            )

    def exchange(
        self, name: str, messages: list[Message], timeout: float | None
    ) -> list[Any]:
        """Exchange messages now, together; gives their arrays."""
        self.need_one_member(name)
        seconds = self.timeout if timeout is None else seconds_of(timeout)
        carriage = self.members[0].carriage
        program = exchange(carriage, messages, is_group=name == "group")
        position = Position(is_collective=False)
        arrays: list[Any] = self.start(name, [program], position, seconds)
        return arrays

    # ---- the end ----------------------------------------------------------------------------------

    def close(self, drain: bool = True) -> None:
        """Let the communicator serve later rings, after what was started is complete if ``drain``."""
        if self.is_closed:
            return
        guard = self.operations.guard
        if drain and guard.is_home:
            guard.let_others_in()
            self.operations.check("close")
            try:
                guard.is_inside = True
                self.operations.drain()
            finally:
                guard.is_inside = False
        self.is_closed = True
        self.operations.release()


def _meet(
    member: Collectives, call: Call, device_transport: Any, members: Any
) -> Program[tuple[str, tuning.Tuning, bool, decision.Decision]]:
    """What the ranks tell each other when they make a ring.

    The environment that counts is rank 0's, and so is the profile.

    Returns:
        the wire, its settings, whether peers' memory is wanted, and how device memory travels.
    """
    call.flushes = arithmetic.flushes()
    # Bytes that are no text are rank 0's affair, and must not keep another rank from coming.
    asked = os.fsencode(os.environ.get(decision.VARIABLE, ""))[:64]
    said = yield from member.open(call, _host() + asked, always=True)
    hosts = len({item[:_HOST_BYTES] for item in said})
    wire = tuning.NODE if hosts == 1 else tuning.NETWORK
    variable = said[0][_HOST_BYTES:].decode(errors="backslashreplace")
    again = Call("Ring")
    settings, wanted, found = bytes(tuning.PACKED_BYTES), True, b""
    with again.local():
        if member.transport.rank == 0:
            wanted = is_wanted(os.environ)
            library, ranks = find_facts().library.name, member.transport.size * members
            settings = profiles.find(os.environ, library, wire, ranks).tuning.packed()
        found = decision.encode(decision.gather(device_transport, variable))
    mine = settings + bytes([wanted]) + found
    everyone = yield from member.open(again, mine, always=True)
    at = tuning.PACKED_BYTES
    told = [decision.decode(item[at + 1 :]) for item in everyone]
    return (
        wire,
        tuning.unpacked(everyone[0][:at]),
        bool(everyone[0][at]),
        decision.agree(told),
    )


_HOST_BYTES = 8


def _host() -> bytes:
    """What tells hosts apart."""
    name = socket.gethostname().encode(errors="backslashreplace")
    return hashlib.blake2b(name, digest_size=_HOST_BYTES).digest()


def _member(
    lease: communicators.Lease,
    check: bool,
    members: int = 1,
    place: int = 0,
    message_bytes: int = 1 << 30,
    device_transport: str = "staged",
    settings: tuning.Tuning = tuning.DEFAULTS[tuning.NODE],
    node: Callable[[], tuple[int, ...]] | None = None,
    is_on_node: bool = False,
    wants_peers: bool = False,
) -> Collectives:
    transport = mpi.MPITransport(
        lease.comm, message_bytes, members, place, lease.persistent
    )
    room = small.most_bytes(settings.small_bytes, transport.size)
    room += 1  # what a payload begins with
    opening = Opening(transport, mpi.TAG_OPEN, max(room, PAYLOAD_BYTES))
    library = mpi.library(transport) if members == 1 else None
    reaches = is_on_node and wants_peers and transport.size > 1
    lengths = lengths_for(transport.size, settings.staged_bytes)
    return Collectives(
        transport,
        opening,
        mpi.TAG_STEP,
        check=check,
        library=library,
        tuning=settings,
        device_transport=device_transport,
        node=node,
        peer_memory=PeerMemory() if reaches else None,
        stages=Stages(transport.size, lengths) if reaches else None,
        is_on_node=is_on_node,
    )


def _once(function: Callable[[], T]) -> Callable[[], T]:
    """A function that gives again what it gave the first time."""
    given: list[T] = []

    def first_time() -> T:
        if not given:
            given.append(function())
        return given[0]

    return first_time


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
    # The same communicator without what a user's class makes of it: a duplicate would be of that class, too.
    plain = MPI.Intracomm.fromhandle(comm.handle)
    assert isinstance(plain, MPI.Intracomm)
    return plain


def _wait(request: MPI.Request, what: str, deadline: float | None) -> None:
    while not request.Test():
        if deadline is not None and time.monotonic() > deadline:
            raise RingTimeout(
                f"Ring: the deadline passed while {what}: not every rank makes a ring"
            )
        drive_rings()
        yield_core()
