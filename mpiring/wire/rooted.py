"""One rank's part of the collectives with a root, and of a user's own schedule.

They have the four parts of every collective (:mod:`mpiring.wire.collectives`).  A broadcast is the one whose
ranks need not know what comes: the root says it in the opening exchange, as its payload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

from ..plan.programs import RankProgram, rank_program
from ..plan.schedules import Schedule
from ..plan.segments import Segments
from ..plan.verify import verify
from . import arithmetic, fused, small
from .arithmetic import DTYPES, Array
from .arrays import (
    KINDS,
    NUMPY,
    kind_code,
    kind_named,
    kind_of,
    kinds_here,
    needed_for,
)
from .calls import Call
from .collectives import (
    DIRECT_BYTES,
    Collectives,
    all_ride,
    known,
    program_of,
    share,
)
from .device_transport import until_done
from .execute import Position
from .memory import Cut, InChunks, Memory
from .operands import Operand, Target, flat_input, operand, output
from .shared import place_of
from .transport import Program

BROADCAST_ALGORITHMS = ("auto", "naive", "pipelined", "direct", "shared", "mpi")


def reduce(
    member: Collectives,
    x: Any,
    op: Any,
    root: Any,
    out: Any,
    order: Any,
    algorithm: Any,
    position: Position,
) -> Program[Array | None]:
    """``op`` over all ranks of ``x``, on the root; see :meth:`mpiring.Ring.reduce`."""
    call = Call("reduce")
    transport = member.transport
    mine: bytes | None = None
    with call.local():
        source = operand(x)
        call.fields = (("array", source.description),)
        is_root = _checked_root(call, root, transport.size) == transport.rank
        path = member.path(call, source, op, order, algorithm, root)
        target = output(source, out, source.array.shape) if is_root else None
        flat = (
            source.kind.flat(source.array)
            if target is None
            else flat_input(source, target)
        )
        pieces = 1 if path is None else path.schedule.segments
        segments = Segments(flat.size, pieces)

        places = _nowhere if target is None else target.places

        def in_messages() -> Memory | InChunks | None:
            return member.memory(path, source, segments, flat, places, op, False)

        wide = arithmetic.library_dtype(op, source.dtype)
        total = source.kind.empty(flat.size if path is None else 0, wide)
        member.carry(call, source, path, flat if target is None else target.flat)
        mine = member.riding(source, flat, algorithm)
        if mine is None:
            share(call, source.kind, flat)
            if target is not None and any(call.places):
                call.places = call.places[0], place_of(source.kind, target.flat)
        memory = None if any(call.places) else in_messages()
    said = yield from member.open(call, mine or b"", always=mine is not None)
    if mine is not None and all_ride(said, mine):
        if target is not None:
            kind, dtype = source.kind, source.dtype
            small.combine(kind, said, op, order, dtype, target.flat, last=root)
        return None if target is None else target.done()
    xs, outs = call.places_of_all(transport.size)
    if member.is_shared(call, flat.size, xs):
        position.phase = "node-shared reduce"
        place = None if target is None else target.flat
        everyone = fused.are_shared([*xs, outs[root]])
        if everyone:
            (place,) = fused.reach([outs[root]], flat.size, source.dtype)
        all_x = fused.reach(xs, flat.size, source.dtype)
        rank, kind = transport.rank, source.kind
        fused.reduce(rank, kind, op, order, all_x, root, place, everyone)
        yield from fused.closing_exchange(transport, member.tag, position)
    elif path is not None:
        memory = yield from member.sure(call, memory, in_messages, flat, position)
        yield from member.execute(memory, call, source, position)
    else:
        assert member.library is not None
        position.phase = "the MPI's reduce"
        total[...] = flat
        yield from member.library["reduce"](total, op, wide, root)
        if target is not None:
            source.kind.finish(op, transport.size, total, target.flat)
    return None if target is None else target.done()


def broadcast(
    member: Collectives, x: Any, root: Any, algorithm: Any, position: Position
) -> Program[Array]:
    """The root's ``x`` on every rank; see :meth:`mpiring.Ring.broadcast`."""
    call = Call("broadcast")
    size, rank = member.transport.size, member.transport.rank
    with call.local():
        call.fields = (("algorithm", str(algorithm)),)
        known("algorithm", algorithm, BROADCAST_ALGORITHMS)
        member.need_library(algorithm, NUMPY if x is None else kind_of(x))
        call.choose(algorithm)

    def path(nbytes: int) -> RankProgram | None:
        name = algorithm
        if name == "mpi":
            return None
        if call.may_share:  # and cannot
            is_small = nbytes <= DIRECT_BYTES and size <= 8
            name = "direct" if is_small else "pipelined"
        pieces = member.pieces(nbytes)
        return program_of("broadcast", size, rank, name, "ring", False, root, pieces)

    return (yield from _broadcast(member, call, x, root, path, position))


def _broadcast(
    member: Collectives,
    call: Call,
    x: Any,
    root: Any,
    choose: Callable[[int], RankProgram | None],
    position: Position,
) -> Program[Array]:
    """A broadcast whose path follows from the bytes; None is the MPI's own."""
    transport = member.transport
    said = _no_array()
    with call.local():
        is_root = _checked_root(call, root, transport.size) == transport.rank
        if x is not None:
            source = operand(x)
            said = _signature(source)
            is_filled = not is_root and source.kind.is_array(x)
            nbytes = source.array.size * source.kind.itemsize(source.dtype)
            member.carry(call, source, choose(nbytes))
            if is_filled and not source.kind.is_writeable(source.array):
                raise ValueError(
                    "x is read-only or its elements share memory, and it would be filled; "
                    "pass a writeable array, or None off the root"
                )
            if is_root or is_filled:
                share(call, source.kind, source.array)
        elif is_root:
            raise ValueError(
                f"x is None on the root, which is rank {root}; the root must pass what to broadcast"
            )
        else:
            call.stages = member.carriage.stages_new()
    payloads = yield from member.open(call, said, always=True)
    _check_broadcast(call.name, payloads, root)
    xs, _ = call.places_of_all(transport.size)
    is_shared = member.is_shared(call, prod(_parsed(payloads[root])[2]), xs)
    if x is None:
        with call.local():
            source, target = _like(payloads[root])
            nbytes = target.flat.size * source.kind.itemsize(source.dtype)
            member.carry(call, source, choose(nbytes))
    if any(len(said) == 1 for said in payloads):
        # Where memory is staged some of it is pinned, which may be refused however little it is.
        is_sure = not call.someone_stages
        yield from member.settle(call, _bytes_of(payloads[root]), position, is_sure)
    position.phase = "taking memory for the result"
    if x is None:
        pass
    elif source.kind.is_array(x) or is_root and source.kind.is_immutable(x):
        target = Target(source.kind, x, source.array, is_filled=is_root)
    else:  # a number, or what cannot be filled
        target = Target(source.kind, *source.kind.new(source.array.shape, source.dtype))
        if is_root:
            source.kind.copy(source.kind.flat(source.array), target.flat)
    kind = source.kind
    if is_shared:
        position.phase = "node-shared broadcast"
        (of_root,) = fused.reach([xs[root]], target.flat.size, source.dtype)
        if not is_root:
            source.kind.copy(of_root, target.flat)
        yield from fused.closing_exchange(transport, member.tag, position)
        return target.done()
    path = choose(target.flat.size * kind.itemsize(source.dtype))
    if path is None:
        assert member.library is not None
        position.phase = "the MPI's broadcast"
        yield from member.library["broadcast"](kind.message(target.flat), root)
        return target.done()
    segments = Segments(target.flat.size, path.schedule.segments)

    memory = member.memory(path, source, segments, None, target.places, "max", False)
    assert memory is not None
    yield from member.execute(memory, call, source, position)
    result = target.done()
    if x is None:
        yield from until_done(kind)  # no stream of the caller's is known
    return result


def run(
    member: Collectives, plan: Any, x: Any, op: Any, out: Any, position: Position
) -> Program[Array | None]:
    """A user's schedule, once it is proven; see :meth:`mpiring.Ring.run`."""
    call = Call("run")
    rank, size = member.transport.rank, member.transport.size
    with call.local():
        if not isinstance(plan, Schedule):
            raise TypeError(
                f"schedule is a {type(plan).__name__}, expected a mpiring.plan.Schedule"
            )
        if plan.size != size:
            raise ValueError(
                f"the schedule is for {plan.size} ranks, this ring has {size}"
            )
        name = f"{plan.algorithm} {plan.collective} #{_digest(plan)}"
        call.fields = (("schedule", name), ("op", str(op)))
        _prove(plan)
    if call.failure is not None:
        yield from member.open(call)
    if plan.collective == "broadcast":
        return (yield from _run_broadcast(member, call, plan, x, out, position))
    with call.local():
        source = operand(x)
        call.fields = (*call.fields, ("array", source.description))
        reduces = plan.collective != "allgather"
        if reduces:
            arithmetic.check_op(op, source.dtype)
        wide = reduces and arithmetic.accumulator(op, source.dtype) != source.dtype
        path = _rank_program(plan, rank, wide)
        segments = _segments_of(plan, source)
        target, flat = _places(plan, rank, source, segments, out)
        kept = set(plan.results(rank))
        whole = len(kept) == len(segments)

        def places(cut: Cut) -> Callable[[int], Array | None]:
            if target is None:
                return _nowhere(cut)
            if whole:
                return target.places(cut)
            return lambda segment: (
                target.flat[cut[segment].within(segments[segment])]
                if segment in kept
                else None
            )

        memory = member.memory(
            path,
            source,
            segments,
            flat if reduces else None,
            places,
            op if reduces else "max",
            may_cut=False,
        )
        assert memory is not None
        member.carry(call, source, path, flat if target is None else target.flat)
    yield from member.open(call)
    if not reduces:
        assert target is not None
        mine = target.flat[segments[plan.owned(rank)].slice]
        if not source.kind.same_memory(flat, mine):
            source.kind.copy(flat, mine)
    yield from member.execute(memory, call, source, position)
    return None if target is None else target.done()


def _run_broadcast(
    member: Collectives,
    call: Call,
    plan: Schedule,
    x: Any,
    out: Any,
    position: Position,
) -> Program[Array]:
    """As :func:`broadcast`; with an ``out``, that is filled instead of ``x``, on the root too."""
    rank = member.transport.rank
    is_copied = out is not None and rank == plan.root
    with call.local():
        if is_copied:
            source = operand(x)
            target = output(source, out, source.array.shape)
    filled = x if out is None or is_copied else out
    result = yield from _broadcast(
        member, call, filled, plan.root, lambda _: _rank_program(plan, rank), position
    )
    if not is_copied:
        return result
    source.kind.copy(source.kind.flat(source.array), target.flat)
    return target.done()


def _segments_of(plan: Schedule, source: Operand) -> Segments:
    if plan.collective == "allgather":
        return Segments.of_lengths([source.array.size] * plan.size)
    return Segments(source.array.size, plan.segments)


def _places(
    plan: Schedule, rank: int, source: Operand, segments: Segments, out: Any
) -> tuple[Target | None, Array]:
    """The output of a user's schedule, and the flat input."""
    kind, shape = source.kind, source.array.shape
    if plan.collective == "reduce" and rank != plan.root:
        return None, kind.flat(source.array)
    part: slice | None = None
    if plan.collective == "allgather":
        shape = ((shape[0] if shape else 1) * plan.size, *shape[1:])
        target = output(source, out, shape)
        mine = target.flat[segments[plan.owned(rank)].slice]
        flat = kind.flat(source.array)
        if kind.overlaps(flat, target.flat) and not kind.same_memory(flat, mine):
            flat = kind.copied(flat)
        return target, flat
    if plan.collective == "reduce_scatter":
        owned = segments[plan.owned(rank)]
        shape, part = (owned.length,), owned.slice
    target = output(source, out, shape)
    return target, flat_input(source, target, part=part)


# Each is kept, since a schedule runs more than once; the same object is found without a look at its steps.
@lru_cache(maxsize=32)
def _prove(plan: Schedule) -> None:
    verify(plan)


@lru_cache(maxsize=32)
def _digest(plan: Schedule) -> str:
    return plan.digest


@lru_cache(maxsize=64)
def _rank_program(plan: Schedule, rank: int, wide: bool = False) -> RankProgram:
    return rank_program(plan, rank, wide=wide)


def _checked_root(call: Call, root: Any, size: int) -> int:
    call.fields = (*call.fields, ("root", str(root)))
    if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < size:
        raise ValueError(f"root must be 0 to {size - 1}, got {root!r}")
    return root


def _nowhere(cut: Cut) -> Callable[[int], None]:
    """The places of a rank that keeps no result."""
    return lambda segment: None


# ---- what the ranks say of a broadcast's array ----------------------------------------------------

# A rank with an array says (place of its kind, place of its dtype, shape), one without the kinds it has.
_CODES = sorted(DTYPES)
_MOST_DIMENSIONS = 12  # what a payload has room for


def _no_array() -> bytes:
    return bytes([sum(1 << KINDS.index(name) for name in kinds_here())])


def _signature(source: Operand) -> bytes:
    shape = source.array.shape
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(
            f"an array of {len(shape)} dimensions; a broadcast takes at most {_MOST_DIMENSIONS}: reshape it"
        )
    codes = (kind_code(source.kind), _CODES.index(source.dtype))
    return struct.pack(f"<BB{len(shape)}q", *codes, *shape)


def _parsed(said: bytes) -> tuple[str, str, tuple[int, ...]]:
    kind, code, *shape = struct.unpack(f"<BB{len(said) // 8}q", said)
    return KINDS[kind], _CODES[code], tuple(shape)


def _bytes_of(said: bytes) -> int:
    _, dtype, shape = _parsed(said)
    return prod(shape) * arithmetic.itemsize(dtype)


def _words(said: bytes) -> str:
    _, dtype, shape = _parsed(said)
    return f"{dtype}[{','.join(map(str, shape))}]"


def _kind_words(code: int) -> str:
    if needed_for(KINDS[code]):
        return f"a {KINDS[code]} array"
    return "an array of a library that mpiring does not know by name"


def _advice(code: int) -> str:
    """What a rank without an array of this kind should do."""
    libraries = needed_for(KINDS[code])
    if not libraries:
        return "; pass an array to fill there"
    return (
        f" and has not imported {libraries}; import it there, or pass an array to fill"
    )


def _check_broadcast(name: str, payloads: list[bytes], root: int) -> None:
    """Raise, alike on every rank, unless all have an array like the root's or can make one."""
    of_root = payloads[root]
    kind = of_root[0]
    for rank, said in enumerate(payloads):
        if len(said) == 1:
            if not said[0] >> kind & 1:
                raise TypeError(
                    f"{name}: rank {root} sends {_kind_words(kind)}, but rank {rank} passed None{_advice(kind)}"
                )
        elif said[1:] != of_root[1:]:
            raise ValueError(
                f"{name}: rank {rank} passed {_words(said)}, rank {root}, the root, passed "
                f"{_words(of_root)}; pass the same dtype and shape, or None off the root"
            )


def _like(said: bytes) -> tuple[Operand, Target]:
    name, dtype, shape = _parsed(said)
    kind = kind_named(name)
    theirs, array = kind.new(shape, dtype)
    kind = kind.bound(array)
    return Operand(kind, array, dtype), Target(kind, theirs, array)
