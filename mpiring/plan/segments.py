"""How a flat buffer of ``count`` elements is cut for ``size`` ranks.

Rules this file keeps, for every count and size:

* the segments *tile* the buffer: segment 0 starts at 0, each starts where the one before stops, the
  last one stops at ``count``;
* they are balanced to one element, and the longer ones come first;
* an empty segment is a normal segment: ``count < size`` needs no special case anywhere.

With ``q, m = divmod(count, size)`` the first ``m`` segments hold ``q + 1`` elements and the others
``q``, so segment ``r`` starts at ``r * q + min(r, m)``.

This is the only place where positions in a buffer are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple


class Segment(NamedTuple):
    """One contiguous piece of a flat buffer, in elements: ``start <= index < stop``."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    def within(self, whole: Segment) -> slice:
        """The piece as an index into a buffer that holds ``whole`` alone.

        >>> Segment(5, 7).within(Segment(4, 9))
        slice(1, 3, None)
        """
        return slice(self.start - whole.start, self.stop - whole.start)

    @property
    def slice(self) -> slice:
        """The piece as an index: ``buffer[segment.slice]``."""
        return slice(self.start, self.stop)

    def pieces(self, limit: int) -> Iterator[Segment]:
        """Cut it into consecutive pieces of at most ``limit`` elements; none of an empty one.

        >>> [tuple(piece) for piece in Segment(5, 10).pieces(2)]
        [(5, 7), (7, 9), (9, 10)]

        Raises:
            ValueError: if limit is below 1.
        """
        if limit < 1:
            raise ValueError(f"pieces: limit must be 1 or more, got {limit}")
        for start in range(self.start, self.stop, limit):
            yield Segment(start, min(start + limit, self.stop))


class Segments:
    """The ``size`` segments of a buffer of ``count`` elements.

    >>> list(Segments(10, 4))
    [Segment(start=0, stop=3), Segment(start=3, stop=6), Segment(start=6, stop=8), Segment(start=8, stop=10)]
    >>> [segment.length for segment in Segments(2, 4)]
    [1, 1, 0, 0]

    Args:
        count: elements in the buffer, 0 or more.
        size: number of segments, 1 or more.

    Raises:
        ValueError: if count is negative or size is below 1.
    """

    __slots__ = ("count", "size", "_starts")

    def __init__(self, count: int, size: int) -> None:
        if count < 0:
            raise ValueError(f"Segments: count must be 0 or more, got {count}")
        if size < 1:
            raise ValueError(f"Segments: size must be 1 or more, got {size}")
        quotient, longer = divmod(count, size)
        self.count = count
        self.size = size
        self._starts = [r * quotient + min(r, longer) for r in range(size + 1)]

    @classmethod
    def of_lengths(cls, lengths: Sequence[int]) -> Segments:
        """Segments with the given lengths, in elements: what each rank brings to an allgather.

        >>> list(Segments.of_lengths([2, 0, 3]))
        [Segment(start=0, stop=2), Segment(start=2, stop=2), Segment(start=2, stop=5)]

        Raises:
            ValueError: if there is no length or one is negative.
        """
        if not lengths or min(lengths) < 0:
            raise ValueError(
                f"Segments.of_lengths: need lengths of 0 or more, got {list(lengths)}"
            )
        segments = cls.__new__(cls)
        segments._starts = [0, *accumulate(lengths)]
        segments.count = segments._starts[-1]
        segments.size = len(lengths)
        return segments

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Segment:
        if index < 0:
            index += self.size
        if not 0 <= index < self.size:
            raise IndexError(f"segment {index} of {self.size}")
        return Segment(self._starts[index], self._starts[index + 1])

    def __iter__(self) -> Iterator[Segment]:
        return map(Segment, self._starts, self._starts[1:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Segments) and self._starts == other._starts

    def __hash__(self) -> int:
        return hash(tuple(self._starts))

    def __repr__(self) -> str:
        return f"Segments({[segment.length for segment in self]})"

    @property
    def longest(self) -> int:
        """Elements in the longest segment: the scratch that a ring needs."""
        return max(segment.length for segment in self)

    def chunks(self, length: int) -> list[Chunks]:
        """The segments in chunks of ``length`` elements: what a pipeline moves at one time.

        Chunk c of all segments together is a buffer of its own, on which the same schedule works.  Short
        segments run out of chunks earlier: those are empty.

        >>> [[tuple(chunk[s]) for s in range(3)] for chunk in Segments.of_lengths([3, 0, 2]).chunks(2)]
        [[(0, 2), (3, 3), (3, 5)], [(2, 3), (3, 3), (5, 5)]]

        Raises:
            ValueError: if length is below 1.
        """
        if length < 1:
            raise ValueError(f"Segments.chunks: length must be 1 or more, got {length}")
        number = max(1, -(-self.longest // length))
        return [Chunks(self, c * length, length) for c in range(number)]


class Chunks:
    """One chunk of each segment: elements ``offset`` to ``offset + length`` of it, as far as there are any.

    Attributes:
        longest: elements in the longest of them.
    """

    __slots__ = ("_segments", "_offset", "_length", "longest")

    def __init__(self, segments: Segments, offset: int, length: int) -> None:
        self._segments = segments
        self._offset = offset
        self._length = length
        self.longest = max(0, min(segments.longest - offset, length))

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, index: int) -> Segment:
        start, stop = self._segments[index]
        return Segment(
            min(start + self._offset, stop),
            min(start + self._offset + self._length, stop),
        )


Cut = Segments | Chunks  # all segments, or one chunk of each


def pieces(length: int, limit: int) -> Iterator[Segment]:
    """Cut ``length`` elements into consecutive pieces of at most ``limit``; none for length 0.

    A message that is longer than the transport's limit travels as these pieces.

    >>> list(pieces(5, 2))
    [Segment(start=0, stop=2), Segment(start=2, stop=4), Segment(start=4, stop=5)]

    Raises:
        ValueError: if limit is below 1.
    """
    return Segment(0, length).pieces(limit)
