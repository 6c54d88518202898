"""Cases of memory that people ran into, B40 to B54: each a whole kind of fault, reduced to a small input.

Values are exact: rank r contributes ``8**r``, so that the octal digits of a sum say who is in it how often.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

from mpiring import Ring
from mpiring.wire import cross_memory, session

from ranks.reference import balanced
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
