"""The executor does what the proof says, with the memory that the plan says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.plan import Segments, ring_allreduce, ring_reduce_scatter, verify
from mpiring.plan.programs import rank_program
from mpiring.wire.arrays import NUMPY
from mpiring.wire.arrays.scratch import Scratch
from mpiring.wire.execute.memory import Memory
from mpiring.wire.execute.steps import execute
from mpiring.wire.transport.local import LocalNetwork
from mpiring.wire.transport.position import Position

from wire import executor
from wire.interleaving import chooser, protocols, seeds
from wire.schedules import ALL, HAND_MADE, OURS

KINDS = [
    ("sum", "float32"),
    ("avg", "float16"),
    ("prod", "bfloat16"),
    ("max", "float16"),
]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("op, dtype", KINDS)
def test_does_what_the_proof_says_with_the_memory_that_the_plan_says(name, op, dtype):
    for size in range(1, 9):
        schedule = ALL[name](size)
        for count in (size - 1, 2 * size + 3) if size < 6 else (2 * size + 3,):
            for slots, used in executor.check(schedule, op, dtype, count, seed=count):
                assert used == slots


@examples(max_examples=250)
@given(
    name=st.sampled_from(sorted(ALL)),
    size=st.integers(1, 6),
    kind=st.sampled_from(
        [*KINDS, ("avg", "complex64"), ("min", "int16"), ("sum", "uint8")]
    ),
    count=st.integers(0, 13),
    in_place=st.booleans(),
    seed=seeds,
    rendezvous=protocols,
)
def test_under_interleavings(name, size, kind, count, in_place, seed, rendezvous):
    schedule = ALL[name](size)
    executor.check(schedule, *kind, count, seed, rendezvous, in_place)


@pytest.mark.parametrize("offset", [1, 2])
def test_the_lectures_ownership(offset):
    for make in (ring_allreduce, ring_reduce_scatter):
        for size in (1, 2, 3, 4, 5):
            for op, dtype in KINDS:
                executor.check(make(size, offset), op, dtype, 11, size)


# ---- memory ---------------------------------------------------------------------------------------


def test_how_much_memory_our_schedules_take():
    for size in range(2, 9):
        takes = {
            (name, wide): {
                (p.landings, p.slots)
                for p in (
                    rank_program(OURS[name](size), r, wide=wide) for r in range(size)
                )
            }
            for name in OURS
            for wide in (False, True)
        }
        for (name, wide), found in takes.items():
            algorithm, collective, *_ = name.replace(",", "").split()
            if collective == "allgather":
                expected = (0, 0)
            elif algorithm == "direct":  # contributions of all others; a wide sum
                expected = (size - 1, 1 if wide else 0)
            elif collective == "allreduce" and not wide:  # partials live in the output
                expected = (1, 0)
            else:  # the lecture's buffer, and a partial on its way
                expected = (1, 1 if size > 2 or wide else 0)
            assert found == {expected}, (size, name, wide)


@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_schedules_are_proven(name):
    """What this file compares with is not empty."""
    for size in (2, 3, 4, 8):
        schedule = HAND_MADE[name](size)
        orders = verify(schedule).orders
        assert len(orders) == schedule.segments
        if schedule.collective != "broadcast":
            ranks = [sorted(t for t in order if isinstance(t, int)) for order in orders]
            assert ranks == [list(range(schedule.size))] * schedule.segments


def test_brackets_occur():
    assert verify(HAND_MADE["tree"](4)).order_text(0) == "(x0 op x1) op (x2 op x3)"


# ---- what others see of it ------------------------------------------------------------------------


def test_where_a_collective_is_in_words():
    position = Position()
    assert str(position) == "opening exchange"
    position.phase, position.step, position.segment = "ring allreduce", 2, 1
    assert str(position) == "ring allreduce, step 2, segment 1"


def test_a_watcher_is_told_each_step_when_it_is_complete():
    """The lecture's table, from the real run: what rank 0 of three holds after each step."""
    size, seen = 3, []
    network = LocalNetwork(size, chooser(1), None)
    programs = []
    for rank, transport in enumerate(network.transports):
        x = np.full(3, 8**rank)

        def watch(number, step, rank=rank, x=x):
            if rank == 0:
                seen.append((number, [oct(value) for value in x]))

        plan = rank_program(ring_allreduce(size), rank)
        places = [x[s : s + 1] for s in range(size)]
        memory = Memory(
            NUMPY,
            plan,
            Segments(3, size),
            x,
            places.__getitem__,
            "sum",
            "int64",
            Scratch(),
        )
        programs.append(execute(memory, transport, 1, Position(), watch))
    network.run(programs)
    assert seen == [
        (0, ["0o1", "0o101", "0o1"]),  # segment 1 came from rank 2
        (1, ["0o111", "0o101", "0o1"]),
        (2, ["0o111", "0o101", "0o1"]),  # it finishes its own
        (3, ["0o111", "0o101", "0o111"]),
        (4, ["0o111", "0o111", "0o111"]),
    ]


def test_scratch_is_taken_once_and_used_again():
    scratch = Scratch()
    assert scratch.nbytes == 0 and scratch.take(NUMPY, []) == []
    one, two = scratch.take(NUMPY, [1, 65])
    assert (len(one), len(two)) == (64, 128) and scratch.nbytes == 192
    again, *_ = scratch.take(NUMPY, [64])
    assert again.base is one.base and scratch.nbytes == 192
    (more,) = scratch.take(NUMPY, [193])
    assert more.base is not one.base and scratch.nbytes == 256
