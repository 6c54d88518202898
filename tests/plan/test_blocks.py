"""Blocks tile the buffer, and packed pieces tile their memory, whatever the lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiring.plan import Segments
from mpiring.plan.blocks import blocks


def indices(segment):
    return list(range(segment.start, segment.stop))


def check(count, size, length):
    segments = Segments(count, size)
    found = blocks(segments, length)
    seen = []
    for block in found:
        assert sum(piece.length for piece in block.pieces) <= length
        for segment, piece in zip(segments, block.pieces):
            assert piece.length == 0 or (
                segment.start <= piece.start and piece.stop <= segment.stop
            )
            seen += indices(piece)
        check_packed(block, size)
    assert sorted(seen) == list(range(count))
    assert len(found) == max(1, -(-segments.longest // (length // size)))
    return found


def check_packed(block, size):
    """All moves together bring each element once, from where its piece is to where that is packed."""
    together = [i for piece in block.pieces for i in indices(piece)]
    assert moved(block.moves(), len(together)) == together
    for rank in range(size):
        others = [
            i
            for s, piece in enumerate(block.pieces)
            if s != rank
            for i in indices(piece)
        ]
        moves = block.moves_without(rank)
        assert moved(moves, len(others)) == others
        packed = block.packed_without(rank)
        assert packed[rank].length == 0 and packed.count == len(others)
        holes = moved(block.moves_without(rank, block.packed), len(together))
        mine = block.packed[rank]
        assert [holes[i] for i in indices(mine)] == [None] * mine.length
        assert [i for i in holes if i is not None] == others


def moved(moves, length):
    """What is in packed memory of that length after the moves, by element of the buffer."""
    memory = [None] * length
    for move in moves:
        assert move.here.length == move.packed.length > 0
        for here, there in zip(indices(move.here), indices(move.packed)):
            assert memory[there] is None
            memory[there] = here
    return memory


@pytest.mark.parametrize("size", range(1, 6))
def test_they_tile(size):
    for count in range(0, 23):
        for length in range(size, 3 * size + 2):
            check(count, size, length)


@given(st.integers(0, 300), st.integers(1, 12), st.integers(0, 40))
def test_they_tile_anywhere(count, size, more):
    check(count, size, size + more)


def test_moves_are_few():
    """What lies behind each other moves at once: one block is moved in one, and around a rank's piece in two."""
    (block,) = check(10, 4, 40)
    assert len(block.moves()) == 1
    assert [len(block.moves_without(rank)) for rank in range(4)] == [1, 2, 2, 1]
    for block in check(10, 2, 4):
        assert len(block.moves_without(0)) <= 1


def test_a_block_has_room_for_each_segment():
    with pytest.raises(
        ValueError, match="length must be 3 or more for as many segments, got 2"
    ):
        blocks(Segments(9, 3), 2)
