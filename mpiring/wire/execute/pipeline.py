"""Run a schedule in chunks: the executor's second form, for long segments.

The first form (:mod:`mpiring.wire.execute.steps`) moves a segment as a whole: while it is on its way nothing is
reduced, and while it is reduced nothing moves.  Here segments are cut into chunks, and a chunk goes on as soon
as it is reduced, while those behind it are still coming.

Theory
    Chunk c of all segments is a small buffer on which the same schedule works, and no element of it meets
    another chunk's.  So each chunk does the steps of the schedule in order, with a :class:`Memory` of its own,
    and different chunks are in different steps.  What ties them together is the network: messages of one
    *channel* (to one rank, or from one) match in the order posted, so both ends must post them in one order.
    It is: by step, then by chunk.  In a ring the last chunk of a step has been posted long before the first
    one of the next step has come around, and nobody waits.

Rules:

* a step of a chunk is posted when the chunk has done its earlier steps, when it is next in each of its
  channels, and when less than ``window`` others are on their way in each of them;
* it is combined when all its messages are complete: the bits are the first form's, which is its reference;
* landings are taken by what is on its way and given back: ``window`` chunks of memory, however long the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...plan.schedules import Action, Step
from ..reduce.arithmetic import Array
from ..transport.position import Position
from ..transport.protocol import AnyOf, Program, Request, Transport
from .memory import Memory

Channel = tuple[bool, int]  # whether it is for sends, and the other rank


@dataclass
class _Item:
    """A step of a chunk that is on its way."""

    step: int
    chunk: int
    buffers: list[Array]
    landings: list[Array] | None
    requests: list[Request] = field(default_factory=list)

    def is_complete(self) -> bool:
        self.requests = [request for request in self.requests if not request.test()]
        return not self.requests


class _Pipeline:
    def __init__(
        self,
        memories: Sequence[Memory],
        landings: list[list[Array]],
        transport: Transport,
        tag: int,
        window: int,
    ) -> None:
        self._memories = memories
        self._landings = landings
        self._transport = transport
        self._tag = tag
        self._window = window
        self._program = memories[0].program
        # The channels of each step; the steps of each channel, and how many chunks of them are posted.
        self._channels = [_channels(step) for step in self._program.steps]
        self._steps: dict[Channel, list[int]] = {}
        for number, channels in enumerate(self._channels):
            for channel in channels:
                self._steps.setdefault(channel, []).append(number)
        self._posted = dict.fromkeys(self._steps, 0)
        self._under_way = dict.fromkeys(self._steps, 0)
        self._next_step = [0] * len(memories)
        self.flying: list[_Item] = []
        for chunk in range(len(memories)):
            self._do_quiet_steps(chunk)

    @property
    def is_done(self) -> bool:
        return min(self._next_step) == len(self._program.steps)

    def post(self) -> None:
        """Post whatever may be posted now."""
        has_moved = True
        while has_moved:
            has_moved = False
            for channel, steps in self._steps.items():
                place, chunk = divmod(self._posted[channel], len(self._memories))
                if place < len(steps) and self._may_post(steps[place], chunk):
                    self._post(steps[place], chunk)
                    has_moved = True

    def _may_post(self, step: int, chunk: int) -> bool:
        if self._next_step[chunk] != step:
            return False
        for channel in self._channels[step]:
            if self._under_way[channel] >= self._window:
                return False
            place, next_chunk = divmod(self._posted[channel], len(self._memories))
            if (self._steps[channel][place], next_chunk) != (step, chunk):
                return False
        return bool(self._landings) or not _needs_landing(self._program.steps[step])

    def _post(self, number: int, chunk: int) -> None:
        step, memory, tag = (
            self._program.steps[number],
            self._memories[chunk],
            self._tag,
        )
        landings = self._landings.pop() if _needs_landing(step) else None
        item = _Item(number, chunk, memory.incoming(step.receives, landings), landings)
        kind, transport = memory.kind, self._transport
        for buffer, receive in zip(item.buffers, step.receives):
            request = transport.irecv(kind.message(buffer), receive.peer, tag)
            item.requests.append(request)
        for send in step.sends:
            piece = kind.message(memory.outgoing(send))
            item.requests.append(transport.isend(piece, send.peer, tag))
        for channel in self._channels[number]:
            self._posted[channel] += 1
            self._under_way[channel] += 1
        self._next_step[chunk] = -1  # none, until this one is complete
        self.flying.append(item)

    def complete(self) -> bool:
        """Combine what has arrived; whether anything had."""
        complete = [item for item in self.flying if item.is_complete()]
        for item in complete:
            self.flying.remove(item)
            for channel in self._channels[item.step]:
                self._under_way[channel] -= 1
            self._finish_step(item.step, item.chunk, item.buffers)
            if item.landings is not None:
                self._landings.append(item.landings)
            self._do_quiet_steps(item.chunk)
        return bool(complete)

    def _do_quiet_steps(self, chunk: int) -> None:
        """Do the steps without messages that are next."""
        while (number := self._next_step[chunk]) < len(self._channels):
            if self._channels[number]:
                return
            self._finish_step(number, chunk, [])

    def _finish_step(self, number: int, chunk: int, buffers: list[Array]) -> None:
        step, memory = self._program.steps[number], self._memories[chunk]
        in_use = [*(receive.segment for receive in step.receives), *step.finishes]
        memory.forget(self._program.dead[number], except_for=in_use)
        memory.combine(step.receives, buffers)
        memory.finish(step.finishes)
        memory.forget(self._program.dead[number])
        self._next_step[chunk] = number + 1


def execute_in_chunks(
    memories: Sequence[Memory],
    landings: list[list[Array]],
    transport: Transport,
    tag: int,
    position: Position,
    window: int,
) -> Program[None]:
    """Do one rank's part of a schedule, chunk by chunk.

    Args:
        memories: of each chunk, in order, all with the same program.
        landings: for at least one step that is on its way; as many more as there are.
        transport: carries the messages.
        tag: of all messages.
        position: kept up to date.
        window: steps of chunks that may be on their way in a channel at one time, 1 or more; every rank may
            have its own.
    """
    schedule = memories[0].program.schedule
    position.phase = f"{schedule.algorithm} {schedule.collective}"
    pipeline = _Pipeline(memories, landings, transport, tag, window)
    while not pipeline.is_done:
        pipeline.post()
        if pipeline.complete():
            continue
        first = pipeline.flying[0]
        position.step = first.step
        step = memories[0].program.steps[first.step]
        received = [receive.segment for receive in step.receives]
        position.segment = [*received, *(send.segment for send in step.sends)][0]
        yield AnyOf([r for item in pipeline.flying for r in item.requests])


def _channels(step: Step) -> tuple[Channel, ...]:
    sends = [(True, send.peer) for send in step.sends]
    receives = [(False, receive.peer) for receive in step.receives]
    return tuple(dict.fromkeys([*sends, *receives]))


def _needs_landing(step: Step) -> bool:
    return any(receive.action is not Action.STORE for receive in step.receives)
