"""Scratch: memory that one call leaves to the next one of its ring, as operations on a ring run one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...plan.segments import Segments
from ..reduce.arithmetic import Array
from . import Kind

_ALIGNMENT = 64  # bytes: a cache line, and more than any dtype asks for


class Rooms(NamedTuple):
    """Arrays of one length in scratch, and where they are."""

    length: int
    arrays: list[Array]
    addresses: list[int]


class Scratch:
    """Memory that one call leaves to the next, a block of bytes for each place that arrays have."""

    def __init__(self) -> None:
        self._blocks: dict[str, Array] = {}
        self._rooms: dict[tuple[str, int, int, Any], Rooms] = {}

    def take(self, kind: Kind, lengths: Sequence[int]) -> list[Array]:
        """Buffers of at least these lengths in bytes, valid until the next call of ``take``."""
        rooms = Segments.of_lengths(
            [-(-n // _ALIGNMENT) * _ALIGNMENT for n in lengths] or [0]
        )
        place = kind.place
        block = self._blocks.get(place)
        if block is None or len(block) < rooms.count:
            # Let go of the old one before asking for more.
            self._rooms.clear()
            self._blocks.pop(place, None)
            block = self._blocks[place] = kind.empty(rooms.count, "uint8")
        return [block[room.slice] for room in rooms][: len(lengths)]

    def rooms(self, kind: Kind, number: int, nbytes: int, dtype: Any) -> Rooms:
        """So many arrays of a dtype, each of so many bytes; they are made once, as calls come again.

        What was taken before is not valid any more.
        """
        key = (kind.place, number, nbytes, dtype)
        found = self._rooms.get(key)
        if found is None:
            taken = self.take(kind, [nbytes] * number)
            length = nbytes // dtype.itemsize
            arrays = [kind.typed(room, dtype, length) for room in taken]
            addresses = list(map(kind.pointer, arrays))
            found = self._rooms[key] = Rooms(length, arrays, addresses)
        return found

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(len(block) for block in self._blocks.values())
