"""Messages from and to device memory: two transports on top of one that moves host memory.

A device works on its own time (:mod:`mpiring.wire.arrays.cupy`), MPI on the host's.  So a buffer becomes MPI's
only when an event says that the device has done with it, and nobody blocks: like every request, these here go
on when they are tested.

* :class:`Direct` hands device memory to the MPI as it is, once all work queued so far is done: what writes a
  buffer that is sent, and what still reads one that is received into.
* :class:`Staged` moves it through pinned host memory in chunks.  A chunk that is sent: copied from the device,
  event, message.  One that is received: message, copied to the device, and the event after that copy says when
  the chunk may be used again.  :data:`WINDOW` chunks of a buffer are on their way at a time, so that copies and
  messages overlap.

Rules:

* messages of one channel are posted in the order of the calls, whichever buffer is ready first;
* testing one request moves all that its transport has started: no rank waits for a send while its own receive
  waits to be posted;
* what a staged receive has delivered is in device memory for all work that is queued afterwards, not yet for
  the host.

Who decides between the two is :mod:`mpiring.wire.gpu_aware.decision`.
"""

from __future__ import annotations

import warnings
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...plan.segments import pieces
from ..arrays import CupyKind, Kind, kind_named, kinds_here
from ..reduce.arithmetic import Array
from .protocol import Buffer, Program, Request, Transport, wait

# Long enough that a copy over PCI Express takes some 50 microseconds, more than starting it costs.
STAGE_BYTES = 1 << 20
WINDOW = 2

Event = Any  # with ``done``
Chunk = Any  # bytes of pinned host memory


class Chunks:
    """Pinned host memory, kept for the next message: to pin some takes long.

    Args:
        nbytes: of each chunk.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._count = 0
        self._free: list[Chunk] = []
        self._emptied: list[tuple[Event, Chunk]] = []  # free as soon as the event is
        # Pinned memory goes back to its pool at once, whatever copies from it.
        weakref.finalize(self, _orphaned.extend, self._emptied).atexit = False

    def reserve(self, kind: CupyKind, count: int) -> None:
        """Have at least so many in all."""
        if self._count < count:
            _orphaned[:] = [item for item in _orphaned if not item[0].done]
        while self._count < count:
            self._free.append(kind.pinned(self.nbytes))
            self._count += 1

    def take(self) -> Chunk | None:
        """A chunk that nobody uses; None if there is none now."""
        if not self._free:
            still = []
            for event, chunk in self._emptied:
                if event.done:
                    self._free.append(chunk)
                else:
                    still.append((event, chunk))
            self._emptied[:] = still
        return self._free.pop() if self._free else None

    def give(self, chunk: Chunk, event: Event | None = None) -> None:
        """Give one back: free now, or when the copy that reads it is done."""
        if event is None:
            self._free.append(chunk)
        else:
            self._emptied.append((event, chunk))


# Chunks of rings that are gone, until the device has read them.
_orphaned: list[tuple[Event, Chunk]] = []


class DeviceTransport(Transport):
    """What the two have in common: the requests that are under way, and their order.

    Args:
        inner: carries the messages.
        kind: of the buffers, bound to a call.
        message_bytes: longest message: the same on both ends, whatever memory they have.

    Attributes:
        sending, receiving: what makes the request for a buffer.
    """

    sending: Callable[..., _DeviceRequest]
    receiving: Callable[..., _DeviceRequest]

    def __init__(self, inner: Transport, kind: CupyKind, message_bytes: int) -> None:
        super().__init__(inner.rank, inner.size, message_bytes)
        self.inner = inner
        self.kind = kind
        self._open: list[_DeviceRequest] = []
        self._last: dict[tuple[str, int, int], _DeviceRequest] = {}

    def post_send(self, buffer: Buffer, dest: int, tag: int) -> Request:
        return self.inner.post_send(buffer, dest, tag)

    def post_receive(self, buffer: Buffer, source: int, tag: int) -> Request:
        return self.inner.post_receive(buffer, source, tag)

    def isend(self, buffer: Buffer, dest: int, tag: int) -> Request:
        return self._start(self.sending(self, "send to", dest, tag, buffer))

    def irecv(self, buffer: Buffer, source: int, tag: int) -> Request:
        return self._start(self.receiving(self, "receive from", source, tag, buffer))

    def _start(self, request: _DeviceRequest) -> Request:
        """Take note of a request; it posts its messages after those of the one before it in its channel."""
        channel = (request.verb, request.peer, request.tag)
        request.before = self._last.get(channel)
        self._last[channel] = request
        self._open.append(request)
        self.progress()
        return request

    def progress(self) -> None:
        """Move all requests as far as they go now."""
        self._open = [request for request in self._open if not request.advance()]


class _DeviceRequest(Request):
    """A buffer of device memory on its way."""

    def __init__(
        self, transport: DeviceTransport, verb: str, peer: int, tag: int
    ) -> None:
        self.verb = verb
        self.peer = peer
        self.transport = transport
        self.tag = tag
        self.before: _DeviceRequest | None = None
        self.is_posted = False
        self._is_done = False

    def test(self) -> bool:
        if not self._is_done:
            self.transport.progress()
        return self._is_done

    @property
    def is_busy(self) -> bool:
        return not self._is_done

    def advance(self) -> bool:
        """Go on as far as possible now; whether it is complete."""
        if self.before is not None and self.before.is_posted:
            self.before = None
        self._is_done = self._moved(is_my_turn=self.before is None)
        return self._is_done

    @abstractmethod
    def _moved(self, is_my_turn: bool) -> bool:
        """Go on; whether it is complete.  Messages may be posted in its turn only, and it passes the turn on then:
        also one without messages, or those behind it would go before those in front of it.
        """


class _DirectRequest(_DeviceRequest):
    def __init__(
        self,
        transport: DeviceTransport,
        verb: str,
        peer: int,
        tag: int,
        buffer: Buffer,
    ) -> None:
        super().__init__(transport, verb, peer, tag)
        self._buffer = buffer
        self._event = transport.kind.mark()
        self._messages: list[Request] = []

    def _moved(self, is_my_turn: bool) -> bool:
        if not self.is_posted:
            if not (is_my_turn and self._event.done):
                return False
            inner = self.transport.inner
            is_send = self.verb == "send to"
            post = inner.post_send if is_send else inner.post_receive
            parts = pieces(len(self._buffer), self.transport.message_bytes)
            self._messages = [
                post(self._buffer[part.slice], self.peer, self.tag) for part in parts
            ]
            self.is_posted = True
        self._messages = [m for m in self._messages if not m.test()]
        return not self._messages


class Direct(DeviceTransport):
    """Device memory as MPI's buffers."""

    sending = receiving = _DirectRequest


class _StagedRequest(_DeviceRequest):
    def __init__(
        self, transport: Staged, verb: str, peer: int, tag: int, buffer: Buffer
    ) -> None:
        super().__init__(transport, verb, peer, tag)
        self._staging = transport
        self._waiting = deque(
            buffer[part.slice] for part in pieces(len(buffer), transport.message_bytes)
        )
        self._messages: deque[tuple[Request, Chunk, Array]] = deque()

    def _taken(self, in_use: int) -> Chunk | None:
        """A chunk for the next part, if there is one and its window has room."""
        if not self._waiting or in_use >= WINDOW:
            return None
        return self._staging.chunks.take()


class _StagedSend(_StagedRequest):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._copies: deque[tuple[Event, Chunk, Array]] = deque()

    def _moved(self, is_my_turn: bool) -> bool:
        kind, chunks, inner = (
            self._staging.kind,
            self._staging.chunks,
            self._staging.inner,
        )
        while self._messages and self._messages[0][0].test():
            chunks.give(self._messages.popleft()[1])
        while (
            chunk := self._taken(len(self._copies) + len(self._messages))
        ) is not None:
            part = self._waiting.popleft()
            kind.fetch(part, chunk)
            self._copies.append((kind.mark(), chunk, part))
        while is_my_turn and self._copies and self._copies[0][0].done:
            _, chunk, part = self._copies.popleft()
            message = inner.post_send(chunk[: len(part)], self.peer, self.tag)
            self._messages.append((message, chunk, part))
        self.is_posted = is_my_turn and not (self._waiting or self._copies)
        return self.is_posted and not self._messages


class _StagedReceive(_StagedRequest):
    def _moved(self, is_my_turn: bool) -> bool:
        kind, chunks, inner = (
            self._staging.kind,
            self._staging.chunks,
            self._staging.inner,
        )
        while self._messages and self._messages[0][0].test():
            _, chunk, part = self._messages.popleft()
            kind.store(chunk[: len(part)], part)
            chunks.give(chunk, kind.mark())
        while is_my_turn and (chunk := self._taken(len(self._messages))) is not None:
            part = self._waiting.popleft()
            message = inner.post_receive(chunk[: len(part)], self.peer, self.tag)
            self._messages.append((message, chunk, part))
        self.is_posted = is_my_turn and not self._waiting
        return self.is_posted and not self._messages


class Staged(DeviceTransport):
    """Device memory through pinned chunks of host memory.

    Args:
        inner, kind: as for :class:`DeviceTransport`.
        chunks: at least :data:`WINDOW` for each buffer that is on its way at one time; a message is as long.
    """

    sending = _StagedSend
    receiving = _StagedReceive

    def __init__(self, inner: Transport, kind: CupyKind, chunks: Chunks) -> None:
        super().__init__(inner, kind, chunks.nbytes)
        self.chunks = chunks


class _Work(Request):
    """The work that a device has to do so far."""

    verb, peer = "finish the work of", -1

    def __init__(self, kind: CupyKind) -> None:
        self._event = kind.mark()

    def test(self) -> bool:
        return bool(self._event.done)

    @property
    def is_busy(self) -> bool:
        return True

    def __str__(self) -> str:
        return "finish the device's work"


def until_done(kind: Kind) -> Program[None]:
    """Wait until the device has done all work of ours so far; nothing for host memory."""
    if isinstance(kind, CupyKind):
        yield from wait(_Work(kind))


def _goes_direct(kind: CupyKind, arrays: Sequence[Array] = ()) -> bool:
    """Whether an MPI that takes device memory takes these arrays, and new ones: scratch and results are such."""
    return kind.new_goes_direct() and all(map(kind.goes_direct, arrays))


class Carriage:
    """How the buffers of one rank's calls travel.

    Args:
        transport: carries host memory.
        device_transport: ``"direct"`` or ``"staged"``.
    """

    def __init__(self, transport: Transport, device_transport: str) -> None:
        self.inner = transport
        self.device_transport = device_transport
        self._chunks = Chunks(min(STAGE_BYTES, transport.message_bytes))
        self._has_said = False  # that a direct ring stages something

    def stages(self, kind: Kind, *arrays: Array) -> bool:
        """Whether buffers like these are staged on this rank."""
        if not isinstance(kind, CupyKind):
            return False
        if self.device_transport == "staged":
            return True
        if _goes_direct(kind, arrays):
            return False
        if not self._has_said:
            self._has_said = True
            warnings.warn(
                f"rank {self.inner.rank}: this ring hands device memory to the MPI, but this array, or the memory that "
                "CuPy gives out now, is managed or of a stream-ordered pool, which other processes cannot open: it is "
                "staged through the host",
                RuntimeWarning,
                stacklevel=2,
            )
        return True

    def stages_new(self) -> bool:
        """Whether this rank would stage an array that it has yet to make, of a kind that it does not know."""
        if self.device_transport == "staged":
            return False  # who has an array says so
        kinds = map(kind_named, kinds_here())
        return any(isinstance(k, CupyKind) and not _goes_direct(k) for k in kinds)

    def reserve(self, kind: Kind, buffers: int) -> None:
        """Take the memory to stage so many buffers at one time."""
        if isinstance(kind, CupyKind):
            self._chunks.reserve(kind, WINDOW * buffers)

    def transport(self, kind: Kind, is_staged: bool, someone_stages: bool) -> Transport:
        """The transport for buffers of a kind.

        Args:
            kind: bound to the call.
            is_staged: what :meth:`stages` said.
            someone_stages: whether it said so on any rank: messages are as short everywhere then.
        """
        longest = self.inner.message_bytes
        if is_staged or someone_stages:
            longest = self._chunks.nbytes
        if not isinstance(kind, CupyKind):
            return self.inner.with_messages_of(longest)
        if is_staged:
            return Staged(self.inner, kind, self._chunks)
        return Direct(self.inner, kind, longest)
