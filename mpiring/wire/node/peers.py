"""Collectives on ordinary arrays of ranks of one node, which reach into each other's memory.

The sibling of :mod:`mpiring.wire.node.fused` for arrays that are not in memory that all have mapped.  A rank reads the
others' arrays and writes its results to them by the system calls of :mod:`mpiring.wire.node.peer_memory`; no data
travels by message.  An all-reduce walks over *its* segment in blocks: a block of each other rank comes into scratch,
all are combined in the order of promise 4 into this rank's output, and from there, while it is still in the core's
cache, the result goes to the others' outputs.  Each rank moves ``2 (size - 1) / size`` of its array, what a ring moves
too, in one copy instead of two and without a hop that waits for another one.

Theory
    What orders the accesses are messages, as in :mod:`mpiring.wire.node.fused`: the *opening exchange*, which also says
    where the arrays are, and the *closing exchange*.  In between no two ranks touch the same element, unless both
    only read.  Segment r of any rank's input is read by rank r and its owner only; segment r of any rank's output is
    written by rank r only, after it has read that block of all inputs: so ``out`` may be ``x``.

    Between the two exchanges no rank may leave, whatever happens to it, as long as its arrays can be touched: memory
    that it gave back would be another array of its by then.  A call that ends with an error in between breaks its
    ring, and a broken ring keeps the arrays of its calls for ever (:mod:`mpiring.wire.ring.operations`), as it does for
    messages.  A process that ends takes its memory along: whoever reaches for it gets an error from the kernel, and
    raises it; nobody crashes.

A page that nobody has touched yet costs the same fault whoever touches it first, here the rank that writes a result
to it: ``out=`` memory that is used again is faster than a new result for each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from ...plan.schedules import combination, others
from ...plan.segments import Segments
from ..arrays import Kind
from ..arrays.mapped import Place
from ..arrays.scratch import Rooms
from ..reduce.arithmetic import Array
from .peer_memory import PeerMemory

# Scratch of a rank, shared out among blocks of each rank's array.  Two cores with 1 MiB of L2 each took, for blocks of
# 256, 512 and 1024 KiB: two ranks 655, 551 and 495 us for 4 MiB, 8.9, 7.7 and 8.1 ms for 64 MiB; four ranks 2.3, 2.2
# and 2.4 ms, 21.8, 21.2 and 20.8 ms.  Shorter blocks cost system calls.
_TOGETHER = 2 << 20
_LONGEST, _SHORTEST = 512 << 10, 16 << 10

Addresses = Sequence[Place]  # of the ranks' arrays, in rank order


def block_bytes(size: int) -> int:
    """How much of each rank's array a rank has in scratch at a time."""
    return max(_SHORTEST, min(_LONGEST, _TOGETHER // size))


class Reduction(NamedTuple):
    """What is the same for all that a rank does in a reduction.

    Attributes:
        memory: of the ranks.
        rank: this one.
        kind, op, order: of the reduction.
        rooms: scratch, a block for each rank.
    """

    memory: PeerMemory
    rank: int
    kind: Kind
    op: str
    order: str
    rooms: Rooms


def allreduce(
    how: Reduction, x: Array, out: Array, xs: Addresses, outs: Addresses
) -> None:
    """Combine this rank's segment of all inputs, and store it to all outputs.

    Args:
        how: it is done.
        x, out: this rank's flat arrays.
        xs, outs: where all ranks have them.
    """
    rank, size = how.rank, len(xs)
    base = how.kind.pointer(out)
    for block, operands in _blocks(how, x, xs, last=rank):
        how.kind.fold_to_all(how.op, size, operands, [out[block.here]])
        for other in others(rank, size):
            there = outs[other].offset + block.start
            how.memory.write(other, there, base + block.start, block.nbytes)


def reduce_scatter(how: Reduction, x: Array, out: Array, xs: Addresses) -> None:
    """Combine this rank's segment of all inputs into its ``out``; arguments as for :func:`allreduce`."""
    for block, operands in _blocks(how, x, xs, last=how.rank):
        how.kind.fold_to_all(how.op, len(xs), operands, [out[block.within]])


def reduce(
    how: Reduction,
    x: Array,
    out: Array | None,
    xs: Addresses,
    root: int,
    of_root: Place,
) -> None:
    """Combine this rank's segment of all inputs into the root's output.

    Args:
        how, x, xs: as for :func:`allreduce`.
        out: the output, on the root.
        root: who gets the result.
        of_root: where it has its output.
    """
    own, at = how.rooms.arrays[how.rank], how.rooms.addresses[how.rank]
    for block, operands in _blocks(how, x, xs, last=root):
        part = own[: block.length] if out is None else out[block.here]
        how.kind.fold_to_all(how.op, len(xs), operands, [part])
        if out is None:
            there = of_root.offset + block.start
            how.memory.write(root, there, at, block.nbytes)


def allgather(
    memory: PeerMemory,
    rank: int,
    kind: Kind,
    out: Array,
    segments: Segments,
    xs: Addresses,
) -> None:
    """Read the others' arrays into their segments of ``out``; this rank's is there."""
    for other in others(rank, len(xs)):
        piece = out[segments[other].slice]
        memory.read(other, xs[other].offset, kind.pointer(piece), piece.nbytes)


def broadcast(
    memory: PeerMemory, kind: Kind, out: Array, root: int, of_root: Place
) -> None:
    """Read the root's array into ``out``, on a rank that is not the root."""
    memory.read(root, of_root.offset, kind.pointer(out), out.nbytes)


class _Block(NamedTuple):
    """A piece of a rank's segment.

    Attributes:
        here, within: where it is in the whole array, and in the segment.
        length: in elements.
        start, nbytes: in bytes, in the whole array.
    """

    here: slice
    within: slice
    length: int
    start: int
    nbytes: int


def _blocks(
    how: Reduction, x: Array, xs: Addresses, last: int
) -> Iterator[tuple[_Block, list[Array]]]:
    """The blocks of this rank's segment, each with all inputs there, in the order in which they are combined."""
    rank, rooms = how.rank, how.rooms
    ranks = combination(how.order, last, len(xs))
    arrays, addresses = rooms.arrays, rooms.addresses
    starts = [place.offset for place in xs]
    for block in _cut(x.size, len(xs), rank, rooms.length, x.itemsize):
        if block.length < rooms.length:
            arrays = [array[: block.length] for array in arrays]
        operands = []
        for other in ranks:
            if other == rank:
                operands.append(x[block.here])
            else:
                there = starts[other] + block.start
                how.memory.read(other, there, addresses[other], block.nbytes)
                operands.append(arrays[other])
        yield block, operands


@lru_cache(maxsize=128)
def _cut(
    count: int, size: int, rank: int, length: int, itemsize: int
) -> Sequence[_Block]:
    """The segment of a rank in blocks of so many elements."""
    mine = Segments(count, size)[rank]
    return [
        _Block(
            piece.slice,
            piece.within(mine),
            piece.length,
            piece.start * itemsize,
            piece.length * itemsize,
        )
        for piece in mine.pieces(length)
    ]
