"""The memory of one collective on one rank: where the value of each segment lives while it runs.

A *contribution* stays where the user's array has it.  A *partial* is written where its segment's result will
be, or into a slot of scratch (:mod:`mpiring.plan.programs` says when).  A *result* lives in the output, or in
a slot on a rank that only passes it on.  So an all-reduce in place is the lecture's loop on its one buffer, a
reduce-scatter does not touch its input, and 16-bit floats add up in a float32 slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...plan.programs import RankProgram
from ...plan.schedules import Action, Form, Receive, Send
from ...plan.segments import Chunks, Cut, Segments
from ..arrays import Kind
from ..arrays.scratch import Scratch
from ..reduce.arithmetic import Array, accumulator


class _Share:
    """Rooms that were taken from a scratch for one of many memories."""

    def __init__(self, rooms: list[Array]) -> None:
        self._rooms = rooms

    def take(self, kind: Kind, lengths: Sequence[int]) -> list[Array]:
        return self._rooms


class Memory:
    """What one rank holds during one collective; all of it is taken when it is made.

    Args:
        kind: the kind of array of all buffers.
        program: the rank's steps.
        segments: how the flat buffer is cut.
        contribution: the flat input, or None where there is nothing to reduce.
        result: the place of a segment in the flat output, None if this rank does not keep it.
        op: the operation, which says what finishing means.
        dtype: of input and output, by name.
        scratch: where landings and slots come from.
    """

    def __init__(
        self,
        kind: Kind,
        program: RankProgram,
        segments: Segments | Chunks,
        contribution: Array | None,
        result: Callable[[int], Array | None],
        op: str,
        dtype: str,
        scratch: Scratch | _Share,
    ) -> None:
        self.kind = kind
        self.program = program
        self._segments = segments
        self._contribution = contribution
        self._result = result
        self._op = op
        self._size = program.schedule.size
        self._dtype = dtype
        self._partial_dtype = accumulator(op, dtype)
        self._values: dict[int, Array] = {}  # what arrived or was combined, by segment
        # The slots in use, by segment and dtype: a value may be there as it is and as it travels in a sum.
        self._slot_of: dict[tuple[int, str], Array] = {}
        room = segments.longest * kind.itemsize(self._partial_dtype)
        rooms = scratch.take(kind, [room] * (program.landings + program.slots))
        self._landings = rooms[: program.landings]
        self._slots = rooms[program.landings :]

    def outgoing(self, send: Send) -> Array:
        """The flat piece to send, in the dtype that its form travels in."""
        segment, wide = send.segment, self._partial_dtype
        value = self._value(segment)
        if send.form is not Form.PARTIAL or self.kind.dtype_name(value) == wide:
            return value
        # What was widened for an earlier send stays as it is: that one may still be on its way.
        is_there = (segment, wide) in self._slot_of
        place = self._slot(segment, wide)
        if not is_there:
            self.kind.fold(self._op, [value], place)
        return place

    def incoming(
        self, receives: Sequence[Receive], landings: Sequence[Array] | None = None
    ) -> list[Array]:
        """Where the segments of one step arrive: what is kept in its place, another in a landing.

        Args:
            receives: of the step.
            landings: other ones than this memory's own.
        """
        places = []
        rooms = iter(self._landings if landings is None else landings)
        for receive in receives:
            segment, is_partial = receive.segment, receive.form is Form.PARTIAL
            dtype = self._partial_dtype if is_partial else self._dtype
            if receive.action is Action.STORE:
                place = self._place(segment, dtype)
            else:
                place = self.kind.typed(
                    next(rooms), dtype, self._segments[segment].length
                )
            places.append(place)
        return places

    def combine(self, receives: Sequence[Receive], arrived: Sequence[Array]) -> None:
        """Fold what arrived with what the rank holds, and take note of what was stored in place."""
        for segment in dict.fromkeys(receive.segment for receive in receives):
            here = [
                (r.action, a) for r, a in zip(receives, arrived) if r.segment == segment
            ]
            if here[0][0] is Action.STORE:
                self._store(segment, here[0][1])
                continue
            operands = [array for action, array in here if action is Action.REDUCE]
            operands += self._own(segment)
            operands += [
                array for action, array in here if action is Action.REDUCE_AFTER
            ]
            self._fold(segment, operands)

    def finish(self, segments: Sequence[int]) -> None:
        """Divide and round what is complete, into its place in the output."""
        for segment in segments:
            place = self._place(segment, self._dtype)
            self.kind.finish(self._op, self._size, self._value(segment), place)
            self._hold(segment, place)

    def forget(self, segments: Sequence[int], except_for: Sequence[int] = ()) -> None:
        """Free the slots of segments that are not used any more."""
        for segment in segments:
            if segment not in except_for:
                for dtype in (self._dtype, self._partial_dtype):
                    self._free(segment, dtype)

    def _own(self, segment: int) -> list[Array]:
        """What this rank holds of a segment, as the operands that it is."""
        return [self._value(segment)]

    def _fold(self, segment: int, operands: list[Array]) -> None:
        """Combine into the segment's place."""
        total = self._place(segment, self._partial_dtype)
        self.kind.fold(self._op, operands, total)
        self._hold(segment, total)

    def _store(self, segment: int, value: Array) -> None:
        """Take note of what has arrived in its place."""
        self._hold(segment, value)

    def _value(self, segment: int) -> Array:
        value = self._values.get(segment)
        if value is None and self._contribution is not None:
            value = self._contribution[self._segments[segment].slice]
        if value is None:
            value = self._result(
                segment
            )  # an allgather's own part is in its place from the start
        return value

    def _hold(self, segment: int, value: Array) -> None:
        """Take note of a segment's new value, and free the slots of older ones."""
        self._values[segment] = value
        held = self.kind.dtype_name(value)
        for dtype in (self._dtype, self._partial_dtype):
            if dtype != held or self._result_in(segment, dtype) is not None:
                self._free(segment, dtype)

    def _place(self, segment: int, dtype: str) -> Array:
        """Where a value is kept: where its segment's result will be, if it fits there, else in a slot."""
        place = self._result_in(segment, dtype)
        return self._slot(segment, dtype) if place is None else place

    def _result_in(self, segment: int, dtype: str) -> Array | None:
        return self._result(segment) if dtype == self._dtype else None

    def _slot(self, segment: int, dtype: str) -> Array:
        slot = self._slot_of.get((segment, dtype))
        if slot is None:
            slot = self._slot_of[segment, dtype] = self._slots.pop()
        return self.kind.typed(slot, dtype, self._segments[segment].length)

    def _free(self, segment: int, dtype: str) -> None:
        slot = self._slot_of.pop((segment, dtype), None)
        if slot is not None:
            self._slots.append(slot)


Places = Callable[[Cut], Callable[[int], "Array | None"]]
# The memories of the chunks, and sets of landings for what is on its way.
InChunks = tuple[list[Memory], list[list[Array]]]


def in_chunks(
    kind: Kind,
    program: RankProgram,
    segments: Segments,
    contribution: Array | None,
    places: Places,
    op: str,
    dtype: str,
    scratch: Scratch,
    length: int,
    window: int,
    make: Callable[..., Memory] = Memory,
) -> InChunks:
    """A memory for each chunk of the segments, and landings that they share.

    Args:
        kind, program, segments, contribution, op, dtype, scratch: as for :class:`Memory`.
        places: gives :class:`Memory`'s ``result`` for one cut of the buffer.
        length: of a chunk, in elements.
        window: steps with a landing that are on their way at one time.
        make: makes each memory.
    """
    chunks = segments.chunks(length)
    room = chunks[0].longest * kind.itemsize(accumulator(op, dtype))
    share, slots = min(window, len(chunks)) * program.landings, program.slots
    rooms = scratch.take(kind, [room] * (share + len(chunks) * slots))
    landings = [
        rooms[at : at + program.landings]
        for at in range(0, share, program.landings or 1)
    ]
    memories = []
    for number, chunk in enumerate(chunks):
        mine = share + number * slots
        own = [*rooms[: program.landings], *rooms[mine : mine + slots]]
        memories.append(
            make(
                kind,
                program,
                chunk,
                contribution,
                places(chunk),
                op,
                dtype,
                _Share(own),
            )
        )
    return memories, landings
