"""Small reductions: the arrays ride in the opening exchange, and every rank combines them itself.

A ring is the wrong tool for a few bytes: it pays for ``2 (size - 1)`` messages, one after another.  The opening
exchange talks to everyone in ``log2(size)`` rounds anyhow, and its messages have room.  Afterwards each rank has
all contributions, and combines them in the order of promise 4: the bits are those of every other path, and no
further message is sent.

Only host memory rides along.  A rank that cannot bring its bytes brings none, and all see it and take the
ordinary path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ...plan.schedules import combination
from ...plan.segments import Segments
from ..arrays import Kind
from ..arrays.host import as_dtype, plain
from ..reduce import arithmetic
from ..reduce.arithmetic import Array

# All arrays together may have so many bytes: in the last round of the exchange half of them travel in one message.
# That has room for what is measured to ride on a host, and for some KiB each where the ranks are many.
_TOGETHER = 128 << 10


def most_bytes(small_bytes: int, size: int) -> int:
    """The longest array that rides along in a ring of so many ranks, of those that should; -1 if none does."""
    return min(small_bytes, _TOGETHER // size) or -1


def combine(
    kind: Kind,
    said: Sequence[bytes],
    op: str,
    order: str,
    dtype: str,
    out: Array,
    part: slice | None = None,
    last: int | None = None,
) -> None:
    """Combine what the ranks said and write the result to ``out``.

    Args:
        kind: of ``out``, in host memory.
        said: the ranks' flat arrays as bytes, in rank order.
        op, order: of the reduction.
        dtype: of arrays and result, by name.
        out: flat; as long as an array, or as ``part`` of it.
        part: the elements wanted; None for all.
        last: the rank whose contribution comes last in the order ``"ring"``; None: that is the home of each
            segment of the whole array.
    """
    size = len(said)
    count = len(said[0]) // kind.itemsize(dtype)
    together = kind.typed(np.frombuffer(b"".join(said), np.uint8), dtype, size * count)
    rows: Any = together.reshape(size, count)
    if last is not None or order == "rank" or count == 0:
        ranks = combination(order, 0 if last is None else last, size)
        operands = [rows[rank] for rank in ranks]
    elif arithmetic.any_order(op, dtype, size):
        operands = list(rows)
    else:
        operands = list(together[_places(count, size)])
    if part is not None:
        operands = [operand[part] for operand in operands]
    wide = arithmetic.accumulator(op, dtype)
    total = out if wide == dtype else kind.empty(out.size, wide)
    kind.fold(op, operands, total)
    kind.finish(op, size, total, out)


Combination = Callable[[Sequence[Array], Array], None]


def combination_of(
    op: str, order: str, dtype: str, count: int, size: int
) -> Combination | None:
    """What combines the ranks' flat NumPy arrays, in rank order, into another array; None where it would win nothing.

    What :func:`combine` does, with all that can be known beforehand.

    Args:
        op, order, dtype: as of :func:`combine`.
        count: elements of an array.
        size: how many ranks.
    """
    step = plain(op, dtype)
    if step is None or size < 2 or count == 0:
        return None
    kind = as_dtype(dtype)
    if arithmetic.any_order(op, dtype, size):

        def in_any_order(xs: Sequence[Array], out: Array) -> None:
            step(xs[0], xs[1], out=out)
            for x in xs[2:]:
                step(out, x, out=out)

        return in_any_order

    places = None if order == "rank" else _places(count, size)

    def in_order(xs: Sequence[Array], out: Array) -> None:
        rows = xs if places is None else np.frombuffer(b"".join(xs), kind)[places]
        step(rows[0], rows[1], out=out)
        for row in rows[2:]:
            step(out, row, out=out)

    return in_order


@lru_cache(maxsize=64)
def _places(count: int, size: int) -> Array:
    """Row k has, for each element, the place of the contribution that comes k-th in the order ``"ring"``."""
    place_of = np.arange(size * count).reshape(size, count)  # by rank and element
    places = np.empty_like(place_of)
    for home, segment in enumerate(Segments(count, size)):
        ranks = list(combination("ring", home, size))
        places[:, segment.slice] = place_of[ranks, segment.slice]
    return places
