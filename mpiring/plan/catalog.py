"""The schedules by name: what a command line, a ring's ``algorithm=`` and a table of costs choose from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from . import rooted, schedules
from .schedules import COLLECTIVES, Schedule

# (collective, algorithm) -> what makes it: from size, and from order, root and segments where these matter.
_CATALOG: dict[tuple[str, str], Callable[..., Schedule]] = {
    ("allreduce", "ring"): schedules.ring_allreduce,
    ("allreduce", "direct"): schedules.direct_allreduce,
    ("reduce_scatter", "ring"): schedules.ring_reduce_scatter,
    ("reduce_scatter", "direct"): schedules.direct_reduce_scatter,
    ("allgather", "ring"): schedules.ring_allgather,
    ("allgather", "direct"): schedules.direct_allgather,
    ("reduce", "ring"): rooted.chain_reduce,
    ("reduce", "direct"): rooted.star_reduce,
    ("broadcast", "naive"): partial(rooted.chain_broadcast, segments=1),
    ("broadcast", "pipelined"): rooted.chain_broadcast,
    ("broadcast", "direct"): rooted.star_broadcast,
}
_DEFAULT_SEGMENTS = 8  # of a pipelined schedule that is only looked at

ALGORITHMS = tuple(dict.fromkeys(algorithm for _, algorithm in _CATALOG))


def algorithms(collective: str) -> tuple[str, ...]:
    """The algorithms of a collective.

    >>> algorithms("broadcast")
    ('naive', 'pipelined', 'direct')
    """
    return tuple(a for c, a in _CATALOG if c == collective)


def schedule(
    collective: str,
    size: int,
    *,
    algorithm: str | None = None,
    order: str = "ring",
    root: int | None = None,
    segments: int = 0,
) -> Schedule:
    """The schedule of that name.

    >>> schedule("allreduce", 4, algorithm="direct") == schedules.direct_allreduce(4)
    True
    >>> schedule("broadcast", 4, algorithm="pipelined", root=1, segments=16).segments
    16

    Args:
        collective: what it does.
        size: number of ranks.
        algorithm: one of :func:`algorithms`; None takes the one that is optimal in bytes.
        order: the order of combination.
        root: for a broadcast or reduce; None means 0 there.
        segments: pieces of a broadcast or reduce; 0 for one, or a few where it is pipelined.

    Raises:
        ValueError: for a name that does not exist, listing those that do; and for order ``"rank"`` with a
            ring, whose partial sums travel in ring order.
    """
    if algorithm is None:
        algorithm = "pipelined" if collective == "broadcast" else "ring"
    check_algorithm(collective, algorithm)
    _known("order", order, ("ring", "rank"))
    make = _CATALOG[collective, algorithm]
    if collective in ("broadcast", "reduce"):
        make = partial(make, root=0 if root is None else root)
        if segments and algorithm != "naive":
            make = partial(make, segments=segments)
        elif algorithm == "pipelined":
            make = partial(make, segments=_DEFAULT_SEGMENTS)
    if collective in ("allreduce", "reduce_scatter", "reduce"):
        if algorithm == "direct":
            make = partial(make, order=order)
        elif order == "rank":
            raise ValueError(
                f"algorithm={algorithm!r} cannot combine with order={order!r}: "
                "a ring adds in ring order; use algorithm='auto' or 'direct'"
            )
    return make(size)


def check_algorithm(collective: str, algorithm: str) -> None:
    """Refuse a name that does not exist.

    Raises:
        ValueError: listing those that do.
    """
    _known("collective", collective, COLLECTIVES)
    _known(f"{collective} algorithm", algorithm, algorithms(collective))


def _known(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"unknown {what} {value!r}; known: {', '.join(known)}")
