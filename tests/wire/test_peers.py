"""The collectives on ordinary arrays whose ranks reach into each other's memory, all in one process.

A process may reach into itself, so the system calls are the real ones; the interleavings are adversarial.  Blocks are
of a few elements, so that short arrays have several.  That each rank's memory is another process's is tried in
tests/ranks/test_peers.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.wire.collectives import gather, rooted
from mpiring.wire.collectives.gather import allgather
from mpiring.wire.collectives.rooted import broadcast, reduce
from mpiring.wire.node import cross_memory, peers, ways
from mpiring.wire.opening import closing
from mpiring.wire.transport.position import Position

from wire import reference
from wire.interleaving import protocols, seeds
from wire.ranks import Ranks
from wire.reference import same_bits
from wire.test_mutants import broken
from wire.test_peer_memory import needs_reach

pytestmark = [pytest.mark.untraced, needs_reach]

sizes = st.sampled_from([1, 2, 3, 4, 5])
FEW = 2  # bytes: one more than the closing exchange says
BLOCK = 48  # bytes: three elements of the longest dtype


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr(peers, "block_bytes", lambda size: BLOCK)


def make(size, seed=None, rendezvous=True):
    return Ranks(size, seed, rendezvous, peers=True)


# ---- the bits -------------------------------------------------------------------------------------


def check_allreduce(
    size, count, dtype, op, order, in_place, seed, rendezvous, make=make
):
    values = [reference.varied(dtype, count, rank, seed) for rank in range(size)]
    ranks = make(size, seed, rendezvous)
    xs = [value.copy() for value in values]
    outs = xs if in_place else [np.ones_like(value) for value in values]
    results, longest = ranks.sends(
        lambda: ranks.call("allreduce", lambda r: (xs[r], op, outs[r], order))
    )
    assert longest < FEW
    want = reference.reduced_flat(op, values, order)
    for result, out in zip(results, outs):
        assert result is out and same_bits(result, want)
    if not in_place:
        assert all(same_bits(x, value) for x, value in zip(xs, values))


def check_to_one(size, count, dtype, op, order, in_place, seed, rendezvous, make=make):
    """reduce_scatter and reduce."""
    values = [reference.varied(dtype, count, rank, seed) for rank in range(size)]
    ranks = make(size, seed, rendezvous)
    xs = [value.copy() for value in values]
    parts = [slice(*bound) for bound in reference.bounds(count, size)]
    outs = [x[part] if in_place else None for x, part in zip(xs, parts)]
    results, longest = ranks.sends(
        lambda: ranks.call("reduce_scatter", lambda r: (xs[r], op, outs[r], order))
    )
    want = reference.reduced_flat(op, values, order)
    for result, part in zip(results, parts):
        assert same_bits(result, want[part])
    assert longest < FEW

    root = seed % size
    xs = [value.copy() for value in values]
    into = [x if in_place else None for x in xs]
    results, longest = ranks.sends(
        lambda: ranks.run(
            lambda r, c: reduce(c, xs[r], op, root, into[r], order, "auto", Position())
        )
    )
    turn = 0 if order == "rank" else root + 1
    chain = [values[(turn + at) % size] for at in range(size)]
    assert same_bits(results[root], reference.reduced_flat(op, chain, "rank"))
    assert [r for r, x in enumerate(results) if x is not None] == [root]
    for rank, (x, value) in enumerate(zip(xs, values)):
        assert same_bits(x, value) or in_place and rank == root
    assert longest < FEW


def check_copies(size, lengths, in_place, seed, rendezvous):
    """allgather and broadcast."""
    ranks = make(size, seed, rendezvous)
    rows = [1000 * r + np.arange(2 * n).reshape(n, 2) for r, n in enumerate(lengths)]
    starts = np.cumsum([0, *lengths])
    xs: list = [row.copy() for row in rows]
    outs: list = [None] * size
    if in_place:
        outs = [np.full((sum(lengths), 2), -1) for _ in range(size)]
        xs = [out[start:][:n] for out, start, n in zip(outs, starts, lengths)]
        for x, row in zip(xs, rows):
            x[...] = row
    results, longest = ranks.sends(
        lambda: ranks.call("allgather", lambda r: (xs[r], outs[r]))
    )
    for result, out in zip(results, outs):
        assert same_bits(result, np.concatenate(rows))
        assert not in_place or result is out
    assert longest < FEW

    root = seed % size
    wholes = [np.arange(60) + 100 * r for r in range(size)]
    given = [x if in_place or r == root else None for r, x in enumerate(wholes)]
    results, longest = ranks.sends(
        lambda: ranks.run(lambda r, c: broadcast(c, given[r], root, "auto", Position()))
    )
    for result, x in zip(results, given):
        assert same_bits(result, np.arange(60) + 100 * root)
        assert x is None or result is x
    assert longest < FEW


@examples(max_examples=250)
@given(
    size=sizes,
    count=st.integers(0, 70),
    dtype=st.sampled_from(reference.DTYPES),
    order=st.sampled_from(["ring", "rank"]),
    in_place=st.booleans(),
    data=st.data(),
    seed=seeds,
    rendezvous=protocols,
)
def test_bits_of_reductions(
    size, count, dtype, order, in_place, data, seed, rendezvous
):
    op = data.draw(st.sampled_from(reference.ops_of(dtype)))
    how = size, count, dtype, op, order, in_place, seed, rendezvous
    check_allreduce(*how)
    check_to_one(*how)


@examples(max_examples=80)
@given(
    size=sizes,
    lengths=st.lists(st.integers(0, 9), min_size=5, max_size=5),
    in_place=st.booleans(),
    seed=seeds,
    rendezvous=protocols,
)
@example(3, [0, 0, 0, 0, 0], False, 0, True)
def test_allgather_and_broadcast(size, lengths, in_place, seed, rendezvous):
    check_copies(size, lengths[:size], in_place, seed, rendezvous)


def test_more_arrays_than_a_kernel_takes():
    check_allreduce(20, 45, "float16", "avg", "ring", True, 0, True)


def test_blocks_of_the_real_length(monkeypatch):
    monkeypatch.undo()
    count = 3 * peers.block_bytes(2) // 4 + 5
    check_allreduce(2, count, "float32", "sum", "ring", True, 0, True)
    check_to_one(2, count, "float32", "sum", "ring", False, 1, True)


@pytest.mark.parametrize("size", [2, 3, 4, 8, 64, 1000])
def test_scratch_is_bounded(monkeypatch, size):
    monkeypatch.undo()
    assert peers.block_bytes(size) * size <= 8 << 20 or size > 512
    assert peers.block_bytes(size) % 64 == 0


# ---- which way a call goes ------------------------------------------------------------------------


def arrays(size, count=3000):
    return [np.full(count, 8.0**r) for r in range(size)]


CALLS = {
    "allreduce": lambda r, x: (x, "sum", x, "ring"),
    "reduce_scatter": lambda r, x: (x, "sum", None, "ring"),
    "allgather": lambda r, x: (x, None),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_an_algorithm_that_is_asked_for_sends_messages(name, algorithm):
    ranks, xs = make(3), arrays(3)
    _, longest = ranks.sends(
        lambda: ranks.call(name, lambda r: (*CALLS[name](r, xs[r]), algorithm))
    )
    assert longest > FEW


def test_shared_is_for_memory_that_all_have_mapped():
    ranks, xs = make(2), arrays(2)
    for error in ranks.call(
        "allreduce", lambda r: (xs[r], "sum", xs[r], "ring", "shared")
    ):
        assert type(error) is ValueError and "passed other memory" in str(error)


def test_short_arrays_send_messages():
    ranks, xs = make(3), arrays(3, 500)
    for c in ranks.collectives:
        c.ways.least_bytes = 4001
    for name in CALLS:
        if name != "allgather":  # that has 12000 bytes in all
            _, longest = ranks.sends(
                lambda name=name: ranks.call(name, lambda r: CALLS[name](r, xs[r]))
            )
            assert longest > FEW


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("victim", [0, 2])
def test_if_one_rank_is_refused_all_send_messages(monkeypatch, name, victim):
    """Also in the call that has found it out; later ones do not offer their memory any more."""
    honest = cross_memory.try_all

    def tries(reach, rank, peers):
        return "refused" if rank == victim else honest(reach, rank, peers)

    monkeypatch.setattr(cross_memory, "try_all", tries)
    ranks = make(3)
    for turn in range(2):
        xs = arrays(3)
        results, longest = ranks.sends(
            lambda xs=xs: ranks.call(name, lambda r: CALLS[name](r, xs[r]))
        )
        assert longest > FEW
        parts = results if name == "reduce_scatter" else results[:1]
        if name == "allgather":
            assert same_bits(results[1], np.concatenate(arrays(3)))
        else:
            assert (np.concatenate(parts) == 0o111).all()
    assert all(c.ways.peer_memory.why_not == "refused" for c in ranks.collectives)


def test_if_one_rank_is_refused_the_root_gets_messages(monkeypatch):
    monkeypatch.setattr(cross_memory, "try_all", lambda *_: "refused")
    ranks, xs = make(3), arrays(3)
    results = ranks.run(
        lambda r, c: reduce(c, xs[r], "sum", 1, xs[r], "ring", "auto", Position())
    )
    assert (results[1] == 0o111).all()
    ranks, xs = make(3), arrays(3)
    for x in ranks.run(lambda r, c: broadcast(c, xs[r], 1, "auto", Position())):
        assert (x == 8).all()


def test_arrays_that_are_not_flat():
    """Strided, backwards, of the other byte order, unaligned: their flat copies are read and written."""
    ranks = make(4)
    values = [8.0**r * np.arange(100) for r in range(4)]

    def given(r):
        raw = np.zeros(801, "u1")[1:].view("f8")
        wide = np.zeros(200)
        return {0: wide[::2], 1: wide[:100][::-1], 2: np.zeros(100, ">f8"), 3: raw}[r]

    xs, outs = [given(r) for r in range(4)], [given(3 - r) for r in range(4)]
    for x, value in zip(xs, values):
        x[...] = value
    results, longest = ranks.sends(
        lambda: ranks.call("allreduce", lambda r: (xs[r], "sum", outs[r]))
    )
    for result, out in zip(results, outs):
        assert result is out and (result == sum(values)).all()
    assert longest < FEW
    joined = ranks.call("allgather", lambda r: (xs[r],))
    assert all((j == np.concatenate(values)).all() for j in joined)
    results, longest = ranks.sends(
        lambda: ranks.run(lambda r, c: broadcast(c, xs[r], 1, "auto", Position()))
    )
    assert longest < FEW and all((x == values[1]).all() for x in results)


def test_an_allgather_that_would_be_written_while_others_read():
    """x is a part of out, but not this rank's: promise 1 has it right all the same."""
    ranks = make(3)
    outs = [np.arange(300) + 1000 * r for r in range(3)]
    xs = [out[(150 if r == 1 else 100 * r) :][:100] for r, out in enumerate(outs)]
    rows = [x.copy() for x in xs]
    for result in ranks.call("allgather", lambda r: (xs[r], outs[r])):
        assert same_bits(result, np.concatenate(rows))


def test_without_the_check_it_goes_the_same_way():
    ranks = make(3)
    for c in ranks.collectives:
        c._check = False
    xs = arrays(3)
    results, longest = ranks.sends(
        lambda: ranks.call("allreduce", lambda r: (xs[r], "sum", xs[r]))
    )
    assert longest < FEW and all((x == 0o111).all() for x in results)


def test_what_rides_on_some_ranks_only_goes_by_messages():
    """Some ranks bring their bytes to the opening exchange, and one, as with an array on a device, does not."""
    ranks = Ranks(3, tuning={"small_bytes": 100}, peers=True)
    ranks.collectives[1].small_bytes = -1
    xs = [np.full(10, 8**r) for r in range(3)]
    for turn in range(2):
        for x in ranks.call("allreduce", lambda r: (xs[r],)):
            assert (x == 0o111).all()
        parts = ranks.call("reduce_scatter", lambda r: (xs[r],))
        assert (np.concatenate(parts) == 0o111).all()
        results = ranks.run(
            lambda r, c: reduce(c, xs[r], "sum", 1, None, "ring", "auto", Position())
        )
        assert (results[1] == 0o111).all()


def test_errors_are_those_of_every_path():
    ranks, xs = make(3), arrays(3)
    xs[2] = xs[2][:-1]
    for error in ranks.call("allreduce", lambda r: (xs[r], "sum", xs[r])):
        assert type(error) is ValueError and "rank 2 passed array" in str(error)
    xs = arrays(3)
    for error in ranks.call("allreduce", lambda r: (xs[r], "no" if r else "sum")):
        assert type(error) is ValueError
    assert (ranks.call("allreduce", lambda r: (xs[r],))[0] == 0o111).all()


# ---- nobody reads too early or writes too soon -----------------------------------------------------


def turns(rank, c, size, held):
    """Collectives behind each other; a rank writes its arrays as soon as it may.

    All arrays go into ``held``: where the closing exchange is missing, peers still write to those of a call that is
    over, and that must not be other memory of this process by then.
    """
    x, out, found = np.zeros(40, "i8"), np.zeros(40, "i8"), []
    held += x, out
    for turn in range(3):
        root = turn % size
        x[...] = 8**rank * (turn + 1)
        yield from c.allreduce(x, "sum", out, "ring", "auto", Position())
        found.append(out.tolist())
        x[...], out[...] = 8**rank, -2
        part = yield from c.reduce_scatter(x, "sum", None, "ring", "auto", Position())
        x[...] = rank
        held.append(part)
        found.append(part.tolist())
        joined = yield from allgather(c, x[:30], None, "auto", Position())
        x[...] = 100 * rank + turn
        held.append(joined)
        found.append(joined.tolist())
        yield from broadcast(c, x, root, "auto", Position())
        found.append(x.tolist())
        x[...] = 8**rank
        total = yield from reduce(
            c, x, "sum", root, out if turn else None, "ring", "auto", Position()
        )
        x[...] = -3
        held.append(total)
        found.append(None if total is None else total.tolist())
    return found


def expected(size, rank):
    start, stop = reference.bounds(40, size)[rank]
    total = int("1" * size, base=8)
    for turn in range(3):
        root = turn % size
        yield [total * (turn + 1)] * 40
        yield [total] * (stop - start)
        yield [r for r in range(size) for _ in range(30)]
        yield [100 * root + turn] * 40
        yield [total] * 40 if rank == root else None


def order_of_turns(seed, rendezvous, size, way="peers"):
    held: list[Any] = []
    ranks = make(size, seed, rendezvous)
    results = ranks.run(lambda rank, c: turns(rank, c, size, held))
    for rank, result in enumerate(results):
        assert result == list(expected(size, rank))


@examples(max_examples=60)
@given(seeds, protocols, sizes)
def test_who_has_left_a_call_may_write(seed, rendezvous, size):
    order_of_turns(seed, rendezvous, size)


def test_without_the_closing_exchange_this_would_show(monkeypatch):
    def nothing(self, position):
        return
        yield

    monkeypatch.setattr(closing.Closing, "exchange", nothing)
    wrong = 0
    for seed in range(20):
        try:
            order_of_turns(seed, None, 3)
        except AssertionError:
            wrong += 1
    assert wrong > 0


# ---- the tests can fail ---------------------------------------------------------------------------

# name -> (what the source says, what the mistake says)
MISTAKES = {
    "folds its own value first": (
        "operands.append(x[block.here])",
        "operands.insert(0, x[block.here])",
    ),
    "folds in the order of ranks": ("combination(how.order, last", "combination('rank', last"),
    "reads the same block of all": ("starts[other] + block.start", "starts[other]"),
    "reads into one room": ("addresses[other], block", "addresses[0], block"),
    "writes to one": ("for other in others(rank, size):", "for other in others(rank, size)[:1]:"),
    "writes at the start": ("outs[other].offset + block.start", "outs[other].offset"),
    "writes the first block again": ("base + block.start", "base"),
    "leaves the last block out": ("for piece in mine.pieces(length)", "for piece in list(mine.pieces(length))[:-1]"),
    "does not cut the last block": ("block.length < rooms.length", "False"),
    "writes the root's at the start": ("of_root.offset + block.start", "of_root.offset"),
    "gathers one": ("in others(rank, len(xs)):", "in others(rank, len(xs))[:1]:"),
    "folds 16 bits twice": (
        "kind.fold_to_all(how.op, size, operands, [out[block.here]])",
        "kind.fold_to_all(how.op, size, [*operands, *operands[:1]], [out[block.here]])",
    ),
    "does not divide": ("op, size, operands, [out[block.here]]", "op, 1, operands, [out[block.here]]"),
}  # fmt: skip


def search(module):
    """What the tests above do, in some dozens of runs; ends with an exception if something is wrong."""
    with pytest.MonkeyPatch.context() as patch:
        for user in (ways, gather, rooted):
            patch.setattr(user, "peers", module)
        patch.setattr(module, "block_bytes", lambda size: BLOCK)
        for seed, size in enumerate((3, 4, 2)):
            for op, dtype in (("sum", "float32"), ("avg", "float16")):
                for order in ("ring", "rank"):
                    for in_place in (True, False):
                        how = size, 70, dtype, op, order, in_place, seed, None
                        check_allreduce(*how)
                        check_to_one(*how)
            check_copies(size, [3] * size, True, seed, None)


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_caught(name):
    copy = broken(peers, *MISTAKES[name])
    with pytest.raises(Exception):
        search(copy)


def test_without_a_mistake_nothing_is_caught():
    search(broken(peers, "block", "block"))
