"""The executor's second form over a real MPI, and whatever settings may do: the bits are the same."""

from __future__ import annotations

import itertools

import pytest
from mpi4py import MPI

import mpiring
from mpiring.wire.transport.mpi import MPITransport

from devices import cases
from devices.cases import CASES
from ranks.reference import (
    DTYPES,
    ops_of,
    random_array,
    reduced,
    same_bits,
    same_on_all_ranks,
)
from ranks.tuned import PROFILES, tuned

SIZE, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank


@pytest.fixture(params=PROFILES)
def ring(comm, request):
    """A ring with settings far from the defaults."""
    with tuned(PROFILES[request.param]):
        ring = mpiring.Ring(comm, timeout=30, message_bytes=24)
    with ring:
        yield ring


@pytest.mark.parametrize("dtype", DTYPES)
def test_promise_4_same_bits_in_chunks(comm, ring, dtype):
    count = 5 * SIZE + 3
    every = [random_array(dtype, (count,), rank, 7) for rank in range(SIZE)]
    got = []
    for op in ops_of(dtype):
        for algorithm, order in (
            ("ring", "ring"),
            ("direct", "ring"),
            ("direct", "rank"),
        ):
            result = ring.allreduce(every[RANK], op, algorithm=algorithm, order=order)
            got.append(((op, algorithm, order), result, reduced(every, op, order)))
    for what, actual, expected in got:
        same_bits(actual, expected, what)
    same_on_all_ranks(comm, [actual for _, actual, _ in got])


FIT = [name for name, (_, sizes) in CASES.items() if SIZE in sizes]


@pytest.mark.parametrize("name", FIT)
def test_case_in_chunks(ring, name):
    assert list(CASES[name][0](cases.Programs(ring), cases.Numpy)) == []


@pytest.mark.ranks(2, 3)
def test_promise_6_a_hang_in_chunks_names_the_rank_that_has_gone(comm, monkeypatch):
    """A rank that fails in the middle of a pipeline is named by the others, and the ring is broken."""
    with tuned({"chunk_bytes": 64}):
        ring = mpiring.Ring(comm, timeout=30)
    x = random_array("float64", (4000,), RANK, 1)
    if RANK == 1:
        posts = itertools.count()
        post_send = MPITransport.post_send

        def stop_at_some_time(self, *args):
            if next(posts) == 20:
                raise RuntimeError("stopped")
            return post_send(self, *args)

        monkeypatch.setattr(MPITransport, "post_send", stop_at_some_time)
        with pytest.raises(RuntimeError, match="stopped"):
            ring.allreduce(x, algorithm="ring")
        monkeypatch.undo()
    else:
        gone = r"gone \(RuntimeError: stopped\) too: rank 1, allreduce \(call 1 "
        with pytest.raises(mpiring.RingTimeout, match=gone):
            ring.allreduce(x, algorithm="ring", timeout=1.0)
    comm.Barrier()
    with pytest.raises(mpiring.RingError, match="broken"):
        ring.allreduce(x)
