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
from typing import NamedTuple

from ..plan.schedules import dissemination
from .transport import Program, Transport, wait

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


class Opening:
    """The opening exchange of one ring: its rounds and their buffers, which are used again and again.

    Args:
        transport: carries it.
        tag: of its messages.
        payload_bytes: longest payload, the same on every rank.
    """

    def __init__(
        self, transport: Transport, tag: int, payload_bytes: int = PAYLOAD_BYTES
    ) -> None:
        self._transport = transport
        self._tag = tag
        self._payload_bytes = payload_bytes
        self._rounds: list[_Round] = []
        rank, size = transport.rank, transport.size
        for dest, source, known in dissemination(rank, size):
            new = min(known, size - known)
            lowest = max(0, source - known + 1)
            room = bytearray(2 + _HEADER_BYTES + new * (2 + payload_bytes))
            self._rounds.append(_Round(dest, source, lowest, new, room))

    def exchange(
        self, text: bytes, failure: bytes | None = None, payload: bytes = b""
    ) -> Program[tuple[Summary, list[bytes]]]:
        """Tell and hear; returns the summary of all ranks and the payloads in rank order.

        A rank that brings no payload counts as having brought ``b""``.

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
        transport, tag = self._transport, self._tag
        rank, size = transport.rank, transport.size
        summary = Summary(
            (rank, text), None, None if failure is None else (rank, failure)
        )
        head = encode(summary)
        agreed = failure is None
        slots = [payload]  # of rank, rank - 1, rank - 2, ...
        for peer_to, peer_from, lowest, new, room in self._rounds:
            receive = transport.post_receive(room, peer_from, tag)
            send = transport.post_send(head + pack(slots[:new]), peer_to, tag)
            yield from wait(receive)
            if agreed and room.startswith(head):
                summary = Summary((min(summary.first[0], lowest), text))
            else:
                summary = join(summary, decode(room, lowest))
                head = encode(summary)
                agreed = False
            slots += unpack(room, new)
            yield from wait(send)
        return summary, [slots[(rank - r) % size] for r in range(size)]


class _Round(NamedTuple):
    to: int
    source: int
    lowest: int  # lowest rank of those the source speaks for
    new: int  # payloads that travel
    room: bytearray


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
    return struct.pack("<H", len(body)) + body


_ITEM = struct.Struct("<iH")
_NOBODY = (-1, 0)


def decode(message: Sequence[int], lowest: int) -> Summary:
    """The summary at the head of a message from a rank that speaks for ``lowest`` and others."""
    data = bytes(message)
    (length,) = struct.unpack_from("<H", data)
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


def pack(slots: list[bytes]) -> bytes:
    """Payloads behind each other; nothing at all if none has a byte, the usual case."""
    if not any(slots):
        return b"\0"
    return b"\1" + b"".join(struct.pack("<H", len(slot)) + slot for slot in slots)


def unpack(message: bytearray, count: int) -> list[bytes]:
    """The payloads behind the head of a message."""
    (length,) = struct.unpack_from("<H", message)
    at = 2 + length
    if not message[at]:
        return [b""] * count
    slots = []
    at += 1
    for _ in range(count):
        (size,) = struct.unpack_from("<H", message, at)
        slots.append(bytes(message[at + 2 : at + 2 + size]))
        at += 2 + size
    return slots
