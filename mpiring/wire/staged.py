"""Reductions of arrays that are not long, through memory that all ranks of a node have mapped for their ring.

The sibling of :mod:`mpiring.wire.peers` for ordinary arrays of up to 2 MiB.  There a system call for each peer
and block costs more than the bytes; here each rank has a *stage*, in memory as that of :mod:`mpiring.wire.shared`, and
a call is

1. *bring*: before the opening exchange a rank copies what the others will read of its input into its stage;
2. *fold*: after it, it combines its segment, of the others' stages and its own array, in the order of promise 4, into
   its output and into its stage;
3. *take*: after the closing exchange it copies the others' results out of their stages.

Theory
    A stage has a room for the input and another one for the result.  The room for the input is written before a
    call's opening exchange, and read by others until its closing exchange: who writes it for the next call has left
    that one, so nobody reads any more.  The room for the result is written after an opening exchange and read by others
    after the closing exchange, until they come to the next opening exchange, which no rank leaves before.  In one room
    for both, the input of the next call could come over a result that others have not taken yet.

A stage is made when a call first wants it, and all ranks are known to be in that call.  Where there is no memory for
it, nobody has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..plan.schedules import combination, others
from ..plan.segments import Segments
from . import fused
from .arithmetic import Array
from .arrays import NUMPY, Kind
from .arrays.host import by_addresses
from .calls import Call
from .shared import Backing, empty, pack_place, place_of, unpack_place
from .transport import Program

if TYPE_CHECKING:
    from .collectives import Collectives
    from .execute import Position

# The longest array, and all rooms for one of a ring: a container has 64 MiB of such memory.  On two cores,
# two and four ranks took 316 and 2004 us for 2 MiB through stages, 387 and 2200 by the peers' memory; at 8 MiB it was
# 1646 and 5200 against 1259 and 4844.
_LONGEST, _TOGETHER = 2 << 20, 8 << 20

_ALIGNMENT = 64
_LONGEST_ITEM = 16
_MOST_PLANS = 64


class Plan(NamedTuple):
    """Where things are, for arrays of one length and dtype.

    Attributes:
        mine: this rank's segment.
        brought: for the others: a part of the array, and where it is brought to.
        theirs: this rank's segment of each rank's array, in their stages.
        result: where this rank's result goes.
        results: of the others: the part of the array, and where it is taken from.
    """

    mine: slice
    brought: list[tuple[slice, Array]]
    theirs: list[Array]
    result: Array
    results: list[tuple[slice, Array]]


def longest(size: int) -> int:
    """The bytes of the longest array for which a ring of so many ranks has stages."""
    return min(_LONGEST, _TOGETHER // size)


class Stages:
    """The stages of one ring, as one rank sees them.

    Attributes:
        why_not: why there are none, as the ranks have agreed; "" if there are, or nobody has tried.
    """

    def __init__(self, why_not: str = "") -> None:
        self.why_not = why_not
        self._areas: list[Array] = []  # of the ranks, as bytes
        self._plans: dict[tuple[int, Any], Plan] = {}

    @property
    def are_made(self) -> bool:
        """Whether they are there."""
        return bool(self._areas)

    def plan(self, rank: int, count: int, dtype: Any) -> Plan | None:
        """Where the arrays of a call are; None as long as there are no stages."""
        if not self._areas:
            return None
        plan = self._plans.get((count, dtype))
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[count, dtype] = _planned(self._areas, rank, count, dtype)
        return plan

    def are_there(self, member: Collectives, position: Position) -> Program[bool]:
        """Whether every rank has a stage: the same on all ranks.

        Collective the first time: all ranks have to be known to call it.
        """
        if not (self._areas or self.why_not):
            made: list[Backing] = []
            try:
                self._areas = yield from _stages(member, position, made)
            except MemoryError as error:  # the same on all ranks
                self.why_not = str(error)
            finally:
                for backing in made:
                    backing.close()
            if not self._areas:
                self.why_not = self.why_not or "the ranks do not share memory"
        return not self.why_not


def _stages(
    member: Collectives, position: Position, made: list[Backing]
) -> Program[list[Array]]:
    size = member.transport.size
    nbytes = sum(_rooms(size))
    everyone = tuple(range(size))
    mine = yield from empty(member, nbytes, "uint8", position, made.append, everyone)
    call = Call("sharing stages")
    said = yield from member.open(call, pack_place(place_of(NUMPY, mine)), always=True)
    places = [*map(unpack_place, said)]
    return fused.reach(places, nbytes, "uint8") if fused.are_shared(places) else []


def _rooms(size: int) -> tuple[int, int]:
    """The bytes of a stage's rooms for an input and for a segment, whose length is rounded up to an element."""
    whole, segment = longest(size), longest(size) // size + _LONGEST_ITEM
    return _aligned(whole), _aligned(segment)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _planned(areas: Sequence[Array], rank: int, count: int, dtype: Any) -> Plan:
    size, segments = len(areas), Segments(count, len(areas))
    room, _ = _rooms(size)
    inputs = [NUMPY.typed(area[:room], dtype, count) for area in areas]
    results = [
        NUMPY.typed(area[room:], dtype, segment.length)
        for area, segment in zip(areas, segments)
    ]
    mine = segments[rank].slice
    around = [slice(0, mine.start), slice(mine.stop, count)]
    full = [other for other in others(rank, size) if segments[other].length]
    return Plan(
        mine,
        [(part, inputs[rank][part]) for part in around if part.start < part.stop],
        [x[mine] for x in inputs],
        results[rank],
        [(segments[other].slice, results[other]) for other in full],
    )


def bring(plan: Plan, kind: Kind, x: Array) -> None:
    """Copy what the others will read of the input into this rank's stage."""
    for part, room in plan.brought:
        kind.copy(x[part], room)


def fold(
    plan: Plan,
    rank: int,
    kind: Kind,
    op: str,
    order: str,
    last: int,
    x: Array,
    outs: list[Array],
) -> None:
    """Combine this rank's segment of all inputs into each of ``outs``; ``last`` is combined last in a ring's order."""
    operands = plan.theirs.copy()
    operands[rank] = x[plan.mine]
    size = len(operands)
    ranks = combination(order, last, size)
    kind.fold_to_all(op, size, [operands[other] for other in ranks], outs)


def allreduce_fold(
    plan: Plan, rank: int, op: str, order: str, x: Array, out: Array
) -> Callable[[Array, Array, int, int], None]:
    """:func:`fold` of an all-reduce into the output and the stage, for calls that differ in the arrays alone.

    Args:
        plan, rank, op, order: as for :func:`fold`.
        x, out: the input and output of one of the calls.

    Returns:
        what is called with a call's input and output, and their addresses.
    """

    def by_arrays(x: Array, out: Array, x_address: int, out_address: int) -> None:
        fold(plan, rank, NUMPY, op, order, rank, x, [out[plan.mine], plan.result])

    operands = plan.theirs.copy()
    operands[rank] = x[plan.mine]
    outs = [out[plan.mine], plan.result]
    kernel = by_addresses(op, operands, outs, len(operands))
    if kernel is None:
        return by_arrays
    ranks = combination(order, rank, len(operands))
    addresses = [NUMPY.pointer(operands[other]) for other in ranks]
    mine = ranks.index(rank)
    start = addresses[mine] - NUMPY.pointer(x)
    result = NUMPY.pointer(plan.result)

    def by_kernel(x: Array, out: Array, x_address: int, out_address: int) -> None:
        addresses[mine] = x_address + start
        kernel([*addresses, out_address + start, result])

    return by_kernel


def take(plan: Plan, kind: Kind, out: Array) -> None:
    """Copy the others' results out of their stages."""
    for part, room in plan.results:
        kind.copy(room, out[part])
