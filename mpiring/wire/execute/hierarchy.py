"""All-reduce and reduce-scatter of arrays of ``ring.empty`` on several hosts: messages between hosts only.

What happens when is a schedule, :mod:`mpiring.plan.hierarchy`, run chunk by chunk like any other
(:mod:`mpiring.wire.execute.pipeline`).  What is different is the memory: a rank brings the inputs of several ranks of
its host, which it folds in one pass, reading them where they are, and stores a result to all of its host.

Theory
    The opening exchange says where everybody's arrays are, and that they may be read and written.  From then on
    ranks of one host touch each other's arrays without a word to each other; that no one writes what another still
    reads follows from the messages between hosts, as the plan explains, and holds chunk by chunk, since an element
    meets no other.  At the end the ranks of a host, and they alone, need a closing exchange
    (:mod:`mpiring.wire.node.fused`): before it a rank does not know that others have stored all of its result, and have
    read all of its input.

A host is what shares a region: ranks that lie behind each other in the ring and whose arrays are in one.  So the
call says it, alike to every rank, and nobody asks the MPI.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, NamedTuple

from ...plan.hierarchy import (
    Hosts,
    host_of,
    hosts_allreduce,
    hosts_reduce_scatter,
    ranks_of_hosts,
)
from ...plan.programs import RankProgram, rank_program
from ...plan.schedules import Action, Form, Send
from ...plan.segments import Segments
from ..arrays.mapped import Place
from ..arrays.operands import Operand
from ..node import fused
from ..opening.calls import Call
from ..opening.member import Member
from ..reduce.arithmetic import Array, accumulator
from ..transport.position import Position
from ..transport.protocol import Program
from .forms import chunk_length, run_schedule
from .memory import Memory, Places, in_chunks


def hosts_of(*arrays: fused.Places) -> Hosts:
    """How many ranks each host has; none if this is not the way.

    It is where the arrays of some consecutive ranks are in one region, those of others in others, and where all
    sequences of places say the same of who shares.
    """
    if any(places[0] is None for places in arrays):  # mostly that is all of them
        return ()
    found = {_runs(tuple(places)) for places in arrays}
    return found.pop() if len(found) == 1 else ()


@lru_cache(maxsize=256)
def _runs(places: tuple[Place | None, ...]) -> Hosts:
    regions = [None if place is None else place.region for place in places]
    runs = [(region, len(list(run))) for region, run in groupby(regions)]
    lengths = tuple(length for _, length in runs)
    is_apart = len({region for region, _ in runs}) == len(runs)
    is_mixed = 1 < len(lengths) < len(places)
    return lengths if is_apart and is_mixed and None not in regions else ()


class HostArrays(NamedTuple):
    """What a rank reaches on its host.

    Attributes:
        inputs: the flat inputs of the host's ranks, by rank.
        outputs: the flat outputs of the others, where they want results stored.
        kept, finished: the segments whose result this rank keeps, and those that it finishes.
    """

    inputs: dict[int, Array]
    outputs: list[Array]
    kept: frozenset[int]
    finished: frozenset[int]


class HostMemory(Memory):
    """A memory whose rank brings the inputs of several, and stores its results to several.

    Args:
        host: what it reaches.
        rest: as :class:`~mpiring.wire.execute.memory.Memory` takes it.
    """

    def __init__(self, host: HostArrays, *rest: Any) -> None:
        super().__init__(*rest)
        self._host = host
        # Operands that wait for the end of their step, to be folded right into all places of the result.
        self._whole: dict[int, list[Array]] = {}

    def outgoing(self, send: Send) -> Array:
        """The flat piece to send: what this rank brings is combined now, if it begins a chain."""
        segment = send.segment
        if send.form is Form.RESULT or segment in self._values:
            return super().outgoing(send)
        brought = self._brought(segment)
        is_narrow = send.form is Form.CONTRIBUTION
        if is_narrow and segment in self._host.kept:
            return brought[0]  # nobody writes there but this rank, later
        place = self._place(segment, self._dtype if is_narrow else self._partial_dtype)
        self.kind.fold(self._op, brought, place)
        self._hold(segment, place)
        return place

    def finish(self, segments: Sequence[int]) -> None:
        """Fold, divide and round what is complete, in one pass to all of the host."""
        for segment in segments:
            place = self._place(segment, self._dtype)
            places = [place, *self._others(segment)]
            operands = self._whole.pop(segment, None) or self._own(segment)
            self.kind.fold_to_all(self._op, self._size, operands, places)
            self._hold(segment, place)

    def _own(self, segment: int) -> list[Array]:
        has_value = segment in self._values
        return super()._own(segment) if has_value else self._brought(segment)

    def _fold(self, segment: int, operands: list[Array]) -> None:
        if segment in self._host.finished:
            self._whole[segment] = operands
        else:
            super()._fold(segment, operands)

    def _store(self, segment: int, value: Array) -> None:
        for place in self._others(segment):
            self.kind.copy(value, place)
        super()._store(segment, value)

    def _result_in(self, segment: int, dtype: str) -> Array | None:
        """The segment's place in this rank's output; that of another keeper's is not for partials, who writes there."""
        is_mine = segment in self._host.kept
        return super()._result_in(segment, dtype) if is_mine else None

    def _brought(self, segment: int) -> list[Array]:
        """The pieces that this rank brings, in order."""
        here = self._segments[segment].slice
        ranks = self.program.schedule.inputs(self.program.rank, segment)
        return [self._host.inputs[rank][here] for rank in ranks]

    def _others(self, segment: int) -> list[Array]:
        """Where the others of the host want its result."""
        here = self._segments[segment].slice
        return [output[here] for output in self._host.outputs]


def combine(
    member: Member,
    call: Call,
    hosts: Hosts,
    source: Operand,
    op: str,
    order: str,
    flat: Array,
    places: Places,
    position: Position,
) -> Program[None]:
    """One rank's part of an all-reduce or a reduce-scatter, after the opening exchange.

    Args:
        member: this rank.
        call: what was asked for.
        hosts: how many ranks each has.
        source, op, order: of the call.
        flat: this rank's input.
        places: where its results go, for a cut.
        position: kept up to date.
    """
    transport = member.transport
    rank, dtype, kind = transport.rank, source.dtype, source.kind
    mine = ranks_of_hosts(hosts)[host_of(hosts, rank)]
    xs, outs = call.places_of_all(transport.size)
    with call.local():
        wide = accumulator(op, dtype)
        part = _part(call.name, hosts, order, rank, wide != dtype)
        segments = Segments(flat.size, transport.size)
        reach = partial(fused.reach, count=flat.size, dtype=dtype)
        stores = [outs[r] for r in mine if r != rank and call.name == "allreduce"]
        inputs = dict(zip(mine, reach([xs[r] for r in mine])))
        host = HostArrays(inputs, reach(stores), part.kept, part.finished)
        length = chunk_length(member, segments, kind.itemsize(wide))
        memory = in_chunks(
            kind,
            part.program,
            segments,
            flat,
            places,
            op,
            dtype,
            member.scratch,
            length,
            member.tuning.window * _sources(part.program),
            make=partial(HostMemory, host),
        )
    yield from member.settle(call, flat.nbytes, position)
    yield from run_schedule(member, memory, call, source, position)
    yield from member.closing_of(mine).exchange(position)


_SCHEDULES = {"allreduce": hosts_allreduce, "reduce_scatter": hosts_reduce_scatter}


class _Part(NamedTuple):
    """One rank's part of a schedule; the segments whose result it keeps, and those that it finishes."""

    program: RankProgram
    kept: frozenset[int]
    finished: frozenset[int]


@lru_cache(maxsize=64)
def _part(collective: str, hosts: Hosts, order: str, rank: int, wide: bool) -> _Part:
    """Kept, since the same calls come again and again."""
    schedule = _SCHEDULES[collective](hosts, order)
    program = rank_program(schedule, rank, wide=wide)
    finished = [segment for step in program.steps for segment in step.finishes]
    return _Part(program, frozenset(schedule.results(rank)), frozenset(finished))


def _sources(program: RankProgram) -> int:
    """From how many ranks partials come: a landing is never waited for, as what holds it may wait for another rank.

    Messages of one rank come by step, then by chunk, and wait for earlier ones only; with landings for all that
    may be under way, that is true of those of several ranks, too.
    """
    receives = [receive for step in program.steps for receive in step.receives]
    return len({r.peer for r in receives if r.action is not Action.STORE})
