"""One rank's part of an all-gather.

It has the four parts of every collective (:mod:`mpiring.wire.collectives.reductions`).  The ranks' lengths may differ,
so that they say them in the opening exchange, and memory for the result is taken after it.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any

from ...errors import harmless
from ...plan.programs import RankProgram
from ...plan.schedules import others
from ...plan.segments import Segments
from ..arrays.mapped import Place
from ..arrays.operands import checked_output, operand, output
from ..execute.forms import carry, memory_of, run_schedule
from ..node import fused, peers
from ..opening.calls import Call, as_text
from ..reduce.arithmetic import Array
from ..transport.position import Position
from ..transport.protocol import Program
from .reductions import Collectives, known, names_of, program_of, share


def allgather(
    member: Collectives, x: Any, out: Any, algorithm: Any, position: Position
) -> Program[Array]:
    """The ranks' arrays behind each other; see :meth:`mpiring.Ring.allgather`."""
    call = Call("allgather")
    rank, size = member.transport.rank, member.transport.size
    payload = b""
    with call.local():
        source = operand(x)
        trailing = source.array.shape[1:]
        call.fields = (
            ("dtype", source.dtype),
            ("dimensions", str(max(source.array.ndim, 1))),
            ("trailing dimensions", str(list(trailing))),
            ("algorithm", as_text(algorithm)),
        )
        known("algorithm", algorithm, names_of("allgather"))
        member.need_library(algorithm, source.kind)
        member.choose(call, algorithm)
        path: RankProgram | None = None
        if algorithm != "mpi":
            name = "ring" if call.is_free else algorithm
            path = program_of("allgather", size, rank, name, "ring", False)
        carry(member, call, source, path)
        given = -1
        flat = source.kind.flat(source.array)
        share(call, source.kind, source.array)
        written: Array | None = None
        if out is not None:
            wanted = checked_output(source, out)
            carry(member, call, source, path, wanted)
            if wanted.shape[1:] != trailing or wanted.ndim != max(source.array.ndim, 1):
                raise ValueError(
                    f"out has shape {wanted.shape}, expected (sum of lengths, "
                    f"{', '.join(map(str, trailing))}) with x of shape {source.array.shape}"
                )
            given = len(wanted)
            if source.kind.overlaps(source.array, wanted):
                # In place or not: that shows when the lengths are known.
                share(call, source.kind, source.array, wanted)
            if source.kind.is_flat(wanted) and source.kind.overlaps(flat, wanted):
                written = wanted
        member.ways.offer(call, source.kind, flat, written)
        length = source.array.shape[0] if source.array.ndim else 1
        payload = struct.pack("<qq", length, given)
    # Even unchecked, the lengths must be known.
    said = yield from member.open(call, payload, always=True)
    lengths, outs = zip(*(struct.unpack("<qq", item) for item in said))
    total = sum(lengths)
    for other, given in enumerate(outs):
        if given not in (-1, total):
            raise harmless(
                ValueError(
                    f"allgather: rank {other} passed an out of {given} rows, but the ranks bring "
                    f"{total} in all ({', '.join(map(str, lengths))}); pass out of that length or None"
                )
            )
    width = source.array.size // length if length else prod(trailing)
    itemsize = source.kind.itemsize(source.dtype)
    segments = Segments.of_lengths([n * width for n in lengths])
    xs, overlapped = call.places_of_all(size)
    starts = [segment.start * itemsize for segment in segments]
    is_shared = member.is_shared(
        call, total * width, fused.unless_written(xs, overlapped, starts)
    )
    offered, written_there = call.addresses_of_all(size)
    readable = fused.unless_written(offered, written_there, starts)
    places: list[list[Place]] = []
    if not is_shared and total * width * itemsize >= member.ways.least_bytes:
        places = yield from member.ways.reached(call, readable)
    with call.local():
        target = output(source, out, (total, *trailing))
        mine = target.flat[segments[rank].slice]
        if not source.kind.same_memory(flat, mine):
            overlaps = source.kind.overlaps(flat, mine)
            source.kind.copy(source.kind.copied(flat) if overlaps else flat, mine)

        memory = None
        if path is not None and not (is_shared or places):
            memory = memory_of(
                member, path, source, segments, None, target.places, "max"
            )
    yield from member.settle(call, total * width * itemsize, position)
    if is_shared:
        position.phase = "node-shared allgather"
        for other in others(rank, size):
            piece = target.flat[segments[other].slice]
            theirs = fused.reach([xs[other]], piece.size, source.dtype)[0]
            source.kind.copy(theirs, piece)
        yield from member.closing.exchange(position)
    elif places:
        position.phase = "allgather in the peers' memory"
        how = member.ways.peer_memory, rank, source.kind
        peers.allgather(*how, target.flat, segments, *places)
        yield from member.closing.exchange(position)
    elif memory is None:
        assert member.library is not None
        position.phase = "the MPI's allgather"
        counts = [segment.length * itemsize for segment in segments]
        whole = source.kind.message(target.flat)
        yield from member.library["allgather"](whole, counts)
    else:
        yield from run_schedule(member, memory, call, source, position)
    return target.done()
