"""The system calls that reach into another process, and the trial that the ranks make of them.

The other process is a real one: a Python that says where it has which bytes, and tells on request what is there now.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import struct
import subprocess
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiring.errors import RingError
from mpiring.wire.node import cross_memory, peer_memory
from mpiring.wire.node.cross_memory import Reach, try_all
from mpiring.wire.node.peer_memory import PeerMemory

from wire.ranks import Ranks

pytestmark = pytest.mark.untraced

OTHER = """
import ctypes, json, os, sys
box = ctypes.create_string_buffer(bytes(range(256)) * 16, 4096)
place = [os.getpid(), ctypes.addressof(box)]
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
print(json.dumps(place), flush=True)
for _ in sys.stdin:
    print(box.raw.hex(), flush=True)
"""


class Box:
    """What a rank offers: a token, and room behind it."""

    def __init__(self, size, token=b"t" * 16):
        self.memory = ctypes.create_string_buffer(token, 16 * (1 + size))
        self.peer = (os.getpid(), ctypes.addressof(self.memory), token)


def why_not_here():
    """Why a process here may not even reach its own memory that way; "" if it may."""
    mine = Box(1)
    return (
        try_all(Reach(), 0, [mine.peer])
        if cross_memory.is_known()
        else "no system call for it"
    )


class Other:
    """Another process with 4096 bytes: 0 to 255 again and again."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", OTHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.pid, self.address = json.loads(self.process.stdout.readline())

    def bytes(self):
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return bytes.fromhex(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.communicate(timeout=30)


@pytest.fixture(scope="module")
def other():
    process = Other()
    try:
        Reach().read(process.pid, process.address, *room(bytes(1)))
    except OSError as error:
        process.end()
        pytest.skip(f"this kernel forbids it: {error}")
    yield process
    process.end()


needs_reach = pytest.mark.skipif(bool(why_not_here()), reason=why_not_here())

_held: list[object] = []


def room(data):
    """The address and length of these bytes in this process."""
    box = ctypes.create_string_buffer(data, len(data))
    _held[:] = [*_held[-3:], box]
    return ctypes.addressof(box), len(data)


CONTENT = bytes(range(256)) * 16

# ---- the system calls -----------------------------------------------------------------------------


@needs_reach
@given(st.integers(0, 4096), st.integers(0, 4096))
def test_reading(other, start, stop):
    wanted = CONTENT[start:stop]
    address, nbytes = room(b"\xff" * len(wanted))
    Reach().read(other.pid, other.address + start, address, nbytes)
    assert ctypes.string_at(address, nbytes) == wanted


@needs_reach
def test_writing(other):
    address, nbytes = room(b"written")
    Reach().write(other.pid, other.address + 5, address, nbytes)
    assert other.bytes() == CONTENT[:5] + b"written" + CONTENT[12:]
    address, nbytes = room(CONTENT[5:12])
    Reach().write(other.pid, other.address + 5, address, nbytes)
    assert other.bytes() == CONTENT


@needs_reach
@pytest.mark.parametrize("most", [1, 7, 100, 1 << 20])
def test_what_the_kernel_moves_in_parts(other, monkeypatch, most):
    """The kernel may move less than it is asked for, and is asked for no more than so much."""
    asked = []

    def stingy(system_call):
        def moves(pid, here, n, there, m, flags):
            for piece in (here, there):
                nbytes = ctypes.c_size_t.from_address(piece + 8)
                nbytes.value = nbytes.value // 2 or 1
            asked.append(ctypes.c_size_t.from_address(here + 8).value)
            return system_call(pid, here, n, there, m, flags)

        return moves

    monkeypatch.setattr(cross_memory, "_MOST_BYTES", most)
    monkeypatch.setattr(cross_memory, "_readv", stingy(cross_memory._readv))
    address, nbytes = room(bytes(1000))
    Reach().read(other.pid, other.address, address, nbytes)
    assert ctypes.string_at(address, nbytes) == CONTENT[:1000]
    assert max(asked) <= most and sum(asked) == 1000 and len(asked) > 5


@needs_reach
def test_where_no_memory_is(other):
    """Up to the last page that is there bytes come, then an error."""
    address, nbytes = room(bytes(16))
    for call in (Reach().read, Reach().write):
        with pytest.raises(OSError) as caught:
            call(other.pid, 8, address, nbytes)
        assert caught.value.errno == errno.EFAULT
    pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    ctypes.CDLL(None).mprotect(
        ctypes.c_void_p(start + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0
    )
    address, nbytes = room(b"\xff" * 3 * mmap.PAGESIZE)
    with pytest.raises(OSError) as caught:
        Reach().read(os.getpid(), start, address, nbytes)
    assert caught.value.errno == errno.EFAULT
    assert ctypes.string_at(address, mmap.PAGESIZE) == bytes(mmap.PAGESIZE)


@needs_reach
def test_where_no_process_is():
    ended = Other()
    ended.end()
    address, nbytes = room(bytes(16))
    for call in (Reach().read, Reach().write):
        with pytest.raises(OSError) as caught:
            call(ended.pid, ended.address, address, nbytes)
        assert caught.value.errno == errno.ESRCH


def test_nothing_is_asked_of_the_kernel_for_no_bytes(monkeypatch):
    monkeypatch.setattr(cross_memory, "_readv", None)
    Reach().read(-1, 0, 0, 0)


# ---- the trial of one rank ------------------------------------------------------------------------


@needs_reach
def test_a_trial_that_passes(other):
    boxes = [Box(2, b"a" * 16), Box(2, b"b" * 16)]
    peers = [box.peer for box in boxes]
    assert try_all(Reach(), 0, peers) == "" == try_all(Reach(), 1, peers)
    for box, (_, _, token) in zip(boxes, peers):
        assert box.memory.raw == 3 * token


@needs_reach
def test_another_process_in_its_place(other):
    """A pid of another namespace: there may be a process, and memory at that address."""
    mine, stranger = Box(2), (other.pid, other.address, b"t" * 16)
    fault = try_all(Reach(), 0, [mine.peer, stranger])
    assert fault == "rank 0 finds another process in place of rank 1"
    assert other.bytes() == CONTENT  # nothing is written to a stranger


@needs_reach
def test_a_process_that_is_not_there():
    ended = Other()
    ended.end()
    mine, gone = Box(2), (ended.pid, ended.address, b"t" * 16)
    fault = try_all(Reach(), 0, [mine.peer, gone])
    assert fault == "rank 0 may not reach rank 1: No such process"


@needs_reach
def test_writes_that_are_lost():
    class ReadsOnly(Reach):
        def write(self, *_):
            pass

    mine = Box(1)
    fault = try_all(ReadsOnly(), 0, [mine.peer])
    assert fault == "what rank 0 writes does not come to rank 0"


# ---- the trial of all ranks -----------------------------------------------------------------------


def agreed(size, seed=None, refuse=lambda rank, turn: ""):
    """What each rank of one process takes for true after the trial; ``refuse`` says who finds what."""
    ranks = Ranks(size, seed, None)
    turns = [0] * size
    honest = cross_memory.try_all

    def tries(reach, rank, peers):
        turns[rank] += 1
        return refuse(rank, turns[rank]) or honest(reach, rank, peers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_memory, "try_all", tries)
        memories = [PeerMemory() for _ in range(size)]
        first = ranks.run(lambda rank, c: memories[rank].is_there(c))
        tried = list(turns)
        again = ranks.run(lambda rank, c: memories[rank].is_there(c))
    assert first == again and turns == tried  # nobody tries twice
    return memories, first, turns


@needs_reach
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_all_ranks_can(size):
    memories, found, turns = agreed(size, seed=size)
    assert found == [True] * size and turns == [1] * size
    assert [memory.why_not for memory in memories] == [""] * size


@needs_reach
@given(st.integers(2, 5), st.data())
def test_one_that_is_refused_is_enough(size, data):
    victim = data.draw(st.integers(0, size - 1))
    seed = data.draw(st.integers(0, 100))
    memories, found, turns = agreed(
        size, seed, lambda rank, turn: "not me" if rank == victim else ""
    )
    assert found == [False] * size and turns == [2] * size
    assert [memory.why_not for memory in memories] == ["not me"] * size


@needs_reach
def test_b54_a_reason_in_a_language_of_many_bytes_has_room():
    """``strerror`` speaks the language that a program has chosen; what is cut is the same on every rank."""
    reason = "\u041e\u0442\u043a\u0430\u0437 " * 16
    memories, found, _ = agreed(3, 1, lambda rank, turn: reason if rank == 1 else "")
    assert found == [False] * 3
    (told,) = {memory.why_not for memory in memories}
    assert reason.startswith(told.rstrip("\ufffd")) and len(told.encode()) > 80


@needs_reach
def test_who_may_be_traced_after_all_is_tried_again(monkeypatch):
    allowed = []
    monkeypatch.setattr(cross_memory, "let_peers_reach", lambda: allowed.append(1))
    _, found, turns = agreed(3, 1, lambda rank, turn: "Yama" if turn == 1 else "")
    assert found == [True] * 3 and turns == [2] * 3 and len(allowed) == 3


@needs_reach
def test_nobody_asks_to_be_traced_without_need(monkeypatch):
    monkeypatch.setattr(cross_memory, "let_peers_reach", lambda: pytest.fail("asked"))
    assert agreed(2)[1] == [True, True]


@needs_reach
def test_a_peer_that_is_lost_later():
    memory = PeerMemory()
    memory._pids = [os.getpid(), os.getpid()]
    address, nbytes = room(bytes(8))
    for call, verb in ((memory.read, "read"), (memory.write, "write")):
        with pytest.raises(RingError) as caught:
            call(1, 8, address, nbytes)
        words = f"rank 0 cannot {verb} the memory of rank 1 (process {os.getpid()}): Bad address"
        assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    "number, words, others",
    [
        (errno.ESRCH, "has ended", ("given back", "user")),
        (errno.EFAULT, "given back", ("ended", "user")),
        (errno.EPERM, "changed its user", ("ended", "given back")),
        (errno.ENOMEM, "it could when the ring tried", ("ended", "given back")),
    ],
)
def test_b54_it_says_why_a_peer_is_out_of_reach(monkeypatch, number, words, others):
    def refused(*_):
        raise OSError(number, os.strerror(number))

    memory = PeerMemory()
    memory._pids = [os.getpid(), 4711]
    monkeypatch.setattr(memory, "_reach", types.SimpleNamespace(read=refused))
    with pytest.raises(RingError) as caught:
        memory.read(1, 8, 8, 8)
    text = str(caught.value)
    assert f"rank 1 (process 4711): {os.strerror(number)}; " in text and words in text
    assert not any(other in text for other in others)


# ---- where it is not wanted, or not there ---------------------------------------------------------


@pytest.mark.parametrize("text", ["", "1", "yes", "On", "TRUE"])
def test_b54_the_environment_says_yes(text):
    assert cross_memory.is_wanted({"MPIRING_PEER_MEMORY": text})
    assert cross_memory.is_wanted({})


@pytest.mark.parametrize("text", ["0", "no", "Off", "FALSE"])
def test_b54_the_environment_says_no(text):
    assert not cross_memory.is_wanted({"MPIRING_PEER_MEMORY": text})


@pytest.mark.parametrize("text", ["2", "junk", " ", "0 ", "\udcff", "x" * 500])
def test_b54_the_environment_says_neither(text):
    with pytest.raises(ValueError) as caught:
        cross_memory.is_wanted({"MPIRING_PEER_MEMORY": text})
    told = f"MPIRING_PEER_MEMORY={text[:40]!r} says neither yes nor no; known: 0, no, off, false, 1, yes, on, true"
    assert str(caught.value) == told


def test_systems_without_the_calls(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cross_memory._system_call("process_vm_readv") is None
    cross_memory.let_peers_reach()
    monkeypatch.undo()
    assert cross_memory._system_call("process_vm_nothing") is None
    monkeypatch.setattr(cross_memory, "_readv", None)
    assert PeerMemory().why_not and not cross_memory.is_known()


def test_a_meeting_has_room_in_the_opening_exchange():
    assert struct.calcsize("<iQ16s") == peer_memory._MEETING.size < 100
