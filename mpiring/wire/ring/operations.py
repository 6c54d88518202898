"""Operations on one ring: they run one after another, in call order, as far as somebody polls (promise 8).

The queue holds programs.  Only the first runs; polling advances it until it waits for a message.  A blocking
call polls until its own operation is done, and so progresses the earlier ones, and those of the process's other
rings: each rank may wait for its rings in an order of its own.  No thread is involved.

Waiting (promise 6)
    A poll loop tests, then lets other processes run: there may be more ranks than cores.  When a deadline passes, the
    ring is broken, and tells the other ranks so (:mod:`mpiring.wire.ring.status`).

Breaking
    A ring breaks when its rank cannot keep its part of the conversation: a deadline has passed, or an error came up
    that is not harmless (:mod:`mpiring.errors`), wherever it was raised.  All that its calls have touched stays in
    memory until MPI is finalised, since MPI and other ranks may still read and write it.  So does an operation that is
    under way, for as long as it is.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from mpi4py import MPI

from ...errors import RingError, RingTimeout, harmless, is_harmless
from ..settings.arguments import seconds_of
from ..transport.communicators import Lease
from ..transport.mpi import MPITransport
from ..transport.position import Position
from ..transport.protocol import Program
from .guard import Guard
from .immortal import keep_alive, let_go
from .operation import Operation
from .status import Status, Statuses, status_of

T = TypeVar("T")

_SPINS = 20  # tests before a waiting rank yields its core at each further one
_SHORT_SECONDS = 1e-3  # so long a call waits before it is an operation in the queue
_PATIENT_SECONDS = 0.02  # after this it sleeps between tests, and looks for questions
_NAP_SECONDS = 50e-6
_ATTEMPTS = 10_000  # to break a ring, among signals that come faster than that goes
_NAPS = 32  # between two looks for questions

# Errors that a program raises by itself: they belong to its operation.  Others interrupt whoever drives it.
_OF_PROGRAMS = (RingError, MPI.Exception, MemoryError)

yield_core: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))

# The rings of this process with operations under way, by id.
_active: dict[int, weakref.ref[Operations]] = {}


class Operations:
    """The operations of one ring in one process.

    Args:
        transport: of the ring.
        lease: its communicator, given back when this object is dropped with nothing left to do.

    Attributes:
        members: ranks of the ring in each process; the processes talk here, and messages name their ranks.
        guard: lets one call at a time in.
        broken: what broke the ring, None if it works.
        cut: the call that has ended with an error, and that, as long as not all has been done that follows from it.
    """

    def __init__(self, transport: MPITransport, lease: Lease) -> None:
        self._transport = transport
        self._lease = lease
        self._queue: deque[Operation[Any]] = deque()
        # Collective calls so far: making the ring is call 0, the user's first is 1.  Messages are not
        # counted, for each rank has its own.
        self._started = 0
        self.members = 1
        self.guard = Guard()
        self.broken: str | None = None
        self.cut: tuple[str, BaseException] | None = None
        self._statuses = Statuses(transport)
        # What every operation uses besides its arrays: buffers of messages, scratch.
        self._used: list[Any] = [transport, lease]
        self._me_weakly = weakref.ref(self)
        self._last: Status | None = None  # where a call was cut off
        self._looked = 0.0  # when it has last looked for questions
        self._release = weakref.finalize(
            self, _give_back, lease, self._queue, self.guard, id(self)
        )
        self._release.atexit = False

    def uses(self, what: object) -> None:
        """Take note of what the operations use, which has to stay as long as they are under way."""
        self._used.append(what)

    def release(self) -> None:
        """Give the communicator back now.  Local: it is only queued for the next ring."""
        if self.guard.is_home:
            self._release()
        else:
            self._release.detach()  # its process's affair

    def drain(self) -> None:
        """Wait until nothing is left to do.  What went wrong in an operation stays with its ``Work``."""
        while self._queue and self.guard.is_home:
            try:
                self._wait(self._queue[-1])
            except Exception as error:
                if self.broken is not None or not is_harmless(error):
                    raise

    # ---- calls ------------------------------------------------------------------------------------

    def check(self, name: str) -> None:
        """Raise unless a call may begin now."""
        if self.cut is not None:
            self.settle()
        self.guard.check(name)

    def start(
        self, name: str, program: Program[T], position: Position, timeout: float | None
    ) -> Operation[T]:
        """Queue an operation and do what can be done at once."""
        self._refuse_if_broken(name)
        operation = self._queued(name, program, position, timeout, is_async=True)
        self.progress()
        return operation

    def run(
        self, name: str, program: Program[T], position: Position, timeout: float | None
    ) -> T:
        """Do an operation to its end.

        One that has the ring for itself, and does not have to wait for long, is never queued.
        """
        self._refuse_if_broken(name)
        if not self._queue:
            try:
                self._advance_for_a_moment(program)
            except StopIteration as stop:
                self._started += position.is_collective
                result: T = stop.value
                return result
            except BaseException as error:
                if is_harmless(error):
                    self._started += position.is_collective
                    raise
                # Before anything else: its frames hold what MPI may still use.
                operation = self._queued(name, program, position, timeout)
                operation.fail(error)
                raise
        operation = self._queued(name, program, position, timeout)
        try:
            return self._wait(operation)
        finally:
            if operation.done:
                operation.forget()

    def cut_off(self, name: str, error: BaseException) -> None:
        """A call has ended with an error: it breaks the ring, unless that is as good as before."""
        self.cut = name, error
        self.settle()

    def settle(self) -> None:
        """Do what follows from the error of a call, whatever interrupts that; the next call does what is left."""
        for _ in range(_ATTEMPTS):
            try:
                if self.cut is None:
                    return
                name, error = self.cut
                is_whole = is_harmless(error) or _is_pythons(error)
                if self.broken is None and not is_whole:
                    self._last = self._last or self._where(name)
                    self._break(_cut_off(name, self._me, error), error)
                if self._last is not None and self.guard.is_home:
                    self._statuses.leave(self._last, _words(error))
                self.guard.is_inside = False
                self.cut = None
            except BaseException:
                continue  # another signal: the first error is the one that counts

    def _advance_for_a_moment(self, program: Program[Any]) -> None:
        """Test what it waits for until it ends, or has waited for a while."""
        for _ in range(_SPINS):
            next(program)
        until = time.monotonic() + _SHORT_SECONDS
        while time.monotonic() < until and not _active:
            yield_core()
            next(program)

    def _queued(
        self,
        name: str,
        program: Program[T],
        position: Position,
        timeout: float | None,
        is_async: bool = False,
    ) -> Operation[T]:
        number = self._started - (not position.is_collective)
        operation = Operation(name, number, program, position, timeout, is_async)
        operation.used = self._used
        keep_alive(operation)
        self._started += position.is_collective
        self._queue.append(operation)
        _active[id(self)] = self._me_weakly
        return operation

    # ---- progress ---------------------------------------------------------------------------------

    def progress(self) -> None:
        """Advance as far as possible without waiting.

        Raises:
            BaseException: what interrupted an operation in the middle; the ring is broken then.
        """
        while self._queue:
            operation = self._queue[0]
            if operation.cut_off or operation.done:  # interrupted in here
                self.cut_off(operation.name, RingError("an interrupt"))
                return
            try:
                operation.advance()
            except BaseException as error:
                self.cut_off(operation.name, error)
                if not isinstance(error, _OF_PROGRAMS):
                    raise
                return
            if not operation.done:
                return
            self._queue.popleft()
            let_go(operation)
        _active.pop(id(self), None)

    def drive(self, looks: bool) -> None:
        """Go on with what was started, while the process waits for something else."""
        if self.cut is not None:
            self.settle()
        if self._queue and self.guard.may_be_driven:
            try:
                self.guard.is_inside = True
                self.progress()
                if looks:
                    self._answer()
            finally:
                self.guard.is_inside = False

    def _answer(self) -> None:
        """Tell ranks that have given up where this one is."""
        if self._queue:
            self._statuses.answer(self._queue[0])

    def poll(self, operation: Operation[Any]) -> bool:
        """Whether an operation is done, after advancing what can be; raises if its time is over."""
        if operation.done:
            return True
        self.check(operation.name)
        try:
            self.guard.is_inside = True
            self._refuse_if_broken(operation.name)
            self.progress()
            if not operation.done:
                self._refuse_if_broken(operation.name)
                now = time.monotonic()
                if now - self._looked > _PATIENT_SECONDS:
                    self._looked = now
                    self._answer()
                    self._check_who_is_gone(operation)
                self._check_deadlines(operation)
        finally:
            self.guard.is_inside = False
        return operation.done

    def wait(self, operation: Operation[T], timeout: float | None) -> T:
        """Wait for an asynchronous operation and give its outcome.

        An interrupt while it waits leaves the operation as it is; one in the middle of its work breaks the ring.

        Args:
            operation: one of this ring's.
            timeout: seconds after which to give up waiting; the operation goes on.

        Raises:
            RingTimeout: if its own deadline passes (the ring is broken then) or ``timeout`` does.
        """
        if operation.done:
            return operation.outcome()
        self.check(operation.name)
        try:
            self.guard.is_inside = True
            return self._wait(operation, timeout)
        finally:
            self.guard.is_inside = False

    def _wait(self, operation: Operation[T], timeout: float | None = None) -> T:
        spins = 0
        began = time.monotonic() if timeout is not None else 0.0
        waited = 0.0
        while not operation.done:
            self._refuse_if_broken(operation.name)
            self.progress()
            if operation.done:
                break
            self._refuse_if_broken(operation.name)
            spins += 1
            self._check_deadlines(operation)
            if timeout is not None and time.monotonic() - began > timeout:
                raise harmless(
                    RingTimeout(
                        f"{self._me}: waited {timeout:g} s for {operation}; "
                        "the operation goes on, wait again or set a timeout on the call"
                    )
                )
            if spins == _SPINS:
                waited = time.monotonic()
            if spins > _SPINS:
                is_patient = time.monotonic() - waited > _PATIENT_SECONDS
                looks = is_patient and spins % _NAPS == 0
                drive_rings(self, looks)
                if looks:
                    self._answer()
                    self._check_who_is_gone(operation)
                if is_patient:
                    time.sleep(_NAP_SECONDS)
                else:
                    yield_core()
        return operation.outcome()

    def _refuse_if_broken(self, name: str) -> None:
        if self.broken is not None:
            raise harmless(
                RingError(
                    f"{name}: this ring is broken, make a new one; what broke it: {self.broken}"
                )
            )

    def _check_deadlines(self, operation: Operation[Any]) -> None:
        # An earlier operation's deadline counts too: it holds up this one.
        head = self._queue[0]
        if operation.is_late():
            self._expire(operation)
        if head is not operation and head.is_late():
            self._expire(head)

    # ---- the end of a ring ------------------------------------------------------------------------

    def _check_who_is_gone(self, operation: Operation[Any]) -> None:
        """Give up when a rank has left the ring without which this call cannot end."""
        found = self._statuses.gone_before(self._queue[0])
        if found is not None:
            rank, status = found
            waited = f"waited in vain for {self._named(rank)}"
            self._give_up(operation, waited, status.is_timeout)

    def _expire(self, operation: Operation[Any]) -> None:
        self._give_up(operation, f"waited {operation.patience:g} s", is_timeout=True)

    def _give_up(
        self, operation: Operation[Any], waited: str, is_timeout: bool
    ) -> None:
        """Break the ring, and say who is to blame.

        Args:
            operation: the one that is given up.
            waited: for how long, or for whom.
            is_timeout: whether a deadline has passed, here or on the rank that was waited for.
        """
        head = self._queue[
            0
        ]  # what really waits; an earlier operation may hold up this one
        mine = status_of(head)
        self._statuses.leave(mine, waited, is_timeout)
        silent, heard = self._statuses.gather(head)
        lines = [f"{operation.name}: {self._me} {waited}, in {head}"]
        if silent:
            lines.append(f"in no call of this ring: {self._named(*silent)}")
        lines += [
            f"{status.against(mine)}: {self._named(process)}, {status.text}"
            for process, status in sorted(heard.items())
        ]
        why = "; ".join(lines)
        self._break(why)
        told = f"{why}. The ring is broken now; make a new one"
        if not is_timeout:
            raise harmless(RingError(told))
        ranks = tuple(rank for process in silent for rank in self._ranks_of(process))
        raise harmless(RingTimeout(told, ranks))

    def _where(self, name: str) -> Status:
        """Where a call of that name was cut off."""
        if self._queue:
            return status_of(self._queue[0])
        return Status(self._started, True, f"{name} (call {self._started})")

    def _break(self, why: str, error: BaseException | None = None) -> None:
        """Nobody uses the ring any more; what its calls have touched stays, as the frames of ``error`` do."""
        held = [operation.held for operation in self._queue]
        while error is not None:
            held.append((error.__traceback__, None))
            error = error.__context__
        keep_alive([self._used, held])
        self.broken = self.broken or why
        self._release.detach()  # nobody may use this communicator again
        self._lease.lose()
        for operation in self._queue:
            let_go(operation)
        self._queue.clear()
        _active.pop(id(self), None)

    def _ranks_of(self, process: int) -> range:
        return range(process * self.members, (process + 1) * self.members)

    def _named(self, *processes: int) -> str:
        """Processes by their ranks, for messages."""
        if self.members == 1:
            return f"rank {', '.join(map(str, processes))}"
        ranks = [self._ranks_of(process) for process in processes]
        return f"ranks {', '.join(f'{r[0]} to {r[-1]}' for r in ranks)}"

    @property
    def _me(self) -> str:
        return self._named(self._transport.rank)


def _cut_off(name: str, me: str, error: BaseException) -> str:
    return f"{name} was cut off on {me} by {_words(error)}"


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _is_pythons(error: BaseException) -> bool:
    """Whether no code has raised it, but Python, as the arguments of the call were none that it takes."""
    traceback = error.__traceback__
    is_first = traceback is not None and traceback.tb_next is None
    return isinstance(error, TypeError) and is_first


def drive_rings(waiting: Operations | None = None, looks: bool = False) -> None:
    """Go on with the operations of this process's rings.

    Args:
        waiting: a ring that is driven already.
        looks: whether to answer ranks that have given up, too.
    """
    for ring_or_none in tuple(_active.values()):
        ring = ring_or_none()
        if ring is not None and ring is not waiting:
            ring.drive(looks)


def _give_back(
    lease: Lease, queue: deque[Operation[Any]], guard: Guard, key: int
) -> None:
    """A ring goes: its communicator may serve another one, unless messages are still under way."""
    _active.pop(key, None)
    if queue or guard.is_inside:
        keep_alive((lease, queue))
    else:
        lease.give_back()


class Work(Generic[T]):
    """An operation that was started with ``async_op=True``."""

    def __init__(self, operations: Operations, operation: Operation[T]) -> None:
        self._operations = operations
        self._operation = operation

    def wait(self, timeout: float | None = None) -> T:
        """Wait for the result and return it.

        Args:
            timeout: seconds; when they are over the operation goes on, and may be waited for again.

        Raises:
            ValueError: for a wrong ``timeout``, here alone.
            RingTimeout: if ``timeout`` or the call's own deadline passes, which counts from the first ``wait`` or
                ``test``.
            Exception: what the call would have raised, on every rank.
        """
        return self._operations.wait(self._operation, seconds_of(timeout))

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(
            "a Work cannot be copied or pickled: its operation is under way in this process; use what wait() returns"
        )

    def test(self) -> bool:
        """Whether the operation is done; drives it on as far as it goes without waiting."""
        return self._operations.poll(self._operation)

    def result(self) -> T:
        """The result of an operation that is done.

        Raises:
            RingError: if it is not.
        """
        if not self._operation.done:
            raise RingError(f"{self._operation.name}: not done yet; call wait()")
        return self._operation.outcome()
