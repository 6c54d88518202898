"""Prices: formulas against the event run, bounds never beaten, factors as nccl-tests has them.

The constants are integers, so seconds are exact and compared with ``==``.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiring.plan import (
    Model,
    Receive,
    ScheduleError,
    Send,
    Step,
    algbw,
    bus_factor,
    busbw,
    closed_form,
    direct_allreduce,
    from_steps,
    lower_bound,
    price,
    ring_allgather,
    ring_allreduce,
    schedule,
    verify,
)
from mpiring.plan.cost import EventClock
from mpiring.plan.symbolic import run

from plan.written import CASES, PARTIAL, RESULT, STORE, star_broadcast, written

MODEL = Model(alpha=100_000, beta=10, gamma=3)


@given(
    st.integers(1, 24),
    st.integers(0, 3000),
    st.sampled_from(["ring", "direct"]),
    st.sampled_from(["allreduce", "reduce_scatter", "allgather"]),
    st.sampled_from([(4, None), (2, 4), (8, 8), (1, None)]),
    st.sampled_from([MODEL, Model(0, 1), Model(7, 0, 2), Model(1, 5, 11)]),
)
def test_formulas_are_the_evaluated_schedules(
    size, count, algorithm, collective, widths, model
):
    itemsize, partial = widths
    made = schedule(collective, size, algorithm=algorithm)
    found = price(made, count, itemsize, model, partial_itemsize=partial)
    formula = closed_form(
        collective, algorithm, size, count, itemsize, model, partial_itemsize=partial
    )
    assert found.exchanges == (formula.exchanges,) * size
    assert max(found.sent_bytes) == formula.sent_bytes
    assert found.seconds == formula.seconds


@pytest.mark.parametrize("offset", range(4))
def test_an_offset_moves_bytes_between_ranks_only(offset):
    found = price(ring_allreduce(4, offset), 400, 4, MODEL)
    assert found.seconds == closed_form("allreduce", "ring", 4, 400, 4, MODEL).seconds
    assert found.sent_bytes == (2400,) * 4


def test_bytes_by_link_and_width():
    """Float16: partials of the reduce-scatter are 4 bytes wide, results of the allgather 2."""
    found = price(ring_allreduce(3), 9, 2, partial_itemsize=4)
    links = {(0, 1), (1, 2), (2, 0)}
    assert found.link_bytes == dict.fromkeys(links, 2 * 3 * 4 + 2 * 3 * 2)
    assert found.link_messages == dict.fromkeys(links, 4)
    assert found.reduced_bytes == (24,) * 3
    assert found.sent_bytes == found.received_bytes == (36,) * 3
    assert found.rank_seconds == (0, 0, 0)
    direct = price(direct_allreduce(3), 9, 2, partial_itemsize=4)
    assert direct.sent_bytes == (2 * 3 * 2 + 2 * 3 * 2,) * 3
    assert len(direct.link_bytes) == 6


def test_uneven_parts():
    found = price(ring_allgather(3), itemsize=8, lengths=[5, 0, 1])
    assert found.received_bytes == (8, 48, 40)
    with pytest.raises(ValueError, match="2 lengths for 3 segments"):
        price(ring_allgather(3), lengths=[1, 2])


@pytest.mark.parametrize(("name", "size"), CASES)
def test_written_schedules_have_a_price(name, size):
    made = written(name, size)
    found, proof = price(made, 120, 4, MODEL), verify(made, 120)
    assert found.exchanges == proof.exchanges
    assert found.sent_bytes == tuple(4 * n for n in proof.sent)
    assert found.received_bytes == tuple(4 * n for n in proof.received)
    bound = lower_bound(made.collective, size, 480, MODEL)
    assert found.seconds >= bound.seconds


def test_a_pipelined_chain():
    """K - 1 hops for the first segment, then one more step for each further one."""
    size, segments = 5, 3
    found = price(written("chain broadcast", size), 30 * segments, 1, MODEL)
    assert found.seconds == (size - 1 + segments - 1) * (100_000 + 30 * 10)
    assert found.rank_seconds[0] == segments * (100_000 + 30 * 10)


def test_a_star_sends_everything_through_one_link():
    found = price(star_broadcast(5, segments=2), 20, 1, MODEL)
    assert found.seconds == 100_000 + 4 * 20 * 10
    assert found.rank_seconds[1] == 100_000 + 2 * 10 * 10


def test_a_tree_takes_its_depth():
    found = price(written("tree broadcast", 7), 10, 1, MODEL)
    assert found.seconds == 3 * (100_000 + 100)


def test_a_message_waits_for_its_receiver():
    """Rank 1 first listens to rank 2, so rank 0's message starts when that is through."""
    steps = [
        [Step((Send(1, 0, RESULT),))],
        [
            Step((), (Receive(2, 2, STORE, RESULT),)),
            Step((), (Receive(0, 0, STORE, RESULT),)),
        ],
        [Step((Send(1, 2, RESULT),))],
    ]
    made = from_steps("allgather", steps)
    clock = EventClock(3, MODEL, [4] * 3, [4] * 3)
    run(made, clock=clock)
    assert clock.begun == [200_080, 200_080, 100_040]
    assert len(clock) == 0


def test_links_serve_first_come_first_served():
    """Rank 0 gets from 1 and 2 at once; rank 2 comes later, so rank 1 is not held up by it."""
    late = Step((Send(3, 0, PARTIAL),)), Step((), (Receive(2, 0),))
    steps = [
        [Step((), (Receive(2, 0), Receive(1, 0)))],
        [Step((Send(0, 0),))],
        [late[0], Step((Send(0, 0),))],
        [late[1]],
    ]
    clock = EventClock(4, Model(10, 1), [5], [5])
    run(from_steps("reduce", steps, root=0, segments=1), clock=clock)
    assert clock.begun == [30, 15, 30, 15]


def test_a_broken_schedule_has_no_price():
    with pytest.raises(ScheduleError, match="no matching receive"):
        price(from_steps("allgather", [[Step((Send(1, 0, RESULT),))], []]))


@given(
    st.integers(1, 40),
    st.integers(0, 5000),
    st.sampled_from(["ring", "direct"]),
    st.sampled_from(["allreduce", "reduce_scatter", "allgather"]),
)
@settings(max_examples=50)
def test_no_formula_beats_the_bounds(size, count, algorithm, collective):
    seconds = closed_form(collective, algorithm, size, count, 4, MODEL).seconds
    bound = lower_bound(collective, size, 4 * count, MODEL)
    assert seconds >= bound.seconds
    if count % size == 0 and size > 1:
        bandwidth = closed_form(
            collective, algorithm, size, count, 4, Model(0, 1)
        ).seconds
        exact = Fraction(4 * count * (size - 1), size)
        assert bandwidth == exact * (2 if collective == "allreduce" else 1)


def test_bounds():
    bound = lower_bound("allreduce", 4, 1000, Model(7, 2, 1))
    assert (bound.latency, bound.bandwidth, bound.compute) == (7, 3000, 750)
    assert bound.seconds == 3007
    bound = lower_bound("reduce", 4, 1000, Model(7, 1, 10))
    assert (bound.bandwidth, bound.compute, bound.seconds) == (1000, 7500, 7507)
    bound = lower_bound("broadcast", 5, 1000, Model(7, 2, 1), ports=1)
    assert (bound.latency, bound.bandwidth, bound.compute) == (21, 2000, 0)
    assert lower_bound("allgather", 4, 1000, Model(7, 2, 1)).bandwidth == 1500
    assert lower_bound("broadcast", 1, 1000, MODEL).seconds == 0
    for size in range(2, 40):
        for ports in (1, 2, 3):
            exchanges = lower_bound("reduce", size, 0, Model(1, 0), ports=ports).latency
            assert (1 + ports) ** exchanges >= size > (1 + ports) ** (exchanges - 1)


def test_bandwidths_as_nccl_tests_has_them():
    factors = {
        "allreduce": 2 * 3 / 4,
        "reduce_scatter": 3 / 4,
        "allgather": 3 / 4,
        "broadcast": 1,
        "reduce": 1,
    }
    for collective, factor in factors.items():
        assert bus_factor(collective, 4) == factor
        assert busbw(collective, 4, 1000, 0.5) == 2000 * factor
    assert algbw(1000, 0.5) == 2000
    assert bus_factor("allreduce", 1) == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: bus_factor("gather", 4), "unknown collective 'gather'; known: allred"),
        (lambda: bus_factor("reduce", 0), "size must be 1 or more, got 0"),
        (
            lambda: lower_bound("reduce", 4, 1, MODEL, ports=0),
            "ports must be 1 or more, got 0",
        ),
        (
            lambda: closed_form("broadcast", "ring", 4, 1),
            "unknown broadcast algorithm 'ring'; known: naive, pipelined, direct",
        ),
        (
            lambda: closed_form("allreduce", "tree", 4, 1),
            "unknown allreduce algorithm 'tree'; known: ring, direct",
        ),
    ],
)
def test_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_formula_without_a_model_counts_only():
    assert closed_form("allreduce", "ring", 4, 400).seconds == 0
    assert closed_form("allgather", "direct", 1, 400).exchanges == 0
