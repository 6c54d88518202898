"""Segments tile the buffer, balanced to one, the longer ones first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiring.plan import Segment, Segments
from mpiring.plan.segments import pieces


def counts_around(size):
    """0, all counts below the ranks, and k * size and its neighbours."""
    around = {
        k * size + d for k in (1, 2, 3, 7) for d in (-1, 0, 1) if k * size + d >= 0
    }
    return sorted({0, *range(size), *around})


def check_segments(segments, count, size):
    found = list(segments)
    assert (len(segments), segments.size, segments.count) == (size, size, count)
    assert [i for s in found for i in range(s.start, s.stop)] == list(range(count))
    lengths = [s.length for s in found]
    assert sorted(lengths, reverse=True) == lengths
    assert max(lengths) - min(lengths) <= 1
    assert segments.longest == lengths[0] == -(-count // size)
    assert [segments[r] for r in range(size)] == found
    assert [segments[r - size] for r in range(size)] == found


@pytest.mark.parametrize("size", range(1, 33))
def test_tile_and_balance(size):
    for count in counts_around(size):
        check_segments(Segments(count, size), count, size)


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_tile_and_balance_anywhere(count, size):
    segments = Segments(count, size)
    bounds = [(s.start, s.stop) for s in segments]
    assert bounds[0][0] == 0 and bounds[-1][1] == count
    assert all(a[1] == b[0] for a, b in zip(bounds, bounds[1:]))
    lengths = [s.length for s in segments]
    assert sorted(lengths, reverse=True) == lengths
    assert lengths[0] - lengths[-1] <= 1


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=64))
def test_of_lengths(lengths):
    segments = Segments.of_lengths(lengths)
    assert [s.length for s in segments] == lengths
    assert segments.count == sum(lengths)
    assert [s.start for s in segments] == [
        sum(lengths[:r]) for r in range(len(lengths))
    ]


def test_equality_and_text():
    assert Segments(10, 4) == Segments.of_lengths([3, 3, 2, 2])
    assert hash(Segments(10, 4)) == hash(Segments.of_lengths([3, 3, 2, 2]))
    assert Segments(10, 4) != Segments(10, 5)
    assert Segments(10, 4) != [3, 3, 2, 2]
    assert repr(Segments(10, 4)) == "Segments([3, 3, 2, 2])"
    assert "abcdefghij"[Segments(10, 4)[1].slice] == "def"


@pytest.mark.parametrize("index", [4, -5])
def test_no_such_segment(index):
    with pytest.raises(IndexError, match=r"segment -?\d+ of 4"):
        Segments(10, 4)[index]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Segments(-1, 4), "count must be 0 or more, got -1"),
        (lambda: Segments(4, 0), "size must be 1 or more, got 0"),
        (lambda: Segments.of_lengths([]), r"got \[\]"),
        (lambda: Segments.of_lengths([2, -1]), r"got \[2, -1\]"),
        (lambda: list(pieces(4, 0)), "limit must be 1 or more, got 0"),
    ],
)
def test_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@given(st.integers(0, 5000), st.integers(1, 600))
def test_pieces(length, limit):
    found = list(pieces(length, limit))
    assert [i for p in found for i in range(p.start, p.stop)] == list(range(length))
    assert all(p.length == limit for p in found[:-1])
    assert all(0 < p.length <= limit for p in found)
    assert all(isinstance(p, Segment) for p in found)


# ---- chunks of segments -----------------------------------------------------------------------------


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(1, 15))
def test_chunks_tile_each_segment_in_order(lengths, limit):
    segments = Segments.of_lengths(lengths)
    chunks = segments.chunks(limit)
    assert len(chunks) == max(1, -(-max(lengths) // limit))
    for index, segment in enumerate(segments):
        parts = [chunk[index] for chunk in chunks]
        seen = [i for part in parts for i in range(part.start, part.stop)]
        assert seen == list(range(segment.start, segment.stop))
        assert all(part.length <= limit for part in parts)
        for part in parts:
            inside = part.within(segment)
            assert list(range(segment.length))[inside] == [
                i - segment.start for i in range(part.start, part.stop)
            ]
    for chunk in chunks:
        assert len(chunk) == len(segments)
        assert chunk.longest == max(chunk[i].length for i in range(len(chunk)))


@pytest.mark.parametrize("length", [0, -3])
def test_no_such_chunks(length):
    with pytest.raises(ValueError, match=f"length must be 1 or more, got {length}"):
        Segments(7, 3).chunks(length)
