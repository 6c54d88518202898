"""How a buffer goes through memory that is shorter than it is, block by block.

A block has a piece of each segment, so that whoever combines segment s combines the pieces of s, in the order that is
prescribed for that segment, whatever the length of a block.  Its pieces lie behind each other in memory of its own:
*packed*.  A rank does not have to pack its own piece where only the others read what it packs.

Rules this file keeps, for every count, size and length: the pieces of all blocks tile the buffer; packed pieces tile
the packed memory; a block is never longer than it was asked to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .segments import Segment, Segments


class Move(NamedTuple):
    """Elements of the buffer, and where they are when packed."""

    here: Segment
    packed: Segment


class Block:
    """A piece of each segment.

    Attributes:
        pieces: of the segments, in order, in the buffer.
        packed: the same behind each other.
    """

    def __init__(self, pieces: Iterable[Segment]) -> None:
        self.pieces = list(pieces)
        self.packed = self._packed()

    def packed_without(self, rank: int) -> Segments:
        """Where the pieces are if that of one rank is left out, which is empty then."""
        return self._packed(rank)

    def moves(self) -> list[Move]:
        """All pieces, those in one that lie behind each other in both places."""
        return list(_joined(map(Move, self.pieces, self.packed)))

    def moves_without(self, rank: int, packed: Segments | None = None) -> list[Move]:
        """All pieces but that of one rank.

        Args:
            rank: whose piece it is.
            packed: where the pieces are; by default with that piece left out.
        """
        where = self.packed_without(rank) if packed is None else packed
        moves = map(Move, self.pieces, where)
        return list(_joined(move for s, move in enumerate(moves) if s != rank))

    def _packed(self, without: int | None = None) -> Segments:
        lengths = [piece.length for piece in self.pieces]
        if without is not None:
            lengths[without] = 0
        return Segments.of_lengths(lengths)


def blocks(segments: Segments, length: int) -> list[Block]:
    """The buffer in blocks of at most ``length`` elements; an empty buffer is one empty block.

    >>> [[tuple(piece) for piece in block.pieces] for block in blocks(Segments(5, 2), 4)]
    [[(0, 2), (3, 5)], [(2, 3), (5, 5)]]

    Raises:
        ValueError: if not even one element of each segment fits.
    """
    each = length // len(segments)
    if each < 1:
        raise ValueError(
            f"blocks: length must be {len(segments)} or more for as many segments, got {length}"
        )
    chunks = segments.chunks(each)
    return [Block(chunk[s] for s in range(len(segments))) for chunk in chunks]


def _joined(moves: Iterable[Move]) -> Iterator[Move]:
    """The same elements in as few moves as possible."""
    last: Move | None = None
    for move in moves:
        if move.here.length == 0:
            continue
        if last is None:
            last = move
        elif (last.here.stop, last.packed.stop) == (
            move.here.start,
            move.packed.start,
        ):
            last = Move(
                Segment(last.here.start, move.here.stop),
                Segment(last.packed.start, move.packed.stop),
            )
        else:
            yield last
            last = move
    if last is not None:
        yield last
