"""Memory for ordinary arrays on their way between ranks of one node: mapped by all of them, made once for a ring.

Each rank has two *rooms*, for what others are to read of its input; besides there are two *results*, each as long as a
block of an array (:mod:`mpiring.plan.blocks`), of which each rank writes its piece.  One of two is used in *turn*:

* a call before whose opening exchange the ring has had ``n`` of them puts its first block where turn ``n % 2`` is, and
  each further block where the one before it was not.  All ranks count alike.

Theory
    What a rank has in its room is read by the others before they enter their next exchange, opening or closing.  So it
    may write the room again when it has left an exchange after the one that told of it.  Within a call that is the
    closing exchange of each block: the next one goes to the other room before it, the one after that comes behind it.
    From a call of one block to the next call it is the opening exchange of that, whose own block goes to the other
    room; so such a call needs no closing exchange for its room, only for a result.  A call of several blocks has one
    behind its last block too, in whatever turn that was.  A result is written after an exchange and taken after the
    next one: who writes it again, two blocks or a call later, has left one that its readers entered having taken it.

The memory is made when a call first wants it, and all ranks are known to be in that call.  Where there is none,
nobody has any.  Kernels and NumPy choose different payloads of NaN: where some ranks have kernels and some have not
(:mod:`mpiring.wire.reduce.kernels`), no array is combined by each rank for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import is_harmless
from ...plan.blocks import Block, Move, blocks
from ...plan.segments import Segments
from ..arrays import NUMPY
from ..arrays.mapped import region_named
from ..opening.calls import Call
from ..opening.member import Member
from ..reduce import kernels
from ..reduce.arithmetic import Array
from ..transport.protocol import Program
from . import fused
from .shared import empty, pack_place, place_of, unpack_place
from .unnamed import Backing

if TYPE_CHECKING:
    from ..transport.position import Position

TURNS = (0, 1)

# All rooms and results of a ring: a container has 64 MiB of such memory.
_TOGETHER, _LONGEST_BLOCK = 8 << 20, 2 << 20

# Over the square of the ranks, up to here each rank combines all: with two it reads about as much of the other one
# anyhow, and nobody waits for results.  At these lengths two and four ranks took about as long either way.
_ONE_SHOT = 512 << 10

# From so many bytes of a segment on a result goes straight to where its rank wants it, too: a second store for one
# copy less, which wins on long ones and loses on short ones.
_KEPT = 512 << 10

# Of a block, for each rank; where ranks are so many that it would be less there are no stages.
_SHORTEST_PIECE = 256

_ALIGNMENT = 64
_MOST_PLANS = 64


def turn_after(count: int) -> int:
    """Whose turn it is, after so many opening exchanges."""
    return count % len(TURNS)


class Lengths(NamedTuple):
    """How long things are in the stages of a ring, in bytes.

    Attributes:
        block: the longest block of an array, and a result.
        room: what a rank brings of it, and a room.
        longest: the longest array; -1 if none goes this way.
        one_shot: the longest array that every rank combines as a whole.
        kept: the shortest segment whose result its rank writes to its own output, too.
    """

    block: int
    room: int
    longest: int
    one_shot: int
    kept: int

    def total(self, size: int) -> int:
        """All rooms and results of so many ranks."""
        return len(TURNS) * (size * self.room + self.block)


def lengths_for(size: int, longest: int) -> Lengths:
    """What is right for a ring of so many ranks, and arrays of up to so many bytes."""
    # All rooms together are a block less than there are ranks.
    block = min(_LONGEST_BLOCK, _TOGETHER // (len(TURNS) * size))
    block = block // _ALIGNMENT * _ALIGNMENT
    room = -(-(block - block // size) // _ALIGNMENT) * _ALIGNMENT
    one_shot = min(_ONE_SHOT // size**2, room)
    if block < size * _SHORTEST_PIECE:
        longest = -1
    return Lengths(block, room, longest, one_shot, _KEPT)


class Passage(NamedTuple):
    """A block in one turn: parts of an array, and where they are in the stages.

    Attributes:
        mine, within: this rank's piece, in the array and in its segment.
        brought: for the others.
        theirs: this rank's piece of each rank's array, in their rooms; of its own what nobody reads.
        result: where this rank's result goes.
        taken: the results that come from the stages.
    """

    mine: slice
    within: slice
    brought: list[tuple[slice, Array]]
    theirs: list[Array]
    result: Array
    taken: list[tuple[slice, Array]]


class Plan(NamedTuple):
    """Where arrays of one length and dtype are.

    Attributes:
        is_one_shot: whether every rank combines the whole of them, where all want it.
        segments: of the array.
        rooms: for each turn, the ranks' whole arrays in their rooms, if they are combined as a whole.
        keeps: whether a rank writes its result to its own output, too, and takes the others' only.
        passages: for each turn, those of all blocks, the first of which has that turn.
        steps: of the all-reduces that there have been, by op, order and turn (:mod:`mpiring.wire.node.staged`).
    """

    is_one_shot: bool
    segments: list[slice]
    rooms: list[list[Array]]
    keeps: bool
    passages: list[list[Passage]]
    steps: dict[tuple[str, str, int], Any]


class Stages:
    """The stages of one ring, as one rank sees them.

    Args:
        size: how many ranks.
        lengths: how long things are, the same on every rank.

    Attributes:
        why_not: why there are none, as the ranks have agreed; "" if there are, or nobody has tried.
        lengths: as given; no array is one-shot where the ranks have found out that they do not combine alike.
    """

    def __init__(self, size: int, lengths: Lengths, why_not: str = "") -> None:
        self.why_not = why_not
        self.lengths = lengths
        self._size = size
        self._memory: Array = None  # all of it, as bytes
        self._plans: dict[tuple[int, Any], Plan] = {}

    @property
    def are_made(self) -> bool:
        """Whether they are there."""
        return self._memory is not None

    def plan(self, rank: int, count: int, dtype: Any) -> Plan:
        """Where the arrays of a call are, once there are stages."""
        plan = self._plans.get((count, dtype))
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            lengths, size = self.lengths, self._size
            plan = _planned(self._memory, lengths, rank, size, count, dtype)
            self._plans[count, dtype] = plan
        return plan

    def are_there(self, member: Member, position: Position) -> Program[bool]:
        """Whether every rank has them: the same on all ranks.

        Collective the first time: all ranks have to be known to call it.
        """
        if not (self.are_made or self.why_not):
            made: list[Backing] = []
            try:
                nbytes = self.lengths.total(self._size)
                self._memory, is_alike = yield from _made(
                    member, nbytes, position, made
                )
                if not is_alike:
                    self.lengths = self.lengths._replace(one_shot=-1)
            except MemoryError as error:
                if not is_harmless(error):  # this rank's alone
                    raise
                self.why_not = str(error)
            finally:
                for backing in made:
                    backing.close()
            if not self.are_made:
                self.why_not = self.why_not or "the ranks do not share memory"
        return not self.why_not


def _made(
    member: Member, total: int, position: Position, made: list[Backing]
) -> Program[tuple[Array, bool]]:
    """All memory, a region without a gap, and whether the ranks combine alike; None if they do not share memory."""
    size = member.transport.size
    nbytes = -(-total // size)
    everyone = tuple(range(size))
    mine = yield from empty(member, nbytes, "uint8", position, made.append, everyone)
    call = Call("sharing stages")
    has_kernels = b"0" if kernels.missing() else b"1"
    place = pack_place(place_of(NUMPY, mine))
    said = yield from member.open(call, has_kernels + place, always=True)
    places = [unpack_place(each[1:]) for each in said]
    if not fused.are_shared(places):
        return None, True
    assert places[0] is not None
    region = region_named(places[0].region)
    assert region is not None
    is_alike = len({each[:1] for each in said}) == 1
    return region.array(0, total, "uint8"), is_alike


def _planned(
    memory: Array, lengths: Lengths, rank: int, size: int, count: int, dtype: Any
) -> Plan:
    block, room = lengths.block, lengths.room
    owned = len(TURNS) * size
    parts = Segments.of_lengths([room] * owned + [block] * len(TURNS))
    raw = [memory[part.slice] for part in parts]
    segments, itemsize = Segments(count, size), dtype.itemsize
    cut = blocks(segments, block // itemsize)
    is_one_shot = count * itemsize <= lengths.one_shot
    keeps = segments.longest * itemsize >= lengths.kept
    whole: list[list[Array]] = []
    passages: list[list[Passage]] = []
    for turn in TURNS:
        rooms, result = raw[turn:owned:2], raw[owned + turn]
        if is_one_shot:
            whole.append([NUMPY.typed(each, dtype, count) for each in rooms])
        rooms = [NUMPY.typed(each, dtype, room // itemsize) for each in rooms]
        result = NUMPY.typed(result, dtype, block // itemsize)
        passages.append(
            [_passage(each, segments, rank, rooms, result, keeps) for each in cut]
        )
    # The blocks come in turns, too.
    turns = [[(turn + n) % len(TURNS) for n in range(len(cut))] for turn in TURNS]
    return Plan(
        is_one_shot,
        [segment.slice for segment in segments],
        whole,
        keeps,
        [[passages[t][n] for n, t in enumerate(order)] for order in turns],
        {},
    )


def _passage(
    block: Block,
    segments: Segments,
    rank: int,
    rooms: Sequence[Array],
    result: Array,
    keeps: bool,
) -> Passage:
    def views(moves: Sequence[Move], packed: Array) -> list[tuple[slice, Array]]:
        return [(move.here.slice, packed[move.packed.slice]) for move in moves]

    theirs = [
        room[block.packed_without(owner)[rank].slice]
        for owner, room in enumerate(rooms)
    ]
    moves = block.moves_without(rank, block.packed) if keeps else block.moves()
    return Passage(
        block.pieces[rank].slice,
        block.pieces[rank].within(segments[rank]),
        views(block.moves_without(rank), rooms[rank]),
        theirs,
        result[block.packed[rank].slice],
        views(moves, result),
    )
