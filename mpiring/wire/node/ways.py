"""What ordinary arrays of ranks on one node go by, instead of messages: stages, or the peers' memory.

Two ways for arrays in host memory that is nobody else's: short ones are put into memory that all ranks have mapped
(:mod:`mpiring.wire.node.staged`), long ones are read and written where they are (:mod:`mpiring.wire.node.peers`).
Which of them, and whether any, is the same on every rank: it follows from the length, from the addresses that all have
told each other in the opening exchange, and from what the ranks found out together when a call first wanted the way.

A call says before the opening exchange what it hopes for (:meth:`Ways.prepare`), and takes the way afterwards
(:meth:`Ways.allreduce` and its siblings), which tell whether there was one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..arrays import Kind
from ..arrays.mapped import Place
from ..arrays.scratch import Rooms
from ..opening.calls import Call, at_address
from ..opening.member import Member
from ..reduce.arithmetic import Array
from ..transport.position import Position
from ..transport.protocol import Program
from . import peers, staged
from .peer_memory import PeerMemory
from .stages import Plan, Stages, lengths_for, turn_after

if TYPE_CHECKING:
    from .fused import Places

# From so many bytes on ordinary arrays of one node go by the peers' memory.
LEAST_BYTES = 8 << 10


class Ready(NamedTuple):
    """What a rank has prepared for a call.

    Attributes:
        plan: where its input has been brought to, None if it has not.
        turn: of the stages.
        rooms: scratch for what it reads of its peers.
    """

    plan: Plan | None = None
    turn: int = 0
    rooms: Rooms | None = None


class Ways:
    """The ways of one rank of a ring.

    Args:
        member: the rank.
        peer_memory, stages: what there is to go by; None: nothing.
        least_bytes: from how many bytes on arrays go by the peers' memory, the same on every rank.
    """

    def __init__(
        self,
        member: Member,
        peer_memory: PeerMemory | None,
        stages: Stages | None,
        least_bytes: int,
    ) -> None:
        self.peer_memory = peer_memory or PeerMemory("not asked for")
        self.least_bytes = least_bytes
        self._member = member
        self._rank, self._size = member.transport.rank, member.transport.size
        self.stages = stages or Stages(
            self._size, lengths_for(self._size, -1), "not asked for"
        )

    # ---- before the opening exchange --------------------------------------------------------------

    def prepare(
        self,
        call: Call,
        kind: Kind,
        x: Array,
        out: Array | None = None,
        is_open: bool = False,
    ) -> Ready:
        """Bring the flat input of a reduction to the stages, or offer the arrays to the peers and take scratch.

        Args:
            call: takes note.
            kind: of the arrays.
            x, out: this rank's; None for an output that nobody else touches.
            is_open: whether the opening exchange is over, for which all this has been done once.
        """
        if any(call.places):  # no need for any of this
            return Ready()
        if call.is_auto and not kind.is_device and self.are_staged(x.nbytes):
            call.brings = True
            if self.stages.are_made:
                return self.brought(call.name, kind, x, is_open)
        if x.nbytes >= self.least_bytes:
            self.offer(call, kind, x, out)
        if not any(call.addresses):
            return Ready()
        return Ready(rooms=self.rooms(kind, x.dtype))

    def are_staged(self, nbytes: int) -> bool:
        """Whether arrays of so many bytes, in host memory, go through stages where any way may be taken."""
        return nbytes <= self.stages.lengths.longest and not self.stages.why_not

    def are_one_shot(self, nbytes: int) -> bool:
        """Whether all-reduces of so many bytes cost less through stages than in memory that all ranks have mapped."""
        return nbytes <= self.stages.lengths.one_shot and self.are_staged(nbytes)

    def offer(self, call: Call, kind: Kind, x: Array, out: Array | None = None) -> None:
        """Tell the peers where they may read the flat input, and write the output, if they are to reach for them.

        Args:
            call, kind, x, out: as for :meth:`prepare`.
        """
        if call.is_auto and not (kind.is_device or self.peer_memory.why_not):
            there = None if out is None else at_address(kind.pointer(out))
            call.addresses = at_address(kind.pointer(x)), there

    def rooms(self, kind: Kind, dtype: Any) -> Rooms:
        """Scratch for what this rank reads of its peers."""
        length = peers.block_bytes(self._size)
        return self._member.scratch.rooms(kind, self._size, length, dtype)

    def brought(self, name: str, kind: Kind, x: Array, is_open: bool = False) -> Ready:
        """Bring the flat input of a reduction of that name, unless that has been done before the opening exchange."""
        plan = self.stages.plan(self._rank, x.size, x.dtype)
        turn = turn_after(self._member.opening.count - is_open)
        if not is_open:
            whole = plan.is_one_shot and name == "allreduce"
            staged.bring(plan, turn, self._rank, kind, x, whole)
        return Ready(plan, turn)

    # ---- after it: whether a call went this way, the same on every rank ---------------------------

    def allreduce(
        self,
        call: Call,
        ready: Ready,
        kind: Kind,
        op: str,
        order: str,
        x: Array,
        out: Array,
        position: Position,
    ) -> Program[bool]:
        """An all-reduce.

        Args:
            call: which has been opened.
            ready: what :meth:`prepare` gave.
            kind, op, order: of the reduction.
            x, out: this rank's flat arrays.
            position: kept up to date.
        """
        how = yield from self._staged(call, ready, kind, op, order, x, position)
        if how is not None:
            yield from staged.allreduce(how, x, out)
            return True
        addresses = call.addresses_of_all(self._size)
        if places := (yield from self.reached(call, *addresses)):
            position.phase = "allreduce in the peers' memory"
            peers.allreduce(self._reaching(kind, op, order, ready), x, out, *places)
            yield from self._member.closing.exchange(position)
        return bool(places)

    def reduce_scatter(
        self,
        call: Call,
        ready: Ready,
        kind: Kind,
        op: str,
        order: str,
        x: Array,
        out: Array,
        position: Position,
    ) -> Program[bool]:
        """A reduce-scatter; arguments as for :meth:`allreduce`, ``out`` being this rank's segment."""
        how = yield from self._staged(call, ready, kind, op, order, x, position)
        if how is not None:
            yield from staged.reduce_scatter(how, x, out)
            return True
        xs, _ = call.addresses_of_all(self._size)
        if places := (yield from self.reached(call, xs)):
            position.phase = "reduce_scatter in the peers' memory"
            peers.reduce_scatter(
                self._reaching(kind, op, order, ready), x, out, *places
            )
            yield from self._member.closing.exchange(position)
        return bool(places)

    def reduce(
        self,
        call: Call,
        ready: Ready,
        kind: Kind,
        op: str,
        order: str,
        x: Array,
        out: Array | None,
        root: int,
        position: Position,
    ) -> Program[bool]:
        """A reduce; arguments as for :meth:`allreduce`, with an output on the root only."""
        how = yield from self._staged(call, ready, kind, op, order, x, position)
        if how is not None:
            yield from staged.reduce(how, x, out, root)
            return True
        xs, outs = call.addresses_of_all(self._size)
        if places := (yield from self.reached(call, xs, outs[root:][:1])):
            position.phase = "reduce in the peers' memory"
            reaching = self._reaching(kind, op, order, ready)
            peers.reduce(reaching, x, out, places[0], root, *places[1])
            yield from self._member.closing.exchange(position)
        return bool(places)

    def reached(self, call: Call, *arrays: Places) -> Program[list[list[Place]]]:
        """The addresses that the ranks gave, if data goes by the peers' memory, else none.

        Args:
            call: which has been opened.
            arrays: for each input or output that the others touch, the ranks' addresses.
        """
        given = [[place for place in places if place] for places in arrays]
        if [*map(len, given)] != [*map(len, arrays)]:
            return []
        is_there = yield from self.peer_memory.is_there(self._member)
        return given if is_there else []

    def _staged(
        self,
        call: Call,
        ready: Ready,
        kind: Kind,
        op: str,
        order: str,
        x: Array,
        position: Position,
    ) -> Program[staged.Reduction | None]:
        """How a call goes through the stages; None if it does not."""
        if not call.all_bring:
            return None
        if ready.plan is None:
            if not (yield from self.stages.are_there(self._member, position)):
                return None
            # The first time: what it has to bring comes late.
            with call.local():
                ready = self.brought(call.name, kind, x)
            yield from self._member.open(call, always=True)
        return self.staging(ready, kind, op, order, position)

    def staging(
        self, ready: Ready, kind: Kind, op: str, order: str, position: Position
    ) -> staged.Reduction:
        """How a reduction of what has been brought is done."""
        plan, turn, _ = ready
        assert plan is not None
        closing = self._member.closing
        return staged.Reduction(
            plan, turn, self._rank, kind, op, order, closing, position
        )

    def _reaching(
        self, kind: Kind, op: str, order: str, ready: Ready
    ) -> peers.Reduction:
        assert ready.rooms is not None
        return peers.Reduction(
            self.peer_memory, self._rank, kind, op, order, ready.rooms
        )
