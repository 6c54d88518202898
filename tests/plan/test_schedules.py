"""The schedules keep their promise: proven for all small sizes and counts, and beyond by properties."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiring.plan import (
    Action,
    Form,
    Receive,
    Schedule,
    Segments,
    Send,
    Step,
    direct_allgather,
    direct_allreduce,
    direct_reduce_scatter,
    from_steps,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    schedule,
    verify,
)
from mpiring.plan.schedules import last_uses

from plan.written import CASES, hierarchical_allreduce, written

# What few ranks do not reach, more do not either: to trace those takes a minute.
SIZES = [
    *range(1, 13),
    *(pytest.param(size, marks=pytest.mark.untraced) for size in range(13, 33)),
]


def promised_order(kind, size, home):
    """Promise 4 by a plain loop: ring starts right of the home and ends there; rank starts at 0."""
    if kind == "rank":
        return tuple(range(size))
    order, rank = [], home
    for _ in range(size):
        rank = 0 if rank == size - 1 else rank + 1
        order.append(rank)
    return tuple(order)


def check_orders(proof):
    made = proof.schedule
    for segment, order in enumerate(proof.orders):
        home = made.owner(segment) if made.root is None else made.root
        assert order == promised_order(made.order, made.size, home)


@pytest.mark.parametrize("size", SIZES)
def test_ring_at_every_offset(size):
    for offset in range(size):
        check_orders(verify(ring_allreduce(size, offset)))
        # Its two halves on their own; for many ranks at some offsets, as the whole contains them.
        if size <= 12 or offset in (0, 1, size // 2, size - 1):
            check_orders(verify(ring_reduce_scatter(size, offset)))
            assert verify(ring_allgather(size, offset)).orders == ((),) * size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("order", ["ring", "rank"])
def test_direct_in_both_orders(size, order):
    for make in (direct_reduce_scatter, direct_allreduce):
        check_orders(verify(make(size, order)))
    verify(direct_allgather(size))


@pytest.mark.parametrize("size", SIZES)
def test_elements_sent_and_received(size):
    for count in sorted(
        {0, 1, size - 1, size, size + 1, 3 * size - 1, 3 * size, 3 * size + 1}
    ):
        lengths = [segment.length for segment in Segments(count, size)]
        for algorithm in ("ring", "direct"):
            for collective in ("reduce_scatter", "allgather", "allreduce"):
                proof = verify(schedule(collective, size, algorithm=algorithm), count)
                assert sum(proof.sent) == sum(proof.received)
                phases = 2 if collective == "allreduce" else 1
                assert sum(proof.sent) == phases * (size - 1) * count
                if count % size == 0:
                    each = phases * (count - count // size)
                    assert proof.sent == proof.received == (each,) * size
                exchanges = size - 1 if algorithm == "ring" else min(1, size - 1)
                if size > 1:
                    assert proof.exchanges == (phases * exchanges,) * size
        proof = verify(ring_reduce_scatter(size), count)
        assert proof.sent == tuple(count - length for length in lengths)
        assert proof.count == count


@pytest.mark.parametrize("size", SIZES[1:])
def test_the_ring_is_a_ring(size):
    """Who sends to whom is one cycle through all ranks, and 2 K (K - 1) copies are made."""
    copies = Counter(
        (rank, send.peer)
        for rank in range(size)
        for step in ring_allreduce(size).steps(rank)
        for send in step.sends
    )
    assert copies.total() == 2 * size * (size - 1)
    assert set(copies.values()) == {2 * (size - 1)}
    following = dict(copies.keys())
    assert len(following) == len(copies) == size
    rank, seen = 0, []
    while rank not in seen:
        seen.append(rank)
        rank = following[rank]
    assert rank == 0 and sorted(seen) == list(range(size))


@given(
    st.integers(1, 64),
    st.integers(0, 10**6),
    st.integers(-100, 100),
    st.sampled_from([ring_reduce_scatter, ring_allgather, ring_allreduce]),
)
@settings(max_examples=60)
def test_ring_anywhere(size, count, offset, make):
    proof = verify(make(size, offset), count)
    phases = 2 if make is ring_allreduce else 1
    assert sum(proof.sent) == phases * (size - 1) * count
    if make is not ring_allgather:
        check_orders(proof)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=48), st.booleans())
@settings(max_examples=60)
def test_allgather_of_uneven_parts(lengths, ring):
    make = ring_allgather if ring else direct_allgather
    proof = verify(make(len(lengths)), lengths=lengths)
    total = sum(lengths)
    assert proof.received == tuple(total - length for length in lengths)


@pytest.mark.parametrize(("name", "size"), CASES)
def test_written_schedules_are_proven_too(name, size):
    made = written(name, size)
    proof = verify(made, count=10)
    if made.order is not None:
        check_orders(proof)
    if "broadcast" in name:
        assert sum(proof.received) == 10 * (size - 1)
    if name == "halving-doubling allreduce" and size > 1:
        assert proof.exchanges[0] == 2 * (size.bit_length() - 1)


@pytest.mark.parametrize(
    ("nodes", "local"), [(2, 2), (2, 3), (3, 2), (4, 4), (1, 3), (3, 1)]
)
def test_hierarchies(nodes, local):
    proof = verify(hierarchical_allreduce(nodes, local), count=100 * local)
    for order in proof.orders:
        assert [t for t in order if isinstance(t, int)] != []
    assert proof.sent[-1] == 2 * 100 * (local - 1) + (100 if nodes > 1 else 0)


def test_the_order_of_a_tree_keeps_its_brackets():
    proof = verify(written("tree allreduce", 4))
    assert proof.orders[0] == (0, 1, "(", 2, 3, ")")
    assert proof.order_text(0) == "(x0 op x1) op (x2 op x3)"


# ---- values ---------------------------------------------------------------------------------------


def test_equality_and_digest():
    ring = ring_allreduce(4)
    same = from_steps("allreduce", [ring.steps(r) for r in range(4)], order="ring")
    assert ring == same and hash(ring) == hash(same) and ring.digest == same.digest
    assert ring == ring_allreduce(4, 4) and ring.digest == ring_allreduce(4, 8).digest
    others = [
        ring_allreduce(4, 1),
        ring_allreduce(5),
        ring_reduce_scatter(4),
        direct_allreduce(4),
        direct_allreduce(4, "rank"),
        written("tree allreduce", 4),
    ]
    assert all(ring != other for other in others)
    assert len({made.digest for made in [ring, *others]}) == len(others) + 1
    assert ring != "ring"


def test_digest_is_the_same_on_every_machine():
    """Ranks compare digests, so Python's version and hash seed must not matter."""
    assert ring_allreduce(3).digest == "ee6a668da1ad68c7bd1773ac"


def test_owned_is_the_inverse_of_owner():
    for size in range(1, 9):
        for offset in range(-size, size + 1):
            made = ring_allreduce(size, offset)
            for rank in range(size):
                assert made.owner(made.owned(rank)) == rank
                assert made.owned(rank) == (rank + offset) % size


def test_the_lectures_offset():
    """The loops of the lecture's C: send rank - i, receive rank - i - 1; then one further on."""
    size, rank = 5, 2
    steps = list(ring_allreduce(size, offset=1).steps(rank))
    for i in range(size - 1):
        reduce, gather = steps[i], steps[size + i]
        assert reduce.sends[0].segment == (rank - i + size) % size
        assert reduce.receives[0].segment == (rank - i - 1 + size) % size
        assert gather.sends[0].segment == (rank - i + 1 + size) % size
        assert gather.receives[0].segment == (rank - i + size) % size
    assert not steps[size - 1].is_exchange and steps[0].is_exchange


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Schedule("gather", "x", 2, lambda r: []),
            "unknown collective 'gather'; known: allreduce",
        ),
        (lambda: ring_allreduce(0), "size must be 1 or more, got 0"),
        (lambda: direct_allreduce(2, "left"), "order must be .* got 'left'"),
        (lambda: from_steps("reduce", [[]]), "needs? ?.*root|takes a root from 0 to 0"),
        (lambda: from_steps("allgather", [[]], root=0), "takes no root, got root=0"),
        (lambda: from_steps("reduce", [[]], root=1), "root 1 of 1 ranks"),
        (lambda: from_steps("reduce", [[]], root=0, segments=-1), "have -1 segments"),
        (
            lambda: from_steps("allgather", [[], []], segments=3),
            "2 ranks cannot have 3 segments, each segment has a rank as its home",
        ),
        (
            lambda: from_steps("allreduce", [[], []], order="ring", segments=3),
            "2 ranks cannot have 3 segments",
        ),
        (lambda: ring_allreduce(2).steps(2), "rank 2 of a schedule for 2 ranks"),
        (lambda: ring_allreduce(2).steps(-1), "rank -1 of a schedule"),
        (
            lambda: schedule("gather", 2),
            "unknown collective 'gather'; known: allreduce",
        ),
        (
            lambda: schedule("allreduce", 2, algorithm="tree"),
            "unknown allreduce algorithm 'tree'; known: ring, direct",
        ),
        (
            lambda: schedule("allreduce", 2, order="any"),
            "unknown order 'any'; known: ring, rank",
        ),
        (
            lambda: schedule("allreduce", 2, order="rank"),
            "'ring' cannot combine with order='rank'.*'direct'",
        ),
        (
            lambda: schedule("broadcast", 2, algorithm="ring"),
            "unknown broadcast algorithm 'ring'; known: naive, pipelined, direct",
        ),
    ],
)
def test_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_by_name():
    made = schedule("allreduce", 4, algorithm="direct", order="rank")
    assert made == direct_allreduce(4, "rank")
    made = schedule("reduce_scatter", 4, algorithm="direct", order="rank")
    assert made == direct_reduce_scatter(4, "rank")
    assert schedule("allgather", 4) == ring_allgather(4)


# ---- last uses ------------------------------------------------------------------------------------


def last_uses_by_hand(steps):
    """For each step, of the segments it touches those nobody reads before they are overwritten."""

    def reads(step):
        stores = {r.segment for r in step.receives if r.action is Action.STORE}
        found = {send.segment for send in step.sends}
        found |= {r.segment for r in step.receives} - stores
        return found | (set(step.finishes) - stores), stores

    dead = []
    for i, step in enumerate(steps):
        read, stored = reads(step)
        gone = []
        for segment in sorted(read | stored):
            for later in steps[i + 1 :]:
                later_read, later_stored = reads(later)
                if segment in later_read:
                    break
                if segment in later_stored:
                    gone.append(segment)
                    break
            else:
                gone.append(segment)
        dead.append(tuple(gone))
    return dead


@st.composite
def some_steps(draw):
    """Any steps of one rank, sensible or not, that keep the rule about stores."""
    steps = []
    for _ in range(draw(st.integers(0, 7))):
        uses = draw(
            st.lists(
                st.tuples(
                    st.integers(0, 4), st.sampled_from(["send", "reduce", "finish"])
                ),
                max_size=4,
            )
        )
        used = {segment for segment, use in uses if use != "finish"}
        stores = draw(st.sets(st.integers(0, 4), max_size=2)) - used
        steps.append(
            Step(
                tuple(Send(1, s) for s, use in uses if use == "send"),
                tuple(Receive(1, s) for s, use in uses if use == "reduce")
                + tuple(Receive(1, s, Action.STORE) for s in sorted(stores)),
                tuple({s for s, use in uses if use == "finish"}),
            )
        )
    return steps


@given(some_steps())
def test_last_uses(steps):
    assert last_uses(steps) == last_uses_by_hand(steps)


def test_last_uses_of_the_ring():
    """A partial is dead when it was sent on; of an all-reduce nothing is dead before its last sending."""
    steps = list(ring_reduce_scatter(4).steps(1))
    assert last_uses(steps) == [(0,), (3,), (2,), (1,)]
    assert last_uses([Step((), (Receive(0, 0, Action.STORE, Form.RESULT),))]) == [(0,)]
    assert last_uses([]) == []
