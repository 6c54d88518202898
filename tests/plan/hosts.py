"""The independent judge for schedules between hosts: all arrays in place, and other ranks' memory read and written.

As :mod:`plan.simulator`, it moves concrete numbers, one message at a time, in the adversary's order.  A rank's cell
of a segment is its input until a result is stored over it, by whoever does so: who reads it too late reads garbage.
Partials of segments that a rank does not keep lie in scratch of its own.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from mpiring.plan import Action, Step
from mpiring.plan.hierarchy import HostSchedule, host_of, ranks_of_hosts

from plan.simulator import (
    Cell,
    Programs,
    Promise,
    Simulation,
    Wrong,
    combine,
    finish,
    narrowed,
    orders,
    promise_of,
)


class HostSimulation(Simulation):
    """One run of a schedule between hosts."""

    def __init__(
        self,
        schedule: HostSchedule,
        promise: Promise,
        programs: Programs,
        eager: bool,
    ) -> None:
        self.schedule = schedule
        self.hosts = ranks_of_hosts(schedule.hosts)
        self.kept = [set(schedule.results(rank)) for rank in range(schedule.size)]
        self.in_scratch: dict[tuple[int, int], Cell] = {}
        self.has: set[tuple[int, int]] = set()  # (rank, segment): a value of its own
        super().__init__(promise, programs, eager)

    def read(self, rank: int, segment: int, wide: bool) -> Cell:
        if (rank, segment) not in self.has:
            brought = self.brought(rank, segment)
            if not brought:
                raise Wrong(f"rank {rank} has nothing of segment {segment}")
            self.hold(rank, segment, fold(brought))
        place = (rank, segment)
        value = self.in_scratch.get(place, self.memory[rank][segment])
        return value if wide else narrowed(value)

    def end_step(self, rank: int, step: Step) -> None:
        arrived: dict[int, tuple[list[Cell], list[Cell]]] = {}
        for receive, value in zip(step.receives, self.inbox[rank]):
            if value is None:  # stored: the message is in its place, and goes to all
                self.has.add((rank, receive.segment))
                self.spread(rank, receive.segment)
            else:
                sides = arrived.setdefault(receive.segment, ([], []))
                sides[receive.action is Action.REDUCE_AFTER].append(value)
        for segment, (before, after) in arrived.items():
            whole = [*before, *self.own(rank, segment), *after]
            self.hold(rank, segment, fold(whole))
        for segment in step.finishes:
            if not 0 <= segment < self.segments:
                raise Wrong("no such segment")
            value = finish(fold(self.own(rank, segment)))
            self.in_scratch.pop((rank, segment), None)
            self.has.add((rank, segment))
            self.memory[rank][segment] = value
            self.spread(rank, segment)

    def own(self, rank: int, segment: int) -> list[Cell]:
        if (rank, segment) not in self.has:
            return self.brought(rank, segment)
        return [self.read(rank, segment, wide=True)]

    def brought(self, rank: int, segment: int) -> list[Cell]:
        return [self.memory[r][segment] for r in self.schedule.inputs(rank, segment)]

    def hold(self, rank: int, segment: int, value: Cell) -> None:
        self.has.add((rank, segment))
        if segment in self.kept[rank] and self.schedule.collective == "allreduce":
            self.memory[rank][segment] = value
        else:
            self.in_scratch[rank, segment] = value

    def spread(self, rank: int, segment: int) -> None:
        if self.schedule.collective == "allreduce":
            for other in self.hosts[host_of(self.schedule.hosts, rank)]:
                self.memory[other][segment] = self.memory[rank][segment]


def fold(cells: list[Cell]) -> Cell:
    if not cells:
        raise Wrong("nothing to fold")
    total = cells[0]
    for cell in cells[1:]:
        total = combine(total, cell)
    return total


def with_programs(schedule: HostSchedule, programs: Programs) -> HostSchedule:
    """The same promise, hosts and inputs with other steps."""
    fixed = tuple(map(tuple, programs))
    return replace(schedule, program=fixed.__getitem__)


def with_inputs(
    schedule: HostSchedule, rank: int, segment: int, inputs: tuple[int, ...]
) -> HostSchedule:
    """The same, but for what one rank brings to one segment."""

    def reads(r: int, s: int) -> tuple[int, ...]:
        return inputs if (r, s) == (rank, segment) else schedule.inputs(r, s)

    return replace(schedule, reads=reads)


def is_right(schedule: HostSchedule, programs: Programs, seeds=(1, 2)) -> bool:
    """Whether the programs keep the promise under all of these orders."""
    promise = promise_of(schedule)
    try:
        for choose, eager in orders(seeds):
            run = HostSimulation(schedule, promise, programs, eager)
            while run.ready:
                run.copy(choose(len(run.ready)))
            run.check_ended()
            promise.check(run.memory)
    except Wrong:
        return False
    return True


def layouts(hosts: int, most: int) -> list[tuple[int, ...]]:
    """All ways to put 1 to ``most`` ranks on each of 1 to ``hosts`` hosts."""
    return [
        counts
        for number in range(1, hosts + 1)
        for counts in itertools.product(range(1, most + 1), repeat=number)
    ]
