"""Broadcast and reduce: proven for every root of up to 32 ranks, with the lecture's steps and bytes.

And the lecture's identities: an all-reduce is a reduce and a broadcast, or a reduce-scatter and an allgather.
"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiring.plan import (
    Action,
    Model,
    chain_broadcast,
    chain_reduce,
    direct_allgather,
    direct_allreduce,
    direct_reduce_scatter,
    price,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    star_broadcast,
    star_reduce,
    verify,
)
from mpiring.plan.programs import rank_program

from plan.compose import composed

# What few ranks do not reach, more do not either: to trace those takes a minute.
SIZES = [
    *range(1, 13),
    *(pytest.param(size, marks=pytest.mark.untraced) for size in range(13, 33)),
]


def star_reduce_by_rank(size, root=0, segments=1):
    return star_reduce(size, root, segments, "rank")


BROADCASTS = (chain_broadcast, star_broadcast)
REDUCES = (chain_reduce, star_reduce, star_reduce_by_rank)


def ring_order(size, last):
    """By a plain loop: the rank after the last, and on around the ring until the last."""
    order, rank = [], last
    for _ in range(size):
        rank = 0 if rank == size - 1 else rank + 1
        order.append(rank)
    return tuple(order)


def order_of_reduce(make, size, root):
    by_rank = make is star_reduce_by_rank
    return tuple(range(size)) if by_rank else ring_order(size, root)


# ---- proofs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_every_root(size):
    """Each root with some segments; the first, a middle and the last one with many."""
    for root in range(size):
        pieces = {1, 3} if root not in (0, size // 2, size - 1) else {1, 2, 3, 8, 40}
        for segments in pieces:
            for make in BROADCASTS:
                proof = verify(make(size, root, segments))
                assert proof.orders == ((),) * segments
                assert sum(proof.received) == (size - 1) * segments
                assert proof.received[root] == 0
            for make in REDUCES:
                proof = verify(make(size, root, segments))
                order = order_of_reduce(make, size, root)
                assert proof.orders == (order,) * segments
                assert sum(proof.sent) == (size - 1) * segments
                assert proof.sent[root] == 0


@given(
    st.integers(1, 64),
    st.integers(0, 10**6),
    st.integers(1, 100),
    st.integers(0, 10**6),
    st.sampled_from([*BROADCASTS, *REDUCES]),
)
def test_anywhere(size, root, segments, count, make):
    root %= size
    proof = verify(make(size, root, segments), count)
    assert sum(proof.sent) == sum(proof.received) == (size - 1) * count
    if make in REDUCES:
        assert set(proof.orders) == {order_of_reduce(make, size, root)}


# ---- the lecture's bytes and steps ----------------------------------------------------------------


@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize("segments", [1, 3, 8])
def test_bytes_through_each_link(size, segments):
    """A chain has N bytes on each of its K - 1 links; a star's root has (K - 1) N on its own."""
    nbytes = 4 * 1000
    for root in range(size):
        along = [((root + i) % size, (root + i + 1) % size) for i in range(size - 1)]
        found = price(chain_broadcast(size, root, segments), 1000, 4)
        assert found.link_bytes == dict.fromkeys(along, nbytes)
        assert found.link_messages == dict.fromkeys(along, segments)
        towards = [(a, b) for a, b in ((r, (r + 1) % size) for r in range(size))]
        towards.remove((root, (root + 1) % size))
        found = price(chain_reduce(size, root, segments), 1000, 4)
        assert found.link_bytes == dict.fromkeys(towards, nbytes)

        others = [rank for rank in range(size) if rank != root]
        found = price(star_broadcast(size, root, segments), 1000, 4)
        assert found.link_bytes == {(root, rank): nbytes for rank in others}
        assert found.sent_bytes[root] == (size - 1) * nbytes
        for make in (star_reduce, star_reduce_by_rank):
            found = price(make(size, root, segments), 1000, 4)
            assert found.link_bytes == {(rank, root): nbytes for rank in others}
            assert found.received_bytes[root] == (size - 1) * nbytes
            assert found.reduced_bytes[root] == (size - 1) * nbytes


@pytest.mark.parametrize("size", range(2, 13))
@pytest.mark.parametrize("segments", [1, 2, 3, 8, 20])
def test_turns(size, segments):
    """K + S - 2 along a chain, the last rank being done last; S in a star."""
    turn = Model(alpha=1, beta=0)
    for root in (0, size // 2, size - 1):
        chain = price(chain_broadcast(size, root, segments), model=turn)
        assert chain.seconds == size + segments - 2
        # Who is i hops away has the last segment after S - 1 + i turns, and passes it on in one more.
        places = [chain.rank_seconds[(root + i) % size] for i in range(size)]
        passing_on = [segments + i for i in range(size - 1)]
        assert places == [*passing_on, size + segments - 2]
        reduced = price(chain_reduce(size, root, segments), model=turn)
        assert reduced.seconds == reduced.rank_seconds[root] == size + segments - 2
        for make in (star_broadcast, star_reduce, star_reduce_by_rank):
            assert price(make(size, root, segments), model=turn).seconds == segments


@pytest.mark.parametrize("make", [*BROADCASTS, *REDUCES])
def test_one_rank_sends_nothing(make):
    proof = verify(make(1, 0, 3), 10)
    assert proof.exchanges == proof.sent == (0,)


# ---- identities -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_allreduce_is_reduce_and_broadcast(size):
    """In any form of both; the order of the sum is the reduce's, for all segments the same."""
    roots = range(size) if size < 9 else (0, size // 3, size - 1)
    for root, segments in product(roots, (1, 3, size)):
        for reduce, broadcast in product(REDUCES, BROADCASTS):
            parts = reduce(size, root, segments), broadcast(size, root, segments)
            proof = verify(composed(*parts), 100)
            assert proof.orders == verify(parts[0]).orders
            assert sum(proof.sent) == 2 * (size - 1) * 100


@pytest.mark.parametrize("size", range(1, 17))
def test_allreduce_by_rank_has_the_same_order_in_each_form(size):
    """So its bits are the same: direct, and reduced anywhere and broadcast in any way."""
    expected = verify(direct_allreduce(size, "rank")).orders
    for root, broadcast in product(range(size), BROADCASTS):
        parts = star_reduce(size, root, size, "rank"), broadcast(size, root, size)
        assert verify(composed(*parts, order="rank")).orders == expected


@pytest.mark.parametrize("size", SIZES)
def test_allreduce_is_reduce_scatter_and_allgather(size):
    """Of each kind with each kind; the ring's is the very schedule, and all have its order."""
    for offset in {0, 1 % size, size - 1}:
        parts = ring_reduce_scatter(size, offset), ring_allgather(size, offset)
        assert composed(*parts, "ring", offset) == ring_allreduce(size, offset)
    parts = direct_reduce_scatter(size), direct_allgather(size)
    assert composed(*parts, "ring") == direct_allreduce(size)
    expected = verify(ring_allreduce(size)).orders
    for first, second in product(
        (ring_reduce_scatter(size), direct_reduce_scatter(size)),
        (ring_allgather(size), direct_allgather(size)),
    ):
        assert verify(composed(first, second, "ring")).orders == expected


@pytest.mark.parametrize("size", SIZES)
def test_a_reduce_scatter_is_a_reduce_to_each_segments_home(size):
    """The order of segment s in a ring is that of a chain whose root is s."""
    homes = [verify(chain_reduce(size, home)).orders[0] for home in range(size)]
    assert list(verify(ring_reduce_scatter(size)).orders) == homes


def test_a_reduce_to_another_root_is_no_allreduce():
    """The tests above can fail: a broadcast from a rank that has no result is refused."""
    with pytest.raises(Exception, match="what rank 1 holds is a contribution"):
        verify(composed(chain_reduce(3, 0), star_broadcast(3, 1)))


# ---- memory ---------------------------------------------------------------------------------------


def needs(made, *, wide=False):
    """Landings and slots of each rank."""
    programs = [rank_program(made, rank, wide=wide) for rank in range(made.size)]
    return [(program.landings, program.slots) for program in programs]


@pytest.mark.parametrize("segments", [1, 2, 7])
@pytest.mark.parametrize("wide", [False, True])
def test_a_broadcast_needs_no_scratch(segments, wide):
    for size, make in product((1, 2, 5), BROADCASTS):
        for root in range(size):
            assert needs(make(size, root, segments), wide=wide) == [(0, 0)] * size


@pytest.mark.parametrize("segments", [1, 2, 7])
def test_a_chain_reduce_needs_two_segments_at_most(segments):
    """Who hands on holds the sum it hands on next, and the one that comes lands beside it.

    While it is handed on, the next one arrives, but is only added when both are through.  The root adds
    into the result, unless partials are wide.  The first sends its own, which has to be widened for it.
    """
    made = chain_reduce(5, 2, segments)  # along 3, 4, 0, 1 to 2
    assert needs(made) == [(1, 1), (1, 1), (1, 0), (0, 0), (1, 1)]
    assert needs(made, wide=True) == [(1, 1), (1, 1), (1, 1), (0, 1), (1, 1)]
    assert needs(chain_reduce(1, 0, segments)) == [(0, 0)]
    # What is dead after a step is what was sent in it.
    program = rank_program(made, 4)
    assert [dead for dead in program.dead if dead] == [(s,) for s in range(segments)]


@pytest.mark.parametrize("segments", [1, 2, 7])
def test_a_stars_root_needs_room_for_all_others(segments):
    for make in (star_reduce, star_reduce_by_rank):
        made = make(4, 1, segments)
        assert needs(made) == [(0, 0), (3, 0), (0, 0), (0, 0)]
        assert needs(made, wide=True) == [(0, 0), (3, 1), (0, 0), (0, 0)]


@pytest.mark.parametrize("root", range(4))
def test_which_side_of_the_own_value(root):
    """By rank, what comes from the right goes behind the root's own; around the ring nothing does."""
    (step,) = star_reduce(4, root, order="rank").steps(root)
    for receive in step.receives:
        after = receive.action is Action.REDUCE_AFTER
        assert after == (receive.peer > root)
    (step,) = star_reduce(4, root).steps(root)
    assert {receive.action for receive in step.receives} == {Action.REDUCE}
    assert [r.peer for r in step.receives] == [(root + i) % 4 for i in (1, 2, 3)]
