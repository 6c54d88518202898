"""The seam for device arrays, tried in one process with a CuPy whose device is host memory."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from mpiring.errors import RingError
from mpiring.wire.arrays import NUMPY, CupyKind, kind_named, kind_of

from devices import cases, host_cupy
from devices.cases import CASES
from wire.interleaving import chooser
from wire.ranks import Ranks, call


@pytest.fixture
def cupy(monkeypatch):
    return host_cupy.install(monkeypatch)


class LocalRing:
    """What a case sees of a ring."""

    repeats = 5  # in each of several interleavings

    def __init__(self, rank, collectives):
        self.rank, self.size = rank, collectives.transport.size
        self._collectives = collectives

    def _reduction(
        self, name, x, op="sum", *, out=None, order="ring", algorithm="auto"
    ):
        return call(self._collectives, name, x, op, out, order, algorithm)

    def allreduce(self, *args, **kwargs):
        return self._reduction("allreduce", *args, **kwargs)

    def reduce_scatter(self, *args, **kwargs):
        return self._reduction("reduce_scatter", *args, **kwargs)

    def allgather(self, x, *, out=None, algorithm="auto"):
        return call(self._collectives, "allgather", x, out, algorithm)


def on_a_stream_of_its_own(program):
    """A program whose rank has a stream: another rank's synchronisation does nothing for it."""
    stream = host_cupy.Stream()
    while True:
        with host_cupy.using(stream):
            try:
                request = next(program)
            except StopIteration as stop:
                return stop.value
        yield request


def run(case, size, xp, seed=1, rendezvous=None):
    ranks = Ranks(size, seed, rendezvous, message_bytes=40, reach=host_cupy.reach)
    programs = [
        on_a_stream_of_its_own(case(LocalRing(rank, c), xp))
        for rank, c in enumerate(ranks.collectives)
    ]
    return ranks.network.run(programs)


RUNS = [
    pytest.param(program, size, id=f"{name}-{size}")
    for name, (program, sizes) in CASES.items()
    for size in sizes
]


@pytest.mark.parametrize("case, size", RUNS)
def test_case_on_the_device(cupy, case, size):
    for seed, rendezvous in ((1, True), (2, False), (3, None)):
        run(case, size, cupy, seed, rendezvous)


@pytest.mark.parametrize("case, size", RUNS)
def test_case_on_the_host(case, size):
    run(case, size, cases.Numpy)


# ---- synchronisation ------------------------------------------------------------------------------

# What must be synchronised before an MPI may touch it, and a case that shows what happens otherwise.
FORGOTTEN = {
    "before a message": lambda self, piece: piece.view(np.uint8),
}


@pytest.mark.parametrize(
    "case", ["b02_bookkeeping", "work_still_queued", "b17_same_bits"]
)
def test_a_forgotten_synchronisation_is_seen(cupy, monkeypatch, case):
    program, sizes = CASES[case]
    monkeypatch.setattr(CupyKind, "message", FORGOTTEN["before a message"])
    with pytest.raises((AssertionError, RingError)):
        run(program, sizes[-1], cupy)


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_a_forgotten_synchronisation_gives_wrong_numbers(cupy, monkeypatch, algorithm):
    """With a network as tolerant as an MPI: nothing is said, the numbers are wrong."""

    def program(ring, xp):
        x = xp.asarray(np.zeros(5))
        x[...] = 8.0**ring.rank
        result = yield from ring.allreduce(x, algorithm=algorithm)
        return xp.asnumpy(result).tolist()

    from mpiring.wire import local

    monkeypatch.setattr(local.LocalNetwork, "_raise_faults", lambda self: None)
    assert run(program, 3, cupy) == [[73.0] * 5] * 3
    monkeypatch.setattr(host_cupy.Stream, "synchronize", lambda self: None)
    assert run(program, 3, cupy) != [[73.0] * 5] * 3


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_synchronisations_are_recorded(cupy, algorithm):
    """Each buffer is synchronised before it is given away, none besides."""

    def program(ring, xp):
        x = xp.asarray(np.full(5, 8.0**ring.rank))
        with_streams = host_cupy.get_current_stream()
        yield from ring.allreduce(x, algorithm=algorithm)
        return with_streams.synchronisations

    counts = run(program, 3, cupy)
    assert counts == [2 * 2 * 2] * 3  # in each phase two sends and two receives


def test_nothing_is_left_for_the_user_to_synchronise(cupy):
    """The result is usable on the same stream: what is queued after the call comes after it."""

    def program(ring, xp):
        x = xp.asarray(np.full(5, 8.0**ring.rank))
        result = yield from ring.allreduce(x, algorithm="ring")
        return xp.asnumpy(result + result).tolist()

    assert run(program, 2, cupy) == [[18.0] * 5] * 2


# ---- kinds ----------------------------------------------------------------------------------------


def test_the_kind_is_found_from_the_array(cupy):
    x = cupy.asarray(np.arange(3.0))
    kind = kind_of(x)
    assert kind.name == "cupy" and kind_of(x) is kind and kind_named("cupy") is kind
    assert kind_of(np.arange(3)) is NUMPY and kind_of(2.5) is NUMPY


def test_without_cupy_its_arrays_are_no_arrays(cupy, monkeypatch):
    x = cupy.asarray(np.arange(3.0))
    monkeypatch.delitem(sys.modules, "cupy")
    with pytest.raises(TypeError, match="host_cupy.ndarray is no array mpiring knows"):
        kind_of(x)


def test_one_rank_on_the_host_another_on_the_device(cupy):
    """Each gets the result where its array is."""

    def program(ring, xp):
        mine = cases.Numpy if ring.rank == 1 else xp
        result = yield from ring.allreduce(mine.asarray(np.full(5, 8.0**ring.rank)))
        cases.check(mine, result, np.full(5, 73.0))
        joined = yield from ring.allgather(mine.asarray(np.full(ring.rank, ring.rank)))
        cases.check(mine, joined, np.array([1, 2, 2]))

    run(program, 3, cupy)


@pytest.mark.parametrize("device_is", ["x", "out"])
def test_x_and_out_of_different_kinds(cupy, device_is):
    host, device = np.ones(3), cupy.asarray(np.ones(3))
    x, out = (device, host) if device_is == "x" else (host, device)
    ranks = Ranks(2, reach=host_cupy.reach)
    results = ranks.call("allreduce", lambda r: (x, "sum", out) if r else (host,))
    assert {type(error) for error in results} == {TypeError}
    expected = "expected a cupy array" if device_is == "x" else "expected a numpy array"
    assert all("rank 1" in str(e) and expected in str(e) for e in results)


@pytest.mark.parametrize(
    "x, words",
    [
        (np.zeros(3, "m8[s]"), "timedelta64"),
        (np.zeros(2, "f4,f4"), "not supported"),
    ],
)
def test_dtypes_that_do_not_work(cupy, x, words):
    ranks = Ranks(2, reach=host_cupy.reach)
    results = ranks.call("allreduce", lambda r: (cupy.asarray(x),))
    assert {type(error) for error in results} == {TypeError}
    assert all(words in str(error) for error in results)


def test_a_broadcast_out_is_refused(cupy):
    out = cupy.ndarray(np.broadcast_to(np.zeros(1), (3,)))
    x = cupy.asarray(np.ones(3))
    ranks = Ranks(2, reach=host_cupy.reach)
    results = ranks.call("allreduce", lambda r: (x, "sum", out))
    assert {type(error) for error in results} == {ValueError}


# ---- the pretended device is like one -------------------------------------------------------------


def test_the_host_cannot_touch_it(cupy):
    x = cupy.asarray(np.arange(3.0))
    for touch in (
        lambda: np.asarray(x),
        lambda: np.add(np.ones(3), x),
        lambda: memoryview(x),
        lambda: np.ones(3) + np.asarray(x),
        lambda: x.__setitem__(slice(None), np.ones(3)),
        lambda: cupy.add(x, np.ones(3)),
        lambda: np.zeros(3).__setitem__(slice(None), x),
    ):
        with pytest.raises(TypeError):
            touch()


def test_work_is_queued_until_the_stream_is_synchronised(cupy):
    stream = cupy.cuda.get_current_stream()
    x = cupy.asarray(np.zeros(2))
    x[...] = 1
    y = cupy.add(x, x)
    assert stream.pending == 2 and stream.synchronisations == 0
    assert host_cupy.reach(x).tolist() == [0, 0]
    stream.synchronize()
    assert host_cupy.reach(x).tolist() == [1, 1]
    assert host_cupy.reach(y).tolist() == [2, 2]
    assert stream.pending == 0 and stream.synchronisations == 1
    z = cupy.empty(2, "f4")
    assert host_cupy.reach(z).tobytes() == bytes([host_cupy.NOISE]) * 8


def test_each_rank_has_a_stream_of_its_own(cupy):
    def program(ring, xp):
        x = xp.asarray(np.zeros(2))
        x[...] = 1
        before = host_cupy.get_current_stream().pending
        yield from ring.allgather(np.arange(3))
        return before, host_cupy.get_current_stream().pending

    assert run(program, 3, cupy) == [(1, 1)] * 3
    assert chooser(1)(5) in range(5)
