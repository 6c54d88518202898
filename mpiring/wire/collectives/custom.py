"""One rank's part of a user's own schedule: what :meth:`mpiring.Ring.run` does.

It has the four parts of every collective (:mod:`mpiring.wire.collectives.reductions`); the schedule is proven first,
once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ...plan.programs import RankProgram, rank_program
from ...plan.schedules import Schedule
from ...plan.segments import Cut, Segments
from ...plan.verify import verify
from ..arrays.operands import Operand, Target, flat_input, nowhere, operand, output
from ..execute.forms import carry, memory_of, run_schedule
from ..opening.calls import Call
from ..reduce import arithmetic
from ..reduce.arithmetic import Array
from ..transport.position import Position
from ..transport.protocol import Program
from .reductions import Collectives, note_flushing
from .rooted import broadcast_along


def run(
    member: Collectives, plan: Any, x: Any, op: Any, out: Any, position: Position
) -> Program[Array | None]:
    """A user's schedule, once it is proven; see :meth:`mpiring.Ring.run`."""
    call = Call("run")
    rank, size = member.transport.rank, member.transport.size
    with call.local():
        if not isinstance(plan, Schedule):
            raise TypeError(
                f"schedule is a {type(plan).__name__}, expected a mpiring.plan.Schedule"
            )
        if plan.size != size:
            raise ValueError(
                f"the schedule is for {plan.size} ranks, this ring has {size}"
            )
        if plan.fuses:
            raise ValueError(
                f"the {plan.algorithm} schedule has ranks read each other's memory, which run() cannot give them; "
                f"pass arrays of ring.empty to ring.{plan.collective} on several hosts, and it is what they take"
            )
        name = f"{plan.algorithm} {plan.collective} #{_digest(plan)}"
        call.fields = (("schedule", name),)
        _prove(plan)
    if call.failure is not None:
        yield from member.open(call)
    if plan.collective == "broadcast":
        return (yield from _run_broadcast(member, call, plan, x, out, position))
    with call.local():
        source = operand(x)
        call.fields = (*call.fields, ("array", source.description))
        reduces = plan.collective != "allgather"
        if reduces:
            call.fields = (*call.fields, ("op", str(op)))
            arithmetic.check_op(op, source.dtype)
            note_flushing(call, source)
        wide = reduces and arithmetic.accumulator(op, source.dtype) != source.dtype
        path = _rank_program(plan, rank, wide)
        segments = _segments_of(plan, source)
        target, flat = _places(plan, rank, source, segments, out)
        kept = set(plan.results(rank))
        whole = len(kept) == len(segments)

        def places(cut: Cut) -> Callable[[int], Array | None]:
            if target is None:
                return nowhere(cut)
            if whole:
                return target.places(cut)
            return lambda segment: (
                target.flat[cut[segment].within(segments[segment])]
                if segment in kept
                else None
            )

        memory = memory_of(
            member,
            path,
            source,
            segments,
            flat if reduces else None,
            places,
            op if reduces else "max",
            may_cut=False,
        )
        carry(member, call, source, path, flat if target is None else target.flat)
    yield from member.open(call)
    if not reduces:
        assert target is not None
        mine = target.flat[segments[plan.owned(rank)].slice]
        if not source.kind.same_memory(flat, mine):
            source.kind.copy(flat, mine)
    yield from run_schedule(member, memory, call, source, position)
    return None if target is None else target.done()


def filled_by(plan: Any, out: Any) -> tuple[int | None, bool]:
    """The only rank whose output a schedule fills, None if it is not one alone; and whether it fills inputs."""
    if not isinstance(plan, Schedule):
        return None, False
    root = plan.root if plan.collective == "reduce" else None
    return root, plan.collective == "broadcast" and out is None


def _run_broadcast(
    member: Collectives,
    call: Call,
    plan: Schedule,
    x: Any,
    out: Any,
    position: Position,
) -> Program[Array]:
    """As :func:`mpiring.wire.collectives.rooted.broadcast`; an ``out`` is filled instead of ``x``, on the root too."""
    rank = member.transport.rank
    is_copied = out is not None and rank == plan.root
    with call.local():
        if is_copied:
            source = operand(x)
            target = output(source, out, source.array.shape)
    filled = x if out is None or is_copied else out
    result = yield from broadcast_along(
        member, call, filled, plan.root, lambda _: _rank_program(plan, rank), position
    )
    if not is_copied:
        return result
    source.kind.copy(source.kind.flat(source.array), target.flat)
    return target.done()


def _segments_of(plan: Schedule, source: Operand) -> Segments:
    if plan.collective == "allgather":
        return Segments.of_lengths([source.array.size] * plan.size)
    return Segments(source.array.size, plan.segments)


def _places(
    plan: Schedule, rank: int, source: Operand, segments: Segments, out: Any
) -> tuple[Target | None, Array]:
    """The output of a user's schedule, and the flat input."""
    kind, shape = source.kind, source.array.shape
    if plan.collective == "reduce" and rank != plan.root:
        return None, kind.flat(source.array)
    part: slice | None = None
    if plan.collective == "allgather":
        shape = ((shape[0] if shape else 1) * plan.size, *shape[1:])
        target = output(source, out, shape)
        mine = target.flat[segments[plan.owned(rank)].slice]
        flat = kind.flat(source.array)
        if kind.overlaps(flat, target.flat) and not kind.same_memory(flat, mine):
            flat = kind.copied(flat)
        return target, flat
    if plan.collective == "reduce_scatter":
        owned = segments[plan.owned(rank)]
        shape, part = (owned.length,), owned.slice
    target = output(source, out, shape)
    return target, flat_input(source, target, part=part)


# Each is kept, since a schedule runs more than once; the same object is found without a look at its steps.
@lru_cache(maxsize=32)
def _prove(plan: Schedule) -> None:
    verify(plan)


@lru_cache(maxsize=32)
def _digest(plan: Schedule) -> str:
    return plan.digest


@lru_cache(maxsize=64)
def _rank_program(plan: Schedule, rank: int, wide: bool = False) -> RankProgram:
    return rank_program(plan, rank, wide=wide)
