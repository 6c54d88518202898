"""mpiring's own calls, as a user makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpiring.cli import UsageError

from .settings import REDUCING
from .task import ROOT, Buffers, Call, Task

if TYPE_CHECKING:
    from mpiring import Ring


def can_share(ring: Ring) -> bool:
    """Whether this ring gives memory that all ranks of a node reach."""
    return hasattr(ring, "empty")


def buffers(ring: Ring, task: Task, memory: str) -> Buffers:
    """Buffers for mpiring's calls; collective where memory is shared.

    Raises:
        UsageError: on every rank, if there is no such memory.
    """
    if memory == "ordinary":
        return Buffers.ordinary(task)
    if not can_share(ring):
        raise UsageError("--memory shared: this version of mpiring has no Ring.empty")
    empty: Callable[..., Any] = getattr(ring, "empty")
    new = [empty(task.count, task.numbers.dtype) for _ in range(2)]
    for array in new:
        array[...] = 0
    return Buffers(task, *new)


def prepare(
    ring: Ring, algorithm: str, order: str = "ring"
) -> Callable[[Buffers, bool], Call]:
    """What makes the call to be timed from buffers, in place or not."""

    def prepared(buffers: Buffers, in_place: bool) -> Call:
        task = buffers.task
        options: dict[str, Any] = {"algorithm": algorithm}
        if task.collective in REDUCING:
            options |= {"op": task.op, "order": order}
        source = buffers.source(in_place)
        if task.collective == "broadcast":
            given = source if in_place or task.is_root else None
            return lambda: ring.broadcast(given, ROOT, **options)
        target = buffers.target
        if task.collective == "reduce":
            room = target if task.is_root else None
            return lambda: ring.reduce(source, root=ROOT, out=room, **options)
        collective = getattr(ring, task.collective)
        return lambda: collective(source, out=target, **options)

    return prepared
