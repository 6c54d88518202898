"""Ring: the collectives that a user calls.

Semantics only: names, defaults, deadlines, life and death.  What a collective does on one rank is in
:mod:`mpiring.wire.collectives`; which segment goes where is in :mod:`mpiring.plan`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from mpi4py import MPI

from .errors import RingError, RingTimeout
from .wire import communicators, mpi
from .wire.agree import Opening
from .wire.calls import Call
from .wire.collectives import Collectives
from .wire.execute import Position
from .wire.operations import Operations, Work, yield_core
from .wire.transport import Program


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
        message_bytes: longest single MPI message; longer buffers are split.  At most 2**31 - 1.

    Attributes:
        rank, size: of the communicator.

    Raises:
        TypeError, ValueError: for a wrong argument, on every rank of ``comm`` where that is possible.
    """

    def __init__(
        self,
        comm: MPI.Comm | None = None,
        *,
        timeout: float | None = None,
        check: bool = True,
        message_bytes: int = 1 << 30,
    ) -> None:
        parent = _intracomm(MPI.COMM_WORLD if comm is None else comm)
        call = Call("Ring")
        seconds: float | None = None
        with call.local():
            call.fields = (("check", str(check)), ("message_bytes", str(message_bytes)))
            seconds = _seconds(timeout)
            if not isinstance(check, bool):
                raise TypeError(f"check must be True or False, got {check!r}")
            if not isinstance(message_bytes, int) or not 1 <= message_bytes < 1 << 31:
                raise ValueError(
                    f"message_bytes must be 1 to 2**31 - 1, got {message_bytes!r}"
                )
        deadline = None if seconds is None else time.monotonic() + seconds
        lease = communicators.lease(
            parent, lambda request, what: _wait(request, what, deadline)
        )
        transport = mpi.MPITransport(
            lease.comm, message_bytes if call.failure is None else 1
        )
        self.rank: int = transport.rank
        self.size: int = transport.size
        self._timeout = seconds
        self._operations = Operations(transport, lease)
        self._collectives = Collectives(
            transport,
            Opening(transport, mpi.TAG_OPEN),
            mpi.TAG_STEP,
            check=check is not False,
            library=mpi.library(transport),
        )
        self._closed = False
        self._call(
            "Ring",
            lambda position: self._collectives.open(call, always=True),
            False,
            seconds,
        )
        if self.size > 1:
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
        return self._call(
            "allreduce",
            lambda position: self._collectives.allreduce(
                x, op, out, order, algorithm, position
            ),
            async_op,
            timeout,
        )

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
        return self._call(
            "reduce_scatter",
            lambda position: self._collectives.reduce_scatter(
                x, op, out, order, algorithm, position
            ),
            async_op,
            timeout,
        )

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
        return self._call(
            "allgather",
            lambda position: self._collectives.allgather(x, out, algorithm, position),
            async_op,
            timeout,
        )

    def barrier(self, timeout: float | None = None) -> None:
        """Return when every rank has called it.

        Raises:
            RingTimeout: naming the ranks that did not.
        """
        self._call("barrier", self._collectives.barrier, False, timeout)

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
        same: bool = self._call(
            name,
            lambda position: self._collectives.exchange(name, text, failure),
            False,
            None,
        )
        return same

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

    def _call(
        self,
        name: str,
        program: Callable[[Position], Program[Any]],
        async_op: bool,
        timeout: float | None,
    ) -> Any:
        if self._closed:
            raise RingError(f"{name}: this ring is closed; make a new one")
        position = Position()
        call = Call(name)
        seconds = self._timeout
        with call.local():
            seconds = self._timeout if timeout is None else _seconds(timeout)
        # A wrong timeout is for all ranks to hear of, like any other argument.
        running = (
            program(position) if call.failure is None else self._collectives.open(call)
        )
        operation = self._operations.start(name, running, position, seconds)
        if async_op:
            return Work(self._operations, operation)
        try:
            return self._operations.wait(operation)
        finally:
            operation.forget()


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
