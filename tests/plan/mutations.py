"""Every one-step mutation of a schedule: all of them, not a sample.

A mutant is ``(kind, where, programs)``.  Kinds that end in ``pair`` change a message at both of its ends,
so that nothing is missing and only the meaning is wrong; the others change one rank's program alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpiring.plan import Action, Form, Receive, Schedule, Send, Step, from_steps

Programs = tuple[tuple[Step, ...], ...]
Mutant = tuple[str, str, Programs]
# Where a transfer stands: rank, step, place among the step's sends or receives.
Place = tuple[int, int, int]


def programs_of(schedule: Schedule) -> Programs:
    return tuple(tuple(schedule.steps(rank)) for rank in range(schedule.size))


def rebuild(schedule: Schedule, programs: Programs) -> Schedule:
    """The mutant as a schedule with the original's promise."""
    return from_steps(
        schedule.collective,
        programs,
        algorithm="mutant",
        order=schedule.order,
        offset=schedule.offset,
        root=schedule.root,
        segments=schedule.segments,
    )


def mutants(schedule: Schedule) -> Iterator[Mutant]:
    programs = programs_of(schedule)
    for rank, program in enumerate(programs):
        for kind, where, changed in _of_program(schedule, program):
            yield kind, f"rank {rank}, {where}", _with(programs, rank, changed)
    yield from _of_pairs(schedule, programs)


# ---- one rank alone -------------------------------------------------------------------------------


def _of_program(
    schedule: Schedule, program: tuple[Step, ...]
) -> Iterator[tuple[str, str, tuple[Step, ...]]]:
    count = len(program)
    for i, step in enumerate(program):
        where = f"step {i}"
        rest = program[:i] + program[i + 1 :]
        yield "drop step", where, rest
        yield "duplicate step", where, program[: i + 1] + program[i:]
        for j in range(count):
            if j != i and j != i - 1:  # to i - 1 is the same as the one before to i
                yield "move step", f"{where} to {j}", _insert(rest, j, step)
        for changed_kind, changed_where, changed in _of_step(schedule, step):
            yield (
                changed_kind,
                f"{where}, {changed_where}",
                program[:i] + (changed,) + program[i + 1 :],
            )
        for field, name in enumerate(("send", "receive", "finish")):
            for k, item in enumerate(step[field]):
                for j in range(count):
                    if j != i:
                        moved = _edit(program, i, field, _without(step[field], k))
                        target = moved[j][field] + (item,)
                        yield (
                            f"move {name}",
                            f"{where}, {name} {k} to step {j}",
                            _edit(moved, j, field, target),
                        )


def _of_step(schedule: Schedule, step: Step) -> Iterator[tuple[str, str, Step]]:
    for field, name in enumerate(("send", "receive")):
        items: tuple[Any, ...] = step[field]
        for k, item in enumerate(items):
            where = f"{name} {k}"
            yield f"drop {name}", where, _field(step, field, _without(items, k))
            twice = items[: k + 1] + items[k:]
            yield f"duplicate {name}", where, _field(step, field, twice)
            for j in range(len(items)):
                if j != k and j != k - 1:
                    moved = _insert(_without(items, k), j, item)
                    yield (
                        f"reorder {name}s",
                        f"{where} to {j}",
                        _field(step, field, moved),
                    )
            for what, changed in _of_transfer(schedule, item):
                replaced = items[:k] + (changed,) + items[k + 1 :]
                yield f"{name}: {what}", where, _field(step, field, replaced)
    finishes = step.finishes
    for k, segment in enumerate(finishes):
        yield (
            "drop finish",
            f"finish {k}",
            step._replace(finishes=_without(finishes, k)),
        )
        for other in _others(segment, schedule.segments):
            instead = finishes[:k] + (other,) + finishes[k + 1 :]
            yield (
                "finish: other segment",
                f"finish {k} {other}",
                step._replace(finishes=instead),
            )
    for segment in range(schedule.segments):
        yield (
            "add finish",
            f"finish {segment}",
            step._replace(finishes=finishes + (segment,)),
        )


def _of_transfer(
    schedule: Schedule, item: Send | Receive
) -> Iterator[tuple[str, Send | Receive]]:
    for peer in _others(item.peer, schedule.size):
        yield "other peer", item._replace(peer=peer)
    for segment in _others(item.segment, schedule.segments):
        yield "other segment", item._replace(segment=segment)
    for form in Form:
        if form is not item.form:
            yield "other form", item._replace(form=form)
    if isinstance(item, Receive):
        for action in Action:
            if action is not item.action:
                yield f"{item.action.value} to {action.value}", item._replace(
                    action=action
                )


# ---- both ends of a message -----------------------------------------------------------------------


def pairs_of(programs: Programs) -> list[tuple[Place, Place]]:
    """Which send meets which receive: the n-th from a to b the n-th that b expects from a."""
    sends: dict[tuple[int, int], list[Place]] = {}
    receives: dict[tuple[int, int], list[Place]] = {}
    for rank, program in enumerate(programs):
        for i, step in enumerate(program):
            for k, send in enumerate(step.sends):
                sends.setdefault((rank, send.peer), []).append((rank, i, k))
            for k, receive in enumerate(step.receives):
                receives.setdefault((receive.peer, rank), []).append((rank, i, k))
    return [
        pair for link, places in sends.items() for pair in zip(places, receives[link])
    ]


def _of_pairs(schedule: Schedule, programs: Programs) -> Iterator[Mutant]:
    for (source, i, k), (dest, j, m) in pairs_of(programs):
        send = programs[source][i].sends[k]
        receive = programs[dest][j].receives[m]
        where = f"{source} step {i} -> {dest} step {j}"
        without_send = _edit(
            programs[source], i, 0, _without(programs[source][i].sends, k)
        )
        without = _with(programs, source, without_send)
        without = _with(
            without,
            dest,
            _edit(without[dest], j, 1, _without(without[dest][j].receives, m)),
        )
        yield "drop pair", where, without
        # Added again beside itself, with what changes.
        for kind, new_source, new_send, new_dest, new_receive in _pair_changes(
            schedule, source, send, dest, receive
        ):
            yield kind, where, _place(
                without, new_source, i, k, new_send, new_dest, j, m, new_receive
            )
        twice = _place(programs, source, i, k, send, dest, j, m, receive)
        yield "duplicate pair", where, twice
        for a in range(len(without[source])):
            for b in range(len(without[dest])):
                if a != i and b != j:
                    end = 10**6  # last in its step
                    moved = _place(without, source, a, end, send, dest, b, end, receive)
                    yield "move pair", f"{where} to {a} and {b}", moved


def _pair_changes(schedule, source, send, dest, receive):
    for segment in _others(send.segment, schedule.segments, outside=False):
        yield (
            "other segment, pair",
            source,
            send._replace(segment=segment),
            dest,
            receive._replace(segment=segment),
        )
    for form in Form:
        if form is not send.form:
            yield (
                "other form, pair",
                source,
                send._replace(form=form),
                dest,
                receive._replace(form=form),
            )
    for other in _others(dest, schedule.size, outside=False):
        yield "other dest, pair", source, send._replace(peer=other), other, receive
    for other in _others(source, schedule.size, outside=False):
        yield "other source, pair", other, send, dest, receive._replace(peer=other)


# ---- editing tuples -------------------------------------------------------------------------------


def _others(value: int, count: int, *, outside: bool = True) -> list[int]:
    """All other ranks or segments, and one that does not exist."""
    return [n for n in range(count + outside) if n != value]


def _with(programs: Programs, rank: int, program: tuple[Step, ...]) -> Programs:
    return programs[:rank] + (program,) + programs[rank + 1 :]


def _without(items: tuple, k: int) -> tuple:
    return items[:k] + items[k + 1 :]


def _insert(items: tuple, k: int, item: object) -> tuple:
    return items[:k] + (item,) + items[k:]


def _field(step: Step, field: int, items: tuple) -> Step:
    return step._replace(**{step._fields[field]: items})


def _edit(program: tuple[Step, ...], i: int, field: int, items: tuple):
    return program[:i] + (_field(program[i], field, items),) + program[i + 1 :]


def _place(programs: Programs, source, i, k, send, dest, j, m, receive) -> Programs:
    """Insert a message; a program that is shorter gets a step at its end."""
    for rank, step, place, field, item in (
        (source, i, k, 0, send),
        (dest, j, m, 1, receive),
    ):
        program = programs[rank]
        if step >= len(program):
            step, program = len(program), (*program, Step())
        items = program[step][field]
        programs = _with(
            programs, rank, _edit(program, step, field, _insert(items, place, item))
        )
    return programs
