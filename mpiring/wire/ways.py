"""What ordinary arrays of ranks on one node go by, instead of messages: stages, or the peers' memory.

Two ways for arrays in host memory that is nobody else's: short ones are put into memory that all ranks have mapped
(:mod:`mpiring.wire.staged`), long ones are read and written where they are (:mod:`mpiring.wire.peers`).  Which of them,
and whether any, is the same on every rank: it follows from the length, from the addresses that all have told each
other in the opening exchange, and from what the ranks found out together when a call first wanted the way.

A call says before the opening exchange what it hopes for (:meth:`Ways.prepare`), and takes the way afterwards
(:meth:`Ways.allreduce` and its siblings), which tell whether there was one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from . import peers, staged
from .arithmetic import Array
from .arrays import Kind
from .arrays.mapped import Place
from .calls import Call, at_address
from .execute import Position
from .memory import Rooms
from .peer_memory import PeerMemory
from .staged import Plan, Stages
from .transport import Program

if TYPE_CHECKING:
    from .collectives import Collectives
    from .fused import Places

# From so many bytes on ordinary arrays of one node go this way.
LEAST_BYTES = 8 << 10


class Ready(NamedTuple):
    """What a rank has prepared for a call.

    Attributes:
        stage: where its input has been brought to; None if it has not.
        rooms: scratch for what it reads of its peers.
    """

    stage: Plan | None = None
    rooms: Rooms | None = None


class Ways:
    """The ways of one rank of a ring.

    Args:
        member: the rank.
        peer_memory, stages: what there is to go by; None: nothing.
        least_bytes: arrays of so many bytes, and longer ones, go this way, the same on every rank.
    """

    def __init__(
        self,
        member: Collectives,
        peer_memory: PeerMemory | None,
        stages: Stages | None,
        least_bytes: int,
    ) -> None:
        self.peer_memory = peer_memory or PeerMemory("not asked for")
        self.stages = stages or Stages("not asked for")
        self.least_bytes = least_bytes
        self._member = member
        self._rank, self._size = member.transport.rank, member.transport.size
        self._stage_bytes = staged.longest(self._size)

    # ---- before the opening exchange --------------------------------------------------------------

    def prepare(
        self, call: Call, kind: Kind, x: Array, out: Array | None = None
    ) -> Ready:
        """Offer the flat arrays of a reduction to the peers, bring the input to the stage, and take scratch.

        Args:
            call: takes note.
            kind: of the arrays.
            x, out: this rank's; None for an output that nobody else touches.
        """
        if x.nbytes >= self.least_bytes:
            self.offer(call, kind, x, out)
        if not any(call.addresses):
            return Ready()
        stage = self._brought(kind, x)
        return Ready(stage, None if stage else self.rooms(kind, x.dtype))

    def offer(self, call: Call, kind: Kind, x: Array, out: Array | None = None) -> None:
        """Tell the peers where they may read the flat input, and write the output, if they are to reach for them.

        Args:
            call, kind, x, out: as for :meth:`prepare`.
        """
        if not kind.is_device and self.may_be_taken(call):
            there = None if out is None else at_address(kind.pointer(out))
            call.addresses = at_address(kind.pointer(x)), there

    def may_be_taken(self, call: Call) -> bool:
        """Whether a call may go by stages or the peers' memory at all."""
        if call.must_share or not call.may_share:
            return False
        return not (self.peer_memory.why_not and self.stages.why_not)

    def rooms(self, kind: Kind, dtype: Any) -> Rooms:
        """Scratch for what this rank reads of its peers."""
        length = peers.block_bytes(self._size)
        return self._member.scratch.rooms(kind, self._size, length, dtype)

    def stage(self, x: Array) -> Plan | None:
        """Where an array like this one is in the stages; None if it is too long for them, or they are not there."""
        if x.nbytes > self._stage_bytes:
            return None
        return self.stages.plan(self._rank, x.size, x.dtype)

    def is_known(self, nbytes: int) -> bool:
        """Whether there is a way for arrays of so many bytes, and the ranks have found that out already."""
        if nbytes <= self._stage_bytes and not self.stages.why_not:
            return self.stages.are_made
        return self.peer_memory.has_tried

    def _brought(self, kind: Kind, x: Array) -> Plan | None:
        stage = self.stage(x)
        if stage is not None:
            staged.bring(stage, kind, x)
        return stage

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
        rank = self._rank
        if stage := (yield from self._staged(call, ready, kind, x, position)):
            position.phase = "staged allreduce"
            outs = [out[stage.mine], stage.result]
            staged.fold(stage, rank, kind, op, order, rank, x, outs)
            yield from self._member.closing.exchange(position)
            staged.take(stage, kind, out)
            return True
        addresses = call.addresses_of_all(self._size)
        if places := (yield from self.reached(call, *addresses)):
            position.phase = "allreduce in the peers' memory"
            how = self._reduction(kind, op, order, ready)
            peers.allreduce(how, x, out, *places)
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
        rank = self._rank
        if stage := (yield from self._staged(call, ready, kind, x, position)):
            position.phase = "staged reduce_scatter"
            staged.fold(stage, rank, kind, op, order, rank, x, [out])
            yield from self._member.closing.exchange(position)
            return True
        xs, _ = call.addresses_of_all(self._size)
        if places := (yield from self.reached(call, xs)):
            position.phase = "reduce_scatter in the peers' memory"
            how = self._reduction(kind, op, order, ready)
            peers.reduce_scatter(how, x, out, *places)
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
        if stage := (yield from self._staged(call, ready, kind, x, position)):
            position.phase = "staged reduce"
            part = stage.result if out is None else out[stage.mine]
            staged.fold(stage, self._rank, kind, op, order, root, x, [part])
            yield from self._member.closing.exchange(position)
            if out is not None:
                staged.take(stage, kind, out)
            return True
        xs, outs = call.addresses_of_all(self._size)
        if places := (yield from self.reached(call, xs, outs[root:][:1])):
            position.phase = "reduce in the peers' memory"
            how = self._reduction(kind, op, order, ready)
            peers.reduce(how, x, out, places[0], root, *places[1])
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
        self, call: Call, ready: Ready, kind: Kind, x: Array, position: Position
    ) -> Program[Plan | None]:
        """Where a call goes through the stages; None if it does not."""
        xs, _ = call.addresses_of_all(self._size)
        if None in xs or x.nbytes > self._stage_bytes:
            return None
        stage = ready.stage
        if stage is None and (yield from self.stages.are_there(self._member, position)):
            # The first time: what it has to bring comes late.
            stage = self._brought(kind, x)
            yield from self._member.open(call, always=True)
        return stage

    def _reduction(
        self, kind: Kind, op: str, order: str, ready: Ready
    ) -> peers.Reduction:
        assert ready.rooms is not None
        return peers.Reduction(
            self.peer_memory, self._rank, kind, op, order, ready.rooms
        )
