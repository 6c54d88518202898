"""One rank's part of a schedule, with the memory that it needs: what an executor runs.

A value lives in one of two places: where its segment's result will be, if the rank keeps that result and
both have the same dtype; else in a **slot** of scratch, which is free again after the value's last use.  A
segment that arrives to be reduced waits in a **landing**.  How many of each a rank needs at most follows from
its steps, so an executor can take all its memory before the first message.  A ring needs one landing and at
most one slot, each as long as a segment: the lecture's ``buffer``.
"""

from __future__ import annotations

from dataclasses import dataclass

from .schedules import Action, Form, Schedule, Step, last_uses


@dataclass(frozen=True)
class RankProgram:
    """The steps of one rank.

    Attributes:
        schedule, rank: whose part it is.
        steps: in order.
        dead: for each step, the segments whose value is not used after it.
        landings: segments that arrive to be reduced in one step, at most.
        slots: values that live in scratch at one time, at most.
    """

    schedule: Schedule
    rank: int
    steps: tuple[Step, ...]
    dead: tuple[tuple[int, ...], ...]
    landings: int
    slots: int


def rank_program(schedule: Schedule, rank: int, *, wide: bool = False) -> RankProgram:
    """The part of ``rank`` in a schedule.

    >>> from mpiring.plan.schedules import ring_allreduce
    >>> program = rank_program(ring_allreduce(4), 0)
    >>> program.landings, program.slots
    (1, 0)
    >>> rank_program(ring_allreduce(4), 0, wide=True).slots
    1

    Args:
        wide: whether partials have another dtype than results (16-bit floats), so that none can live in
            the result's place.
    """
    steps = tuple(schedule.steps(rank))
    dead = last_uses(steps)
    results = set(schedule.results(rank))
    kept = set() if wide else results  # of which a partial lives in the result's place
    landings = slots = 0
    alive: set[tuple[int, bool]] = set()  # (segment, whether wide): the slots in use
    for step, last in zip(steps, dead):
        stored = [r for r in step.receives if r.action is Action.STORE]
        reduced = {r.segment for r in step.receives if r.action is not Action.STORE}
        finished = set(step.finishes)
        landings = max(landings, len(step.receives) - len(stored))
        for segment, form in ((r.segment, r.form) for r in stored):
            if segment not in (kept if form is Form.PARTIAL else results):
                alive.add((segment, wide and form is Form.PARTIAL))
        for send in step.sends:
            # A contribution that travels as a partial is widened into a slot; and what others of the host may
            # write over while it travels is combined, or copied, into one.
            is_wide = wide and send.form is Form.PARTIAL
            is_exposed = schedule.fuses and send.segment not in results
            if is_wide or (is_exposed and send.form is not Form.RESULT):
                alive.add((send.segment, is_wide))
        slots = max(slots, len(alive))
        # All is sent, and what arrives has arrived: now combine, then finish.
        in_use = reduced | finished | {r.segment for r in stored}
        alive = {slot for slot in alive if slot[0] not in set(last) - in_use}
        alive |= {(segment, wide) for segment in reduced - kept}
        slots = max(slots, len(alive))
        for segment in step.finishes:
            spent = {(segment, wide)}
            if segment not in results:  # rounded into a slot of its own
                alive.add((segment, False))
                slots = max(slots, len(alive))
                spent -= {(segment, False)}
            alive -= spent
        alive = {slot for slot in alive if slot[0] not in last}
    return RankProgram(schedule, rank, steps, tuple(dead), landings, slots)
