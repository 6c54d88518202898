"""Promise 10: what a stream has still to do with an array counts, and its next work finds the result, unasked."""

from __future__ import annotations

import numpy as np
import pytest

from devices.slow import slow_copy

pytestmark = pytest.mark.ranks(2, 3)

STREAMS = {
    "the null stream": lambda cupy: cupy.cuda.Stream.null,
    "a blocking stream": lambda cupy: cupy.cuda.Stream(),
    "a non-blocking stream": lambda cupy: cupy.cuda.Stream(non_blocking=True),
}


@pytest.fixture(params=STREAMS)
def stream(request, cupy):
    return STREAMS[request.param](cupy)


class Late:
    """Arrays that a stream fills late, and looks at them that it takes itself.

    ``late(value)`` is an array that the current stream fills with -1, and much later with the value.
    """

    def __init__(self, cupy, scale):
        self._cupy = cupy
        self._copy = slow_copy(cupy, scale.turns)
        self.count = scale.many // 8
        self.seen = []

    def __call__(self, value):
        source, filled = (self._cupy.empty(self.count, "f4") for _ in range(2))
        source.fill(value)
        filled.fill(-1)
        self._copy(source, filled)
        return filled

    def look(self, result, value):
        """Count, on the current stream, the elements that differ; the host reads it when all calls are made."""
        stream = self._cupy.cuda.get_current_stream()
        self.seen.append((stream, (result != value).sum()))

    def wrong(self):
        counts = []
        for stream, different in self.seen:
            with stream:
                counts.append(int(different))
        return counts


@pytest.fixture
def late(cupy, scale):
    return Late(cupy, scale)


def test_collectives(ring, stream, late):
    size, rank = ring.size, ring.rank
    total = float(int("1" * size, base=8))
    with stream:
        for algorithm in ("ring", "direct"):
            late.look(ring.allreduce(late(8.0**rank), algorithm=algorithm), total)
            x = late(8.0**rank)
            late.look(ring.allreduce(x, out=x, algorithm=algorithm), total)
            late.look(ring.reduce_scatter(late(8.0**rank), algorithm=algorithm), total)
            joined = ring.allgather(late(8.0**rank), algorithm=algorithm)
            part = len(joined) // size
            for peer in range(size):
                late.look(joined[peer * part :][:part], 8.0**peer)
            result = ring.reduce(late(8.0**rank), root=1, algorithm=algorithm)
            if result is not None:
                late.look(result, total)
        for algorithm in ("naive", "pipelined", "direct"):
            x = late(8.0**rank)
            late.look(ring.broadcast(x, 1, algorithm=algorithm), 8.0)
    assert late.wrong() == [0] * len(late.seen)


def test_messages(cupy, ring, stream, late):
    """What a receive fills may still be written, and what a send has sent may be written again at once."""
    right, left = (ring.rank + 1) % ring.size, (ring.rank - 1) % ring.size
    with stream:
        for _ in range(3):
            sent, got = late(8.0**ring.rank), late(-2)
            with ring.group():
                ring.recv(got, left)
                ring.send(sent, right)
            sent.fill(-3)
            late.look(got, 8.0**left)
    assert late.wrong() == [0, 0, 0]


def test_a_result_may_be_written_at_once(ring, stream, late):
    """The user's next work on input and output waits for ours."""
    total = float(int("1" * ring.size, base=8))
    with stream:
        for _ in range(3):
            x = late(8.0**ring.rank)
            result = ring.allreduce(x)
            x.fill(-4)  # the input is the user's again
            late.look(result, total)
            result.fill(8.0**ring.rank)
            late.look(ring.allreduce(result), total)
    assert late.wrong() == [0] * 6


def test_works(ring, stream, late):
    """An asynchronous call takes its input as its stream has it then, and its stream finds the result."""
    total = float(int("1" * ring.size, base=8))
    with stream:
        works = [
            ring.allreduce(late(8.0**ring.rank * (k + 1)), async_op=True)
            for k in range(3)
        ]
        for k, work in enumerate(works):
            late.look(work.wait(), (k + 1) * total)
    assert late.wrong() == [0, 0, 0]


def test_two_streams(cupy, ring, late):
    """Each call keeps to the stream that is current for it, also where scratch and chunks are used again."""
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    total = float(int("1" * ring.size, base=8))
    for k in range(6):
        with streams[k % 2]:
            late.look(ring.allreduce(late(8.0**ring.rank * (k + 1))), (k + 1) * total)
    assert late.wrong() == [0] * 6


def test_memory_goes_back_to_the_pool_in_order(cupy, ring, stream, late):
    """Arrays that are dropped while calls on them are under way leave their memory to the next ones."""
    total = float(int("1" * ring.size, base=8))
    with stream:
        for k in range(6):
            late.look(ring.allreduce(late(8.0**ring.rank) * (k + 1)), (k + 1) * total)
            cupy.empty(late.count, "f4").fill(np.nan)
    assert late.wrong() == [0] * 6
