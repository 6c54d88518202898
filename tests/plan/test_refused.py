"""A broken schedule is refused with the step, the rank, the segment, and what is missing or double."""

from __future__ import annotations

import gc

import pytest

from mpiring.plan import (
    DeadlockError,
    Receive,
    ScheduleError,
    Send,
    Step,
    from_steps,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    verify,
)
from mpiring.plan.symbolic import run

from plan.written import AFTER, CONTRIBUTION, PARTIAL, REDUCE, RESULT, STORE, tree_up


def changed(schedule, rank, index, **fields):
    """The schedule with some fields of one step replaced."""
    steps = [list(schedule.steps(r)) for r in range(schedule.size)]
    steps[rank][index] = steps[rank][index]._replace(**fields)
    return from_steps(
        schedule.collective, steps, algorithm="broken", order=schedule.order
    )


def swap(action):
    """Two ranks exchange segment 0 and finish it; rank 0 receives on the right of its own."""
    return [
        [Step((Send(1, 0),), (Receive(1, 0, AFTER),), (0,))],
        [Step((Send(0, 0),), (Receive(0, 0, action),), (0,))],
    ]


def get(peer, segment, action=STORE, form=RESULT):
    return Receive(peer, segment, action, form)


RING = ring_allreduce(4)
REFUSED = {
    "no such peer to send to": (
        changed(RING, 1, 2, sends=(Send(4, 2),)),
        (1, 2, 2),
        "step 2 of rank 1 would send segment 2 to rank 4 as a partial; there is no such rank or segment",
    ),
    "no such segment to send": (
        changed(RING, 1, 2, sends=(Send(2, -1),)),
        (1, 2, -1),
        "would send segment -1 to rank 2 as a partial; there is no such rank or segment",
    ),
    "no such peer to receive from": (
        changed(RING, 3, 0, receives=(Receive(-1, 1),)),
        (3, 0, 1),
        "would receive segment 1 from rank -1 as a partial; there is no such rank or segment",
    ),
    "no such segment to receive": (
        changed(RING, 3, 0, receives=(Receive(2, 4),)),
        (3, 0, 4),
        "would receive segment 4 from rank 2 as a partial; there is no such rank or segment",
    ),
    "no such segment to finish": (
        changed(RING, 2, 3, finishes=(2, 4)),
        (2, 3, 4),
        "step 3 of rank 2 finishes segment 4, which does not exist",
    ),
    "sends what it has not": (
        changed(ring_allgather(3), 1, 0, sends=(Send(2, 2, RESULT),)),
        (1, 0, 2),
        "would send segment 2 to rank 2 as a result; rank 1 holds nothing of this segment",
    ),
    "sends a partial as a result": (
        changed(RING, 1, 1, sends=(Send(2, 3, RESULT),)),
        (1, 1, 3),
        "would send segment 3 to rank 2 as a result; what rank 1 holds is a partial",
    ),
    "sends a stored partial as a contribution": (
        from_steps(
            "reduce",
            [
                [Step((), (Receive(1, 0, AFTER, CONTRIBUTION),), (0,))],
                [
                    Step((), (Receive(2, 0, STORE, PARTIAL),)),
                    Step((Send(0, 0, CONTRIBUTION),)),
                ],
                [Step((Send(1, 0, PARTIAL),))],
            ],
            root=0,
            segments=1,
        ),
        (1, 1, 0),
        "would send segment 0 to rank 0 as a contribution; what rank 1 holds is a partial",
    ),
    "segments do not match": (
        changed(RING, 2, 1, receives=(Receive(1, 0),)),
        (2, 1, 0),
        "would receive segment 0 from rank 1 as a partial; but rank 1's matching send "
        "(its step 1) is of segment 3 as a partial",
    ),
    "forms do not match": (
        changed(RING, 2, 0, receives=(Receive(1, 0, REDUCE, CONTRIBUTION),)),
        (2, 0, 0),
        "would receive segment 0 from rank 1 as a contribution; but rank 1's matching send "
        "(its step 0) is of segment 0 as a partial",
    ),
    "counts a rank twice": (
        from_steps(
            "reduce",
            [
                [
                    Step((), (Receive(1, 0),)),
                    Step((), (Receive(1, 0),)),
                    Step(finishes=(0,)),
                ],
                [Step((Send(0, 0),)), Step((Send(0, 0),))],
            ],
            root=0,
            segments=1,
        ),
        (0, 1, 0),
        "step 1 of rank 0 would count twice, in segment 0, the contribution of rank 1",
    ),
    "counts many twice": (
        from_steps(
            "reduce",
            [
                [
                    Step((), tuple(Receive(r, 0) for r in range(1, 12))),
                    Step((Send(1, 0),)),
                ],
                [Step((Send(0, 0),)), Step((), (Receive(0, 0),))],
                *([Step((Send(0, 0),))] for _ in range(10)),
            ],
            root=0,
            segments=1,
        ),
        (1, 1, 0),
        "would count twice, in segment 0, the contribution of rank 1",
    ),
    "reduces a result": (
        changed(
            ring_allgather(2),
            0,
            0,
            receives=(get(1, 1, REDUCE),),
            sends=(Send(1, 0, RESULT),),
        ),
        (0, 0, 1),
        "step 0 of rank 0 reduces into segment 1, of which it holds nothing",
    ),
    "reduces into a result": (
        from_steps(
            "allreduce",
            [
                [
                    Step((), (Receive(1, 0),), (0,)),
                    Step((), (Receive(1, 0),)),
                ],
                [Step((Send(0, 0),)), Step((Send(0, 0),))],
            ],
            segments=1,
        ),
        (0, 1, 0),
        "reduces into segment 0, of which it holds a finished result",
    ),
    "finishes too early": (
        changed(RING, 0, 1, finishes=(1,)),
        (0, 1, 1),
        "finishes segment 1, in which is missing the contribution of rank 1",
    ),
    "finishes far too early": (
        changed(ring_reduce_scatter(12), 0, 0, finishes=(3,)),
        (0, 0, 3),
        "finishes segment 3, in which is missing the contribution of rank "
        "1, 2, 3, 4, 5, 6, 7, 8 and 3 more",
    ),
    "finishes twice": (
        changed(RING, 0, 3, finishes=(0, 0)),
        (0, 3, 0),
        "finishes segment 0, but holds it finished already",
    ),
    "finishes nothing": (
        from_steps("broadcast", [[], [Step(finishes=(0,))]], root=0, segments=1),
        (1, 0, 0),
        "finishes segment 0, but holds nothing of it",
    ),
    "stores what it sends": (
        changed(
            ring_allgather(3), 1, 1, receives=(get(0, 0),), sends=(Send(2, 0, RESULT),)
        ),
        (1, 1, 0),
        "step 1 of rank 1 stores into segment 0 while the same step also uses it",
    ),
    "stores twice": (
        changed(ring_allgather(3), 0, 0, receives=(get(2, 2), get(1, 2))),
        (0, 0, 2),
        "step 0 of rank 0 stores into segment 2 while the same step also uses it",
    ),
    "stores and reduces": (
        changed(RING, 2, 0, receives=(Receive(1, 0), get(1, 0, STORE, PARTIAL))),
        (2, 0, 0),
        "stores into segment 0 while the same step also uses it",
    ),
    "a partner's program has ended": (
        from_steps("allgather", [[Step((Send(1, 0, RESULT),))], []]),
        (0, 0, 0),
        "would send segment 0 to rank 1 as a result; but rank 1 has no matching receive: "
        "its program has ended",
    ),
    "nobody sends": (
        from_steps("allgather", [[Step((), (get(1, 1),))], []]),
        (0, 0, 1),
        "would receive segment 1 from rank 1 as a result; but rank 1 has no matching send: "
        "its program has ended",
    ),
    "waits for itself": (
        from_steps("allgather", [[Step((Send(0, 0, RESULT),))]]),
        (0, 0, 0),
        "would send segment 0 to rank 0 as a result; but rank 0 has no matching receive: "
        "a step waits for itself",
    ),
    "never receives": (
        from_steps("broadcast", [[], []], root=0),
        (1, None, 0),
        "at the end rank 1 does not hold the result of segment 0, it never receives it",
    ),
    "some are missing": (
        changed(ring_reduce_scatter(3), 1, 2, finishes=()),
        (1, None, 1),
        "rank 1 does not hold the result of segment 1, the sum is complete but no step finishes it",
    ),
    "one is missing": (
        from_steps("reduce_scatter", [[], []]),
        (0, None, 0),
        "rank 0 does not hold the result of segment 0, it holds that of ranks [0], missing are [1]",
    ),
    "another order than stated": (
        from_steps(
            "reduce_scatter",
            [ring_reduce_scatter(3).steps(r) for r in range(3)],
            order="rank",
        ),
        (0, None, 0),
        "segment 0 is combined in the order (1, 2, 0), but order='rank' states (0, 1, 2)",
    ),
    "a stated tree": (
        from_steps("reduce", tree_up(4, 0, [0]), order="rank", root=0, segments=1),
        (0, None, 0),
        "is combined in the order (0, 1, '(', 2, 3, ')'), but order='rank' states (0, 1, 2, 3)",
    ),
    "orders differ between ranks": (
        from_steps("allreduce", swap(AFTER), segments=1),
        (1, None, 0),
        "rank 1 combines segment 0 in the order (1, 0), rank 0 in the order (0, 1): "
        "their bits would differ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    schedule, place, words = REFUSED[name]
    with pytest.raises(ScheduleError) as caught:
        verify(schedule)
    error = caught.value
    assert words in str(error)
    assert (error.rank, error.step, error.segment) == place
    start = f"{schedule.algorithm} {schedule.collective} of {schedule.size} ranks: "
    assert str(error).startswith(start)


def test_the_same_with_the_right_order_is_accepted():
    proof = verify(from_steps("allreduce", swap(REDUCE), segments=1))
    assert proof.orders == ((0, 1),)


def test_a_contribution_may_travel_as_it_is_one_way_and_wide_the_other():
    steps = [
        [Step((Send(1, 0, CONTRIBUTION),), (Receive(1, 0, AFTER, PARTIAL),), (0,))],
        [Step((Send(0, 0, PARTIAL),), (Receive(0, 0, REDUCE, CONTRIBUTION),), (0,))],
    ]
    verify(from_steps("allreduce", steps, segments=1))


def test_everybody_sends_first_is_a_deadlock():
    steps = [
        [
            Step((Send((r + 1) % 3, r, RESULT),)),
            Step((), (get((r - 1) % 3, (r - 1) % 3),)),
        ]
        for r in range(3)
    ]
    with pytest.raises(DeadlockError) as caught:
        verify(from_steps("allgather", steps))
    assert caught.value.cycle == (0, 1, 2)
    assert str(caught.value).splitlines() == [
        "custom allgather of 3 ranks: deadlock, these ranks wait for each other:",
        "  rank 0, step 0: waits to send segment 0 to rank 1 as a result, but rank 1 is in its step 0",
        "  rank 1, step 0: waits to send segment 1 to rank 2 as a result, but rank 2 is in its step 0",
        "  rank 2, step 0: waits to send segment 2 to rank 0 as a result, but rank 0 is in its step 0",
    ]


def test_everybody_receives_first_is_a_deadlock_with_its_cycle_alone():
    """Rank 0 waits for the cycle of 1 and 2 without being in it."""
    steps = [
        [Step((), (get(1, 1),))],
        [Step((), (get(2, 2),)), Step((Send(2, 1, RESULT), Send(0, 1, RESULT)))],
        [Step((), (get(1, 1),)), Step((Send(1, 2, RESULT),))],
    ]
    with pytest.raises(
        DeadlockError, match="rank 2, step 0: waits to receive"
    ) as caught:
        verify(from_steps("allgather", steps))
    assert caught.value.cycle == (1, 2) and caught.value.rank == 1
    assert "rank 0, step" not in str(caught.value)


def test_messages_of_one_pair_match_in_order():
    """Three messages in one step, received in three; and the same in another order, refused."""
    sends = Step(tuple(Send(1, s, RESULT) for s in range(3)))
    receives = [Step((), (get(0, s),)) for s in range(3)]
    verify(from_steps("broadcast", [[sends], receives], root=0, segments=3))
    with pytest.raises(ScheduleError, match="matching send .* is of segment 0"):
        verify(from_steps("broadcast", [[sends], receives[::-1]], root=0, segments=3))


def test_a_message_to_oneself_in_one_step():
    step = Step((Send(0, 0),), (Receive(0, 1, STORE),))
    with pytest.raises(ScheduleError, match="matching send .* is of segment 0"):
        verify(from_steps("allreduce", [[step]], segments=2))
    step = Step((Send(0, 0),), (Receive(0, 0),))
    with pytest.raises(ScheduleError, match="count twice, in segment 0, .* of rank 0"):
        verify(from_steps("allreduce", [[step]], segments=1))


def test_a_contribution_may_be_stored_and_passed_on():
    """Rank 1 carries rank 2's contribution to rank 0, once as it is and once as a partial."""
    for form in (CONTRIBUTION, PARTIAL):
        steps = [
            [
                Step((), (Receive(1, 0, AFTER),)),
                Step((), (Receive(1, 0, AFTER, form),), (0,)),
            ],
            [
                Step((Send(0, 0),)),
                Step((), (Receive(2, 0, STORE, form),)),
                Step((Send(0, 0, form),)),
            ],
            [Step((Send(1, 0, form),))],
        ]
        made = from_steps("reduce", steps, order="rank", root=0, segments=1)
        assert verify(made).orders == ((0, 1, 2),)


def test_lengths_must_fit():
    with pytest.raises(ValueError, match="ring allgather: 3 lengths for 2 segments"):
        verify(ring_allgather(2), lengths=[1, 2, 3])
    with pytest.raises(ValueError, match="lengths of 0 or more"):
        verify(ring_allgather(2), lengths=[1, -2])
    with pytest.raises(ValueError, match="count must be 0 or more"):
        verify(ring_allgather(2), -1)


def test_the_collector_is_left_as_it_was():
    assert gc.isenabled()
    verify(RING)
    assert gc.isenabled()
    with pytest.raises(ScheduleError):
        verify(from_steps("broadcast", [[], []], root=0))
    assert gc.isenabled()
    gc.disable()
    try:
        verify(RING)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_observers_see_each_step_once():
    seen = []

    def observe(rank, index, step, cells):
        seen.append((rank, index, step))

    run(RING, observe)
    expected = [(r, i, s) for r in range(4) for i, s in enumerate(RING.steps(r))]
    assert sorted(seen, key=lambda item: item[:2]) == expected
