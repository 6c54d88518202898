"""Reductions of ordinary arrays through stages, all ranks in one process and with adversarial interleavings.

The stages are short, so that arrays of a few elements are one-shot, of one block and of several.  That they lie in
memory of several processes is tried in tests/ranks/test_peers.py, which has the same promises.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.wire.collectives import repeated
from mpiring.wire.collectives.repeated import Repeated
from mpiring.wire.node import staged, stages, unnamed, ways
from mpiring.wire.node.stages import Lengths
from mpiring.wire.opening import closing
from mpiring.wire.reduce import arithmetic
from mpiring.wire.transport.position import Position

from devices import deferred, local
from wire import reference, test_peers
from wire.interleaving import protocols, seeds
from wire.ranks import Ranks
from wire.test_mutants import broken

pytestmark = pytest.mark.untraced

sizes = st.sampled_from([1, 2, 3, 4, 5])
FEW = test_peers.FEW

# Of 5 ranks and complex numbers, a block has one element of each segment.
SHORT = Lengths(block=128, room=128, longest=1 << 20, one_shot=64, kept=100)


def make(size, seed=None, rendezvous=True, lengths=SHORT):
    return Ranks(size, seed, rendezvous, stages=lengths)


class Repeating(Ranks):
    """Ranks whose all-reduces are those with little around them, once the stages are there."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.repeated = [Repeated(member) for member in self.collectives]

    def call(self, name, arguments):
        if name != "allreduce":
            return super().call(name, arguments)

        def program(rank, member):
            x, op, out, order = arguments(rank)
            made = self.repeated[rank].allreduce(x, op, out, order, "auto", Position())
            return made or member.allreduce(x, op, out, order, "auto", Position())

        return self.run(program)


def make_repeating(size, seed=None, rendezvous=True):
    ranks = Repeating(size, seed, rendezvous, stages=SHORT)
    if size > 1:
        first = [np.ones(200, "u1") for _ in range(size)]
        ranks.call("allreduce", lambda r: (first[r], "sum", None, "ring"))
        assert all(c.ways.stages.are_made for c in ranks.collectives)
    return ranks


FEW_DTYPES = ("float32", "bfloat16", "complex64", "int8")  # the others are slow


# ---- the bits -------------------------------------------------------------------------------------


@examples(max_examples=300)
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
    test_peers.check_allreduce(*how, make)
    test_peers.check_to_one(*how, make)
    test_peers.check_allreduce(*how, make_repeating)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(dtype, marks=[] if dtype in FEW_DTYPES else [pytest.mark.slow])
        for dtype in reference.DTYPES
    ],
)
def test_bits_with_kernels_and_without(monkeypatch, dtype, is_compiled):
    """One-shot, one block, several; with a result that is kept and one that is not."""
    if not is_compiled:
        monkeypatch.setattr(staged, "by_addresses", lambda *_: None)
    elements = np.ones(1, dtype).itemsize if dtype != "bfloat16" else 2
    for op in reference.ops_of(dtype):
        for size in (2, 3):
            for nbytes in (64, 128, 432):
                for order in ("ring", "rank"):
                    how = size, nbytes // elements, dtype, op, order
                    for maker in (make, make_repeating):
                        test_peers.check_allreduce(*how, True, 1, True, maker)
                        test_peers.check_allreduce(*how, False, 2, True, maker)


def test_more_ranks_than_a_kernel_takes_arrays():
    lengths = Lengths(block=320, room=320, longest=1 << 20, one_shot=40, kept=1000)

    def many(size, seed, rendezvous):
        return make(size, seed, rendezvous, lengths)

    for count in (20, 45, 500):
        test_peers.check_allreduce(
            20, count, "float16", "avg", "ring", True, 0, True, many
        )


def test_lengths_as_they_are():
    for count in (1000, 50_000, 700_000):
        for size in (2, 3):
            how = size, count, "float32", "sum", "ring", True, 0, True

            def real(size, seed, rendezvous):
                lengths = stages.lengths_for(size, 4 << 20)
                return Ranks(size, seed, rendezvous, stages=lengths)

            test_peers.check_allreduce(*how, real)
            test_peers.check_to_one(*how, real)


@pytest.mark.parametrize("dtype", sorted(arithmetic.DTYPES))
@pytest.mark.parametrize("op", arithmetic.OPS)
def test_what_is_combined_in_any_order_may_be(op, dtype):
    """any_order says nothing of arrays whose bits depend on the order; numbers are varied, without NaN and zeros."""
    try:
        arithmetic.check_op(op, dtype)
    except TypeError:
        return
    xs = [reference.varied(dtype, 400, rank, 3) for rank in range(3)]
    results = [
        [
            reference.reduced_flat(op, [xs[r] for r in ranks], "rank").tobytes()
            for ranks in every
        ]
        for every in ([(0, 1), (1, 0)], [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
    ]
    is_exact = [len(set(each)) == 1 for each in results]
    said = [arithmetic.any_order(op, dtype, size) for size in (2, 3)]
    assert all(exact for exact, may in zip(is_exact, said) if may)
    assert said[0] or (op, dtype[:7]) == ("prod", "complex")


# ---- which way a call goes ------------------------------------------------------------------------


def arrays(size, count=100):
    return [np.full(count, 8.0**r) for r in range(size)]


def test_stages_are_made_once_and_send_no_data():
    ranks, xs = make(3), arrays(3, 1000)
    for _ in range(2):
        _, longest = ranks.sends(lambda: ranks.call("allreduce", lambda r: (xs[r],)))
        assert longest < FEW
        known = [c.ways.stages for c in ranks.collectives]
        assert all(s.why_not == "" and s.are_made for s in known)
        assert len({s._memory.ctypes.data for s in known}) == 1  # members map it once


def test_a_one_shot_call_has_no_closing_exchange():
    """Nor has a reduce-scatter of one block: whoever has left the opening exchange waits for nobody."""
    ranks = make(3)
    counts = {"allreduce": [(8, 0), (14, 1), (64, 5)], "reduce_scatter": [(14, 0)]}
    ranks.call("allreduce", lambda r: (arrays(3)[r],))
    for name, cases in counts.items():
        for count, closings in cases:
            asked: list[int] = []
            xs = [np.ones(count) for _ in range(3)]
            with pytest.MonkeyPatch.context() as patch:
                honest = closing.Closing.exchange

                def counted(self, position, asked=asked, honest=honest):
                    asked.append(1)
                    return honest(self, position)

                patch.setattr(closing.Closing, "exchange", counted)
                ranks.call(name, lambda r, xs=xs: (xs[r],))
            assert len(asked) == 3 * closings, (name, count)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("dtype", ["complex128", "int8"])
def test_the_longest_arrays_and_longer_ones(size, dtype):
    count = 800 // np.dtype(dtype).itemsize
    for more, is_staged in ((0, True), (1, False)):
        ranks = make(size, lengths=SHORT._replace(longest=800))
        xs = [np.full(count + more, 1 + r, dtype) for r in range(size)]
        for x in ranks.call("allreduce", lambda r: (xs[r],)):
            assert (x == size * (size + 1) // 2).all()
        made = [c.ways.stages.are_made for c in ranks.collectives]
        assert made == [is_staged] * size


def test_what_is_too_short_for_stages_rides_along():
    ranks = Ranks(2, stages=SHORT, tuning={"small_bytes": 199})
    for count, is_made in ((24, False), (25, True)):
        for x in ranks.call("allreduce", lambda r, n=count: (np.full(n, 8.0**r),)):
            assert (x == 9).all()
        assert [c.ways.stages.are_made for c in ranks.collectives] == [is_made] * 2


def test_if_one_array_is_on_a_device_all_send_messages(monkeypatch):
    cupy = local.install(monkeypatch)
    ranks = Ranks(3, 4, stages=SHORT, reach=deferred.reach)
    for _ in range(2):
        values = arrays(3)
        xs = [cupy.asarray(x) if r == 1 else x for r, x in enumerate(values)]
        results, longest = ranks.sends(
            lambda xs=xs: ranks.call("allreduce", lambda r: (xs[r],))
        )
        assert longest > FEW
        for rank, x in enumerate(results):
            host = cupy.asnumpy(x) if rank == 1 else x
            assert (host == 0o111).all()
        for x in ranks.call("allreduce", lambda r, v=values: (v[r],)):
            assert (x == 0o111).all()


@pytest.mark.parametrize("how", ["no memory", "no directory"])
def test_without_stages_messages_do_it(monkeypatch, how):
    if how == "no directory":
        monkeypatch.setattr(unnamed, "DIRECTORY", "/nowhere/at/all")
    else:
        monkeypatch.setattr(unnamed.Backing, "reserve", refused)
    ranks = make(3)
    for _ in range(2):
        results = ranks.call("allreduce", lambda r: (np.full(1000, 8.0**r),))
        assert all((x == 0o111).all() for x in results)
        assert all(c.ways.stages.why_not for c in ranks.collectives)


def refused(_, part, nbytes, parts):
    raise MemoryError("full")


@pytest.mark.parametrize("size", [2, 3, 4, 8, 100, 1000])
def test_stages_take_little(size):
    lengths = stages.lengths_for(size, 4 << 20)
    assert lengths.total(size) <= 9 << 20
    assert lengths.room >= lengths.block - lengths.block // size
    assert lengths.one_shot <= lengths.room
    assert lengths.longest == 4 << 20 or size > 100
    assert (
        lengths.block // 16 >= size or lengths.longest < 0
    )  # an element of each segment


# ---- nobody reads too early or writes too soon -----------------------------------------------------


@examples(max_examples=60)
@given(seeds, protocols, sizes)
def test_who_has_left_a_call_may_write(seed, rendezvous, size):
    test_peers.order_of_turns(seed, rendezvous, size, make)


COLLECTIVES = ("allreduce", "reduce_scatter", "again")


def in_turn(seed, rendezvous, size, calls, lengths=SHORT):
    """Calls of other lengths behind each other through the same stages: what came out wrong."""
    ranks = make(size, seed, rendezvous, lengths)
    remembered = [Repeated(member) for member in ranks.collectives]

    def program(rank, c):
        found = []
        for turn, (name, count) in enumerate(calls):
            x = 8.0**rank * (turn + 1 + np.arange(count))
            if name == "reduce_scatter":
                out = yield from c.reduce_scatter(
                    x, "sum", None, "ring", "auto", Position()
                )
            else:
                how = x, "sum", x, "ring", "auto", Position()
                quick = remembered[rank].allreduce(*how) if name == "again" else None
                out = yield from quick or c.allreduce(*how)
            found.append(out.tolist())
            x[...] = -1
        return found

    total = int("1" * size, base=8)
    wrong = []
    for rank, found in enumerate(ranks.run(program)):
        want = []
        for turn, (name, count) in enumerate(calls):
            whole = total * (turn + 1.0 + np.arange(count))
            mine = slice(*reference.bounds(count, size)[rank])
            want.append(whole[mine if name == "reduce_scatter" else ...].tolist())
        if found != want:
            wrong.append((rank, found))
    return wrong


@examples(max_examples=150)
@given(
    seeds,
    protocols,
    sizes,
    st.lists(
        st.tuples(st.sampled_from(COLLECTIVES), st.sampled_from([0, 3, 8, 14, 20, 45])),
        max_size=8,
    ),
)
@example(1, None, 3, [("reduce_scatter", 14), ("again", 20), ("allreduce", 8)])
def test_stages_hold_what_others_have_not_taken(seed, rendezvous, size, calls):
    assert in_turn(seed, rendezvous, size, calls) == []


MANY = [(name, count) for count in (8, 14, 8, 45, 8, 20) for name in COLLECTIVES]


@pytest.mark.parametrize("name", ["one room", "one result", "no closing exchange"])
def test_without_turns_this_would_show(monkeypatch, name):
    if name == "no closing exchange":

        def nothing(self, position):
            return
            yield

        monkeypatch.setattr(closing.Closing, "exchange", nothing)
    else:
        copy = broken(
            stages,
            *{
                "one room": ("raw[turn:owned:2], raw[owned + turn]", "raw[0:owned:2], raw[owned + turn]"),
                "one result": ("raw[turn:owned:2], raw[owned + turn]", "raw[turn:owned:2], raw[owned]"),
            }[name],
        )  # fmt: skip
        monkeypatch.setattr(stages, "_planned", copy._planned)
    assert any(in_turn(seed, None, 3, MANY) for seed in range(30))


def test_plans_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr(stages, "_MOST_PLANS", 3)
    assert in_turn(0, True, 2, [("again", count) for count in range(20)]) == []
    ranks = make(2)
    for count in range(1, 20):
        ranks.call("allreduce", lambda r, count=count: (np.ones(count),))
        assert all(len(c.ways.stages._plans) <= 3 for c in ranks.collectives)


def test_no_array_of_a_call_is_held():
    ranks = make_repeating(3)
    for count in (8, 14, 45):
        xs = arrays(3, count)
        ranks.call("allreduce", lambda r, xs=xs: (xs[r], "sum", xs[r], "ring"))
        held = [weakref.ref(x) for x in xs]
        del xs
        gc.collect()
        assert [ref() for ref in held] == [None] * 3


# ---- the tests can fail ---------------------------------------------------------------------------

# name -> (module, what the source says, what the mistake says)
MISTAKES = {
    "brings nothing": (staged, "for part, room in brought:", "for part, room in []:"),
    "brings one side only": (staged, "in brought:", "in brought[:1]:"),
    "brings the first block again": (staged, "steps[number + 1 :][:1]", "steps[:1]"),
    "takes nothing": (staged, "for part, result in taken:", "for part, result in []:"),
    "takes one side only": (staged, "for part, result in taken:", "for part, result in taken[:1]:"),
    "folds in the order of ranks": (staged, "combination(order, ", "combination('rank', "),
    "folds what it had before": (staged, "operands[rank] = x[passage.mine]", "pass"),
    "folds a one-shot array in one order": (staged, 'order == "rank" or any_order(', "True or any_order("),
    "folds another's room last": (staged, "[*left, here, *right, *kept", "[*right, here, *left, *kept"),
    "does not keep its own": (staged, "kept = [NUMPY.pointer(out) + start]", "kept = [place]"),
    "reads the first piece": (stages, "block.packed_without(owner)[rank]", "block.packed_without(owner)[0]"),
    "has own pieces in its room": (stages, "block.packed_without(owner)[rank]", "block.packed[rank]"),
    "takes the blocks in one turn": (stages, "(turn + n) % len(TURNS)", "turn"),
    "scatters to the start": (staged, "outs = [out[passage.within]]", "outs = [out[: len(passage.result)]]"),
}  # fmt: skip


def search(module, copy):
    """What the tests above do, in some dozens of runs; ends with an exception if something is wrong."""
    with pytest.MonkeyPatch.context() as patch:
        if module is staged:
            patch.setattr(ways, "staged", copy)
            patch.setattr(repeated, "staged", copy)
        else:
            patch.setattr(stages, "_planned", copy._planned)
        for seed, size in enumerate((3, 4, 2)):
            for op, dtype in (("sum", "float32"), ("avg", "float16")):
                for order in ("ring", "rank"):
                    for count in (16, 30, 70, 110):
                        how = size, count, dtype, op, order, seed % 2 == 0, seed, None
                        test_peers.check_allreduce(*how, make)
                        test_peers.check_to_one(*how, make)
            for seed in range(8):
                assert not in_turn(seed, None, size, MANY)


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_caught(name):
    module, *change = MISTAKES[name]
    with pytest.raises(Exception):
        search(module, broken(module, *change))


def test_without_a_mistake_nothing_is_caught():
    for module in (staged, stages):
        search(module, broken(module, "plan", "plan"))
