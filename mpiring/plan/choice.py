"""Which schedule to choose, and in how many segments: by the formulas, so without building any.

The formulas grow with the size of the buffer, but not in straight lines: a best number of segments grows with
it, and a segment that is longer by one element costs a whole round of the ring.  So the sizes at which the
winner changes are not solved for but searched: first over powers of two, then by halving, to the element.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, sqrt
from typing import NamedTuple

from .catalog import algorithms
from .cost import Model
from .formulas import ClosedForm, closed_form

MOST_BYTES = 1 << 40  # of a buffer, where the search for crossings ends

# The schedules that gain by segments; a star's link carries the same bytes in one as in many.
PIPELINED = (("broadcast", "pipelined"), ("reduce", "ring"))


def best_segments(
    collective: str,
    algorithm: str,
    size: int,
    count: int,
    itemsize: int = 4,
    model: Model | None = None,
    *,
    partial_itemsize: int | None = None,
) -> int:
    """Into how many segments to cut a buffer to be done soonest; 1 for all that gain nothing by it.

    With ``T`` seconds for the whole buffer on one link, ``S`` segments take ``(K+S-2) (a + T/S)``.  That is
    least where its slope ``a - (K-2) T / S**2`` is 0, at ``S = sqrt((K-2) T / a)``: the square root of how
    many latencies long the way of the buffer is.  One of the two whole numbers around it is the best.

    >>> best_segments("broadcast", "pipelined", 18, 10_000, 1, Model(alpha=10, beta=1))
    126
    >>> best_segments("broadcast", "pipelined", 18, 10_000, 1, Model(alpha=0, beta=1))
    10000

    Source: the lecture, section 2.2, has the times; the best ``S`` follows from them.
    """
    model = model or Model(0, 0, 0)
    if (collective, algorithm) not in PIPELINED:
        return 1
    width = itemsize if collective == "broadcast" else partial_itemsize or itemsize
    each = model.beta + (model.gamma if collective == "reduce" else 0)
    whole = count * width * each
    if size < 3 or count < 2 or not whole:
        return 1
    if not model.alpha:
        return count
    around = min(max(1, floor(sqrt((size - 2) * whole / model.alpha))), count - 1)
    return min(
        (around, around + 1),
        key=lambda s: (size + s - 2) * (model.alpha + whole / s),
    )


class Choice(NamedTuple):
    """A schedule of the catalog in its best form for one size: what :func:`choices` lists."""

    algorithm: str
    segments: int
    form: ClosedForm


def choices(
    collective: str,
    size: int,
    count: int,
    itemsize: int = 4,
    model: Model | None = None,
    *,
    partial_itemsize: int | None = None,
    segments: int = 0,
    among: Sequence[str] = (),
) -> list[Choice]:
    """What each schedule of a collective costs; the winner is the one with the fewest seconds.

    >>> for choice in choices("broadcast", 4, 1000, 1, Model(alpha=100, beta=1)):
    ...     print(choice.algorithm, choice.segments, choice.form.seconds)
    naive 1 3300.0
    pipelined 4 2100.0
    direct 1 3100.0

    Args:
        segments: of a schedule that gains by them; 0 for the best number at this size.
        among: the algorithms to look at; by default all of the collective.
    """
    found = []
    for algorithm in among or algorithms(collective):
        pieces = best_segments(
            collective,
            algorithm,
            size,
            count,
            itemsize,
            model,
            partial_itemsize=partial_itemsize,
        )
        if segments and (collective, algorithm) in PIPELINED:
            pieces = segments
        form = closed_form(
            collective,
            algorithm,
            size,
            count,
            itemsize,
            model,
            partial_itemsize=partial_itemsize,
            segments=pieces,
        )
        found.append(Choice(algorithm, pieces, form))
    return found


def winner(found: Sequence[Choice]) -> Choice:
    """The fastest; of equals the first."""
    return min(found, key=lambda choice: choice.form.seconds)


def crossings(
    collective: str,
    size: int,
    itemsize: int = 4,
    model: Model | None = None,
    *,
    partial_itemsize: int | None = None,
    segments: int = 0,
    among: Sequence[str] = (),
) -> list[tuple[int, str]]:
    """Which schedule wins from how many bytes on: ``(bytes, algorithm)``, from the smallest buffer up.

    >>> crossings("broadcast", 4, 1, Model(alpha=100, beta=1), segments=4)
    [(1, 'direct'), (334, 'pipelined')]

    There 4 ranks and 4 segments take 6 turns: ``600 + 2 ceil(n/4) + n`` against the star's ``100 + 3 n``.

    Args:
        size, itemsize, model, partial_itemsize, segments, among: as in :func:`choices`.
    """

    def best(count: int) -> str:
        return winner(
            choices(
                collective,
                size,
                count,
                itemsize,
                model,
                partial_itemsize=partial_itemsize,
                segments=segments,
                among=among,
            )
        ).algorithm

    low, name = 1, best(1)
    found = [(itemsize, name)]
    while low * itemsize < MOST_BYTES:
        high = 2 * low
        while best(high) != name:
            # Between low and high another one takes over; then it may lose to a third before high.
            before, after = low, high
            while after - before > 1:
                middle = (before + after) // 2
                before, after = (
                    (middle, after) if best(middle) == name else (before, middle)
                )
            low, name = after, best(after)
            found.append((low * itemsize, name))
        low = high
    return found
