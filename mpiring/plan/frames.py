"""What every rank holds after each round of a schedule: what a table or a picture of it shows.

A **round** is what can happen at once: time as it would be if every message took 1 and all else 0
(:class:`mpiring.plan.cost.EventClock` keeps it).  For ring and direct exchange the rounds are the
steps; in a chain or a tree, where ranks take turns, they line up a send with its receive.

Rank 0's contribution to segment 3 is ``a3``, rank 1's is ``b3`` as in the lecture; beyond rank 25
(``z``) rank 27's is ``r27s3``.  A sum is written in the order in which it is combined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .cost import EventClock, Model
from .schedules import Form, Receive, Schedule, Send, Step
from .symbolic import Value, initial, order_of, ranks_of, run

MOST_SEGMENTS = 16  # columns that still can be read
MOST_CELLS = 8192  # an all-reduce ring of 16 ranks; half a megabyte of SVG


class Message(NamedTuple):
    """One message of a round."""

    source: int
    dest: int
    segment: int
    form: Form


class Frame(NamedTuple):
    """What every rank holds after a round.

    ``cells[rank][segment]`` is a value of :mod:`mpiring.plan.symbolic`, or None; ``messages`` are those
    that arrived in this round; ``steps[rank]`` is how many steps the rank has completed.
    """

    round: int
    cells: tuple[tuple[Value | None, ...], ...]
    messages: tuple[Message, ...]
    steps: tuple[int, ...]


def frames(schedule: Schedule) -> list[Frame]:
    """The rounds of a schedule; frame 0 is what the ranks start with.

    >>> from mpiring.plan.schedules import ring_allreduce
    >>> [len(frame.messages) for frame in frames(ring_allreduce(4))]
    [0, 4, 4, 4, 4, 4, 4]

    Raises:
        ScheduleError: from the symbolic run, where the schedule is broken.
        ValueError: if it is too large to look at (see ``MOST_SEGMENTS`` and ``MOST_CELLS``).
    """
    size, segments = schedule.size, schedule.segments
    if segments > MOST_SEGMENTS:
        raise ValueError(
            f"frames: {segments} segments do not fit on a page, {MOST_SEGMENTS} do; draw the "
            "schedule for fewer ranks, verify() proves the large one"
        )
    clock = _Rounds(size)
    # rank -> (round, cells, steps completed), for each of its steps
    seen: list[list[tuple[int, tuple[Value | None, ...], int]]] = [
        [(0, tuple(cells), 0)] for cells in initial(schedule)
    ]

    def observe(rank: int, index: int, step: Step, cells: list[Value | None]) -> None:
        # A step before any message is drawn in round 1, so that frame 0 stays the start.
        current = max(1, int(clock.now))
        drawn = (current + 1) * size * segments
        if drawn > MOST_CELLS:
            raise ValueError(
                f"frames: {size} ranks x {segments} segments x {current} rounds or more do not "
                f"fit on a page, {MOST_CELLS} cells do; draw the schedule for fewer ranks, "
                "verify() proves the large one"
            )
        seen[rank].append((current, tuple(cells), index + 1))

    run(schedule, observe, clock=clock)
    result = []
    for current in range(max(rows[-1][0] for rows in seen) + 1):
        latest = [[row for row in rows if row[0] <= current][-1] for rows in seen]
        result.append(
            Frame(
                current,
                tuple(cells for _, cells, _ in latest),
                tuple(sorted(clock.messages.get(current, ()))),
                tuple(steps for _, _, steps in latest),
            )
        )
    return result


class _Rounds(EventClock):
    """Every message takes 1; all else takes no time."""

    def __init__(self, size: int) -> None:
        nothing = [0] * MOST_SEGMENTS
        super().__init__(size, Model(1, 0), nothing, nothing)
        self.messages: dict[int, list[Message]] = {}

    def moved(self, source: int, dest: int, send: Send, receive: Receive) -> None:
        super().moved(source, dest, send, receive)
        message = Message(source, dest, send.segment, send.form)
        self.messages.setdefault(int(self.now) + 1, []).append(message)


# ---- names of values ------------------------------------------------------------------------------


def contribution_name(rank: int, segment: int) -> str:
    """The lecture's name of a contribution.

    >>> contribution_name(1, 0), contribution_name(27, 0)
    ('b0', 'r27s0')
    """
    if rank < 26:
        return f"{chr(ord('a') + rank)}{segment}"
    return f"r{rank}s{segment}"


def value_name(
    schedule: Schedule, segment: int, value: Value | None, *, short: bool = False
) -> str:
    """What a cell shows: the sum in its order, with ``*`` if it is a finished result.

    ``short`` writes neighbours in the ring as ``b0..a0``, and what is then still long as ``{a-d}0``.
    """
    if value is None:
        return ""
    if schedule.collective in ("allgather", "broadcast"):
        source = schedule.root
        return contribution_name(
            schedule.owner(segment) if source is None else source, segment
        )
    mark = "*" if value[1] is Form.RESULT else ""
    order = order_of(value)
    if not short:
        return _sum([_term(t, segment) for t in order]) + mark
    ranks = [token for token in order if isinstance(token, int)]
    if len(ranks) == len(order):
        return _sum(_runs(ranks, schedule.size, segment, cyclic=True)) + mark
    members = _runs(ranks_of(value[0]), schedule.size, segment, cyclic=False)
    return "{" + ",".join(members) + "}" + mark


def _term(token: int | str, segment: int) -> str:
    return contribution_name(token, segment) if isinstance(token, int) else token


def _sum(terms: Sequence[str]) -> str:
    return "+".join(terms).replace("(+", "(").replace("+)", ")")


def _runs(ranks: Sequence[int], size: int, segment: int, *, cyclic: bool) -> list[str]:
    """Ranks with runs of three and more neighbours abbreviated: ``b0..d0``."""
    runs: list[list[int]] = []
    for rank in ranks:
        next_one = runs[-1][-1] + 1 if runs else None
        if next_one is not None and rank == (next_one % size if cyclic else next_one):
            runs[-1].append(rank)
        else:
            runs.append([rank])
    names = []
    for members in runs:
        terms = [contribution_name(rank, segment) for rank in members]
        names += [f"{terms[0]}..{terms[-1]}"] if len(terms) > 2 else terms
    return names
