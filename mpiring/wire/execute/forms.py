"""In which form a member runs a schedule: segments as wholes, or in chunks where they are long."""

from __future__ import annotations

from ...plan.programs import RankProgram
from ...plan.segments import Segments
from ..arrays.operands import Operand
from ..opening.calls import Call
from ..opening.member import Member
from ..reduce.arithmetic import Array
from ..transport.position import Position
from ..transport.protocol import Program
from .memory import InChunks, Memory, Places, in_chunks
from .pipeline import execute_in_chunks
from .steps import execute

MOST_CHUNKS = 1024  # of a segment, and pieces of an array: each costs Python time


def memory_of(
    member: Member,
    path: RankProgram,
    source: Operand,
    segments: Segments,
    flat: Array | None,
    places: Places,
    op: str,
    may_cut: bool = True,
) -> Memory | InChunks:
    """The memory of a schedule, in chunks where segments are long.

    Args:
        member: this rank.
        path: its steps.
        source: what the call is about.
        segments, flat, places, op: as :class:`Memory` takes them.
        may_cut: schedules that have their own pieces, or are naive on purpose, may not be cut.
    """
    kind, dtype, scratch = source.kind, source.dtype, member.scratch
    length = chunk_length(member, segments, kind.itemsize(dtype))
    if segments.longest <= length or not may_cut:
        result = places(segments)
        return Memory(kind, path, segments, flat, result, op, dtype, scratch)
    window = member.tuning.window
    return in_chunks(
        kind, path, segments, flat, places, op, dtype, scratch, length, window
    )


def chunk_length(member: Member, segments: Segments, itemsize: int) -> int:
    """How many elements a chunk has."""
    chunk = member.tuning.chunk_bytes // itemsize
    return max(1, chunk, segments.longest // MOST_CHUNKS)


def run_schedule(
    member: Member,
    memory: Memory | InChunks,
    call: Call,
    source: Operand,
    position: Position,
) -> Program[None]:
    """Run a schedule in the form that its memory is for."""
    carriage, tag = member.carriage, member.tag
    transport = carriage.transport(source.kind, call.stages, call.someone_stages)
    if isinstance(memory, Memory):
        yield from execute(memory, transport, tag, position)
    else:
        window = member.tuning.window
        yield from execute_in_chunks(*memory, transport, tag, position, window)


def carry(
    member: Member,
    call: Call,
    source: Operand,
    path: RankProgram | None,
    *arrays: Array,
) -> None:
    """Find out how the buffers of a call travel from this rank.

    Takes the memory to stage what a step of the path has under way at one time.
    """
    carriage = member.carriage
    call.stages = carriage.stages(source.kind, source.array, *arrays)
    if call.stages and path is not None:
        busiest = max((len(s.sends) + len(s.receives) for s in path.steps), default=0)
        carriage.reserve(source.kind, member.tuning.window * busiest)
