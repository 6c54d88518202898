"""Small all-reduces with little around them: the ordinary call's results, and its errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from mpiring.wire.collectives.repeated import Repeated
from mpiring.wire.node import fused
from mpiring.wire.node.stages import Lengths
from mpiring.wire.transport.position import Position

from devices import deferred, local
from wire import reference
from wire.ranks import Ranks
from wire.reference import DTYPES, same_bits, varied
from wire.test_shared import Node
from wire.test_small import OPS, allowed

pytestmark = pytest.mark.untraced

LIMIT = 400  # bytes


def ordinary(member, x, op="sum", out=None, order="ring", algorithm="auto"):
    return member.allreduce(x, op, out, order, algorithm, Position())


class Rings(Ranks):
    """Ranks with what they remember."""

    def __init__(self, size, **more):
        super().__init__(size, tuning={"small_bytes": LIMIT}, **more)
        self.repeated = [Repeated(member) for member in self.collectives]

    def allreduce(self, arguments, is_ordinary=lambda rank: False):
        """An all-reduce of ``arguments(rank)``; the usual calls with little around them."""

        def program(rank, member):
            x, *more = arguments(rank)
            made = None
            if not is_ordinary(rank):
                given = dict(zip(("op", "out", "order", "algorithm"), more))
                made = usual(self.repeated[rank], x, **given)
            return made or ordinary(member, x, *more)

        return self.run(program)


def usual(repeated, x, op="sum", out=None, order="ring", algorithm="auto"):
    return repeated.allreduce(x, op, out, order, algorithm, Position())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_the_bits_of_the_prescribed_order(op, dtype):
    if not allowed(op, dtype):
        return
    for size in (1, 2, 3, 5):
        rings = Rings(size, seed=size)
        for order in ("ring", "rank"):
            for shape in ((), (0,), (2, size + 1)):
                for salt in (5, 6):  # the second time all is known
                    count = int(np.prod(shape))
                    xs = [varied(dtype, count, r, salt) for r in range(size)]
                    want = reference.reduced_flat(op, xs, order).reshape(shape)
                    arrays = [x.reshape(shape) for x in xs]
                    with warnings.catch_warnings():
                        warnings.simplefilter("error")
                        got = rings.allreduce(lambda r: (arrays[r], op, None, order))
                    for x, array, y in zip(xs, arrays, got):
                        assert same_bits(y, want) and y.shape == shape
                        assert y is not array and same_bits(array.reshape(-1), x)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_need_not_all_go_this_way(size):
    rings = Rings(size, seed=1)
    xs = [varied("float32", 7, rank, 3) for rank in range(size)]
    want = reference.reduced_flat("sum", xs, "ring")
    for who in range(size):
        for got in rings.allreduce(lambda r: (xs[r],), lambda r: r == who):
            assert same_bits(got, want)


def test_in_place_and_into_another():
    rings = Rings(3)
    for _ in range(2):
        xs = [varied("float64", 5, rank, 3) for rank in range(3)]
        want = reference.reduced_flat("sum", xs, "ring")
        outs = [xs[0], np.empty(5), xs[2]]
        got = rings.allreduce(lambda r: (xs[r], "sum", outs[r]))
        for y, out in zip(got, outs):
            assert y is out and same_bits(out, want)


def test_a_call_that_differs_raises_on_all_and_the_ring_goes_on():
    rings = Rings(3)
    for who in range(3):
        got = rings.allreduce(lambda r: (np.ones(3 + (r == who)),))
        low, high = (who, 1) if who == 0 else (0, who)
        lengths = [3 + (r == who) for r in range(3)]
        assert {str(error) for error in got} == {
            f"allreduce: rank {high} passed array float64[{lengths[high]}], rank {low} passed array "
            f"float64[{lengths[low]}]; pass the same on every rank"
        }
        assert [y.tolist() for y in rings.allreduce(lambda r: (np.ones(1),))] == [
            [3.0]
        ] * 3


def test_a_failure_of_another_rank_is_raised_here():
    rings = Rings(2)
    rings.allreduce(lambda r: (np.ones(2),))
    got = rings.allreduce(lambda r: ([1, 2] if r else np.ones(2),))
    assert len(got) == 2
    for error in got:
        assert isinstance(error, TypeError)
        assert str(error).startswith("allreduce: rank 1: a builtins.list is no array")


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_that_cannot_bring_its_bytes(monkeypatch, size):
    cupy = local.install(monkeypatch)
    rings = Rings(size, seed=3, reach=deferred.reach)
    x = np.full(10, 2.0)
    for _ in range(2):
        got = rings.allreduce(lambda r: (cupy.asarray(x) if r == 1 else x,))
        for rank, y in enumerate(got):
            host = cupy.asnumpy(y) if rank == 1 else y
            assert host.tolist() == [2.0 * size] * 10


def test_a_rank_without_memory_for_the_result_goes_the_ordinary_way(monkeypatch):
    """Which tells all ranks, if there is none then either."""
    rings = Rings(3, stages=Lengths(128, 128, 1 << 20, 64, 100))
    for count in (4, 60, 120):  # rides, one-shot and not
        xs = [np.full(count, 8.0**r) for r in range(3)]
        for turn in range(3):
            if turn == 2:
                for seen in rings.repeated[1]._seen.values():
                    monkeypatch.setattr(seen, "_result", lambda out: None)
            got = rings.allreduce(lambda r, xs=xs: (xs[r],))
            assert all((y == 0o111).all() for y in got)


# ---- arrays of ring.empty -------------------------------------------------------------------------


class SharedRings(Node):
    """Ranks of one node with what they remember."""

    def __init__(self, size, **more):
        super().__init__(size, **more)
        self.repeated = [Repeated(member) for member in self.collectives]

    allreduce = Rings.allreduce


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_shared_arrays_have_the_same_bits(monkeypatch, op, dtype, is_compiled):
    if not allowed(op, dtype):
        return
    if not is_compiled:
        monkeypatch.setattr(fused, "by_addresses", lambda *_: None)
    for size in (2, 3, 4):
        rings = SharedRings(size, seed=size)
        for order in ("ring", "rank"):
            for count in (1, 300):
                xs = [varied(dtype, count, r, 5) for r in range(size)]
                want = reference.reduced_flat(op, xs, order)
                for in_place in (False, True, True):
                    arrays = rings.arrays(xs)
                    outs = arrays if in_place else rings.arrays(xs)
                    got = rings.allreduce(lambda r: (arrays[r], op, outs[r], order))
                    for x, array, out, y in zip(xs, arrays, outs, got):
                        assert y is out and same_bits(y, want)
                        assert in_place or same_bits(array, x)
                seen = [s for r in rings.repeated for s in r._seen.values()]
                assert all(s.is_usual and vars(s)["_fold"] for s in seen)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_bring_other_memory(size):
    rings = SharedRings(size, seed=2)
    xs = [varied("float32", 50, r, 5) for r in range(size)]
    want = reference.reduced_flat("sum", xs, "ring")
    for _ in range(2):
        for who in range(size):
            for which in ("x", "out", "call", "none"):
                arrays, outs = rings.arrays(xs), rings.arrays(xs)
                more = rings.arrays(xs)
                if which == "x":
                    arrays[who] = arrays[who].copy()
                if which == "out":
                    outs[who] = outs[who].copy()
                if which == "call":
                    outs[who] = more[who]
                got = rings.allreduce(
                    lambda r: (arrays[r], "sum", outs[r]), lambda r: r == who
                )
                for out, y in zip(outs, got):
                    assert y is out and same_bits(y, want)


def test_it_has_to_be_shared_if_so_asked():
    rings = SharedRings(2)
    arrays = rings.arrays([np.ones(5), np.ones(5)])
    for _ in range(2):
        got = rings.allreduce(lambda r: (arrays[r], "sum", arrays[r], "ring", "shared"))
        assert all(y is array for y, array in zip(got, arrays))
    arrays[1] = arrays[1].copy()
    got = rings.allreduce(lambda r: (arrays[r], "sum", arrays[r], "ring", "shared"))
    assert len(got) == 2
    for error in got:
        assert isinstance(error, ValueError)
        assert "rank 1 passed other memory" in str(error)


@pytest.mark.parametrize("algorithm", ["ring", "direct", "mpi"])
def test_another_algorithm_is_taken_at_its_word(algorithm):
    """Where the arrays lie is no reason to go another way than the one asked for."""
    rings = SharedRings(2)
    arrays = rings.arrays([np.ones(2000), np.ones(2000)])
    repeated = rings.repeated[0]
    assert usual(repeated, arrays[0], out=arrays[0]) is not None
    assert usual(repeated, arrays[0], out=arrays[0], algorithm=algorithm) is None


def overlapping():
    both = np.ones(5)
    return {"x": both[:4], "out": both[1:]}


def read_only():
    out = np.ones(4)
    out.flags.writeable = False
    return {"x": np.ones(4), "out": out}


UNUSUAL = {
    "strided": lambda: {"x": np.ones(8)[::2]},
    "of another byte order": lambda: {"x": np.ones(4, ">f8")},
    "not aligned": lambda: {"x": np.frombuffer(bytes(33), np.uint8)[1:].view("f8")},
    "a subclass": lambda: {"x": np.ones(4).view(np.recarray)},
    "a number": lambda: {"x": 3.5},
    "too long": lambda: {"x": np.ones(LIMIT // 8 + 1)},
    "out overlaps": overlapping,
    "out is read-only": read_only,
    "out has another shape": lambda: {"x": np.ones(4), "out": np.ones((4, 1))},
    "out has another dtype": lambda: {"x": np.ones(4), "out": np.ones(4, "f4")},
    "out is strided": lambda: {"x": np.ones(4), "out": np.ones(8)[::2]},
    "out is no array": lambda: {"x": np.ones(4), "out": [0] * 4},
    "an algorithm": lambda: {"x": np.ones(4), "algorithm": "ring"},
    "a wrong op": lambda: {"x": np.ones(4), "op": "mean"},
    "an op that is none": lambda: {"x": np.ones(4), "op": ["sum"]},
    "a wrong order": lambda: {"x": np.ones(4), "order": {}},
    "no sum of bools": lambda: {"x": np.ones(4, bool)},
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_not_usual_goes_the_ordinary_way(name):
    repeated = Rings(2).repeated[0]
    assert usual(repeated, np.ones(4)) is not None
    assert usual(repeated, **UNUSUAL[name]()) is None


def test_few_calls_are_kept():
    repeated = Rings(2).repeated[0]
    for count in range(600):
        usual(repeated, np.ones(count % 50, "i1").reshape(-1, *[1] * (count // 50)))
    assert len(repeated._seen) <= 256
