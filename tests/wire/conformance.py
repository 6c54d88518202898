"""What every transport must do: programs, and what each of their ranks has to find.

A case is a program for every rank, written against :class:`mpiring.wire.transport.protocol.Transport` alone.  It
returns what the rank saw; ``expected(rank, size)`` says what that must be.  ``tests/wire/test_local.py`` runs the
cases in one process under many interleavings, ``tests/ranks/test_transport.py`` runs the same ones over MPI.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpiring.wire.transport.protocol import Program, Transport, wait


@dataclass(frozen=True)
class Case:
    """One program, run with the numbers of ranks and the longest message it is for."""

    program: Callable[[Transport], Program[Any]]
    expected: Callable[[int, int], Any]
    sizes: tuple[int, ...]
    message_bytes: int

    @property
    def name(self) -> str:
        return self.program.__name__


CASES: list[Case] = []


def case(expected, sizes=(2, 3, 4), message_bytes=1 << 30):
    """Make a program a case."""

    def keep(program):
        CASES.append(Case(program, expected, sizes, message_bytes))
        return program

    return keep


def text(source: int, number: int, length: int = 5) -> bytes:
    """Bytes that no other message has."""
    return bytes((17 * source + 3 * number + i) % 251 for i in range(length))


def left(rank: int, size: int) -> int:
    return (rank - 1) % size


def right(rank: int, size: int) -> int:
    return (rank + 1) % size


def wait_all(requests) -> Program[None]:
    for request in requests:
        yield from wait(request)


@case(lambda rank, size: [text(left(rank, size), i, i % 4) for i in range(20)])
def messages_of_a_channel_come_in_order(transport):
    rank, size = transport.rank, transport.size
    seen = []
    for i in range(20):
        room = bytearray(i % 4)
        receive = transport.post_receive(room, left(rank, size), 3)
        send = transport.post_send(text(rank, i, i % 4), right(rank, size), 3)
        yield from wait_all([send, receive])
        seen.append(bytes(room))
    return seen


@case(lambda rank, size: [text(left(rank, size), i) for i in range(40)])
def many_are_in_flight_and_waited_for_in_any_order(transport):
    rank, size = transport.rank, transport.size
    rooms = [bytearray(5) for _ in range(40)]
    receives = [transport.irecv(room, left(rank, size), 3) for room in rooms]
    sends = [transport.isend(text(rank, i), right(rank, size), 3) for i in range(40)]
    yield from wait_all([*receives[::2], *sends[::-1], *receives[1::2][::-1]])
    return [bytes(room) for room in rooms]


@case(lambda rank, size: [text(left(rank, size), tag) for tag in (9, 8, 7)])
def tags_are_independent(transport):
    rank, size = transport.rank, transport.size
    sends = [
        transport.isend(text(rank, tag), right(rank, size), tag) for tag in (7, 8, 9)
    ]
    seen = []
    for tag in (9, 8, 7):
        room = bytearray(5)
        yield from wait(transport.irecv(room, left(rank, size), tag))
        seen.append(bytes(room))
    yield from wait_all(sends)
    return seen


@case(
    lambda rank, size: [text(source, 0) for source in range(size) if source != rank],
    sizes=(2, 3, 4, 5),
)
def sources_are_independent(transport):
    rank, size = transport.rank, transport.size
    others = [peer for peer in range(size) if peer != rank]
    sends = [transport.isend(text(rank, 0), peer, 3) for peer in others]
    seen = {}
    for source in reversed(others):
        seen[source] = bytearray(5)
        yield from wait(transport.irecv(seen[source], source, 3))
    yield from wait_all(sends)
    return [bytes(seen[source]) for source in others]


@case(lambda rank, size: [text(left(rank, size), i) for i in range(30)])
def persistent_messages_go_again_and_again(transport):
    rank, size = transport.rank, transport.size
    room, out = bytearray(9), bytearray(9)
    receive = transport.persistent_receive(room, left(rank, size), 3)
    send = transport.persistent_send(memoryview(out)[:5], right(rank, size), 3)
    assert receive.test() and send.test()  # not started yet
    seen = []
    for i in range(30):
        out[:5] = text(rank, i)
        receive.start()
        send.start()
        yield from wait_all([receive, send])
        seen.append(bytes(room[:5]))
    return seen


@case(lambda rank, size: b"after")
def empty_buffers_travel_as_no_message(transport):
    rank, size = transport.rank, transport.size
    nothing = [
        transport.irecv(bytearray(), left(rank, size), 3),
        transport.isend(b"", right(rank, size), 3),
        transport.irecv(np.empty(0, np.uint8), rank, 3),
    ]
    assert all(request.test() for request in nothing)
    room = bytearray(5)
    receive = transport.irecv(room, left(rank, size), 3)
    yield from wait_all([transport.isend(b"after", right(rank, size), 3), receive])
    return bytes(room)


@case(lambda rank, size: (b"", b"after"))
def an_empty_message_is_a_message(transport):
    rank, size = transport.rank, transport.size
    rooms = bytearray(), bytearray(5)
    receives = [transport.post_receive(room, left(rank, size), 3) for room in rooms]
    sends = [
        transport.post_send(data, right(rank, size), 3) for data in (b"", b"after")
    ]
    yield from wait_all([*receives, *sends])
    return tuple(map(bytes, rooms))


@case(lambda rank, size: [text(left(rank, size), n, n) for n in (0, 1, 99, 100)])
def a_receive_may_have_more_room(transport):
    rank, size = transport.rank, transport.size
    seen = []
    for n in (0, 1, 99, 100):
        room = bytearray(100)
        receive = transport.post_receive(room, left(rank, size), 3)
        send = transport.post_send(text(rank, n, n), right(rank, size), 3)
        yield from wait_all([receive, send])
        seen.append(bytes(room[:n]))
    return seen


LENGTHS = (0, 1, 6, 7, 8, 13, 14, 15, 100)


@case(
    lambda rank, size: [text(left(rank, size), n, n) for n in LENGTHS], message_bytes=7
)
def long_buffers_are_split(transport):
    rank, size = transport.rank, transport.size
    rooms = [bytearray(n) for n in LENGTHS]
    receives = [transport.irecv(room, left(rank, size), 3) for room in rooms]
    sends = [transport.isend(text(rank, n, n), right(rank, size), 3) for n in LENGTHS]
    yield from wait_all([*sends, *receives])
    return [bytes(room) for room in rooms]


@case(lambda rank, size: (True, text(left(rank, size), 0, 20)), message_bytes=6)
def complete_stays_complete(transport):
    rank, size = transport.rank, transport.size
    room = bytearray(20)
    receive = transport.irecv(room, left(rank, size), 3)
    send = transport.isend(text(rank, 0, 20), right(rank, size), 3)
    yield from wait_all([receive, send])
    still = all(request.test() for request in (receive, send) for _ in range(3))
    return still, bytes(room)


@case(lambda rank, size: sum(range(size)), sizes=(2, 3, 4, 5))
def everybody_sends_first_around_the_ring(transport):
    rank, size = transport.rank, transport.size
    total = value = rank
    for _ in range(size - 1):
        send = transport.isend(bytes([value]), right(rank, size), 3)
        room = bytearray(1)
        receive = transport.irecv(room, left(rank, size), 3)
        yield from wait(send)
        yield from wait(receive)
        value = room[0]
        total += value
    return total


MIB = 1 << 20


@case(
    lambda rank, size: [(MIB, peer + 1) for peer in (left(rank, size),)], sizes=(2, 3)
)
def large_messages_around_the_ring(transport):
    rank, size = transport.rank, transport.size
    mine = np.full(MIB, rank + 1, np.uint8)
    room = np.zeros(MIB, np.uint8)
    send = transport.isend(mine, right(rank, size), 3)
    receive = transport.irecv(room, left(rank, size), 3)
    yield from wait_all([send, receive])
    return [(int((room == value).sum()), int(value)) for value in np.unique(room)]


@case(lambda rank, size: (text(rank, 0), text(rank, 1)), sizes=(1, 2, 3))
def a_rank_may_send_to_itself(transport):
    rank = transport.rank
    rooms = bytearray(5), bytearray(5)
    first = transport.irecv(rooms[0], rank, 3)
    sends = [transport.isend(text(rank, i), rank, 3) for i in range(2)]
    second = transport.irecv(rooms[1], rank, 3)
    yield from wait_all([*sends, first, second])
    return tuple(map(bytes, rooms))


@case(lambda rank, size: (b"\7" * 4 + text(left(rank, size), 0, 9) + b"\7" * 4, True))
def nothing_but_the_buffer_is_written(transport):
    rank, size = transport.rank, transport.size
    around = bytearray(b"\7" * 17)
    mine = bytearray(text(rank, 0, 9))
    receive = transport.irecv(memoryview(around)[4:13], left(rank, size), 3)
    send = transport.isend(memoryview(mine), right(rank, size), 3)
    yield from wait_all([receive, send])
    return bytes(around), mine == text(rank, 0, 9)


@case(lambda rank, size: [False, b"go", b"data"] if rank else b"asked", sizes=(2, 3))
def a_test_does_not_wait(transport):
    """Rank 0 sends only when asked, and is asked only after the others have tested."""
    rank, size = transport.rank, transport.size
    if rank == 0:
        for peer in range(1, size):
            yield from wait(transport.irecv(bytearray(3), peer, 4))
            for data in (b"go", b"data"):
                yield from wait(transport.isend(data, peer, 5))
        return b"asked"
    rooms = bytearray(2), bytearray(4)
    receives = [transport.irecv(room, 0, 5) for room in rooms]
    early = any(receive.test() for receive in receives)
    yield from wait(transport.isend(b"ask", 0, 4))
    yield from wait_all(receives)
    return [early, *map(bytes, rooms)]


@case(lambda rank, size: [np.arange(24.0).tolist()] * 2, sizes=(2, 3), message_bytes=5)
def arrays_of_bytes_are_buffers(transport):
    """What kinds of array hand to a transport; one that is sent may be read-only."""
    rank, size = transport.rank, transport.size
    mine = np.arange(24.0)
    mine.flags.writeable = False
    room = np.empty(24)
    receive = transport.irecv(room.view(np.uint8), left(rank, size), 3)
    send = transport.isend(mine.view(np.uint8), right(rank, size), 3)
    yield from wait_all([receive, send])
    return [room.tolist(), mine.tolist()]
