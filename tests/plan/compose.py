"""Two collectives, one after the other, as one schedule: the lecture's identities."""

from __future__ import annotations

from itertools import chain

from mpiring.plan import Schedule, from_steps


def composed(
    first: Schedule, second: Schedule, order: str | None = None, offset: int = 0
) -> Schedule:
    """The all-reduce that is done when both are: each rank goes through its steps of both."""
    assert (first.size, first.segments) == (second.size, second.segments)
    return from_steps(
        "allreduce",
        [chain(first.steps(r), second.steps(r)) for r in range(first.size)],
        algorithm=f"{first.algorithm} {first.collective}, {second.algorithm} {second.collective}",
        order=order,
        offset=offset,
        segments=first.segments,
    )
