"""One rank's part of the collectives with a root.

They have the four parts of every collective (:mod:`mpiring.wire.collectives.reductions`).  A broadcast is the one whose
ranks need not know what comes: the root says it in the opening exchange, as its payload.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ...errors import harmless
from ...plan.programs import RankProgram
from ...plan.segments import Segments
from ..arrays import (
    KINDS,
    NUMPY,
    kind_code,
    kind_named,
    kind_of,
    kinds_here,
    needed_for,
)
from ..arrays.operands import (
    Operand,
    Target,
    flat_input,
    nowhere,
    operand,
    output,
    packed,
)
from ..execute.forms import carry, memory_of, run_schedule
from ..execute.memory import InChunks, Memory
from ..node import fused, peers
from ..node.shared import place_of
from ..node.ways import Ready
from ..opening.calls import Call, as_text
from ..reduce import arithmetic
from ..reduce.arithmetic import DTYPES, Array
from ..settings.arguments import whole_number
from ..transport.device import until_done
from ..transport.position import Position
from ..transport.protocol import Program
from . import small
from .reductions import Collectives, all_ride, known, program_of, share

_NOTHING = NUMPY.empty(0, "uint8")

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
    ready = Ready()
    with call.local():
        source = operand(x)
        call.fields = (("array", source.description),)
        root = _checked_root(call, root, transport.size)
        is_root = root == transport.rank
        path = member.path(call, source, op, order, algorithm, root)
        target = output(source, out, source.array.shape) if is_root else None
        flat = (
            source.kind.flat(source.array)
            if target is None
            else flat_input(source, target)
        )
        kept = None if target is None else target.flat
        pieces = 1 if path is None else path.schedule.segments
        segments = Segments(flat.size, pieces)

        places = nowhere if target is None else target.places

        def in_messages() -> Memory | InChunks | None:
            if path is None:
                return None
            return memory_of(member, path, source, segments, flat, places, op, False)

        wide = arithmetic.library_dtype(op, source.dtype)
        total = source.kind.empty(flat.size if path is None else 0, wide)
        carry(member, call, source, path, flat if kept is None else kept)
        mine = member.riding(call, source, flat, algorithm)
        if mine is None:
            share(call, source.kind, flat)
            if target is not None and any(call.places):
                call.places = call.places[0], place_of(source.kind, target.flat)
            ready = member.ways.prepare(call, source.kind, flat, kept)
        memory = None if call.hopes else in_messages()
    said = yield from member.open(call, mine or b"")
    if mine is not None and all_ride(said, mine):
        if target is not None:
            kind, dtype = source.kind, source.dtype
            small.combine(kind, said, op, order, dtype, target.flat, last=root)
        return None if target is None else target.done()
    xs, outs = call.places_of_all(transport.size)
    how = source.kind, op, order, flat, kept
    if member.is_shared(call, flat.size, xs):
        position.phase = "node-shared reduce"
        place = None if target is None else target.flat
        everyone = fused.are_shared([*xs, outs[root]])
        if everyone:
            (place,) = fused.reach([outs[root]], flat.size, source.dtype)
        all_x = fused.reach(xs, flat.size, source.dtype)
        rank, kind = transport.rank, source.kind
        fused.reduce(rank, kind, op, order, all_x, root, place, everyone)
        yield from member.closing.exchange(position)
    elif (yield from member.ways.reduce(call, ready, *how, root, position)):
        pass
    elif path is not None:
        memory = yield from member.sure(call, memory, in_messages, flat, position)
        yield from run_schedule(member, memory, call, source, position)
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
        call.fields = (("algorithm", as_text(algorithm)),)
        known("algorithm", algorithm, BROADCAST_ALGORITHMS)
        member.need_library(algorithm, NUMPY if x is None else kind_of(x))
        member.choose(call, algorithm)
        root = _checked_root(call, root, size)

    def path(nbytes: int) -> RankProgram | None:
        name = algorithm
        if name == "mpi":
            return None
        if call.is_free:  # and finds no memory
            is_small = nbytes <= member.tuning.direct_bytes and size <= 8
            name = "direct" if is_small else "pipelined"
        pieces = member.pieces(nbytes)
        return program_of("broadcast", size, rank, name, "ring", False, root, pieces)

    return (yield from broadcast_along(member, call, x, root, path, position))


def broadcast_along(
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
        is_root = root == transport.rank
        if x is not None:
            source = operand(x)
            said = _signature(source)
            if is_root:
                source = packed(source)
            is_filled = not is_root and source.kind.is_array(x)
            nbytes = source.array.size * source.kind.itemsize(source.dtype)
            carry(member, call, source, choose(nbytes))
            if is_filled and not source.kind.is_writeable(source.array):
                raise ValueError(
                    "x is read-only or its elements share memory, and it would be filled; "
                    "pass a writeable array, or None off the root"
                )
            if is_root or is_filled:
                share(call, source.kind, source.array)
            if not is_root or nbytes >= member.ways.least_bytes:
                member.ways.offer(call, source.kind, source.array)
        elif is_root:
            raise ValueError(
                f"x is None on the root, which is rank {root}; the root must pass what to broadcast"
            )
        else:
            call.stages = member.carriage.stages_new()
            # Into a new array of the root's kind it will only read.
            member.ways.offer(call, NUMPY, _NOTHING)
    payloads = yield from member.open(call, said, always=True)
    if wrong := _difference(call.name, payloads, root):
        raise harmless(wrong)
    xs, _ = call.places_of_all(transport.size)
    is_shared = member.is_shared(call, prod(_parsed(payloads[root])[2]), xs)
    if x is None:
        with call.local():
            source, target = _like(payloads[root])
            nbytes = target.flat.size * source.kind.itemsize(source.dtype)
            carry(member, call, source, choose(nbytes))
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
        yield from member.closing.exchange(position)
        return target.done()
    addresses, _ = call.addresses_of_all(transport.size)
    if places := (yield from member.ways.reached(call, addresses)):
        position.phase = "broadcast in the peers' memory"
        if not is_root:
            reach, of_root = member.ways.peer_memory, places[0][root]
            peers.broadcast(reach, kind, target.flat, root, of_root)
        yield from member.closing.exchange(position)
        return target.done()
    path = choose(target.flat.size * kind.itemsize(source.dtype))
    if path is None:
        assert member.library is not None
        position.phase = "the MPI's broadcast"
        yield from member.library["broadcast"](kind.message(target.flat), root)
        return target.done()
    segments = Segments(target.flat.size, path.schedule.segments)

    memory = memory_of(
        member, path, source, segments, None, target.places, "max", False
    )
    assert memory is not None
    yield from run_schedule(member, memory, call, source, position)
    result = target.done()
    if x is None:
        yield from until_done(kind)  # no stream of the caller's is known
    return result


def _checked_root(call: Call, root: Any, size: int) -> int:
    number = whole_number("root", root, 0, size - 1)
    call.fields = (*call.fields, ("root", str(number)))
    return number


# ---- what the ranks say of a broadcast's array ----------------------------------------------------

# A rank with an array says (place of its kind, place of its dtype, shape), one without the kinds it has.  The lengths
# of a shape are packed as in LEB128: seven bits in a byte, whose eighth bit says that more follow.  All elements have
# an address, so that the bits of all lengths are few: 64 dimensions, as many as NumPy has, take 73 bytes.
_CODES = sorted(DTYPES)
_MORE = 1 << 7
_MOST_BYTES = 80


def _no_array() -> bytes:
    return bytes([sum(1 << KINDS.index(name) for name in kinds_here())])


def _signature(source: Operand) -> bytes:
    said = [kind_code(source.kind), _CODES.index(source.dtype)]
    for length in source.array.shape:
        while length >= _MORE:
            said.append(length % _MORE | _MORE)
            length //= _MORE
        said.append(length)
    if len(said) > _MOST_BYTES:
        raise ValueError(
            f"an array of {len(source.array.shape)} dimensions, whose shape a broadcast cannot send; reshape it"
        )
    return bytes(said)


def _parsed(said: bytes) -> tuple[str, str, tuple[int, ...]]:
    shape, length, weight = [], 0, 1
    for byte in said[2:]:
        length += byte % _MORE * weight
        weight *= _MORE
        if byte < _MORE:
            shape.append(length)
            length, weight = 0, 1
    return KINDS[said[0]], _CODES[said[1]], tuple(shape)


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


def _difference(
    name: str, payloads: list[bytes], root: int
) -> TypeError | ValueError | None:
    """The error of every rank, unless all have an array like the root's or can make one."""
    of_root = payloads[root]
    kind = of_root[0]
    for rank, said in enumerate(payloads):
        if len(said) == 1:
            if not said[0] >> kind & 1:
                return TypeError(
                    f"{name}: rank {root} sends {_kind_words(kind)}, but rank {rank} passed None{_advice(kind)}"
                )
        elif said[1:] != of_root[1:]:
            return ValueError(
                f"{name}: rank {rank} passed {_words(said)}, rank {root}, the root, passed "
                f"{_words(of_root)}; pass the same dtype and shape, or None off the root"
            )
    return None


def _like(said: bytes) -> tuple[Operand, Target]:
    name, dtype, shape = _parsed(said)
    kind = kind_named(name)
    theirs, array = kind.new(shape, dtype)
    kind = kind.bound(array)
    return Operand(kind, array, dtype), Target(kind, theirs, array)
