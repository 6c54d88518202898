"""Cases of memory that people ran into, B40 to B54: each a whole kind of fault, reduced to a small input.

Values are exact: rank r contributes ``8**r``, so that the octal digits of a sum say who is in it how often.
"""

from __future__ import annotations

import mmap
import resource
from contextlib import ExitStack
from pathlib import Path

import array_api_strict
import numpy as np
import pytest

from mpiring import Ring
from mpiring.plan import ring_allreduce, schedule
from mpiring.wire.node import cross_memory
from mpiring.wire.ring import session

from ranks.reference import balanced, outcome
from ranks.tuned import tuned

# ---- B50: an unchecked ring, and memory that only some ranks pass ----------------------------------

ODD = {"small_bytes": 0, "staged_bytes": 0, "direct_bytes": 0}


def on_hosts_of_their_own(monkeypatch, comm):
    """New rings take their ranks for those of several hosts; what the MPI says of them stays."""
    host = bytes([comm.rank]) * session._HOST_BYTES
    monkeypatch.setattr(session, "_host", lambda: host)


WHERE = ("on a node", "out of reach", "limits of 0", "on hosts", "on hosts, its own")
COUNTS = (10, 1000, 200_000, 2_000_000)


@pytest.fixture
def unchecked(comm, monkeypatch, request):
    """An unchecked ring, and one that has made the memory: the same, or another one."""
    with ExitStack() as stack:
        maker = stack.enter_context(Ring(comm))
        if request.param == "out of reach":
            monkeypatch.setenv(cross_memory.VARIABLE, "0")
        if request.param == "limits of 0":
            stack.enter_context(tuned(ODD))
        if request.param.startswith("on hosts"):
            on_hosts_of_their_own(monkeypatch, comm)
        ring = stack.enter_context(Ring(comm, check=False, timeout=20))
        assert ring.wire == ("network" if "hosts" in request.param else "node")
        yield ring, ring if "own" in request.param else maker


def collectives(ring, comm, x, out):
    """What each collective gives for arrays of 8**rank, next to what it should give."""
    size, count = comm.size, len(x)
    total = int("1" * size, base=8)
    mine = balanced(count, size)[comm.rank]

    def filled():
        x[...] = 8**comm.rank
        return x

    found = ring.allreduce(filled())
    yield found, np.full(count, total)
    yield ring.allreduce(filled(), out=out), np.full(count, total)
    yield x, np.full(count, 8**comm.rank)
    yield ring.reduce_scatter(filled()), np.full(mine.stop - mine.start, total)
    found = ring.reduce(filled(), root=size - 1)
    if comm.rank == size - 1:
        yield found, np.full(count, total)
    yield ring.allgather(filled()), np.repeat(8.0 ** np.arange(size), count)
    yield ring.broadcast(filled(), root=size - 1), np.full(count, 8 ** (size - 1))
    yield ring.allreduce(filled(), out=x), np.full(count, total)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    "unchecked, count",
    [
        (where, count)
        for where in WHERE
        for count in COUNTS
        if count < 1_000_000 or "hosts" not in where  # in chunks of 16 KiB
    ],
    indirect=["unchecked"],
)
def test_b50_an_unchecked_ring_takes_any_memory(comm, unchecked, count):
    """The path may not follow from what this rank alone passes."""
    ring, maker = unchecked
    wrong = []
    spaces = [maker.empty(count, "float64") for _ in range(2)]
    ordinary = [np.empty(count) for _ in range(2)]
    for odd in (0, comm.size - 1):
        for xs, outs in (
            (spaces[0], ordinary[1]),
            (ordinary[0], spaces[1]),
            (spaces[0], spaces[1]),
        ):
            is_odd = comm.rank == odd
            x = xs if is_odd else ordinary[0]
            out = outs if is_odd else ordinary[1]
            for number, (found, wanted) in enumerate(collectives(ring, comm, x, out)):
                if not np.array_equal(found, wanted):
                    wrong.append((odd, number))
    assert wrong == []


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("unchecked", WHERE, indirect=True)
def test_b50_an_unchecked_ring_still_shares(comm, unchecked):
    """Where all pass memory of its own or are on one node."""
    ring, maker = unchecked
    x = maker.empty(100_000, "float64")
    x[...] = 8**comm.rank
    ring.allreduce(x, out=x, algorithm="shared")
    assert (x == int("1" * comm.size, base=8)).all()


# ---- B40: members of one process that share memory ---------------------------------------------------


def shared_by_members(ring, comm):
    """Calls in which what one member fills is part of what another one passed, and what the errors name."""
    members = ring.members
    first = (comm.size - 1) * members  # of the last process, whose arrays are wrong
    a, b = np.full(4000, 1.0), np.full(4000, 10.0)
    whole = np.zeros((ring.size, 4000))
    other = np.zeros((ring.size, 4000))
    plan = ring_allreduce(ring.size)
    down = schedule("broadcast", ring.size, algorithm="pipelined", segments=2)
    outs, xs = (
        [f"{name} of rank {rank}" for rank in (first, first + 1)]
        for name in ("out", "x")
    )
    crossed = outs[0], xs[1]
    for algorithm in ("auto", "ring", "direct"):
        how = {"algorithm": algorithm}
        yield crossed, "allreduce", [a, b], {"out": [b, a], **how}
        yield outs, "allreduce", [a, b], {"out": [whole[0], whole[0]], **how}
        yield crossed, "allgather", [a, whole[1]], {"out": [whole, other], **how}
    part = a[: 4000 // ring.size]
    yield (outs[1], xs[0]), "reduce_scatter", [a, b], {"out": [None, part]}
    yield crossed, "reduce", [a, b], {"out": [b, None], "root": first}
    seen = array_api_strict.from_dlpack(b)  # by another library
    yield crossed, "allreduce", [a, seen], {"out": [b, None]}
    yield xs, "broadcast", [whole[0], whole[0]], {}
    yield crossed, "run", [a, b], {"out": [b, a], "schedule": plan}
    yield xs, "run", [whole[0, 5:], whole[0, :-5]], {"schedule": down}


@pytest.mark.ranks(2, 3)
def test_b40_members_that_share_memory(comm):
    with Ring(comm, members=2, timeout=20) as ring:
        for words, name, xs, more in shared_by_members(ring, comm):
            if comm.rank < comm.size - 1:
                xs = [np.full(x.shape, 5.0) for x in xs]
                more.pop("out", None)
            told = comm.allgather(outcome(lambda: getattr(ring, name)(x=xs, **more)))
            after = ring.allreduce([np.ones(3)] * 2)
            assert set(told) == {told[0]} and told[0][0] == "ValueError", (name, told)
            assert all(word in told[0][1] for word in words), (words, told)
            assert all((x == ring.size).all() for x in after)


@pytest.mark.ranks(2, 3)
def test_b40_what_members_may_share(comm):
    """Inputs; columns that interleave; an output that does not count; each its own."""
    size = 2 * comm.size
    with Ring(comm, members=2, timeout=20) as ring:
        x = np.full(4000, 1.0)
        columns = np.zeros((4000, 2))
        results = ring.allreduce([x, x], out=[columns[:, 0], columns[:, 1]])
        assert all((found == size).all() for found in results)
        assert (columns == size).all()
        space = np.zeros(4000)
        ring.reduce([x, x], out=[space, space], root=0)
        assert (space == (size if comm.rank == 0 else 0)).all()
        mine = [x.copy(), x.copy()]
        ring.allreduce(mine, out=mine)
        assert all((found == size).all() for found in mine)


# ---- B41: one buffer for both directions -------------------------------------------------------------


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("count", [1, 1000, 1_000_000])
def test_b41_one_buffer_for_both_directions(comm, ring, count):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, space = np.full(count, 8.0**comm.rank), np.zeros(2 * count)

    def exchange(*messages):
        with ring.group():
            for verb, array in messages:
                peer = right if verb == "send" else left
                getattr(ring, verb)(array, peer, tag=5)

    told = []
    for messages in (
        [("recv", x), ("send", x)],
        [("send", x), ("recv", x)],
        [("send", x), ("send", x), ("recv", x[-1:]), ("recv", np.zeros(count))],
        [("send", x), ("send", x), ("recv", space[:count]), ("recv", space[:count])],
        [("recv", x[::-1]), ("send", x)],
        [("send", array_api_strict.from_dlpack(x)), ("recv", x)],
    ):
        told.append(outcome(lambda: exchange(*messages)))
    untouched = x.copy()
    # What only interleaves does not overlap.
    exchange(("send", x), ("send", x), ("recv", space[::2]), ("recv", space[1::2]))
    if count > 1:
        x[1::2] = 0
        exchange(("recv", x[1::2]), ("send", x[: 2 * (count // 2) : 2]))
    for kind, text in told:
        assert kind == "ValueError", told
        assert f"group: rank {comm.rank}: recv(source={left}, tag=5) fills" in text
        assert f"send(dest={right}, tag=5)" in text or "that recv(" in text
    assert (untouched == 8**comm.rank).all()
    assert (space == 8**left).all()
    assert (x[::2] == 8**comm.rank).all() and (x[1::2] == 8**left).all()


def test_b41_many_messages_are_looked_at_fast(comm, ring):
    """Neighbours in one array, in any order: none overlaps."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = np.zeros((2000, 3))
    with ring.group():
        for number in range(2000):
            ring.send(np.full(3, float(number)), right, tag=number)
            ring.recv(out[number], left, tag=number)
    assert (out == np.arange(2000)[:, None]).all()


# ---- the same kind elsewhere: one rank's input and output ---------------------------------------------


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("count", [3000, 100_000])
def test_b41_an_output_in_the_input_at_a_wrong_place(comm, ring, count):
    """The right answer or ``ValueError``: here what is read before it is overwritten is copied."""
    size, rank = comm.size, comm.rank
    total = int("1" * size, base=8)
    whole, mine = np.zeros(size * count + 1), balanced(count, size)[rank]

    def part(start):
        x = whole[start : start + count]
        x[...] = 8**rank * (1 + np.arange(count) % 7)
        return x

    wanted = total * (1.0 + np.arange(count) % 7)
    joined = np.concatenate([8**r * (1.0 + np.arange(count) % 7) for r in range(size)])
    runs = {
        name: schedule(name, size, algorithm="ring")
        for name in ("allreduce", "reduce_scatter", "allgather")
    }
    down = schedule("broadcast", size, algorithm="pipelined", root=0, segments=3)
    found = []
    for algorithm in ("auto", "ring", "direct", "run"):

        def call(name, x, out, algorithm=algorithm):
            if algorithm == "run":
                return ring.run(runs[name], x, out=out)
            return getattr(ring, name)(x, out=out, algorithm=algorithm)

        out = whole[:-1]
        for start in (0, 1, (size - 1) * count):
            found.append((call("allgather", part(start), out).copy(), joined))
        place = slice(1, 1 + mine.stop - mine.start)
        x = part(0)
        got = call(
            "reduce_scatter",
            x,
            x[place] if algorithm == "ring" else x[: place.stop - 1],
        )
        found.append((got.copy(), wanted[mine]))
        for start in (0, 2):
            x = part(1)
            got = call("allreduce", x, whole[start : start + count])
            found.append((got.copy(), wanted))
    x = part(1)
    got = ring.run(down, x, out=whole[:count])
    found.append((got.copy(), joined[:count]))
    for number, (got, want) in enumerate(found):
        assert np.array_equal(got, want), number


# ---- B54: what the messages of memory say -------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    "name, words",
    [
        ("RLIMIT_FSIZE", "no file longer than 1.0 MiB (ulimit -f)"),
        ("RLIMIT_AS", " MiB (ulimit -v), and each rank maps the memory of all"),
    ],
)
def test_b54_a_limit_of_one_rank_is_named(comm, ring, name, words):
    limit = getattr(resource, name)
    before = resource.getrlimit(limit)
    ring.allreduce(np.ones(100_000))  # what takes memory once
    if comm.rank == comm.size - 1:
        least = 1 << 20
        if name == "RLIMIT_AS":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            least = pages * mmap.PAGESIZE + (16 << 20)
        resource.setrlimit(limit, (least, before[1]))
    try:
        told = comm.allgather(outcome(lambda: ring.empty(16 << 20, "uint8")))
    finally:
        resource.setrlimit(limit, before)
    x = ring.empty(16 << 20, "uint8")
    x[...] = 1
    ring.allreduce(x, out=x, algorithm="shared")
    assert set(told) == {told[0]} and told[0][0] == "MemoryError", told
    assert f"rank {comm.size - 1}: 16.0 MiB of node-shared memory" in told[0][1]
    assert words in told[0][1] and "/dev/shm" not in told[0][1], told
    assert (x == comm.size).all()
