"""Moving bytes between ranks: one small protocol, whatever carries them.

A **transport** has a rank, a size, and two verbs that return at once: :meth:`Transport.isend` and
:meth:`Transport.irecv`.  Both give a :class:`Request` to be tested.  Two implementations pass the same
conformance suite: MPI (:mod:`mpiring.wire.transport.mpi`) and the ranks of one process
(:mod:`mpiring.wire.transport.local`).

A **program** is a generator that does one rank's part.  It never blocks: where C would wait, it yields
the request it is waiting for, until that is complete:

>>> def swap(transport, mine, theirs):          # doctest: +SKIP
...     receive = transport.irecv(theirs, 1 - transport.rank, tag=0)
...     send = transport.isend(mine, 1 - transport.rank, tag=0)
...     yield from wait(send)                   # MPI_Wait(&send)
...     yield from wait(receive)                # MPI_Wait(&receive)

Whoever runs the program decides what waiting means: poll with a deadline (a ring's blocking call), come
back later (an asynchronous one), or run another rank meanwhile (a test, which chooses the interleaving).

Rules:

* messages from one rank to another with one tag match in the order sent, and one posted with
  ``post_receive`` may have more room than the message has bytes;
* a buffer belongs to the transport from the call until its request is complete, and every request is waited
  for;
* what ``isend`` and ``irecv`` move is as long on both ends, and travels as no message at all if it is empty
  and as several if it is longer than ``message_bytes``: no count is limited to 31 bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from copy import copy
from typing import Any, TypeVar

from ...errors import is_harmless
from ...plan.segments import pieces

T = TypeVar("T")
Buffer = Any  # bytes-like, or an array of bytes of any kind: what Kind.message returns


class Request(ABC):
    """One message on its way.

    Attributes:
        verb: "send to" or "receive from".
        peer: the other rank.
    """

    verb: str
    peer: int

    @abstractmethod
    def test(self) -> bool:
        """Whether it is complete; never blocks, and stays true once it was."""

    @property
    def peers(self) -> frozenset[int]:
        """The other ranks: it goes on when one of them does its part."""
        return frozenset([self.peer])

    @property
    def is_busy(self) -> bool:
        """Whether it goes on by being tested, not by messages alone."""
        return False

    def __str__(self) -> str:
        return f"{self.verb} rank {self.peer}"


class Persistent(Request):
    """A message that goes again and again, between the same buffers; in between it is complete."""

    @abstractmethod
    def start(self) -> None:
        """Send or receive it once more; only when it is complete."""


Program = Generator[Request, None, T]


def wait(request: Request) -> Program[None]:
    """Wait for a request, as a part of a program."""
    while not request.test():
        yield request


class AnyOf(Request):
    """Requests of several programs that go on when one of them is complete."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.verb, self.peer = requests[0].verb, requests[0].peer

    def test(self) -> bool:
        return any(request.test() for request in self.requests)

    @property
    def peers(self) -> frozenset[int]:
        return frozenset().union(*(request.peers for request in self.requests))

    @property
    def is_busy(self) -> bool:
        return any(request.is_busy for request in self.requests)

    def __str__(self) -> str:
        return " or to ".join(dict.fromkeys(map(str, self.requests)))


def together(programs: Sequence[Program[T]]) -> Program[list[T]]:
    """Run several programs of one rank side by side, and give their results in order.

    If some raise what leaves the ring usable, the others still run to their end, so that no rank waits for them; the
    first error is raised then.  Any other error is raised at once.
    """
    results: dict[int, T] = {}
    failures: list[Exception] = []
    alive = dict(enumerate(programs))
    while alive:
        waiting: list[Request] = []
        for place, program in list(alive.items()):
            try:
                waiting.append(next(program))
            except StopIteration as stop:
                results[place] = stop.value
                del alive[place]
            except Exception as error:
                if not is_harmless(error):
                    raise
                failures.append(error)
                del alive[place]
        if waiting:
            yield AnyOf(waiting) if len(waiting) > 1 else waiting[0]
    if failures:
        raise failures[0]
    return [results[place] for place in range(len(programs))]


class Transport(ABC):
    """What a program needs of the world.

    Args:
        rank, size: who we are, of how many.
        message_bytes: longest message, in bytes; a longer buffer is split.
    """

    def __init__(self, rank: int, size: int, message_bytes: int) -> None:
        self.rank = rank
        self.size = size
        self.message_bytes = message_bytes

    def with_messages_of(self, message_bytes: int) -> Transport:
        """The same transport with another longest message."""
        if message_bytes == self.message_bytes:
            return self
        other = copy(self)
        other.message_bytes = message_bytes
        return other

    def isend(self, buffer: Buffer, dest: int, tag: int) -> Request:
        """Start to send a buffer of bytes."""
        parts = self._parts(buffer)
        if len(parts) == 1:
            return self.post_send(parts[0], dest, tag)
        return _Together(
            "send to", dest, [self.post_send(part, dest, tag) for part in parts]
        )

    def irecv(self, buffer: Buffer, source: int, tag: int) -> Request:
        """Start to receive as many bytes as ``buffer`` has."""
        parts = self._parts(buffer)
        if len(parts) == 1:
            return self.post_receive(parts[0], source, tag)
        return _Together(
            "receive from",
            source,
            [self.post_receive(part, source, tag) for part in parts],
        )

    @abstractmethod
    def post_send(self, buffer: Buffer, dest: int, tag: int) -> Request:
        """Start to send a buffer as one message, whatever its length."""

    @abstractmethod
    def post_receive(self, buffer: Buffer, source: int, tag: int) -> Request:
        """Start to receive one message of at most the buffer's length."""

    def persistent_send(self, buffer: Buffer, dest: int, tag: int) -> Persistent:
        """What :meth:`post_send` does, as often as it is started."""
        return _Again("send to", dest, lambda: self.post_send(buffer, dest, tag))

    def persistent_receive(self, buffer: Buffer, source: int, tag: int) -> Persistent:
        """What :meth:`post_receive` does, as often as it is started."""
        return _Again(
            "receive from", source, lambda: self.post_receive(buffer, source, tag)
        )

    def _parts(self, buffer: Buffer) -> list[Buffer]:
        """The messages that a buffer travels as: none if it is empty."""
        if 0 < len(buffer) <= self.message_bytes:
            return [buffer]
        if isinstance(buffer, (bytes, bytearray)):
            buffer = memoryview(buffer)  # a slice of them would be a copy
        return [
            buffer[piece.slice] for piece in pieces(len(buffer), self.message_bytes)
        ]


class _Again(Persistent):
    """A message that is posted anew each time."""

    def __init__(self, verb: str, peer: int, post: Callable[[], Request]) -> None:
        self.verb = verb
        self.peer = peer
        self._post = post
        self._request: Request | None = None

    def start(self) -> None:
        self._request = self._post()

    def test(self) -> bool:
        return self._request is None or self._request.test()

    @property
    def is_busy(self) -> bool:
        return self._request is not None and self._request.is_busy


class _Together(Request):
    """The parts of one split buffer."""

    def __init__(self, verb: str, peer: int, parts: list[Request]) -> None:
        self.verb = verb
        self.peer = peer
        self._open = parts

    def test(self) -> bool:
        self._open = [part for part in self._open if not part.test()]
        return not self._open
