"""The simulator must be able to fail, or what it confirms means nothing."""

from __future__ import annotations

import pytest

from mpiring.plan import (
    Action,
    Form,
    Receive,
    Send,
    Step,
    direct_allreduce,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
)

from plan import simulator
from plan.mutations import mutants, programs_of
from plan.simulator import Promise, Wrong, count_orders, is_right, promise_of, simulate

RESULT = Form.RESULT


def first(count):
    return 0


def last(count):
    return count - 1


@pytest.mark.parametrize("size", range(1, 6))
def test_right_schedules_are_right(size):
    for schedule in (ring_allreduce(size), direct_allreduce(size, "rank")):
        assert is_right(promise_of(schedule), programs_of(schedule))


def test_a_store_beside_a_send_depends_on_the_order():
    """Rank 1 sends what it stores in the same step: right if it is stored first, wrong if not."""
    promise = Promise("broadcast", 3, 1, root=0)
    programs = [
        [Step((Send(1, 0, RESULT),))],
        [Step((Send(2, 0, RESULT),), (Receive(0, 0, Action.STORE, RESULT),))],
        [Step((), (Receive(1, 0, Action.STORE, RESULT),))],
    ]
    simulate(promise, programs, first)
    with pytest.raises(Wrong, match="rank 2 segment 0"):
        simulate(promise, programs, last)
    assert not is_right(promise, programs)
    assert count_orders(promise, programs) == 0


def test_everybody_sends_first_is_right_only_if_eager():
    promise = Promise("allgather", 2, 2)
    programs = [
        [
            Step((Send(1 - rank, rank, RESULT),)),
            Step((), (Receive(1 - rank, 1 - rank, Action.STORE, RESULT),)),
        ]
        for rank in range(2)
    ]
    simulate(promise, programs, first, eager=True)
    with pytest.raises(Wrong, match="rank 0 waits in its step 0"):
        simulate(promise, programs, first)


def test_another_order_of_combination_is_wrong():
    schedule = ring_reduce_scatter(3)
    promise = Promise("reduce_scatter", 3, 3, order="rank")
    assert not is_right(promise, programs_of(schedule))


def test_ranks_that_combine_differently_are_wrong_even_without_a_stated_order():
    swap = [
        [
            Step(
                (Send(1 - rank, 0),),
                (Receive(1 - rank, 0, Action.REDUCE),),
                (0,),
            )
        ]
        for rank in range(2)
    ]
    assert not is_right(Promise("allreduce", 2, 1), swap)
    swap[0][0] = swap[0][0]._replace(receives=(Receive(1, 0, Action.REDUCE_AFTER),))
    assert is_right(Promise("allreduce", 2, 1), swap)


@pytest.mark.parametrize("how", ["unfinished", "twice", "rounded"])
def test_finishing_and_rounding_are_seen(how):
    programs = [list(program) for program in programs_of(ring_allreduce(3))]
    if how == "unfinished":
        programs = [[step._replace(finishes=()) for step in p] for p in programs]
    elif how == "twice":
        programs[0].append(Step(finishes=(0,)))
    else:
        for rank in range(3):
            step = programs[rank][1]
            programs[rank][1] = Step(
                tuple(send._replace(form=RESULT) for send in step.sends),
                tuple(receive._replace(form=RESULT) for receive in step.receives),
            )
    for promise in (
        promise_of(ring_allreduce(3)),
        Promise("allreduce", 3, 3),
    ):
        assert not is_right(promise, programs)


def test_places_that_do_not_exist_are_wrong():
    promise = Promise("allgather", 2, 2)
    for step in (
        Step((Send(2, 0, RESULT),)),
        Step((), (Receive(0, 2, Action.STORE, RESULT),)),
        Step(finishes=(2,)),
    ):
        with pytest.raises(Wrong, match="no such"):
            simulate(promise, [[step], []], first)


def test_all_orders_are_tried():
    """Two messages that do not depend on each other: none, one, the other, both."""
    schedule = ring_allgather(2)
    assert count_orders(promise_of(schedule), programs_of(schedule)) == 4


def test_memory_starts_as_garbage_where_nothing_is_given():
    promise = promise_of(ring_allgather(2))
    assert promise.start[0][1] == simulator.garbage(0, 1)
    assert not is_right(promise, [[], []])


def test_mutants_are_all_different_places():
    """Each change is made once, but for the few that come out the same by chance."""
    found = [programs for _, _, programs in mutants(ring_allreduce(4))]
    assert len(found) - len(set(found)) < len(found) // 50
    assert programs_of(ring_allreduce(4)) not in found
