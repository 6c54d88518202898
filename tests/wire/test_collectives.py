"""The collectives of several ranks in one process, under interleavings that try to break them.

Every result is compared with promise 4's order, evaluated by a plain loop, bit for bit.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.errors import RingError
from mpiring.wire.settings.tuning import DEFAULTS, NODE
from mpiring.wire.transport.position import Position

from wire import reference
from wire.interleaving import protocols, seeds
from wire.ranks import Ranks, call, kept
from wire.reference import same_bits

SIZES = [1, 2, 3, 4, 5, 8]
sizes = st.sampled_from(SIZES)


def fingerprint(size):
    return int("1" * size, base=8)


# ---- which contribution arrives where: exhaustive -------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ["ring", "direct", "auto"])
def test_every_count(size, algorithm):
    for count in range(2 * size + 2):
        for in_place in (False, True):
            xs = [np.arange(count) * 8**size + 8**rank for rank in range(size)]
            outs = xs if in_place else [None] * size
            want = np.arange(count) * 8**size * size + fingerprint(size)
            ranks = Ranks(size, seed=count, rendezvous=None)
            results = ranks.call(
                "allreduce", lambda r: (xs[r], "sum", outs[r], "ring", algorithm)
            )
            for result, out in zip(results, outs):
                assert same_bits(result, want)
                assert out is None or result is out

            parts = ranks.call(
                "reduce_scatter", lambda r: (want + r, "max", None, "ring", algorithm)
            )
            assert same_bits(np.concatenate(parts), want + size - 1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ["ring", "direct", "auto"])
def test_allgather_of_every_length(size, algorithm):
    for seed in range(8):
        lengths = [(seed + 3 * rank) % 4 for rank in range(size)]
        xs = [1000 * rank + np.arange(n) for rank, n in enumerate(lengths)]
        ranks = Ranks(size, seed, rendezvous=None, message_bytes=11)
        want = np.concatenate(xs)
        for result in ranks.call("allgather", lambda r: (xs[r], None, algorithm)):
            assert same_bits(result, want)
        # x is this rank's part of out
        outs = [np.full(want.size, -1) for _ in range(size)]
        starts = np.cumsum([0, *lengths])
        for rank, x in enumerate(xs):
            outs[rank][starts[rank] : starts[rank + 1]] = x
        mine = [outs[r][starts[r] : starts[r + 1]] for r in range(size)]
        results = ranks.call("allgather", lambda r: (mine[r], outs[r], algorithm))
        assert all(r is o and same_bits(r, want) for r, o in zip(results, outs))


def test_allgather_joins_on_axis_0():
    xs = [np.full((n, 2, 1), n) for n in (2, 0, 1)]
    ranks = Ranks(3, 1, None)
    for result in ranks.call("allgather", lambda r: (xs[r],)):
        assert same_bits(result, np.concatenate(xs))
    for result in ranks.call("allgather", lambda r: (10 * r,)):
        assert same_bits(result, np.array([0, 10, 20]))
    strided = [np.zeros((3, 8), int)[:, ::2] for _ in range(3)]
    results = ranks.call("allgather", lambda r: (np.full((1, 4), r), strided[r]))
    for result, out in zip(results, strided):
        assert result is out and (result == [[0] * 4, [1] * 4, [2] * 4]).all()


# ---- the bits of every path -----------------------------------------------------------------------


@st.composite
def reductions(draw):
    dtype = draw(st.sampled_from(reference.DTYPES))
    algorithm, order = draw(
        st.sampled_from(
            [
                ("ring", "ring"),
                ("direct", "ring"),
                ("auto", "ring"),
                ("direct", "rank"),
                ("auto", "rank"),
            ]
        )
    )
    case: dict[str, Any] = {
        "size": draw(sizes),
        "count": draw(st.integers(0, 19)),
        "dtype": dtype,
        "op": draw(st.sampled_from(reference.ops_of(dtype))),
        "algorithm": algorithm,
        "order": order,
        "place": draw(st.sampled_from(["new", "out", "in place"])),
    }
    return case


@examples(max_examples=200)
@given(
    case=reductions(),
    seed=seeds,
    rendezvous=protocols,
    message_bytes=st.sampled_from([3, 8, 1 << 30]),
)
def test_bits_of_allreduce(case, seed, rendezvous, message_bytes):
    size, count, op = case["size"], case["count"], case["op"]
    xs = [reference.varied(case["dtype"], count, rank, seed) for rank in range(size)]
    want = reference.reduced_flat(op, xs, case["order"])
    originals = [x.copy() for x in xs]
    outs: Any = {
        "new": [None] * size,
        "out": [np.ones_like(x) for x in xs],
        "in place": xs,
    }[case["place"]]
    ranks = Ranks(size, seed, rendezvous, message_bytes)
    results = ranks.call(
        "allreduce", lambda r: (xs[r], op, outs[r], case["order"], case["algorithm"])
    )
    for result, out in zip(results, outs):
        assert same_bits(result, want)
        assert out is None or result is out
    if case["place"] != "in place":
        assert all(same_bits(x, original) for x, original in zip(xs, originals))


@examples(max_examples=150)
@given(case=reductions(), seed=seeds, rendezvous=protocols)
def test_bits_of_reduce_scatter(case, seed, rendezvous):
    size, count, op = case["size"], case["count"], case["op"]
    xs = [reference.varied(case["dtype"], count, rank, seed) for rank in range(size)]
    flat = reference.reduced_flat(op, xs, case["order"])
    originals = [x.copy() for x in xs]
    bounds = reference.bounds(count, size)
    outs: Any = {
        "new": [None] * size,
        "out": [np.ones(b - a, xs[0].dtype) for a, b in bounds],
        "in place": [x[a:b] for x, (a, b) in zip(xs, bounds)],
    }[case["place"]]
    ranks = Ranks(size, seed, rendezvous, 13)
    results = ranks.call(
        "reduce_scatter",
        lambda r: (xs[r], op, outs[r], case["order"], case["algorithm"]),
    )
    for rank, (start, stop) in enumerate(bounds):
        assert same_bits(results[rank], flat[start:stop])
        if case["place"] == "in place":  # the rest of x is left alone
            originals[rank][start:stop] = flat[start:stop]
        assert same_bits(xs[rank], originals[rank])


@pytest.mark.parametrize(
    "dtype, order, above",
    [
        ("float32", "ring", "ring"),
        ("float16", "ring", "direct"),
        ("float32", "rank", "direct"),
    ],
)
def test_auto_takes_another_path_for_large_arrays_and_the_same_bits(
    dtype, order, above
):
    limit = DEFAULTS[NODE].direct_bytes // np.dtype(dtype).itemsize
    for count, path in ((limit, "direct"), (limit + 1, above)):
        xs = [reference.varied(dtype, count, rank) for rank in range(3)]
        want = reference.reduced_flat("sum", xs, order)
        positions = [Position() for _ in xs]

        def program(rank, collectives):
            arguments = xs[rank], "sum", None, order, "auto", positions[rank]
            return (yield from collectives.allreduce(*arguments))

        ranks = Ranks(3, 1, None)
        assert all(same_bits(result, want) for result in ranks.run(program))
        assert {position.phase for position in positions} == {f"{path} allreduce"}


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("op", ["sum", "avg", "min", "max"])
def test_nan_and_infinity_propagate_everywhere(size, op):
    for dtype in reference.FLOATS:
        xs = [np.ones(2 * size + 1, reference.dtype_of(dtype)) for _ in range(size)]
        xs[1][1::2] = np.nan
        xs[0][0] = np.inf
        for algorithm in ("ring", "direct"):
            results = Ranks(size, size, None).call(
                "allreduce", lambda r: (xs[r], op, None, "ring", algorithm)
            )
            assert len({result.tobytes() for result in results}) == 1
            assert np.isnan(results[0][1::2].astype(float)).all()
            assert not np.isnan(results[0][::2].astype(float)).any()
            assert (results[0][0] == np.inf) == (op != "min")


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(algorithm, dtype):
    """B08, for every rank that may hold the large value."""
    dtype = reference.dtype_of(dtype)
    large = 2048 if dtype == np.float16 else 256
    for q in range(5):
        xs = [np.full(11, large if r == q else 1, dtype) for r in range(5)]
        results = Ranks(5, q, None).call(
            "allreduce", lambda r: (xs[r], "sum", None, "ring", algorithm)
        )
        assert all((result == large + 4).all() for result in results)
    top = 60000 if dtype == np.float16 else 3e38
    x = np.array([top, 2**-24], dtype)
    results = Ranks(4, 1, None).call(
        "allreduce", lambda r: (x, "avg", None, "ring", algorithm)
    )
    if dtype == np.float16:
        assert all(same_bits(result, x) for result in results)
    else:  # its sum has no float32: this is what float32 itself gives
        assert all(result[0] == np.inf and result[1] == x[1] for result in results)


# ---- errors ---------------------------------------------------------------------------------------

X = np.ones(5, "f4")

# name -> (call on all ranks but one, call on that one, exception, words)
WRONG: dict[str, Any] = {
    "shape": (("allreduce", X), ("allreduce", X[:4]), ValueError, ["float32[5]", "float32[4]"]),
    "dtype": (("allreduce", X), ("allreduce", X.astype("f8")), ValueError, ["float64[5]"]),
    "bytes": (("allreduce", X), ("allreduce", X.astype("i4")), ValueError, ["int32[5]"]),
    "dimensions": (("allreduce", np.ones((2, 3))), ("allreduce", np.ones(6)), ValueError, ["[2,3]", "[6]"]),
    "op": (("allreduce", X), ("allreduce", X, "max"), ValueError, ["op max", "op sum"]),
    "order": (("allreduce", X), ("allreduce", X, "sum", None, "rank"), ValueError, ["order rank"]),
    "algorithm": (("allreduce", X), ("allreduce", X, "sum", None, "ring", "ring"), ValueError, ["algorithm ring"]),
    "collective": (("allreduce", X), ("allgather", X), ValueError, ["allreduce", "allgather"]),
    "barrier": (("reduce_scatter", X), ("barrier",), ValueError, ["barrier", "reduce_scatter"]),
    "trailing": (("allgather", np.ones((1, 2))), ("allgather", np.ones((1, 3))), ValueError, ["[2]", "[3]"]),
    "unknown op": (("allreduce", X), ("allreduce", X, "mean"), ValueError, ["unknown op 'mean'"]),
    "unknown order": (("allreduce", X), ("allreduce", X, "sum", None, 7), ValueError, ["unknown order 7"]),
    "unknown algorithm": (("allgather", X), ("allgather", X, None, "tree"), ValueError, ["unknown algorithm 'tree'"]),
    "odd op": (("allreduce", X), ("allreduce", X, ["sum"]), ValueError, ["unknown op ['sum']"]),
    "surrogate": (("allreduce", X), ("allreduce", X, "\udc80"), ValueError, ["unknown op"]),
    "separator": (("allreduce", X), ("allreduce", X, "su\x1fm\x00"), ValueError, ["unknown op"]),
    "ring and rank": (("allreduce", X, "sum", None, "rank", "ring"),) * 2 + (ValueError, ["cannot combine"]),
    "average": (("allreduce", X.astype("i4"), "avg"),) * 2 + (TypeError, ["int32", "float64"]),
    "library": (("allreduce", X, "sum", None, "ring", "mpi"),) * 2 + (ValueError, ["MPI"]),
    "list": (("allreduce", X), ("allreduce", [1, 2]), TypeError, ["list", "np.asarray"]),
    "nothing": (("allreduce", X), ("allreduce", None), TypeError, ["NoneType"]),
    "object": (("allreduce", X), ("allreduce", np.array([None])), TypeError, ["object"]),
    "out shape": (("allreduce", X), ("allreduce", X, "sum", np.ones(4, "f4")), ValueError, ["(4,)", "(5,)"]),
    "out dtype": (("allreduce", X), ("allreduce", X, "sum", np.ones(5)), ValueError, ["float64", "float32"]),
    "out kind": (("allreduce", X), ("allreduce", X, "sum", [0] * 5), TypeError, ["list"]),
    "out number": (("allreduce", X[0]), ("allreduce", X[0], "sum", 5.0), TypeError, ["float"]),
    "out scalar": (("allreduce", X[0]), ("allreduce", X[0], "sum", X[1]), ValueError, ["read-only"]),
    "out read-only": (("allreduce", X), ("allreduce", X, "sum", np.broadcast_to(X[0], 5)), ValueError, ["writeable"]),
    "gathered out": (("allgather", X), ("allgather", X, np.ones((9, 2), "f4")), ValueError, ["(9, 2)"]),
}  # fmt: skip


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_raises_alike_and_the_next_one_works(name, size):
    usual, odd, kind, words = WRONG[name]
    for culprit in range(size):

        def program(rank, collectives):
            wrong = odd if rank == culprit else usual
            error = yield from kept(call(collectives, *wrong))
            total = yield from call(collectives, "allreduce", np.ones(3))
            return type(error), str(error), total.tolist()

        results = Ranks(size, culprit, None).run(program)
        assert all(result == results[0] for result in results), results
        raised, message, total = results[0]
        assert raised is kind and total == [size] * 3
        assert all(word in message for word in words), message
        named = 0 if usual is odd else culprit
        assert f"rank {named}" in message


def test_allgather_out_of_the_wrong_length():
    def program(rank, collectives):
        out = np.ones(7, "f4") if rank == 1 else None
        error = yield from kept(call(collectives, "allgather", X[: rank + 1], out))
        yield from call(collectives, "barrier")
        return repr(error)

    (message,) = set(Ranks(3, 1, None).run(program))
    assert (
        "rank 1 passed an out of 7 rows, but the ranks bring 6 in all (1, 2, 3)"
        in message
    )


def test_what_went_wrong_here_is_the_cause_here():
    results = Ranks(3).call("allreduce", lambda r: (X if r != 2 else [1],))
    causes = [result.__cause__ for result in results]
    assert causes[:2] == [None, None] and isinstance(causes[2], TypeError)


@pytest.mark.parametrize("check", [True, False])
def test_an_error_holds_nothing_when_it_is_dropped(check):
    """Its traceback knows the call's arrays; they go with it, at once, not when a collector runs."""
    gc.collect()
    gc.disable()
    try:
        ranks = Ranks(2) if check else unchecked(2, 1)
        arrays = [np.ones(3).view(Watchable) for _ in range(2)]
        gone = [weakref.ref(array) for array in arrays]
        wrong = ["sum" if check else "mean", "mean"]
        errors = ranks.call("allreduce", lambda r, xs=arrays: (xs[r], wrong[r]))
        assert {type(error) for error in errors} == {ValueError}
        assert all(ref() is not None for ref in gone)
        del arrays, errors
        assert all(ref() is None for ref in gone)
    finally:
        gc.enable()


class Watchable(np.ndarray):
    """An array that can be referred to weakly under its own name."""


def test_an_exception_of_another_kind_becomes_a_ring_error():
    """On its own rank it is of its own kind, too: who expects it catches it."""

    class Mine(Exception):
        pass

    class Demanding(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one}-{two}")

    for raised in (Mine("odd-17"), Demanding("odd", 17), TimeoutError("odd-17")):

        class Odd:
            def __str__(self, raised=raised):
                raise raised

        results = Ranks(2).call("allreduce", lambda r: (X, Odd() if r else "sum"))
        assert type(results[0]) is RingError and isinstance(results[1], RingError)
        assert {str(result) for result in results} == {"allreduce: rank 1: odd-17"}
        assert isinstance(results[1], type(raised))
        assert results[1].__cause__ is raised


# ---- sequences ------------------------------------------------------------------------------------


@st.composite
def sequences(draw):
    """Calls in a row; each is good, or wrong on all ranks but in one rank's words only."""
    size = draw(st.sampled_from([2, 3, 4]))
    names = ["allreduce", "reduce_scatter", "allgather", "barrier", "exchange", *WRONG]
    calls = draw(st.lists(st.sampled_from(names), min_size=2, max_size=6))
    return size, [(name, draw(st.integers(0, size - 1))) for name in calls]


@examples(max_examples=100)
@given(sequence=sequences(), seed=seeds, rendezvous=protocols)
@example((4, [("barrier", 0)] * 5), 1, None)
@example((3, [("shape", 1), ("allreduce", 0), ("list", 2), ("allgather", 0)]), 2, None)
def test_calls_in_a_row(sequence, seed, rendezvous):
    size, calls = sequence

    def program(rank, collectives):
        seen = []
        for number, (name, who) in enumerate(calls):
            x = np.arange(number + 3) + 8**rank
            if name in WRONG:
                usual, odd, _, _ = WRONG[name]
                todo = call(collectives, *(odd if rank == who else usual))
            elif name == "exchange":
                todo = call(collectives, name, "note", str(rank == who), None)
            else:
                todo = call(collectives, name, *([] if name == "barrier" else [x]))
            seen.append((yield from kept(todo)))
        return seen

    results = Ranks(size, seed, rendezvous, 16).run(program)
    for number, (name, who) in enumerate(calls):
        seen = [result[number] for result in results]
        xs = [np.arange(number + 3) + 8**rank for rank in range(size)]
        if name in WRONG:
            assert {type(error) for error in seen} == {WRONG[name][2]}
            assert len({str(error) for error in seen}) == 1
        elif name == "allreduce":
            assert all(same_bits(result, sum(xs)) for result in seen)
        elif name == "reduce_scatter":
            assert same_bits(np.concatenate(seen), sum(xs))
        elif name == "allgather":
            assert all(same_bits(result, np.concatenate(xs)) for result in seen)
        else:
            assert seen == [None if name == "barrier" else False] * size


def test_exchange():
    def texts(rank, collectives):
        same = yield from call(collectives, "exchange", "mine", "x" * 5000, None)
        tail = "x" * 5000 + ("y" if rank == 2 else "z")
        other = yield from call(collectives, "exchange", "mine", tail, None)
        odd = "\udc80" if rank == 1 else ""  # has no bytes in UTF-8
        assert not (yield from call(collectives, "exchange", "mine", odd, None))
        failure = KeyError("k-17") if rank == 1 else None
        error = yield from kept(call(collectives, "exchange", "mine", "", failure))
        return same, other, repr(error)

    (seen,) = set(Ranks(3, 1, None).run(texts))
    assert seen[:2] == (True, False)
    assert "KeyError" in seen[2] and "mine: rank 1" in seen[2] and "k-17" in seen[2]


# ---- without the check ----------------------------------------------------------------------------


def unchecked(size, seed):
    ranks = Ranks(size, seed, None)
    for collectives in ranks.collectives:
        collectives._check = False
    return ranks


@pytest.mark.parametrize("size", SIZES)
def test_unchecked_calls_send_nothing_but_data(size):
    ranks = unchecked(size, size)
    xs = [np.arange(7) + 8**rank for rank in range(size)]
    results = ranks.call("allreduce", lambda r: (xs[r], "sum", None, "ring", "ring"))
    assert all(same_bits(result, sum(xs)) for result in results)
    data = sum(2 * (size - 1) if size > 1 else 0 for _ in range(size))
    empty = 2 * (size - 1) * max(size - 7, 0)  # empty segments travel as no message
    assert ranks.network.messages == data - empty
    assert all(len(r) == 7 * size for r in ranks.call("allgather", lambda r: (xs[r],)))
    assert ranks.call("barrier", lambda r: ()) == [None] * size


def test_an_unchecked_call_that_cannot_work_raises_here():
    results = unchecked(2, 1).call("allreduce", lambda r: (X, "mean"))
    assert {type(result) for result in results} == {ValueError}
