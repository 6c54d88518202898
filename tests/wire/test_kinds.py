"""Arrays of other libraries in host memory: torch, JAX, and array_api_strict for whatever speaks DLPack.

The same collectives with the same bits as for NumPy arrays, of the library that was passed (promises 1 and 2).
"""

from __future__ import annotations

import numpy as np
import pytest

from mpiring.wire.arrays import NUMPY, kind_of
from mpiring.wire.collectives import rooted
from mpiring.wire.ring.messages import Message, exchange
from mpiring.wire.transport.device import Carriage
from mpiring.wire.transport.local import LocalNetwork
from mpiring.wire.transport.position import Position

from devices import local
from devices.cases import CASES
from wire import libraries, reference
from wire.libraries import KNOWN, LIBRARIES, OTHERS, STRICT, check, pairs
from wire.ranks import Ranks, kept
from wire.reference import bounds, combined, dtype_of, finished, reduced_flat, varied

pytestmark = pytest.mark.untraced

SHAPES = [(), (0,), (1,), (7,), (2, 3), (3, 0, 2), (4, 1, 5)]


@pytest.fixture(params=LIBRARIES)
def library(request):
    return request.param


@pytest.fixture(params=[x for x in OTHERS if x.fills], ids=str)
def filled(request):
    """A library whose arrays can be filled."""
    return request.param


def broadcast(ranks, xs, root=0, algorithm="auto"):
    return ranks.run(
        lambda r, c: rooted.broadcast(c, xs[r], root, algorithm, Position())
    )


def reduce(ranks, xs, op="sum", root=0, out=None):
    return ranks.run(
        lambda r, c: rooted.reduce(
            c, xs[r], op, root, out if r == root else None, "ring", "auto", Position()
        )
    )


def a_strided_one(library, like):
    """Memory that is not flat, for what is like an array, with the whole that it is part of."""
    whole = library.asarray(np.full((*like.shape, 2), 99).astype(like.dtype))
    return whole[..., 0], whole


@pytest.mark.parametrize("known", KNOWN, ids=str)
def test_the_library_is_here(known):
    if known not in OTHERS:
        pytest.skip(f"{known} is not installed: nothing here has tried its arrays")
    assert isinstance(known.asarray(np.ones(2)), known.ndarray)


# ---- every dtype, every shape, every collective ----------------------------------------------------


@pytest.mark.parametrize(
    "library, name", pairs(reference.DTYPES, lambda x, name: name in x.dtypes)
)
def test_every_dtype(library, name):
    size = 3
    values = [varied(name, (2, 4), r) for r in range(size)]
    xs = [library.asarray(value) for value in values]
    ranks = Ranks(size, 1, None)
    for op in reference.ops_of(name):
        whole = reduced_flat(op, values, "ring")
        for algorithm in ("ring", "direct"):
            for result in ranks.call(
                "allreduce", lambda r: (xs[r], op, None, "ring", algorithm)
            ):
                check(library, result, whole.reshape(2, 4), op)
            parts = ranks.call(
                "reduce_scatter", lambda r: (xs[r], op, None, "ring", algorithm)
            )
            for part, (start, stop) in zip(parts, bounds(8, size)):
                check(library, part, whole[start:stop], op)
        total = finished(op, combined(op, values, [2, 0, 1]), size, dtype_of(name))
        results = reduce(ranks, xs, op, root=1)
        check(library, results[1], total, op)
        assert results[0] is None and results[2] is None
    for joined in ranks.call("allgather", lambda r: (xs[r],)):
        check(library, joined, np.concatenate(values))
    for x, value in zip(xs, values):
        check(library, x, value, "the input is as it was")
    sent = broadcast(ranks, [xs[0], *map(library.asarray, values[1:])])
    for result in sent:
        check(library, result, values[0])
    assert sent[0] is xs[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_shape(library, shape, size):
    values = [varied("float32", shape, r) for r in range(size)]
    xs = [library.asarray(value) for value in values]
    ranks = Ranks(size, 2, None)
    whole = reduced_flat("sum", values, "ring")
    for result in ranks.call("allreduce", lambda r: (xs[r],)):
        check(library, result, whole.reshape(shape))
    for part, (start, stop) in zip(
        ranks.call("reduce_scatter", lambda r: (xs[r],)), bounds(whole.size, size)
    ):
        check(library, part, whole[start:stop])
    for joined in ranks.call("allgather", lambda r: (xs[r],)):
        check(library, joined, np.concatenate([np.atleast_1d(v) for v in values]))
    for result in broadcast(ranks, xs, size - 1):
        check(library, result, values[-1])


def test_strided_inputs(library):
    values = [varied("float64", (3, 5), r) for r in range(3)]
    for make in (
        library.strided,
        lambda x: library.asarray(x.T.copy()).T if library is not STRICT else None,
    ):
        xs = [make(value) for value in values]
        if xs[0] is None:
            continue
        for result in Ranks(3, 1, None).call("allreduce", lambda r: (xs[r],)):
            check(library, result, reduced_flat("sum", values, "ring").reshape(3, 5))


# ---- out -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_out_and_in_place(filled, shape):
    values = [varied("float32", shape, r) for r in range(3)]
    want = reduced_flat("sum", values, "ring").reshape(shape)
    xs = [filled.asarray(value) for value in values]
    strided = [a_strided_one(filled, value) for value in values]
    ranks = Ranks(3, 1, None)
    for outs in ([filled.asarray(values[0]) for _ in xs], [s[0] for s in strided], xs):
        results = ranks.call("allreduce", lambda r: (xs[r], "sum", outs[r]))
        for result, out in zip(results, outs):
            assert result is out
            check(filled, out, want)
    for _, whole in strided:  # what lies between the elements is as it was
        check(filled, whole[..., 1], np.full_like(values[0], 99))


def test_out_of_the_other_collectives(filled):
    values = [varied("int64", 6, r) for r in range(3)]
    xs = [filled.asarray(value) for value in values]
    ranks = Ranks(3, 1, None)
    whole = reduced_flat("sum", values, "ring")
    outs = [filled.asarray(np.zeros(2, "i8")) for _ in xs]
    results = ranks.call("reduce_scatter", lambda r: (xs[r], "sum", outs[r]))
    for r, (result, out) in enumerate(zip(results, outs)):
        assert result is out
        check(filled, out, whole[2 * r : 2 * r + 2])
    outs = [filled.asarray(np.zeros(18, "i8")) for _ in xs]
    results = ranks.call("allgather", lambda r: (xs[r], outs[r]))
    for result, out in zip(results, outs):
        assert result is out
        check(filled, out, np.concatenate(values))
    out = filled.asarray(np.zeros(6, "i8"))
    assert reduce(ranks, xs, root=2, out=out)[2] is out
    check(filled, out, whole)
    strided, _ = a_strided_one(filled, values[0])
    fill = [filled.asarray(np.zeros(6, "i8")), xs[1], strided]
    for result, x in zip(broadcast(ranks, fill, root=1), fill):
        assert result is x
        check(filled, x, values[1])


def test_in_place_where_x_is_a_part_of_out(filled):
    """Allgather in place, and reduce-scatter to my own segment."""
    joined = [filled.asarray(np.full(6, 8**r)) for r in range(3)]
    results = Ranks(3, 1, None).call(
        "allgather", lambda r: (joined[r][2 * r : 2 * r + 2], joined[r])
    )
    for result, out in zip(results, joined):
        assert result is out
        check(filled, out, np.repeat([1, 8, 64], 2))
    xs = [filled.asarray(np.full(6, 8**r)) for r in range(3)]
    outs = [x[2 * r : 2 * r + 2] for r, x in enumerate(xs)]
    Ranks(3, 1, None).call("reduce_scatter", lambda r: (xs[r], "sum", outs[r]))
    for r, (x, out) in enumerate(zip(xs, outs)):
        check(filled, out, np.full(2, 73))
        want = np.full(6, 8**r)
        want[2 * r : 2 * r + 2] = 73
        check(filled, x, want)


@pytest.mark.parametrize(
    "library, other", pairs([*OTHERS, libraries.NUMPY], lambda x, other: other is not x)
)
def test_x_and_out_of_two_libraries(library, other):
    x, out = library.asarray(np.ones(3)), other.asarray(np.ones(3))
    results = Ranks(2).call("allreduce", lambda r: (x, "sum", out if r else None))
    assert {type(error) for error in results} == {TypeError}
    assert all(
        f"rank 1: out is a {type(out).__name__}, expected a {library.module} array"
        in str(error)
        for error in results
    )


# ---- the cases from the field ----------------------------------------------------------------------

FILL = {
    "b01_counts_against_ranks",
    "b03_everybody_sends_first",
    "b05_zero_dimensional",
    "groups_of_messages",
    "with_a_root",
    "work_still_queued",
    "overlapping_in_and_out",
}
HALVES = {"b07_width", "b08_half_precision", "schedules_written_by_hand"}
# What a case needs that the library's arrays have not: steps backwards, being filled, 16-bit floats.
UNFIT = {
    "torch": {"b04_strided_views"},
    "jax": {"b04_strided_views", "b07_width", *FILL},
    "array_api_strict": {
        "b04_strided_views",
        "groups_of_messages",  # empty slices
        "with_a_root",  # broadcasts to None
        *HALVES,
    },
}


@pytest.mark.parametrize(
    "library, name", pairs(CASES, lambda x, name: name not in UNFIT[x.module])
)
def test_case(library, name):
    case, sizes = CASES[name]
    local.run(case, sizes[-1], library, "direct")


def test_the_cases_that_do_not_fit_exist():
    assert set().union(*UNFIT.values()) <= set(CASES)


# ---- one rank has another library than the next ----------------------------------------------------


def test_each_rank_has_a_library_of_its_own(library):
    values = [varied("float32", (2, 3), r) for r in range(3)]
    kinds = [libraries.NUMPY, library, libraries.NUMPY]
    xs = [kind.asarray(value) for kind, value in zip(kinds, values)]
    ranks = Ranks(3, 1, None)
    want = reduced_flat("sum", values, "ring")
    for kind, result in zip(kinds, ranks.call("allreduce", lambda r: (xs[r],))):
        check(kind, result, want.reshape(2, 3))
    for kind, result in zip(kinds, ranks.call("allgather", lambda r: (xs[r],))):
        check(kind, result, np.concatenate(values))
    for root in range(3):
        fresh = [kind.asarray(value) for kind, value in zip(kinds, values)]
        for kind, result in zip(kinds, broadcast(ranks, fresh, root)):
            check(kind, result, values[root])
    check(library, reduce(ranks, xs, root=1)[1], combined("sum", values, [2, 0, 1]))


def test_all_of_them_in_one_ring():
    kinds = [*OTHERS, libraries.NUMPY]
    values = [varied("complex128", 9, r) for r in range(len(kinds))]
    xs = [kind.asarray(value) for kind, value in zip(kinds, values)]
    results = Ranks(len(kinds), 1, None).call("allreduce", lambda r: (xs[r],))
    for kind, result in zip(kinds, results):
        check(kind, result, reduced_flat("sum", values, "ring"))


@pytest.mark.parametrize(
    "library, dtype",
    pairs(["float64", "bfloat16", "bool"], lambda x, name: name in x.dtypes),
)
def test_a_broadcast_to_ranks_with_none(library, dtype):
    value = varied(dtype, (2, 3), 0)
    results = broadcast(Ranks(3, 1, None), [None, library.asarray(value), None], 1)
    if library is STRICT:
        assert {type(error) for error in results} == {TypeError}
        assert all(
            "not know by name, but rank 0 passed None; pass an array to fill"
            in str(error)
            for error in results
        )
        return
    for result in results:
        check(library, result, value)


def test_a_broadcast_to_a_rank_without_the_library(library, monkeypatch):
    """The ranks are one process here, so it says that it has imported NumPy alone."""
    monkeypatch.setattr(rooted, "kinds_here", lambda: ("numpy",))
    results = broadcast(Ranks(2), [library.asarray(np.ones(3)), None])
    assert {type(error) for error in results} == {TypeError}
    told = f"has not imported {library.module}; import it there, or pass an array"
    if library is STRICT:
        told = "passed None; pass an array to fill"
    assert all(told in str(error) and "rank 1" in str(error) for error in results)


# ---- messages --------------------------------------------------------------------------------------


def group(calls):
    network = LocalNetwork(len(calls), message_bytes=16)
    return network.run(
        [
            kept(exchange(Carriage(t, "direct"), calls[t.rank], is_group=False))
            for t in network.transports
        ]
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_send_and_receive(library, shape):
    value = varied("int32", shape, 5)
    for source, target in (
        (library, library),
        (library, libraries.NUMPY),
        (libraries.NUMPY, library),
    ):
        x = source.asarray(value)
        out = target.asarray(np.zeros(shape, "int32"))
        sent, received = group([[Message(True, x, 1, 0)], [Message(False, out, 0, 0)]])
        assert sent[0] is x
        assert (received[0] is out) == target.fills
        check(target, received[0], value)


# ---- the kind --------------------------------------------------------------------------------------


def test_the_memory_is_seen_without_a_copy(library):
    x = library.asarray(np.arange(6.0))
    kind = kind_of(x)
    assert kind.name == library.module and kind_of(np.ones(2)) is NUMPY
    one, other = kind.as_array(x), kind.as_array(x)
    assert np.shares_memory(one, other) and one.tolist() == [0, 1, 2, 3, 4, 5]
    assert kind.is_array(x) == library.fills
    assert kind.is_immutable(x) != library.fills
