"""Collectives on memory that all ranks of a node reach (:mod:`mpiring.wire.node.shared`): no data travels.

A rank reads the others' arrays where they are, and writes results where the others want them.  An all-reduce is
one pass over the ranks' arrays: each rank combines *its* segment of all of them, in the order of promise 4, and
stores it to all (:func:`mpiring.wire.reduce.arithmetic.combine`).  That is as much as a ring does to a segment, with
the hops left out: the bits are the same.

Theory
    No rank looks at memory to learn whether another one is ready: processors may reorder what they write, and
    Python has no means to order it.  Messages give the order, two rounds of them, which no rank leaves before
    all have come.  The *opening exchange* is the first: whoever has left it may read the inputs of all, and write
    the outputs of all.  The *closing exchange* is the second: whoever has left it has its result, and nobody reads
    its input any more.  In between no two ranks touch the same element, unless both only read.

Whether a call can go this way depends on all ranks: each says in the opening exchange in which region and where
its arrays are, and everyone judges alike.  The arrays of different ranks may lie at different places; all have to
be in one region, so that every rank is known to have mapped it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from ...plan.schedules import combination
from ...plan.segments import Segments
from ..arrays import NUMPY, Kind
from ..arrays.host import by_addresses
from ..arrays.mapped import Place, region_named
from ..reduce.arithmetic import Array

Places = Sequence[Place | None]  # of the ranks' arrays, in rank order


def are_shared(*arrays: Places) -> bool:
    """Whether, of each sequence of places, all are in one region."""
    return all(_in_one_region(tuple(places)) for places in arrays)


@lru_cache(maxsize=256)
def _in_one_region(places: tuple[Place | None, ...]) -> bool:
    regions = {None if place is None else place.region for place in places}
    return len(regions) == 1 and None not in regions


def reach(places: Places, count: int, dtype: str) -> list[Array]:
    """The flat arrays at these places, of ``count`` elements, in a region that this rank has an array in."""
    arrays = []
    for place in places:
        assert place is not None
        region = region_named(place.region)
        assert region is not None
        arrays.append(region.array(place.offset, count, dtype))
    return arrays


def in_order(arrays: Sequence[Array], order: str, last: int) -> list[Array]:
    """The ranks' arrays in the order in which they are combined."""
    return [arrays[rank] for rank in combination(order, last, len(arrays))]


def allreduce(
    rank: int, kind: Kind, op: str, order: str, xs: list[Array], outs: list[Array]
) -> None:
    """Combine this rank's segment of ``xs``, and store it to all ``outs``."""
    size = len(xs)
    mine = Segments(xs[0].size, size)[rank].slice
    operands = [x[mine] for x in in_order(xs, order, rank)]
    kind.fold_to_all(op, size, operands, [out[mine] for out in outs])


def allreduce_of(
    rank: int, op: str, order: str, count: int, dtype: str, xs: Places, outs: Places
) -> Callable[[Places, Places], None]:
    """:func:`allreduce` of calls that differ in the places alone, as a function of those.

    Args:
        rank: who we are.
        op, order, count, dtype: of the calls; ``count`` elements.
        xs, outs: the places of one of them.
    """
    size = len(xs)

    def by_arrays(xs: Places, outs: Places) -> None:
        all_x, all_out = reach(xs, count, dtype), reach(outs, count, dtype)
        allreduce(rank, NUMPY, op, order, all_x, all_out)

    mine = Segments(count, size)[rank]
    some_x, some_out = (
        [x[mine.slice] for x in reach(places, count, dtype)] for places in (xs, outs)
    )
    kernel = by_addresses(op, some_x, some_out, size)
    if kernel is None:
        return by_arrays
    ranks = combination(order, rank, size)
    start = mine.start * NUMPY.itemsize(dtype)

    def by_kernel(xs: Places, outs: Places) -> None:
        operands = addresses(xs, start)
        kernel([*(operands[r] for r in ranks), *addresses(outs, start)])

    return by_kernel


def addresses(places: Places, start: int) -> list[int]:
    """Where ``start`` bytes behind these places are, in a region that this rank has an array in."""
    assert places[0] is not None
    region = region_named(places[0].region)
    assert region is not None
    base = region.address + start
    return [base + place.offset for place in places if place]


def reduce_scatter(
    rank: int, kind: Kind, op: str, order: str, xs: list[Array], out: Array
) -> None:
    """Combine this rank's segment of ``xs`` into its ``out``."""
    size = len(xs)
    mine = Segments(xs[0].size, size)[rank].slice
    kind.fold_to_all(op, size, [x[mine] for x in in_order(xs, order, rank)], [out])


def reduce(
    rank: int,
    kind: Kind,
    op: str,
    order: str,
    xs: list[Array],
    root: int,
    out: Array | None,
    everyone: bool,
) -> None:
    """Combine into the root's ``out``: a piece of it if ``everyone`` reaches it, else all of it on the root."""
    if out is not None:
        size = len(xs)
        part = Segments(xs[0].size, size)[rank].slice if everyone else slice(None)
        operands = [x[part] for x in in_order(xs, order, root)]
        kind.fold_to_all(op, size, operands, [out[part]])


def unless_written(xs: Places, outs: Places, starts: Sequence[int]) -> Places:
    """The places of an allgather's inputs, None for one that would be written while others read it.

    Args:
        xs: of the inputs.
        outs: of the outputs, None for one that does not overlap its rank's input.
        starts: where in an output each rank's part begins, in bytes.
    """
    return [
        None if x and out and x != (out.region, out.offset + start) else x
        for x, out, start in zip(xs, outs, starts)
    ]


def why_not(name: str, arrays: Sequence[Places]) -> str:
    """Why a call cannot take node-shared memory, and who is to blame."""
    ordinary = [rank for rank, places in enumerate(zip(*arrays)) if None in places]
    who = (
        f"rank {', '.join(map(str, ordinary))} passed other memory, or memory that is written and read at once"
        if ordinary
        else "the ranks passed arrays of several calls of ring.empty, or of several nodes, which only an allreduce or "
        "a reduce_scatter can do, where the ranks of each node lie behind each other"
    )
    return (
        f"{name}: algorithm='shared' needs contiguous x, and out where others write it, of ring.empty on every rank, "
        f"all of one call on one node; {who}; pass such arrays (out=x is in place), or algorithm='auto'"
    )
