"""The numbers that the paths of a ring depend on, and which are right for one wire and wrong for another.

A *wire* is what is between the ranks: ``"node"`` where all of them are on one host and memory is the wire, else
``"network"``.  Each has defaults; ``mpiring tune`` measures better ones, a profile keeps them
(:mod:`mpiring.wire.settings.profiles`).

Rules: a ring's settings are the same on every rank, since they decide which path is taken.  Whatever they are, the bits
are the same: a setting chooses among paths that keep promise 4.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

NODE, NETWORK = WIRES = ("node", "network")

# More bytes than any buffer has, and its name in a profile.
WHOLE = 1 << 62
WHOLE_TEXT = "whole"

_MOST = 1 << 30  # bytes, of what is not the whole
_MOST_WINDOW = 64
MOST_SMALL_BYTES = 32 << 10


@dataclass(frozen=True)
class Tuning:
    """The settings of a ring.

    Attributes:
        chunk_bytes: longer segments move in chunks of so many bytes, each going on as soon as it is reduced;
            ``WHOLE`` moves all of them as a whole.
        piece_bytes: the array goes down a chain (of a broadcast, a reduce) in pieces of so many bytes.
        window: steps of chunks that are on their way in a channel at one time.
        direct_bytes: up to here the direct schedule is taken where a ring would do.
        small_bytes: arrays up to this ride in the opening exchange, 0 for none; where the ranks are many it has room
            for less.
        staged_bytes: longer arrays up to this go through stages, on ranks of one host; still longer ones by the peers'
            memory.

    Raises:
        TypeError, ValueError: naming the field, its value and what it may be.
    """

    chunk_bytes: int
    piece_bytes: int
    window: int
    direct_bytes: int
    small_bytes: int
    staged_bytes: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least, most, may_be_whole = RANGES[name]
            if may_be_whole and value == WHOLE:
                continue
            expected = f"a whole number, {least} to {most}"
            expected += f', or "{WHOLE_TEXT}"' if may_be_whole else ""
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} is {value!r}, expected {expected}")
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}, expected {expected}")

    def as_json(self) -> dict[str, Any]:
        """The form that a profile has: bytes as numbers, ``WHOLE`` as a word."""
        return {
            name: WHOLE_TEXT if value == WHOLE else value
            for name, value in asdict(self).items()
        }

    def packed(self) -> bytes:
        """The form that travels, of ``PACKED_BYTES`` bytes."""
        return _PACKED.pack(*(min(v, _PACKED_WHOLE) for v in asdict(self).values()))


# Of each setting the least and the most, and whether it may be WHOLE.
RANGES = {
    "chunk_bytes": (1, _MOST, True),
    "piece_bytes": (1, _MOST, True),
    "window": (1, _MOST_WINDOW, False),
    "direct_bytes": (0, _MOST, True),
    "small_bytes": (0, MOST_SMALL_BYTES, False),
    "staged_bytes": (0, _MOST, False),
}
NAMES = tuple(field.name for field in fields(Tuning))

DEFAULTS = {
    # Inside a host a segment moves fastest as a whole; a chain wants pieces there too.
    NODE: Tuning(
        chunk_bytes=WHOLE,
        piece_bytes=512 << 10,
        # One step moves, one waits for it, and one is just combined.
        window=3,
        # Up to here the two exchanges of the direct schedule beat the ring's 2 (size - 1).
        direct_bytes=64 << 10,
        # To copy so little costs less than one more exchange.
        small_bytes=2 << 10,
        # Where `mpiring tune` finds both ways about as fast.
        staged_bytes=4 << 20,
    ),
    # 16 KiB are below the eager limit of Open MPI over TCP, past which a chain waits for each message to be taken, and
    # what a link with a token bucket lets through at a time; a step costs Python time too, so they are not less.
    NETWORK: Tuning(
        chunk_bytes=16 << 10,
        piece_bytes=16 << 10,
        window=3,
        # A root's link carries size - 1 arrays where a chain's carry one each.
        direct_bytes=16 << 10,
        small_bytes=8 << 10,
        # Ranks of several hosts have none.
        staged_bytes=0,
    ),
}

_PACKED = struct.Struct("<6I")
_PACKED_WHOLE = (1 << 32) - 1
PACKED_BYTES = _PACKED.size


def unpacked(data: bytes) -> Tuning:
    """What :meth:`Tuning.packed` made."""
    values = _PACKED.unpack(data)
    return Tuning(*(WHOLE if value == _PACKED_WHOLE else value for value in values))


def from_json(value: Any, default: Tuning) -> Tuning:
    """The settings of a profile's entry.

    Args:
        value: an object of settings by name; :meth:`Tuning.as_json` makes one.
        default: has those that are not there.

    Raises:
        TypeError, ValueError: naming what is wrong, for anything else.

    >>> from_json({"window": 2, "chunk_bytes": "whole"}, DEFAULTS[NETWORK]).window
    2
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"settings are {_shown(value)}, expected an object")
    unknown = [name for name in value if name not in NAMES]
    if unknown:
        raise ValueError(
            f"there is no setting {unknown[0]!r}; known are {', '.join(NAMES)}"
        )
    given = {
        name: WHOLE if each == WHOLE_TEXT and RANGES[name][2] else each
        for name, each in value.items()
    }
    return Tuning(**{**asdict(default), **given})


def _shown(value: Any) -> str:
    return f"{str(value)[:40]!r}"
