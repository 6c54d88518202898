"""The ranks of one process: a transport for tests, proofs by example and the tutorial.

A :class:`LocalNetwork` runs one program for each rank in a single thread.  Everything that a real network
leaves open is a question to ``choose``: which rank goes on next, which message moves next, whether a send
is *eager* (its bytes are taken at once) or a *rendezvous* (they are read when the message moves), and which
of the two ends hears first that it is complete.  A test lets Hypothesis answer, and so searches for the
interleaving that breaks a program.

It is as unkind as MPI allows:

* messages of one channel *match* in the order posted, but a later one may arrive before an earlier one;
* a posted receive's buffer is overwritten with noise at once, a rendezvous reads the sender's buffer as late
  as it can: a program that reads or writes a buffer it has given away computes garbage;
* a program that waits may be polled although nothing has happened.

What MPI forbids without telling is an error here, a :class:`RingError` that names rank and peer: to change a
buffer while it is sent or received, to end without having waited for a request, to send what nobody receives.
If nobody can go on, :class:`~mpiring.errors.DeadlockError` names the cycle of who waits for whom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import DeadlockError, RingError
from .protocol import Buffer, Program, Request, Transport

Choose = Callable[[int], int]  # n -> one of 0 .. n-1

_NOISE = b"\xa5"
_PATIENCE = 1000  # polls in which a request that is busy goes on


def first(options: int) -> int:
    """Always the first option: a fair, deterministic order."""
    return 0


class LocalNetwork:
    """``size`` ranks in this process.

    Args:
        size: number of ranks.
        choose: answers every open question; given n options it returns one of 0 .. n-1.
        rendezvous: True or False for all sends, None to ask ``choose`` at each.
        message_bytes: longest message, in bytes.
        reach: gives the memory of a buffer as an object with Python's buffer protocol; for arrays that do
            not have it, as those of a device.

    Attributes:
        messages: how many were sent so far.
    """

    def __init__(
        self,
        size: int,
        choose: Choose = first,
        rendezvous: bool | None = True,
        message_bytes: int = 1 << 30,
        reach: Callable[[Buffer], Any] = lambda buffer: buffer,
    ) -> None:
        self.size = size
        self.transports = [
            LocalTransport(self, rank, message_bytes) for rank in range(size)
        ]
        self.messages = 0
        self.reach = reach
        self._choose = choose
        self._rendezvous = rendezvous
        self._channels: dict[tuple[int, int, int], _Channel] = {}
        self._under_way: list[_Delivery] = []
        self._open: list[set[_LocalRequest]] = [set() for _ in range(size)]
        self._faults: list[str] = []

    def run(self, programs: Sequence[Program[Any]]) -> list[Any]:
        """Run ``programs[rank]`` on each rank to the end and return their results.

        An exception in a program is raised here, after nobody else can go on either.

        Raises:
            DeadlockError: if ranks are left and none can go on.
            RingError: if a program does what MPI forbids.
        """
        waits: dict[int, Request | None] = dict.fromkeys(range(len(programs)))
        results: list[Any] = [None] * len(programs)
        failures: list[Exception] = []
        idle = 0
        while waits:
            ready: list[int] = []
            waiting: list[int] = []
            for rank, request in waits.items():
                goes_on = request is None or request.test()
                (ready if goes_on else waiting).append(rank)
            self._raise_faults()
            deliveries = self._under_way
            options = len(ready) + len(deliveries)
            if not options:
                idle += 1
                busy = any(request.is_busy for request in waits.values() if request)
                if busy and idle < _PATIENCE:
                    continue
                break
            idle = 0
            # The last option is a poll of a rank for which nothing has happened.
            option = self._pick(options + bool(waiting))
            if len(ready) <= option < options:
                delivery = deliveries[option - len(ready)]
                if delivery.goes_on(self._choose, self.reach, self._faults):
                    deliveries.remove(delivery)
                continue
            rank = (
                ready[option] if option < options else waiting[self._pick(len(waiting))]
            )
            try:
                waits[rank] = next(programs[rank])
            except StopIteration as stop:
                results[rank] = stop.value
                del waits[rank]
                self._faults += [
                    f"rank {rank} ended without waiting for its {r}"
                    for r in self._open[rank]
                ]
            except Exception as error:
                failures.append(error)
                del waits[rank]
        if failures:
            raise failures[0]
        if waits:
            raise _deadlock(
                {rank: request for rank, request in waits.items() if request}
            )
        for (source, dest, tag), channel in self._channels.items():
            if channel.sends:
                self._faults.append(
                    f"rank {dest} never received what rank {source} sent with tag {tag}"
                )
        self._raise_faults()
        return results

    def post(
        self, rank: int, request: _LocalRequest, key: tuple[int, int, int]
    ) -> None:
        """Take note of a send or a receive; it matches the first of the other kind in its channel."""
        self._open[rank].add(request)
        request.when_waited_for = self._waited_for(rank)
        channel = self._channels.setdefault(key, _Channel())
        (channel.sends if request.verb == _SEND else channel.receives).append(request)
        if channel.sends and channel.receives:
            self._under_way.append(
                _Delivery(channel.sends.popleft(), channel.receives.popleft())
            )

    def next_is_eager(self) -> bool:
        self.messages += 1
        return self._pick(2) == 0 if self._rendezvous is None else not self._rendezvous

    def _waited_for(self, rank: int) -> Callable[[_LocalRequest], None]:
        def note(request: _LocalRequest) -> None:
            self._open[rank].discard(request)
            if (
                request.verb == _SEND
                and bytes(self.reach(request.buffer)) != request.data
            ):
                self._faults.append(
                    f"rank {rank} changed a buffer during its {request}"
                )

        return note

    def _pick(self, options: int) -> int:
        return self._choose(options) if options > 1 else 0

    def _raise_faults(self) -> None:
        if self._faults:
            raise RingError("; ".join(self._faults))


class LocalTransport(Transport):
    """One rank of a :class:`LocalNetwork`."""

    def __init__(self, network: LocalNetwork, rank: int, message_bytes: int) -> None:
        super().__init__(rank, network.size, message_bytes)
        self._network = network

    def post_send(self, buffer: Buffer, dest: int, tag: int) -> Request:
        data = bytes(self._network.reach(buffer))
        request = _LocalRequest(_SEND, dest, buffer, data)
        request.complete = self._network.next_is_eager()
        self._network.post(self.rank, request, (self.rank, dest, tag))
        return request

    def post_receive(self, buffer: Buffer, source: int, tag: int) -> Request:
        request = _LocalRequest(_RECEIVE, source, buffer, _NOISE * len(buffer))
        memoryview(self._network.reach(buffer))[:] = request.data
        self._network.post(self.rank, request, (source, self.rank, tag))
        return request


_SEND, _RECEIVE = "send to", "receive from"


class _LocalRequest(Request):
    """A send or a receive; ``data`` is what its buffer holds as long as nobody touches it."""

    def __init__(self, verb: str, peer: int, buffer: Buffer, data: bytes) -> None:
        self.verb = verb
        self.peer = peer
        self.buffer = buffer
        self.data = data
        self.complete = False
        self.when_waited_for: Callable[[_LocalRequest], None] | None = None

    def test(self) -> bool:
        if self.complete and self.when_waited_for is not None:
            self.when_waited_for(self)
            self.when_waited_for = None
        return self.complete


class _Channel:
    """What is posted between two ranks with one tag, and has not matched."""

    def __init__(self) -> None:
        self.sends: deque[_LocalRequest] = deque()
        self.receives: deque[_LocalRequest] = deque()


class _Delivery:
    """A send and the receive that it matches."""

    def __init__(self, send: _LocalRequest, receive: _LocalRequest) -> None:
        self._send = send
        self._receive = receive
        self._data = send.data if send.complete else None  # an eager send's

    def goes_on(
        self, choose: Choose, reach: Callable[[Buffer], Any], faults: list[str]
    ) -> bool:
        """Move the message, or part of the way; returns whether all is done."""
        send, receive = self._send, self._receive
        # 0: both ends are complete; 1: only the send, the bytes are on their way; 2: only the receive.
        news = 0 if send.complete or receive.complete else choose(3)
        if not receive.complete:
            if self._data is None:
                self._data = bytes(reach(send.buffer))
            if news != 1:
                self._write(self._data, reach(receive.buffer), faults)
                receive.complete = True
        if news != 2:
            send.complete = True
        return send.complete and receive.complete

    def _write(self, data: bytes, room: Any, faults: list[str]) -> None:
        send, receive = self._send, self._receive
        if len(data) > len(receive.data):
            raise ValueError(
                f"{send}: {len(data)} bytes, but the receive has room for {len(receive.data)}"
            )
        if bytes(room) != receive.data:
            faults.append(f"rank {send.peer} changed a buffer during its {receive}")
        memoryview(room)[: len(data)] = data


def _deadlock(waits: dict[int, Request]) -> DeadlockError:
    """Find ranks that wait for each other; failing that, a rank that waits for one that has ended."""
    ended = ""
    for start in waits:
        seen: list[int] = []
        rank = start
        while rank in waits and rank not in seen:
            seen.append(rank)
            rank = waits[rank].peer
        if rank in waits:
            cycle = tuple(seen[seen.index(rank) :])
            return DeadlockError(f"nobody can go on: {_waiting(cycle, waits)}", cycle)
        ended = ended or f"{_waiting(seen, waits)}, whose program has ended"
    return DeadlockError(f"nobody can go on: {ended}")


def _waiting(ranks: Sequence[int], waits: dict[int, Request]) -> str:
    return "; ".join(f"rank {rank} waits to {waits[rank]}" for rank in ranks)
