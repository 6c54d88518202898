"""Broadcast, reduce and a user's schedules, of several ranks in one process, under hostile interleavings.

Every reduction is compared with a plain loop in promise 4's order, bit for bit.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.errors import DeadlockError, ScheduleError
from mpiring.plan import (
    Action,
    Form,
    Receive,
    Send,
    Step,
    from_steps,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    verify,
)
from mpiring.plan.segments import Segments
from mpiring.wire.arrays import NUMPY
from mpiring.wire.arrays.mapped import Place
from mpiring.wire.arrays.operands import Operand
from mpiring.wire.collectives import custom, rooted
from mpiring.wire.opening import agree
from mpiring.wire.opening.calls import at_address, told
from mpiring.wire.transport.position import Position

from plan.written import CASES, written
from wire import reference
from wire.interleaving import protocols, seeds
from wire.ranks import Ranks as UsualRanks
from wire.reference import combined, dtype_of, finished, same_bits, varied

SIZES = [1, 2, 3, 4, 5, 8]
# Pieces of so few bytes that a pipeline of some of them needs few elements.
Ranks = partial(UsualRanks, tuning={"piece_bytes": 32})


def broadcast(ranks, xs, root=0, algorithm="auto"):
    return ranks.run(
        lambda r, c: rooted.broadcast(c, xs[r], root, algorithm, Position())
    )


def reduce(ranks, xs, op="sum", root=0, outs=None, order="ring", algorithm="auto"):
    outs = outs or [None] * ranks.size
    return ranks.run(
        lambda r, c: rooted.reduce(
            c, xs[r], op, root, outs[r], order, algorithm, Position()
        )
    )


def run(ranks, plan, xs, op="sum", outs=None):
    plans = plan if isinstance(plan, list) else [plan] * ranks.size
    outs = outs or [None] * ranks.size
    return ranks.run(
        lambda r, c: custom.run(c, plans[r], xs[r], op, outs[r], Position())
    )


def raised(results, kind, *words):
    """All ranks raised the same, and it names ``words`` and a rank."""
    texts = [str(result) for result in results]
    assert all(type(result) is kind for result in results), results
    assert set(texts) == {texts[0]}, texts
    assert all(word in texts[0] for word in ("rank ", *words)), texts[0]


# ---- broadcast ------------------------------------------------------------------------------------


@examples(max_examples=200)
@given(data=st.data(), seed=seeds, protocol=protocols, size=st.sampled_from(SIZES))
def test_broadcast(data, seed, protocol, size):
    root = data.draw(st.integers(0, size - 1))
    dtype = data.draw(st.sampled_from(reference.DTYPES))
    shape = data.draw(st.sampled_from([(), (0,), (1,), (3, 0, 2), (2, 3), (29,)]))
    algorithm = data.draw(st.sampled_from(["auto", "naive", "pipelined", "direct"]))
    forms = data.draw(
        st.lists(
            st.sampled_from(["none", "flat", "strided", "swapped"]),
            min_size=size,
            max_size=size,
        )
    )
    sent = varied(dtype, shape, root, 5)
    xs = [None if form == "none" else array_of(form, sent) for form in forms]
    xs[root] = array_of("flat" if forms[root] == "none" else forms[root], sent)
    xs[root][...] = sent
    ranks = Ranks(size, seed, protocol, message_bytes=13)
    for x, got in zip(xs, broadcast(ranks, xs, root, algorithm)):
        assert got is x or x is None
        assert got.dtype.newbyteorder("=") == sent.dtype and got.shape == sent.shape
        assert same_bits(np.array(got, sent.dtype), sent)


def array_of(form, like):
    """Zeros like ``like``: flat, with gaps between elements, or in the other byte order."""
    if form == "strided":
        return np.zeros((2, *like.shape, 2), like.dtype)[1, ..., 1]
    if form == "swapped" and like.dtype != reference.BFLOAT16:
        return np.zeros(like.shape, like.dtype.newbyteorder("S"))
    return np.zeros_like(like)


SHAPES = [
    (),
    (0,) * 64,
    (1,) * 64,
    (2,) * 13 + (1,) * 51,
    (1,) * 62 + (130, 0),
    (127, 1, 128, 1, 129),
    (1, 40_000, 3),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_b45_broadcast_of_any_shape(shape):
    """As an all-reduce does: up to 64 dimensions, as many as NumPy has."""
    x = np.arange(math.prod(shape), dtype="int16").reshape(shape)
    for result in broadcast(Ranks(3), [None, x, np.zeros_like(x)], 1):
        assert same_bits(result, x) and result.shape == shape


@given(st.lists(st.integers(1, 2**40) | st.just(0), max_size=64))
@example([2] * 59 + [1] * 5)
@example([1] * 63 + [2**59])
@example([2**7] * 8 + [1] * 56)
def test_b45_shapes_come_back_and_are_short(lengths):
    """Whatever NumPy can have an array of."""
    shape: list[int] = []
    for length in lengths:
        is_fine = math.prod([n for n in (*shape, length) if n]) * 2 < 2**63
        shape.append(length if is_fine else 1)
    array = np.lib.stride_tricks.as_strided(np.zeros(1, "f2"), shape, [0] * len(shape))
    said = rooted._signature(Operand(NUMPY, array, "float16"))
    assert rooted._parsed(said) == ("numpy", "float16", tuple(shape))
    facts = told((Place(bytes(8), 0), None), (at_address(0), None))
    assert len(facts) + len(said) <= agree.PAYLOAD_BYTES


def test_broadcast_of_a_number():
    assert [float(x) for x in broadcast(Ranks(3), [None, 7.5, 2.0], 1)] == [7.5] * 3


def test_broadcast_that_cannot_work():
    one, two = np.ones(3), np.ones((3, 1), "f4")
    locked = np.ones(3)
    locked.flags.writeable = False
    shared = np.broadcast_to(1.0, (3,))
    cases: list[Any] = [
        ([one, two, None], 0, (), ValueError, ("rank 1", "float32[3,1]", "float64[3]")),
        ([one, None, None], 1, (), ValueError, ("rank 1", "None on the root")),
        ([one, one, one], 3, (), ValueError, ("root must be 0 to 2, got 3",)),
        ([one, one, one], True, (), ValueError, ("root must be 0 to 2, got True",)),
        ([one, one, one], 0, ("ring",), ValueError, ("'ring'", "'pipelined'")),
        ([one, one, one], 0, ("mpi",), ValueError, ("needs a ring over MPI",)),
        ([one, locked, one], 0, (), ValueError, ("rank 1", "x is read-only")),
        ([one, one, shared], 0, (), ValueError, ("rank 2", "share memory")),
        ([one, [1], one], 0, (), TypeError, ("rank 1", "list")),
    ]
    ranks = Ranks(3)
    for xs, root, more, kind, words in cases:
        raised(broadcast(ranks, xs, root, *more), kind, *words)
        assert [float(y[0]) for y in broadcast(ranks, [None, None, one], 2)] == [1] * 3
    results = broadcast(ranks, [locked, None, None])  # the root's is only read
    assert all(same_bits(result, one) for result in results)


# ---- reduce ---------------------------------------------------------------------------------------


def order_of(order, root, size):
    first = 0 if order == "rank" else root + 1
    return [(first + i) % size for i in range(size)]


@examples(max_examples=250)
@given(data=st.data(), seed=seeds, protocol=protocols, size=st.sampled_from(SIZES))
def test_reduce(data, seed, protocol, size):
    root = data.draw(st.integers(0, size - 1))
    dtype = data.draw(st.sampled_from(reference.DTYPES))
    op = data.draw(st.sampled_from(reference.ops_of(dtype)))
    count = data.draw(st.sampled_from([0, 1, size - 1, size, 30]))
    ways = [("ring", "auto"), ("ring", "ring"), ("ring", "direct")]
    ways += [("rank", "auto"), ("rank", "direct")]
    order, algorithm = data.draw(st.sampled_from(ways))
    place = data.draw(st.sampled_from(["new", "out", "in place"]))
    xs = [varied(dtype, (2, count), rank, 3) for rank in range(size)]
    before = [x.copy() for x in xs]
    outs: list[Any] = [None] * size
    if place != "new":
        outs[root] = xs[root] if place == "in place" else np.empty_like(xs[root])
    total = combined(op, before, order_of(order, root, size))
    want = finished(op, total, size, dtype_of(dtype))
    ranks = Ranks(size, seed, protocol, message_bytes=13)
    results = reduce(ranks, xs, op, root, outs, order, algorithm)
    for rank, (result, x, out) in enumerate(zip(results, xs, outs)):
        if rank != root:
            assert result is None
        else:
            assert same_bits(result, want) and (out is None or result is out)
        assert same_bits(x, want if x is out else before[rank])


def test_the_order_of_a_reduce_shows_in_its_bits():
    """Near 1e8 a float32 cannot add 1; so each root and order has sums of its own, by hand."""
    xs = [np.full(3, value, "f4") for value in (1e8, 1, -1e8, 1)]
    by_root = [reduce(Ranks(4), xs, root=root)[root][0] for root in range(4)]
    # 0: ((1 - 1e8) + 1) + 1e8   1: ((-1e8 + 1) + 1e8) + 1   2: ((1 + 1e8) + 1) - 1e8   3: ((1e8 + 1) - 1e8) + 1
    assert by_root == [0, 1, 0, 1]
    in_rank_order = [reduce(Ranks(4), xs, root=r, order="rank")[r][0] for r in range(4)]
    assert in_rank_order == [1, 1, 1, 1]


def test_reduce_that_cannot_work():
    one = np.ones(3)
    ranks = Ranks(3)
    cases: list[Any] = [
        ({"root": 3}, ValueError, ("root must be 0 to 2, got 3",)),
        ({"root": None}, ValueError, ("root must be 0 to 2, got None",)),
        ({"op": "med"}, ValueError, ("'med'",)),
        ({"order": "rank", "algorithm": "ring"}, ValueError, ("'rank'", "'ring'")),
        ({"algorithm": "naive"}, ValueError, ("'naive'",)),
        ({"outs": [np.ones(4), None, None]}, ValueError, ("rank 0", "(4,)", "(3,)")),
    ]
    for how, kind, words in cases:
        raised(reduce(ranks, [one] * 3, **how), kind, *words)
        assert reduce(ranks, [one] * 3)[0].tolist() == [3] * 3
    raised(reduce(ranks, [one, one, np.ones(4)]), ValueError, "float64[4]", "rank 2")
    off_root: list[Any] = [None, np.ones(77, "i1"), "of no use"]
    assert reduce(ranks, [one] * 3, outs=off_root)[0].tolist() == [3] * 3
    calls = [
        lambda c: rooted.reduce(c, one, "sum", 0, None, "ring", "auto", Position()),
        lambda c: rooted.broadcast(c, one, 0, "auto", Position()),
        lambda c: rooted.reduce(c, one, "sum", 1, None, "ring", "auto", Position()),
    ]
    both = ranks.run(lambda r, c: calls[r % 2](c))
    raised(both, ValueError, "called broadcast", "called reduce")
    roots = ranks.run(lambda r, c: calls[(0, 0, 2)[r]](c))
    raised(roots, ValueError, "rank 2 passed root 1", "rank 0 passed root 0")


# ---- a user's schedules ---------------------------------------------------------------------------


@pytest.mark.parametrize("name, size", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
def test_schedules_as_users_write_them(name, size, dtype):
    check_run(written(name, size), dtype, "sum", seed=size)


@pytest.mark.parametrize("offset", [1, 2])
@pytest.mark.parametrize("make", [ring_allreduce, ring_reduce_scatter, ring_allgather])
def test_the_lecture_s_offset(make, offset):
    for size in SIZES:
        check_run(make(size, offset), "float32", "avg", seed=offset)


def check_run(plan, dtype, op, seed):
    """Run a schedule, and compare with the orders that its proof has found."""
    size, rows = plan.size, 7
    xs = [varied(dtype, (rows, 2), rank, 3) for rank in range(size)]
    before = [x.copy() for x in xs]
    ranks = Ranks(size, seed, rendezvous=None, message_bytes=13)
    results = run(ranks, plan, xs, op)
    if plan.collective == "broadcast":
        for x, result in zip(xs, results):
            assert result is x and same_bits(result, before[plan.root])
        return
    assert all(map(same_bits, xs, before))
    if plan.collective == "allgather":
        want = np.concatenate([before[plan.owner(s)] for s in range(size)])
        assert all(same_bits(result, want) for result in results)
        return
    orders = verify(plan).orders
    parts = []
    for part, order in zip(Segments(2 * rows, plan.segments), orders):
        total = combined(op, [x.ravel()[part.slice] for x in before], order)
        parts.append(finished(op, total, size, before[0].dtype))
    want = np.concatenate(parts).reshape(rows, 2)
    for rank, result in enumerate(results):
        if plan.collective == "reduce" and rank != plan.root:
            assert result is None
        elif plan.collective == "reduce_scatter":
            assert same_bits(result, parts[plan.owned(rank)])
        else:
            assert same_bits(result, want)


def test_run_in_place_and_into_out():
    xs = [np.full(5, 8**rank) for rank in range(3)]
    for result, x in zip(run(Ranks(3), ring_allreduce(3), xs, outs=xs), xs):
        assert result is x and x.tolist() == [0o111] * 5
    # an allgather where x is this rank's part of out, and where it is another's
    for shift in (0, 1):
        outs = [np.zeros(6, int) for _ in range(3)]
        xs = [
            out[2 * ((r + shift) % 3) : 2 * ((r + shift) % 3) + 2]
            for r, out in enumerate(outs)
        ]
        for rank, x in enumerate(xs):
            x[:] = 10 * rank, 10 * rank + 1
        for result, out in zip(run(Ranks(3), ring_allgather(3), xs, outs=outs), outs):
            assert result is out and out.tolist() == [0, 1, 10, 11, 20, 21]
    # a broadcast with an out leaves every x alone; without, it fills x, or makes one
    plan = written("chain broadcast", 3)
    outs = [np.zeros((2, 8), int)[:, ::2] for _ in range(3)]
    xs = [np.full((2, 4), 8**rank) for rank in range(3)]
    for rank, result in enumerate(run(Ranks(3), plan, xs, outs=outs)):
        assert result is outs[rank]
        assert result.tolist() == [[8**plan.root] * 4] * 2
        assert (xs[rank] == 8**rank).all()
    some = [x if rank == plan.root else None for rank, x in enumerate(xs)]
    for result in run(Ranks(3), plan, some):
        assert result.tolist() == [[8**plan.root] * 4] * 2


def swap(form=Form.RESULT, missing=None, in_turns=False):
    """An allgather of two ranks: they swap their segments.  One may forget to send, or both receive first."""
    steps = []
    for rank in range(2):
        sends = () if rank == missing else (Send(1 - rank, rank, form),)
        receives = (Receive(1 - rank, 1 - rank, Action.STORE, form),)
        together = [Step(sends, receives)]
        steps.append([Step((), receives), Step(sends)] if in_turns else together)
    return from_steps("allgather", steps)


def test_run_that_cannot_work():
    ranks = Ranks(2)
    good, xs = swap(), [np.full(3, 8**rank) for rank in range(2)]
    everywhere = [1, 1, 1, 8, 8, 8]
    outs = [np.zeros(6, int), np.zeros(5, int)]
    cases: list[Any] = [
        ({"plan": swap(missing=1)}, ScheduleError, ("no matching send",)),
        ({"plan": swap(in_turns=True)}, DeadlockError, ("deadlock",)),
        ({"plan": swap(form=Form.PARTIAL)}, ScheduleError, ("segment",)),
        ({"plan": ring_allreduce(3)}, ValueError, ("for 3 ranks, this ring has 2",)),
        ({"plan": "ring"}, TypeError, ("a str, expected a mpiring.plan.Schedule",)),
        ({"plan": [good, ring_allreduce(2)]}, ValueError, ("allgather", "allreduce")),
        ({"plan": [good, written("chain broadcast", 2)]}, ValueError, ("broadcast",)),
        ({"plan": good, "outs": outs}, ValueError, ("rank 1", "(5,)", "(6,)")),
        ({"plan": good, "xs": [xs[0], xs[1][:2]]}, ValueError, ("int64[2]",)),
        ({"plan": ring_allreduce(2), "op": "med"}, ValueError, ("'med'",)),
    ]
    for how, kind, words in cases:
        raised(run(ranks, **{"xs": xs, **how}), kind, *words)
        assert outs[0].tolist() == [0] * 6, "written before the ranks had agreed"
        for result in run(ranks, good, xs):
            assert result.tolist() == everywhere


def test_a_schedule_is_proven_once(monkeypatch):
    proven = []
    monkeypatch.setattr(custom, "verify", lambda plan: proven.append(plan))
    plan = from_steps("allreduce", [list(ring_allreduce(2).steps(r)) for r in (0, 1)])
    custom._prove.cache_clear()
    for _ in range(3):
        run(Ranks(2), plan, [np.ones(3), np.ones(3)])
    assert proven == [plan]
