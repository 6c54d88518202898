"""Schedules between hosts are proven for all small layouts, and what is wrong with one is seen."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import fields, replace

import pytest

from mpiring.plan import (
    Action,
    DeadlockError,
    Form,
    ScheduleError,
    Segments,
    Step,
    ring_allreduce,
    ring_reduce_scatter,
)
from mpiring.plan.hierarchy import (
    HostSchedule,
    host_of,
    hosts_allreduce,
    hosts_reduce_scatter,
    keeper,
    ranks_of_hosts,
    verify_hosts,
    visits,
)
from mpiring.plan.programs import rank_program

from plan.hosts import is_right, layouts, with_inputs, with_programs
from plan.mutations import mutants, programs_of
from plan.test_schedules import promised_order

MAKERS = [hosts_allreduce, hosts_reduce_scatter]
ORDERS = ["ring", "rank"]
ALL = layouts(4, 4)
SMALL = [hosts for hosts in layouts(3, 3) if sum(hosts) <= 6]


def messages(schedule):
    """(source, dest, segment) of all."""
    return [
        (rank, send.peer, send.segment)
        for rank in range(schedule.size)
        for step in schedule.steps(rank)
        for send in step.sends
    ]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make", MAKERS)
def test_every_small_layout_is_proven(make, order):
    for hosts in ALL:
        schedule = make(hosts, order)
        proof = verify_hosts(schedule)
        for segment, found in enumerate(proof.orders):
            assert found == promised_order(order, schedule.size, segment)
        for source, dest, _ in messages(schedule):
            assert host_of(hosts, source) != host_of(hosts, dest)
        turns = len(hosts) * (2 if make is hosts_allreduce else 1)
        assert max(proof.exchanges) <= max(turns - (make is hosts_allreduce), 0)


@pytest.mark.parametrize("hosts", ALL)
def test_the_chain_visits_whole_hosts_but_the_home_s(hosts):
    groups = list(map(tuple, ranks_of_hosts(hosts)))
    size = sum(hosts)
    assert [rank for group in groups for rank in group] == list(range(size))
    for segment in range(size):
        chain = visits(hosts, "ring", segment)
        home = next(group for group in groups if segment in group)
        assert chain[-1].rank == segment
        if len(hosts) == 1:
            assert len(chain) == 1
            continue
        after = tuple(rank for rank in home if rank > segment)
        assert chain[-1].inputs == tuple(rank for rank in home if rank <= segment)
        others = chain[bool(after) : -1]
        place = groups.index(home)
        assert [v.inputs for v in others] == groups[place + 1 :] + groups[:place]
        if after:
            assert chain[0] == (segment + 1, after)


@pytest.mark.parametrize(
    "make, ring",
    [(hosts_allreduce, ring_allreduce), (hosts_reduce_scatter, ring_reduce_scatter)],
)
def test_never_more_between_hosts_than_the_ring(make, ring):
    for hosts in ALL:
        size = sum(hosts)
        lengths = [segment.length for segment in Segments(5 * size + 2, size)]

        def crossing(schedule):
            return sum(
                lengths[segment]
                for source, dest, segment in messages(schedule)
                if host_of(hosts, source) != host_of(hosts, dest)
            )

        assert crossing(make(hosts)) <= crossing(ring(size))


def test_the_work_is_shared_out():
    """On hosts of equal size every rank folds about as much as the ring of all would have it: its own input's worth."""
    for number, count in itertools.product(range(2, 5), range(1, 6)):
        hosts = (count,) * number
        folded = Counter[int]()
        for segment in range(sum(hosts)):
            for rank, inputs in visits(hosts, "ring", segment):
                folded[rank] += len(inputs)
        assert max(folded.values()) <= (number - 1) * count + count + 1
        kept = Counter(keeper(hosts, s, 0) for s in range(sum(hosts)))
        assert set(kept.values()) == {number}


def test_memory():
    """One landing and at most one slot where hosts are alike; a 16-bit float's partial has a slot anyway."""
    for hosts in [(2, 2), (3, 3), (4, 4, 4)]:
        for make in MAKERS:
            for wide in (False, True):
                for rank in range(sum(hosts)):
                    program = rank_program(make(hosts), rank, wide=wide)
                    assert program.landings == 1 and program.slots <= 1


# ---- another judge --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make", MAKERS)
def test_the_judge_agrees(make, order):
    for hosts in SMALL:
        schedule = make(hosts, order)
        assert is_right(schedule, programs_of(schedule)), hosts


MUTATED = [
    (hosts_allreduce, "ring", (2, 1)),
    (hosts_allreduce, "ring", (1, 2)),
    (hosts_allreduce, "ring", (2, 2)),
    (hosts_allreduce, "rank", (1, 2)),
    (hosts_reduce_scatter, "ring", (2, 2)),
    (hosts_reduce_scatter, "rank", (2, 1)),
]


@pytest.mark.parametrize("make, order, hosts", MUTATED)
def test_every_mutation_is_refused_or_right(make, order, hosts):
    schedule = make(hosts, order)
    outcomes = Counter[tuple[bool, bool]]()
    for kind, where, programs in mutants(schedule):
        try:
            verify_hosts(with_programs(schedule, programs))
            is_accepted = True
        except ScheduleError:
            is_accepted = False
        right = is_right(schedule, programs)
        assert right or not is_accepted, f"accepted but wrong: {kind}, {where}"
        outcomes[is_accepted, right] += 1
    assert outcomes[False, False] > 100 and outcomes[True, True] > 0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("hosts", [(2, 2), (3, 1), (1, 2, 2)])
def test_other_inputs_are_refused(make, order, hosts):
    """One missing, one more, one twice, two in another order, one of another host."""
    schedule = make(hosts, order)
    tried = 0
    for rank, segment in itertools.product(range(schedule.size), repeat=2):
        read = schedule.inputs(rank, segment)
        others = {*itertools.permutations(read)}
        others |= {read[:i] + read[i + 1 :] for i in range(len(read))}
        others |= {(*read, other) for other in range(schedule.size)}
        for wrong in others - {read}:
            with pytest.raises(ScheduleError):
                verify_hosts(with_inputs(schedule, rank, segment, wrong))
            tried += 1
    assert tried > 20


# ---- what is refused, in words --------------------------------------------------------------------


def refused(schedule):
    with pytest.raises(ScheduleError) as caught:
        verify_hosts(schedule)
    return str(caught.value)


def test_hosts_must_hold_the_ranks():
    schedule = hosts_allreduce((2, 2))
    for hosts in [(2, 1), (2, 2, 1), (4, 0)]:
        assert "ranks for 4 ranks" in refused(replace(schedule, hosts=hosts))


def test_every_result_has_one_keeper_on_each_host():
    class Forgetful(HostSchedule):
        def results(self, rank):
            return [s for s in super().results(rank) if (rank, s) != (3, 1)]

    schedule = hosts_allreduce((2, 2))
    assert schedule.results(3) == [1, 3] and schedule.results(2) == [0, 2]
    given = {f.name: getattr(schedule, f.name) for f in fields(schedule)}
    told = refused(Forgetful(**given))
    assert "the ranks of host 1 keep the results [0, 2, 3], which is not" in told


def test_hosts_are_part_of_what_a_schedule_is():
    schedule = hosts_allreduce((2, 2))
    other = replace(schedule, hosts=(1, 3))
    assert schedule == hosts_allreduce((2, 2)) != other
    assert schedule.digest == hosts_allreduce((2, 2)).digest != other.digest
    assert hash(schedule) == hash(hosts_allreduce((2, 2))) != hash(other)


def test_elsewhere_a_rank_brings_its_own_input():
    schedule = ring_allreduce(3)
    assert [schedule.inputs(rank, 0) for rank in range(3)] == [(0,), (1,), (2,)]


def test_another_host_s_memory_is_not_read():
    schedule = hosts_allreduce((2, 2))
    wrong = with_inputs(schedule, 1, 1, (0, 1, 2))
    assert (
        "rank 1 reads, of segment 1, the input of rank 2, which is on another host"
        in refused(wrong)
    )
    # A right plan for other hosts: there the memory is not.
    assert "which is on another host" in refused(replace(schedule, hosts=(1, 3)))


def test_no_input_twice():
    schedule = hosts_allreduce((2, 2))
    for rank, segment, inputs in [(1, 1, (0, 0, 1)), (1, 2, (0,))]:
        wrong = with_inputs(schedule, rank, segment, inputs)
        assert "the input of rank 0, which is read already" in refused(wrong)


def test_a_keeper_reads_its_own_input():
    """Or its partial, or a message it lets in, could be written where another still reads."""
    schedule = hosts_allreduce((2, 2))
    assert schedule.inputs(2, 0) == (2, 3)

    def reads(rank, segment):
        """Rank 3 does what rank 2 has to, of this segment."""
        other = {2: 3, 3: 2}.get(rank, rank) if segment == 0 else rank
        return schedule.inputs(other, segment)

    wrong = replace(schedule, reads=reads)
    assert "rank 3 reads, of segment 0, the input of rank 2, who keeps" in refused(
        wrong
    )


def test_a_race_in_place_is_wrong_to_the_judge():
    """Rank 1 brings rank 0's input after rank 0 has parked a partial over it."""
    schedule = hosts_allreduce((2, 1))
    assert schedule.inputs(2, 2) == (2,) and schedule.inputs(0, 2) == (0, 1)
    wrong = with_inputs(schedule, 0, 2, (1,))
    assert is_right(schedule, programs_of(schedule))
    assert not is_right(wrong, programs_of(schedule))


def test_several_inputs_travel_as_a_partial():
    """One rank folds them before: they are as wide as a sum is, and no rank's input."""
    schedule = hosts_allreduce((3, 1))
    programs = [list(program) for program in programs_of(schedule)]
    first = programs[1][0]
    assert schedule.inputs(1, 0) == (1, 2) and first.sends[0].segment == 0
    send = first.sends[0]._replace(form=Form.CONTRIBUTION)
    programs[1][0] = first._replace(sends=(send,))
    told = refused(with_programs(schedule, programs))
    assert "what rank 1 holds are the inputs of ranks [1, 2]" in told


def test_a_circle_is_a_deadlock():
    """Two hosts of which each waits for the other's partial before it sends its own."""
    schedule = hosts_reduce_scatter((1, 1))
    programs = [
        [Step((), step.receives), Step(step.sends, (), step.finishes)]
        for step, in programs_of(schedule)
    ]
    with pytest.raises(DeadlockError) as caught:
        verify_hosts(with_programs(schedule, programs))
    assert sorted(caught.value.cycle) == [0, 1]


def test_a_segment_is_finished_when_the_last_of_its_chain_has_come():
    """In the same step, so that an executor can fold, divide and store to all in one pass."""
    for hosts in ALL[1:]:
        for make in MAKERS:
            for order in ORDERS:
                schedule = make(hosts, order)
                for rank in range(schedule.size):
                    steps = list(schedule.steps(rank))
                    reduced = [
                        (receive.segment, place)
                        for place, step in enumerate(steps)
                        for receive in step.receives
                        if receive.action is Action.REDUCE
                    ]
                    finished = [
                        (segment, place)
                        for place, step in enumerate(steps)
                        for segment in step.finishes
                    ]
                    assert len(dict(reduced)) == len(reduced)
                    assert len(hosts) == 1 or set(finished) <= set(reduced)
