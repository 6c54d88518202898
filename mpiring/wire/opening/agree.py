"""Do all ranks mean the same call?  The opening exchange that every collective starts with (promise 5).

Each rank brings a *text* that says what it was asked to do, perhaps a *failure* of its own, and a small
*payload*.  Afterwards every rank knows the same: whether all texts are equal, else the lowest rank and the
lowest rank that differs from it, with both texts; the failure of the lowest rank that has one; and the
payloads of all.

Theory
    The exchange is a dissemination: in round ``k`` rank ``r`` sends to ``r + 2^k`` all it knows and hears
    from ``r - 2^k``, so after ``ceil(log2 size)`` rounds it has heard of everyone.  What is known of a set
    of ranks is a *summary*: (lowest rank, its text), (lowest rank whose text differs, its text), (lowest
    rank that failed, its failure).  Joining two summaries is associative, commutative and idempotent, so
    overlapping sets do no harm, and all ranks end with the same one.  Payloads ride along as Bruck's
    all-gather does it: ``2^k`` of them in round ``k``.

    When all texts agree the messages of a round are equal byte for byte, and comparing them is all the work.

Rules: nothing here is an MPI collective, and every receive has room for the longest message, so ranks that
disagree about everything, sizes included, still understand each other.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ...plan.schedules import Turn, dissemination
from ..transport.protocol import Persistent, Program, Transport

TEXT_BYTES = 400  # longest text; a longer one ends in its digest
FAILURE_BYTES = 600
PAYLOAD_BYTES = 128
_HEADER_BYTES = 64 + 2 * TEXT_BYTES + FAILURE_BYTES

Said = tuple[int, bytes]  # (rank, what it said)


class Summary(NamedTuple):
    """What is known of a set of ranks."""

    first: Said
    other: Said | None = None
    failure: Said | None = None


Heard = tuple[Summary, list[bytes]]  # what the exchange gives


class Begun(NamedTuple):
    """An exchange that has come to the middle of a round, where a message has arrived that is not like ours.

    Attributes:
        rounds: how many are over; in them all agreed.
        slots: the payloads so far, of this rank and those before it.
        send: this round's message, which is on its way.
    """

    rounds: int
    slots: list[bytes]
    send: Persistent


class Opening:
    """The opening exchange of one ring: its rounds and their buffers, which are used again and again.

    Args:
        transport: carries it.
        tag: of its messages.
        payload_bytes: longest payload, the same on every rank.

    Attributes:
        rounds: of the exchange.
        count: exchanges that are over; all ranks have had as many when they begin one.
    """

    def __init__(
        self, transport: Transport, tag: int, payload_bytes: int = PAYLOAD_BYTES
    ) -> None:
        self._transport = transport
        self._tag = tag
        self._payload_bytes = payload_bytes
        self.count = 0
        self.rounds = [
            Round(transport, tag, turn, payload_bytes)
            for turn in dissemination(transport.rank, transport.size)
        ]

    def exchange(
        self,
        text: bytes,
        failure: bytes | None = None,
        payload: bytes = b"",
        begun: Begun | None = None,
    ) -> Program[Heard]:
        """Tell and hear; returns the summary of all ranks and the payloads in rank order.

        A rank that brings no payload counts as having brought ``b""``.

        Args:
            text, failure, payload: what this rank brings.
            begun: how far it is, if another has begun it.

        Raises:
            ValueError: at once, if something is longer than the messages have room for.
        """
        if (
            len(text) > TEXT_BYTES
            or len(payload) > self._payload_bytes
            or len(failure or b"") > FAILURE_BYTES
        ):
            raise ValueError(
                f"opening exchange: text, failure and payload of {len(text)}, {len(failure or b'')} and "
                f"{len(payload)} bytes, at most {TEXT_BYTES}, {FAILURE_BYTES} and {self._payload_bytes} travel"
            )
        rank, size = self._transport.rank, self._transport.size
        # While all agree, their heads are equal: the lowest rank that was heard of is all there is to know.
        agreed, lowest = failure is None, rank
        if failure is None:
            head = _head(text)
        else:
            summary = Summary((rank, text), None, (rank, failure))
            head = encode(summary)
        slots = [payload]  # of rank, rank - 1, rank - 2, ...
        over, send = 0, None
        if begun is not None:
            over, slots, send = begun
            lowest = min([rank, *(round.lowest for round in self.rounds[:over])])
        for round in self.rounds[over:]:
            receive, room = round.receive, round.room
            if send is None:
                receive.start()
                send = round.send(head + pack(slots[: round.new], len(head)))
            while not receive.test():
                yield receive
            if agreed and room.startswith(head):
                lowest = min(lowest, round.lowest)
            else:
                if agreed:
                    summary, agreed = Summary((lowest, text)), False
                summary = join(summary, decode(room, round.lowest))
                head = encode(summary)
            slots += unpack(room, round.new)
            while not send.test():
                yield send
            send = None
        if agreed:
            summary = Summary((lowest, text))
        self.count += 1
        return summary, [slots[(rank - r) % size] for r in range(size)]


class Round:
    """One round of the exchange: a rank to tell and one to hear, with buffers that stay.

    Persistent messages have fixed lengths, so a send goes as the next longer one of a few; what is behind its end
    says nothing, as what is sent says itself how long it is.

    Attributes:
        lowest: the lowest rank of those that the other one speaks for.
        new: how many payloads travel.
        room: where the message arrives.
        receive: the message.
        out: where the message to send is written.
    """

    def __init__(
        self, transport: Transport, tag: int, turn: Turn, payload_bytes: int
    ) -> None:
        self.lowest = max(0, turn.source - turn.known + 1)
        self.new = min(turn.known, transport.size - turn.known)
        longest = 2 + _HEADER_BYTES + _GRAIN + self.new * _stride(payload_bytes)
        self.room = bytearray(longest)
        self.receive = transport.persistent_receive(self.room, turn.source, tag)
        self.out = memoryview(bytearray(longest))
        self._dest, self._transport, self._tag = turn.dest, transport, tag
        self._sends: dict[int, Persistent] = {}

    def send(self, message: bytes) -> Persistent:
        """Start to send it."""
        self.out[: len(message)] = message
        send = self.send_of(len(message))
        send.start()
        return send

    def send_of(self, length: int) -> Persistent:
        """What sends the first ``length`` bytes of ``out``, and perhaps some more."""
        grain = _SHORT if length <= _FEW * _SHORT else _LONG
        longer = -(-length // grain) * grain
        send = self._sends.get(longer)
        if send is None:
            buffer = self.out[:longer]
            send = self._transport.persistent_send(buffer, self._dest, self._tag)
            self._sends[longer] = send
        return send


_SHORT, _FEW, _LONG = 64, 16, 512  # bytes


def shortened(text: str, limit: int = TEXT_BYTES) -> bytes:
    """``text`` as at most ``limit`` bytes; a longer one keeps its beginning and ends in its digest.

    >>> shortened("a" * 100, 40)
    b'aaaaaaaaaaaaaaaaaaa... #cdd655dc3d3e202f'
    """
    data = text.encode(errors="backslashreplace")  # a lone surrogate has no bytes
    if len(data) <= limit:
        return data
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    kept = data[: limit - 21].decode(errors="ignore").encode()
    return kept + f"... #{digest}".encode()


def join(a: Summary, b: Summary) -> Summary:
    """What is known of both sets of ranks."""
    said = [item for item in (a.first, a.other, b.first, b.other) if item is not None]
    first = min(said)
    other = min((item for item in said if item[1] != first[1]), default=None)
    failures = [item for item in (a.failure, b.failure) if item is not None]
    return Summary(first, other, min(failures, default=None))


def encode(summary: Summary) -> bytes:
    """A summary as a message head: its length, a flag, and the texts.

    If all agree, the head does not say who they are: it is the same on every rank.
    """
    first, other, failure = summary
    if other is None and failure is None:
        body = b"\0" + first[1]
    else:
        body = b"\1" + b"".join(
            _ITEM.pack(*(_NOBODY if item is None else (item[0], len(item[1]))))
            + (b"" if item is None else item[1])
            for item in (first, other, failure)
        )
    return _LENGTH.pack(len(body)) + body


@lru_cache(maxsize=256)
def _head(text: bytes) -> bytes:
    """The head of those who agree."""
    return encode(Summary((0, text)))


_LENGTH = struct.Struct("<H")
_ITEM = struct.Struct("<iH")
_NOBODY = (-1, 0)


def decode(message: Sequence[int], lowest: int) -> Summary:
    """The summary at the head of a message from a rank that speaks for ``lowest`` and others."""
    data = bytes(message)
    (length,) = _LENGTH.unpack_from(data)
    body = data[2 : 2 + length]
    if body[0] == 0:
        return Summary((lowest, body[1:]))
    items: list[Said | None] = []
    at = 1
    for _ in range(3):
        rank, size = _ITEM.unpack_from(body, at)
        at += _ITEM.size
        items.append(None if rank < 0 else (rank, body[at : at + size]))
        at += size
    first, other, failure = items
    assert first is not None
    return Summary(first, other, failure)


def pack(slots: list[bytes], at: int) -> bytes:
    """Payloads behind each other, for a message of which there are ``at`` bytes already.

    Nothing at all if none has a byte, the usual case.
    """
    if not any(slots):
        return b"\0"
    parts = [lead(at)]
    for slot in slots:
        size = len(slot)
        parts += length_of(slot), slot, _PADDING[: _stride(size) - 2 - size]
    return b"".join(parts)


def length_of(slot: bytes) -> bytes:
    """What stands right before a payload."""
    return _LENGTH.pack(len(slot))


def unpack(message: bytearray, count: int) -> list[bytes]:
    """The payloads behind the head of a message."""
    (length,) = _LENGTH.unpack_from(message)
    at = 2 + length
    if not message[at]:
        return [b""] * count
    at += len(lead(at))
    slots = []
    for _ in range(count):
        (size,) = _LENGTH.unpack_from(message, at)
        slots.append(bytes(message[at + 2 : at + 2 + size]))
        at += _stride(size)
    return slots


# A payload is a byte of flags and what follows, which is aligned in the message: numbers are read where they are.
_GRAIN = 16
_PADDING = bytes(_GRAIN)


def lead(at: int) -> bytes:
    """What stands before the first payload that is there, in a message of which there are ``at`` bytes."""
    return b"\1" + _PADDING[: -(at + 1 + 3) % _GRAIN]


def places(at: int, count: int, size: int) -> list[int]:
    """Where payloads of ``size`` bytes are, in a message of which there are ``at`` bytes before."""
    first = at + len(lead(at)) + 2
    return [first + number * _stride(size) for number in range(count)]


def _stride(size: int) -> int:
    """Bytes from one payload to the next."""
    return -(-(2 + size) // _GRAIN) * _GRAIN
