"""Small arrays ride in the opening exchange, and give the bits of every other path."""

from __future__ import annotations

import numpy as np
import pytest

from mpiring.errors import RingError
from mpiring.wire.arrays import NUMPY
from mpiring.wire.collectives import rooted, small
from mpiring.wire.transport.position import Position

from devices import deferred, local
from wire import reference
from wire.ranks import Ranks
from wire.reference import DTYPES, same_bits, varied

pytestmark = pytest.mark.untraced

OPS = ("sum", "prod", "min", "max", "avg")


def allowed(op, dtype):
    if dtype == "bool":
        return op in ("min", "max")
    if dtype.startswith("complex"):
        return op in ("sum", "prod", "avg")
    return op != "avg" or "float" in dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_the_bits_of_the_prescribed_order(op, dtype):
    if not allowed(op, dtype):
        return
    for size in (1, 2, 3, 4, 5, 8):
        for count in (0, 1, size - 1, size, 2 * size + 3):
            xs = [varied(dtype, count, rank, 5) for rank in range(size)]
            said = [x.tobytes() for x in xs]
            for order in ("ring", "rank"):
                want = reference.reduced_flat(op, xs, order)
                out = np.empty(count, xs[0].dtype)
                small.combine(NUMPY, said, op, order, dtype, out)
                assert same_bits(out, want), (size, count, order)
                for home, (start, stop) in enumerate(reference.bounds(count, size)):
                    part = np.empty(stop - start, xs[0].dtype)
                    piece = slice(start, stop)
                    small.combine(
                        NUMPY, said, op, order, dtype, part, part=piece, last=home
                    )
                    assert same_bits(part, want[piece])


def test_the_limit_shrinks_with_the_ranks():
    assert [small.most_bytes(4096, n) for n in (1, 2, 32, 256, 1 << 20)] == [
        4096,
        4096,
        4096,
        512,
        -1,
    ]
    assert [small.most_bytes(0, n) for n in (1, 64)] == [-1, -1]
    assert [small.most_bytes(100, n) for n in (1, 64, 2048)] == [100, 100, 64]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_no_message_besides_the_opening_exchange(size):
    def messages(count, collective, small_bytes=80):
        ranks = Ranks(size, tuning={"small_bytes": small_bytes})
        x = np.arange(float(count))

        def program(rank, member):
            at = Position()
            if collective == "barrier":
                return (yield from member.barrier(at))
            if collective == "reduce":
                return (
                    yield from rooted.reduce(
                        member, x, "sum", 0, None, "ring", "auto", at
                    )
                )
            call = getattr(member, collective)
            return (yield from call(x, "sum", None, "ring", "auto", at))

        results = ranks.run(program)
        if collective == "allreduce":
            assert all(same_bits(result, x * size) for result in results)
        return ranks.network.messages

    alone = messages(0, "barrier")
    for collective in ("allreduce", "reduce_scatter", "reduce"):
        assert messages(10, collective) == alone
        if size > 1:
            assert messages(11, collective) > alone
            assert messages(10, collective, small_bytes=79) > alone


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_that_cannot_bring_its_bytes(monkeypatch, size):
    """A device array on one rank: all take the ordinary path, after the same exchange."""
    cupy = local.install(monkeypatch)
    ranks = Ranks(size, seed=3, tuning={"small_bytes": 80}, reach=deferred.reach)

    def program(rank, member):
        x = np.full(10, 8.0**rank)
        given = cupy.asarray(x) if rank == 1 else x
        result = yield from member.allreduce(
            given, "sum", None, "ring", "auto", Position()
        )
        part = yield from member.reduce_scatter(
            given, "sum", None, "ring", "auto", Position()
        )
        end = yield from rooted.reduce(
            member, given, "sum", 1, None, "ring", "auto", Position()
        )
        return result, part, end

    value = float(int("1" * size, base=8))
    for rank, (result, part, end) in enumerate(ranks.run(program)):
        assert isinstance(result, cupy.ndarray if rank == 1 else np.ndarray)
        start, stop = reference.bounds(10, size)[rank]
        got = [result, part, *([] if end is None else [end])]
        wants = [10, stop - start, 10]
        for array, length in zip(got, wants):
            host = cupy.asnumpy(array) if rank == 1 else array
            assert host.tolist() == [value] * length
        assert (end is not None) == (rank == 1)


def test_what_differs_is_an_error_here_too():
    ranks = Ranks(3, tuning={"small_bytes": 80})
    results = ranks.call("allreduce", lambda r: (np.ones(3 + (r == 2)),))
    assert {str(e) for e in results} == {
        "allreduce: rank 2 passed array float64[4], rank 0 passed array float64[3]; pass the same on every rank"
    }
    assert not any(isinstance(e, RingError) for e in results)
    assert [r.tolist() for r in ranks.call("allreduce", lambda r: (np.ones(1),))] == [
        [3.0]
    ] * 3
