"""Operations on one ring: they run one after another, in call order, as far as somebody polls (promise 8).

The queue holds programs.  Only the first runs; polling advances it until it waits for a message.  A blocking
call polls until its own operation is done, and so progresses the earlier ones.  No thread is involved.

Waiting (promise 6)
    A poll loop tests, then lets other processes run: there may be more ranks than cores.  When a deadline
    passes, the ring is broken: its buffers are kept alive for ever, since MPI may still write to them.
    Before raising, the ranks that timed out tell each other where they are; ranks that wait with a later
    deadline answer too.  Who stays silent is in no call of this ring, and is most likely to blame; the
    neighbour waited for is often innocent.
"""

from __future__ import annotations

import json
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

from ..errors import RingError, RingTimeout
from .arguments import seconds_of
from .communicators import Lease
from .execute import Position
from .mpi import TAG_STATUS, MPITransport
from .transport import Program, Request

T = TypeVar("T")

GRACE_SECONDS = (
    1.0  # for the answers of ranks that wait too: they poll for questions all the time
)
_SPINS = 20  # tests before a waiting rank yields its core at each further one
_SHORT_SECONDS = 1e-3  # so long a call waits before it is an operation in the queue
_PATIENT_SECONDS = 0.02  # after this it sleeps between tests, and looks for questions
_NAP_SECONDS = 50e-6

yield_core: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))

_abandoned: list[Any] = (
    []
)  # operations of broken rings: MPI may still use their buffers


class Operation(Generic[T]):
    """One call on a ring."""

    def __init__(
        self,
        name: str,
        number: int,
        program: Program[T],
        position: Position,
        timeout: float | None,
    ) -> None:
        self.name = name
        self.number = number
        self.position = position
        self.timeout = timeout
        self.deadline = _deadline(timeout)
        self.done = False
        self.waits_for: Request | None = None
        self._was_forgiven = False
        self._program: Program[T] | None = program
        self._result: T | None = None
        self._error: BaseException | None = None
        # Where the program was when it failed: its buffers, which MPI may still use, are held by its frames.
        self._stopped_in: TracebackType | None = None

    def advance(self) -> None:
        """Go on until it waits or is done."""
        assert self._program is not None
        try:
            self.waits_for = next(self._program)
            if self.position.has_moved:
                self.position.has_moved = False
                self.deadline = _deadline(self.timeout)
        except StopIteration as stop:
            self.finish(stop.value, None)
        except Exception as error:
            self.fail(error)
        except BaseException as error:  # an interrupt, in the middle of the work
            self.fail(error)
            raise

    def forgive_absence(self) -> None:
        """Give an operation that nobody polled until its deadline had passed a moment to end, once."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            if not self._was_forgiven:
                self.deadline = time.monotonic() + GRACE_SECONDS
        self._was_forgiven = True

    @property
    def failed_alone(self) -> bool:
        """Whether it failed without the other ranks: interrupted, or after they had agreed to go on."""
        if self._error is None:
            return False
        return not (isinstance(self._error, Exception) and self.position.is_opening)

    def fail(self, error: BaseException) -> None:
        """Keep an error, and where it came up."""
        self._stopped_in = error.__traceback__
        self.finish(None, error)

    def finish(self, result: T | None, error: BaseException | None) -> None:
        """Keep the outcome and let go of everything else."""
        self._result, self._error = result, error
        self._program = self.waits_for = None
        self.done = True

    def outcome(self) -> T:
        """The result, or the error raised."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def forget(self) -> None:
        """Let go of the outcome: an error's traceback holds us, and with us the ring and the arrays."""
        self._result = self._error = self._stopped_in = None

    @property
    def held(self) -> tuple[Any, ...]:
        """What holds its buffers, whether it waits or has failed."""
        return self._program, self._stopped_in

    def __str__(self) -> str:
        waits = "" if self.waits_for is None else f", waiting to {self.waits_for}"
        after = "" if self.position.is_collective else "after "
        return f"{self.name} ({after}call {self.number} on this ring; {self.position}{waits})"


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


class Operations:
    """The operations of one ring in one process.

    Args:
        transport: of the ring.
        lease: its communicator, given back when this object is dropped with nothing left to do.

    Attributes:
        members: ranks of the ring in each process; the processes talk here, and messages name their ranks.
        broken: what broke the ring, None if it works.
    """

    def __init__(self, transport: MPITransport, lease: Lease) -> None:
        self._transport = transport
        self._lease = lease
        self._queue: deque[Operation[Any]] = deque()
        # Collective calls so far: making the ring is call 0, the user's first is 1.  Messages are not
        # counted, for each rank has its own.
        self._started = 0
        self.members = 1
        self.broken: str | None = None
        self._answered: set[int] = set()
        self._heard: dict[int, dict[str, Any]] = {}  # where ranks that timed out were
        self._release = weakref.finalize(self, _give_back, lease, self._queue)
        self._release.atexit = False

    def release(self) -> None:
        """Give the communicator back now.  Local: it is only queued for the next ring."""
        self._release()

    def drain(self) -> None:
        """Wait until nothing is left to do.  What went wrong in an operation stays with its ``Work``."""
        while self._queue:
            try:
                self.wait(self._queue[-1])
            except Exception:
                if self.broken is not None:
                    raise

    def start(
        self, name: str, program: Program[T], position: Position, timeout: float | None
    ) -> Operation[T]:
        """Queue an operation and do what can be done at once."""
        self._refuse_if_broken(name)
        operation = self._queued(name, program, position, timeout)
        self.progress()
        return operation

    def run(
        self, name: str, program: Program[T], position: Position, timeout: float | None
    ) -> T:
        """Do an operation to its end.

        One that has the ring for itself, and does not have to wait for long, is never queued.
        """
        if self._queue or self.broken is not None:
            operation = self.start(name, program, position, timeout)
        else:
            try:
                self._advance_for_a_moment(program)
            except StopIteration as stop:
                self._started += position.is_collective
                result: T = stop.value
                return result
            except BaseException as error:
                operation = self._queued(name, program, position, timeout)
                operation.fail(error)
                self._break_if_alone(operation)
                self._queue.clear()
                operation.forget()
                raise
            operation = self._queued(name, program, position, timeout)
        try:
            return self.wait(operation)
        finally:
            operation.forget()

    def _advance_for_a_moment(self, program: Program[Any]) -> None:
        """Test what it waits for until it ends, or has waited for a while."""
        for _ in range(_SPINS):
            next(program)
        until = time.monotonic() + _SHORT_SECONDS
        while time.monotonic() < until:
            yield_core()
            next(program)

    def _queued(
        self, name: str, program: Program[T], position: Position, timeout: float | None
    ) -> Operation[T]:
        number = self._started - (not position.is_collective)
        operation = Operation(name, number, program, position, timeout)
        self._started += position.is_collective
        self._queue.append(operation)
        return operation

    def progress(self) -> None:
        """Advance as far as possible without waiting."""
        while self._queue:
            operation = self._queue[0]
            try:
                operation.advance()
            finally:
                self._break_if_alone(operation)
            if not operation.done:
                return
            if self._queue:
                self._queue.popleft()

    def _break_if_alone(self, operation: Operation[Any]) -> None:
        if operation.failed_alone:
            self._break(f"{operation.name} failed on {self._me} alone")

    def poll(self, operation: Operation[Any]) -> bool:
        """Whether an operation is done, after advancing what can be; raises if its time is over."""
        if not operation.done:
            self._refuse_if_broken(operation.name)
            self.progress()
            if not operation.done:
                self._check_deadlines(operation)
        return operation.done

    def wait(self, operation: Operation[T], timeout: float | None = None) -> T:
        """Wait for an operation and give its outcome.

        Args:
            operation: one of this ring's.
            timeout: seconds after which to give up waiting; the operation goes on.

        Raises:
            RingTimeout: if its own deadline passes (the ring is broken then) or ``timeout`` does.
        """
        spins = 0
        began = time.monotonic() if timeout is not None else 0.0
        waited = 0.0
        while not operation.done:
            self._refuse_if_broken(operation.name)
            self.progress()
            if operation.done:
                break
            spins += 1
            self._check_deadlines(operation)
            if timeout is not None and time.monotonic() - began > timeout:
                raise RingTimeout(
                    f"{self._me}: waited {timeout:g} s for {operation}; "
                    "the operation goes on, wait again or set a timeout on the call"
                )
            if spins == _SPINS:
                waited = time.monotonic()
            if spins > _SPINS:
                if time.monotonic() - waited > _PATIENT_SECONDS:
                    time.sleep(_NAP_SECONDS)
                    if spins % 32 == 0:
                        self._answer()
                else:
                    yield_core()
        return operation.outcome()

    def _refuse_if_broken(self, name: str) -> None:
        if self.broken is not None:
            raise RingError(
                f"{name}: this ring is broken, make a new one; what broke it: {self.broken}"
            )

    def _check_deadlines(self, operation: Operation[Any]) -> None:
        # An earlier operation's deadline counts too: it holds up this one.
        for candidate in (operation, self._queue[0]):
            if candidate.deadline is not None and time.monotonic() > candidate.deadline:
                self._expire(candidate)

    # ---- when a deadline passes -------------------------------------------------------------------

    def _answer(self) -> None:
        """Tell ranks that timed out where this one is; they have told the same of themselves."""
        while (message := self._transport.take_status()) is not None:
            source, text = message
            self._heard[source] = json.loads(text)
            if source not in self._answered and self._queue:
                self._answered.add(source)
                self._tell(source, self._queue[0])

    def _tell(self, rank: int, operation: Operation[Any]) -> None:
        where = {
            "place": [operation.number, operation.position.is_collective],
            "text": str(operation),
        }
        text = json.dumps(where).encode()
        # The request is never waited for: the message is small, and the other rank may be gone.
        _abandoned.append(self._transport.post_send(text, rank, TAG_STATUS))

    def _expire(self, operation: Operation[Any]) -> None:
        transport = self._transport
        head = self._queue[
            0
        ]  # what really waits; an earlier operation may hold up this one
        others = [rank for rank in range(transport.size) if rank != transport.rank]
        for rank in others:
            if rank not in self._answered:
                self._tell(rank, head)
        heard = self._heard
        until = time.monotonic() + GRACE_SECONDS
        while len(heard) < len(others) and time.monotonic() < until:
            message = transport.take_status()
            if message is None:
                time.sleep(_NAP_SECONDS)
            else:
                heard[message[0]] = json.loads(message[1])
        silent = tuple(rank for rank in others if rank not in heard)
        here = [head.number, head.position.is_collective]
        elsewhere = {p: h for p, h in heard.items() if h["place"] != here}
        lines = [
            f"{operation.name}: {self._me} waited {operation.timeout:g} s, in {head}"
        ]
        if silent:
            lines.append(f"in no call of this ring: {self._named(*silent)}")
        lines += [
            f"in another call: {self._named(p)}, {h['text']}"
            for p, h in sorted(elsewhere.items())
        ]
        lines += [
            f"waiting too: {self._named(p)}, {h['text']}"
            for p, h in sorted(heard.items())
            if p not in elsewhere
        ]
        self._break("; ".join(lines))
        ranks = tuple(rank for process in silent for rank in self._ranks_of(process))
        raise RingTimeout(
            f"{self.broken}. The ring is broken now; make a new one", ranks
        )

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

    def _break(self, why: str) -> None:
        self.broken = why
        self._release.detach()  # nobody may use this communicator again
        held = [operation.held for operation in self._queue]
        _abandoned.append((self._transport, self._lease, held))
        self._queue.clear()


def _give_back(lease: Lease, queue: deque[Operation[Any]]) -> None:
    """A ring goes: its communicator may serve another one, unless messages are still under way."""
    if queue:
        _abandoned.append((lease, queue))
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
            RingTimeout: if ``timeout`` or the call's own deadline passes.
            Exception: what the call would have raised, on every rank.
        """
        seconds = seconds_of(timeout)
        self._operation.forgive_absence()
        return self._operations.wait(self._operation, seconds)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(
            "a Work cannot be copied or pickled: its operation is under way in this process; use what wait() returns"
        )

    def test(self) -> bool:
        """Whether the operation is done; drives it on as far as it goes without waiting."""
        self._operation.forgive_absence()
        return self._operations.poll(self._operation)

    def result(self) -> T:
        """The result of an operation that is done.

        Raises:
            RingError: if it is not.
        """
        if not self._operation.done:
            raise RingError(f"{self._operation.name}: not done yet; call wait()")
        return self._operation.outcome()
