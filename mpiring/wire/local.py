"""The ranks of one process: a transport for tests, proofs by example and the tutorial.

A :class:`LocalNetwork` runs one program for each rank in a single thread.  Everything that a real network
leaves open is a question to ``choose``: which rank goes on next, which message is delivered next, and
whether a send is *eager* (its bytes are taken at once) or a *rendezvous* (they are read when they are
delivered, and only then is the send complete).  A test lets Hypothesis answer, and so searches for the
interleaving that breaks a program.

It is as unkind as MPI allows: a posted receive's buffer is overwritten with noise at once, and a
rendezvous reads the sender's buffer as late as it can.  A program that touches a buffer it has given away
computes garbage here.  If nobody can go on, :class:`~mpiring.errors.DeadlockError` names the cycle of who
waits for whom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import DeadlockError
from .transport import Buffer, Program, Request, Transport

Choose = Callable[[int], int]  # n -> one of 0 .. n-1


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
    """

    def __init__(
        self,
        size: int,
        choose: Choose = first,
        rendezvous: bool | None = True,
        message_bytes: int = 1 << 30,
    ) -> None:
        self.size = size
        self.transports = [
            LocalTransport(self, rank, message_bytes) for rank in range(size)
        ]
        self.messages = 0
        self._choose = choose
        self._rendezvous = rendezvous
        self._channels: dict[tuple[int, int, int], _Channel] = {}

    def run(self, programs: Sequence[Program[Any]]) -> list[Any]:
        """Run ``programs[rank]`` on each rank to the end and return their results.

        An exception in a program is raised here, after nobody else can go on either.

        Raises:
            DeadlockError: if ranks are left and none can go on.
        """
        waits: dict[int, Request | None] = dict.fromkeys(range(len(programs)))
        results: list[Any] = [None] * len(programs)
        failures: list[Exception] = []
        while waits:
            ranks = [
                rank
                for rank, request in waits.items()
                if request is None or request.test()
            ]
            channels = [
                channel for channel in self._channels.values() if channel.can_deliver
            ]
            options: list[Any] = [*ranks, *channels]
            if not options:
                break
            option = options[self._choose(len(options)) if len(options) > 1 else 0]
            if isinstance(option, _Channel):
                option.deliver()
                continue
            try:
                waits[option] = next(programs[option])
            except StopIteration as stop:
                results[option] = stop.value
                del waits[option]
            except Exception as error:
                failures.append(error)
                del waits[option]
        if failures:
            raise failures[0]
        if waits:
            raise _deadlock(
                {rank: request for rank, request in waits.items() if request}
            )
        return results

    def post(self, source: int, dest: int, tag: int) -> _Channel:
        channel = self._channels.get((source, dest, tag))
        if channel is None:
            channel = self._channels[source, dest, tag] = _Channel()
        return channel

    def next_is_eager(self) -> bool:
        self.messages += 1
        return (
            self._choose(2) == 0 if self._rendezvous is None else not self._rendezvous
        )


class LocalTransport(Transport):
    """One rank of a :class:`LocalNetwork`."""

    def __init__(self, network: LocalNetwork, rank: int, message_bytes: int) -> None:
        super().__init__(rank, network.size, message_bytes)
        self._network = network

    def post_send(self, buffer: Buffer, dest: int, tag: int) -> Request:
        request = _LocalRequest("send to", dest, buffer)
        if self._network.next_is_eager():
            request.buffer = bytes(buffer) if _is_bytes(buffer) else buffer.copy()
            request.complete = True
        self._network.post(self.rank, dest, tag).sends.append(request)
        return request

    def post_receive(self, buffer: Buffer, source: int, tag: int) -> Request:
        request = _LocalRequest("receive from", source, buffer)
        _fill_with_noise(buffer)
        self._network.post(source, self.rank, tag).receives.append(request)
        return request


class _LocalRequest(Request):
    def __init__(self, verb: str, peer: int, buffer: Buffer) -> None:
        self.verb = verb
        self.peer = peer
        self.buffer = buffer
        self.complete = False

    def test(self) -> bool:
        return self.complete


class _Channel:
    """What is posted between two ranks with one tag."""

    def __init__(self) -> None:
        self.sends: deque[_LocalRequest] = deque()
        self.receives: deque[_LocalRequest] = deque()

    @property
    def can_deliver(self) -> bool:
        return bool(self.sends and self.receives)

    def deliver(self) -> None:
        send, receive = self.sends.popleft(), self.receives.popleft()
        if len(send.buffer) > len(receive.buffer):
            raise ValueError(
                f"{send}: {len(send.buffer)} bytes, but the receive has room for {len(receive.buffer)}"
            )
        receive.buffer[: len(send.buffer)] = send.buffer
        send.complete = receive.complete = True


def _is_bytes(buffer: Buffer) -> bool:
    return isinstance(buffer, (bytes, bytearray, memoryview))


def _fill_with_noise(buffer: Buffer) -> None:
    noise = 0xA5
    if _is_bytes(buffer):
        buffer[:] = bytes([noise]) * len(buffer)
    else:
        buffer[:] = noise


def _deadlock(waits: dict[int, Request]) -> DeadlockError:
    """Follow who waits for whom until a rank comes again, or has ended."""
    seen: list[int] = []
    rank = next(iter(waits))
    while rank in waits and rank not in seen:
        seen.append(rank)
        rank = waits[rank].peer
    lines = [f"rank {r} waits to {waits[r]}" for r in seen]
    if rank not in waits:
        return DeadlockError(
            f"nobody can go on: {'; '.join(lines)}, whose program has ended"
        )
    cycle = tuple(seen[seen.index(rank) :])
    return DeadlockError(
        "nobody can go on: "
        + "; ".join(f"rank {r} waits to {waits[r]}" for r in cycle),
        cycle,
    )
