"""Collectives on ordinary arrays of ranks of one node, which reach into each other's memory.

The sibling of :mod:`mpiring.wire.fused` for arrays that are not in memory that all have mapped.  A rank reads the
others' arrays and writes its results to them by the system calls of :mod:`mpiring.wire.peer_memory`; no data travels
by message.  An all-reduce walks over *its* segment in blocks: a block of each other rank comes into scratch, all are
combined in the order of promise 4 into this rank's output, and from there, while it is still in the core's cache,
the result goes to the others' outputs.  Each rank moves ``2 (size - 1) / size`` of its array, what a ring moves too,
in one copy instead of two and without a hop that waits for another one.

Theory
    What orders the accesses are messages, as in :mod:`mpiring.wire.fused`: the *opening exchange*, which also says
    where the arrays are, and the *closing exchange*.  In between no two ranks touch the same element, unless both
    only read.  Segment r of any rank's input is read by rank r and its owner only; segment r of any rank's output is
    written by rank r only, after it has read that block of all inputs: so ``out`` may be ``x``.

    Between the two exchanges no rank may leave, whatever happens to it, as long as its arrays can be touched: memory
    that it gave back would be another array of its by then.  A call that ends with an error in between breaks its
    ring, and a broken ring keeps the arrays of its calls for ever (:mod:`mpiring.wire.operations`), as it does for
    messages.  A process that ends takes its memory along: whoever reaches for it gets an error from the kernel, and
    raises it; nobody crashes.

A page that nobody has touched yet costs the same fault whoever touches it first, here the rank that writes a result
to it: ``out=`` memory that is used again is faster than a new result for each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..plan.schedules import combination
from ..plan.segments import Segment, Segments
from .arithmetic import Array
from .arrays import Kind
from .arrays.mapped import Place
from .peer_memory import PeerMemory

# Scratch of a rank, shared out among blocks of each rank's array; what is measured is in docs/performance.md.
_TOGETHER = 2 << 20
_LONGEST, _SHORTEST = 512 << 10, 16 << 10

Addresses = Sequence[Place]  # of the ranks' arrays, in rank order


def block_bytes(size: int) -> int:
    """How much of each rank's array a rank has in scratch at a time."""
    return max(_SHORTEST, min(_LONGEST, _TOGETHER // size))


def allreduce(
    memory: PeerMemory,
    rank: int,
    kind: Kind,
    op: str,
    order: str,
    rooms: list[Array],
    x: Array,
    out: Array,
    xs: Addresses,
    outs: Addresses,
) -> None:
    """Combine this rank's segment of all inputs, and store it to all outputs.

    Args:
        memory: of the ranks.
        rank: this one.
        kind, op, order: of the reduction.
        rooms: scratch, a block of bytes for each rank.
        x, out: this rank's flat arrays.
        xs, outs: where all ranks have them.
    """
    size = len(xs)
    mine = Segments(x.size, size)[rank]
    *turn, _ = combination("ring", rank, size)
    itemsize, ranks = x.itemsize, tuple(combination(order, rank, size))
    for piece, operands in _blocks(memory, rank, kind, rooms, x, xs, mine, ranks):
        part = out[piece.slice]
        kind.fold_to_all(op, size, operands, [part])
        start, nbytes = piece.start * itemsize, piece.length * itemsize
        here = kind.pointer(part)
        for other in turn:
            memory.write(other, outs[other].offset + start, here, nbytes)


def reduce_scatter(
    memory: PeerMemory,
    rank: int,
    kind: Kind,
    op: str,
    order: str,
    rooms: list[Array],
    x: Array,
    out: Array,
    xs: Addresses,
) -> None:
    """Combine this rank's segment of all inputs into its ``out``; arguments as for :func:`allreduce`."""
    size = len(xs)
    mine = Segments(x.size, size)[rank]
    ranks = tuple(combination(order, rank, size))
    for piece, operands in _blocks(memory, rank, kind, rooms, x, xs, mine, ranks):
        kind.fold_to_all(op, size, operands, [out[piece.within(mine)]])


def reduce(
    memory: PeerMemory,
    rank: int,
    kind: Kind,
    op: str,
    order: str,
    rooms: list[Array],
    x: Array,
    out: Array | None,
    xs: Addresses,
    root: int,
    of_root: Place,
) -> None:
    """Combine this rank's segment of all inputs into the root's output.

    Args:
        memory, rank, kind, op, order, rooms, x, xs: as for :func:`allreduce`.
        out: the output, on the root.
        root: who gets the result.
        of_root: where it has its output.
    """
    size = len(xs)
    mine = Segments(x.size, size)[rank]
    itemsize, ranks = x.itemsize, tuple(combination(order, root, size))
    own = kind.typed(rooms[rank], x.dtype, len(rooms[rank]) // itemsize)
    here = kind.pointer(own)
    for piece, operands in _blocks(memory, rank, kind, rooms, x, xs, mine, ranks):
        part = own[: piece.length] if out is None else out[piece.slice]
        kind.fold_to_all(op, size, operands, [part])
        if out is None:
            start, nbytes = piece.start * itemsize, piece.length * itemsize
            memory.write(root, of_root.offset + start, here, nbytes)


def allgather(
    memory: PeerMemory,
    rank: int,
    kind: Kind,
    out: Array,
    segments: Segments,
    xs: Addresses,
) -> None:
    """Read the others' arrays into their segments of ``out``; this rank's is there."""
    *others, _ = combination("ring", rank, len(xs))  # each begins with another one
    for other in others:
        piece = out[segments[other].slice]
        memory.read(other, xs[other].offset, kind.pointer(piece), piece.nbytes)


def broadcast(
    memory: PeerMemory, kind: Kind, out: Array, root: int, of_root: Place
) -> None:
    """Read the root's array into ``out``, on a rank that is not the root."""
    memory.read(root, of_root.offset, kind.pointer(out), out.nbytes)


def _blocks(
    memory: PeerMemory,
    rank: int,
    kind: Kind,
    rooms: list[Array],
    x: Array,
    xs: Addresses,
    segment: Segment,
    ranks: tuple[int, ...],
) -> Iterator[tuple[Segment, list[Array]]]:
    """The blocks of a segment: where each is, and there the ranks' inputs, in the order ``ranks``."""
    itemsize, dtype = x.itemsize, x.dtype
    length = len(rooms[0]) // itemsize
    blocks = [kind.typed(room, dtype, length) for room in rooms]
    addresses = list(map(kind.pointer, blocks))
    for piece in segment.pieces(length):
        start, nbytes = piece.start * itemsize, piece.length * itemsize
        if piece.length < length:
            blocks = [block[: piece.length] for block in blocks]
        operands = []
        for other in ranks:
            if other == rank:
                operands.append(x[piece.slice])
                continue
            memory.read(other, xs[other].offset + start, addresses[other], nbytes)
            operands.append(blocks[other])
        yield piece, operands
