"""A rank's program: how many landings and slots it needs, also where values rest on ranks that do not keep them."""

from __future__ import annotations

from mpiring.plan import (
    Action,
    Form,
    Receive,
    Send,
    Step,
    direct_allreduce,
    from_steps,
    ring_allreduce,
    ring_reduce_scatter,
    verify,
)
from mpiring.plan.programs import rank_program

from plan.written import written

CONTRIBUTION, PARTIAL, RESULT = Form.CONTRIBUTION, Form.PARTIAL, Form.RESULT
REDUCE, STORE = Action.REDUCE, Action.STORE


def needs(made, *, wide=False):
    """Landings and slots of each rank."""
    programs = [rank_program(made, rank, wide=wide) for rank in range(made.size)]
    return [(program.landings, program.slots) for program in programs]


def test_the_rings():
    """The lecture's one buffer to receive into; results have their place, partials need one more."""
    assert needs(ring_allreduce(5)) == [(1, 0)] * 5
    assert needs(ring_allreduce(5), wide=True) == [(1, 1)] * 5
    assert needs(ring_reduce_scatter(5)) == [(1, 1)] * 5
    assert needs(direct_allreduce(5)) == [(4, 0)] * 5
    assert needs(direct_allreduce(5), wide=True) == [(4, 1)] * 5


def test_what_it_is_made_of():
    made = ring_allreduce(3)
    program = rank_program(made, 2)
    assert program.schedule is made and program.rank == 2
    assert program.steps == tuple(made.steps(2))
    assert len(program.dead) == len(program.steps)


def relay(form):
    """A reduce to rank 0 in which rank 1 adds nothing up: rank 2's value only rests there."""
    steps = [
        [Step((), (Receive(1, 0, REDUCE, form), Receive(3, 0, REDUCE, form)), (0,))],
        [
            Step((Send(2, 0, form),)),
            Step((), (Receive(2, 0, STORE, form),)),
            Step((Send(0, 0, form),)),
        ],
        [Step((), (Receive(1, 0, REDUCE, form),)), Step((Send(1, 0, form),))],
        [Step((Send(0, 0, form),))],
    ]
    return from_steps("reduce", steps, root=0, segments=1)


def test_a_value_that_rests_on_its_way():
    made = relay(PARTIAL)
    verify(made)
    assert needs(made) == [(2, 0), (0, 1), (1, 1), (0, 0)]
    # What is sent as a partial is widened first; what came as one replaces it.
    assert needs(made, wide=True) == [(2, 1), (0, 1), (1, 1), (0, 1)]


def finished_elsewhere():
    """Rank 1 finishes, rank 2 hands the result on to the root."""
    steps = [
        [
            Step((Send(1, 0, CONTRIBUTION),)),
            Step((), (Receive(2, 0, STORE, RESULT),)),
        ],
        [
            Step(
                (),
                (
                    Receive(0, 0, REDUCE, CONTRIBUTION),
                    Receive(2, 0, REDUCE, CONTRIBUTION),
                ),
                (0,),
            ),
            Step((Send(2, 0, RESULT),)),
        ],
        [
            Step((Send(1, 0, CONTRIBUTION),)),
            Step((), (Receive(1, 0, STORE, RESULT),)),
            Step((Send(0, 0, RESULT),)),
        ],
    ]
    return from_steps("reduce", steps, root=0, segments=1)


def test_a_result_that_its_rank_does_not_keep():
    """The sum is finished in its slot; if it is wide, the result has another, beside it while it is rounded."""
    made = finished_elsewhere()
    verify(made)
    assert needs(made) == [(0, 0), (2, 1), (0, 1)]
    assert needs(made, wide=True) == [(0, 0), (2, 2), (0, 1)]


def test_a_tree_of_your_own():
    """Leaves send what they have; who adds holds one partial, the root in the result's place."""
    assert needs(written("tree reduce", 4)) == [(1, 0), (0, 0), (1, 1), (0, 0)]
