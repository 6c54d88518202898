"""Reductions of ordinary arrays that are not long, through memory that all ranks of a node have mapped for their ring.

The sibling of :mod:`mpiring.wire.node.peers` for arrays of up to 4 MiB.  There a system call for each peer and block
costs more than the bytes; here there are stages (:mod:`mpiring.wire.node.stages`), and a call is

1. *bring*: before the opening exchange a rank copies what the others will read of its input into its room;
2. *fold*: after it, it combines its segment, of the others' rooms and its own array, in the order of promise 4;
3. *take*: after a closing exchange it copies the results.

Long arrays go block by block, and the next block is brought before the closing exchange of the one before.  Of short
ones each rank combines all segments itself, each in its own order: then nothing has to be taken, and the opening
exchange is all that a rank waits for.  That is a "one-shot" all-reduce, where the other is "two-shot".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...plan.schedules import combination
from ..arrays import NUMPY, Kind
from ..arrays.host import by_addresses, plain
from ..opening.closing import Closing
from ..reduce.arithmetic import Array, any_order
from ..transport.position import Position
from ..transport.protocol import Program
from .stages import Passage, Plan

Fold = Callable[[Array, Array], object]  # of a call's flat input and output


class Step(NamedTuple):
    """A block of an all-reduce, or the whole of a one-shot one.

    Attributes:
        brought: parts of the input, and where they are brought to for the others.
        fold: combines what this rank combines.
        taken: parts of the output, and where they are taken from; None if nothing has to be taken.
    """

    brought: list[tuple[slice, Array]]
    fold: Fold
    taken: list[tuple[slice, Array]] | None


class Reduction(NamedTuple):
    """What is the same for all that a rank does in a reduction.

    Attributes:
        plan: where its arrays are.
        turn: of their first block.
        rank: this one.
        kind, op, order: of the reduction.
        closing: the ring's closing exchange.
        position: kept up to date.
    """

    plan: Plan
    turn: int
    rank: int
    kind: Kind
    op: str
    order: str
    closing: Closing
    position: Position


def bring(
    plan: Plan, turn: int, rank: int, kind: Kind, x: Array, is_one_shot: bool
) -> None:
    """Copy into this rank's room what the others will read of the input, or of its first block.

    Args:
        plan, turn, rank, kind: see :class:`Reduction`.
        x: the input, flat.
        is_one_shot: whether they read all of it.
    """
    whole = [(slice(None), plan.rooms[turn][rank])] if is_one_shot else None
    _bring(whole or plan.passages[turn][0].brought, kind, x)


def allreduce(how: Reduction, x: Array, out: Array) -> Program[None]:
    """Combine all ranks' arrays into ``out``.

    Args:
        how: it is done.
        x, out: this rank's flat arrays.
    """
    plan, turn, rank, kind, op, order, closing, position = how
    steps = steps_of(plan, turn, rank, op, order, x, out)
    return run(steps, kind, x, out, closing, position)


def run(
    steps: list[Step],
    kind: Kind,
    x: Array,
    out: Array,
    closing: Closing,
    position: Position,
) -> Program[None]:
    """An all-reduce, from when the first step's part of the input has been brought.

    Args:
        steps: see :func:`steps_of`.
        kind, closing, position: see :class:`Reduction`.
        x, out: this rank's flat arrays.
    """
    position.phase = "staged allreduce"
    for number, step in enumerate(steps):
        step.fold(x, out)
        if step.taken is None:
            return
        for following in steps[number + 1 :][:1]:
            _bring(following.brought, kind, x)
        yield from closing.exchange(position)
        _take(step.taken, kind, out)


def reduce_scatter(how: Reduction, x: Array, out: Array) -> Program[None]:
    """Combine this rank's segment of all ranks' arrays into ``out``; arguments as for :func:`allreduce`."""
    how.position.phase = "staged reduce_scatter"
    passages = how.plan.passages[how.turn]
    for number, passage in enumerate(passages):
        outs = [out[passage.within]]
        operands = _operands(passage, how.rank, how.order, how.rank, x)
        how.kind.fold_to_all(how.op, len(operands), operands, outs)
        if len(passages) > 1:  # a single one's room is not written before two exchanges
            yield from _to_the_next(how, number, x)


def reduce(how: Reduction, x: Array, out: Array | None, root: int) -> Program[None]:
    """Combine all ranks' arrays into the root's ``out``; other arguments as for :func:`allreduce`."""
    how.position.phase = "staged reduce"
    for number, passage in enumerate(how.plan.passages[how.turn]):
        result = passage.result
        if out is not None and how.plan.keeps:
            result = out[passage.mine]
        operands = _operands(passage, how.rank, how.order, root, x)
        how.kind.fold_to_all(how.op, len(operands), operands, [result])
        yield from _to_the_next(how, number, x)
        if out is not None:
            _take(passage.taken, how.kind, out)


def _to_the_next(how: Reduction, number: int, x: Array) -> Program[None]:
    """Bring the block after this one, and end when all ranks have combined this one."""
    for following in how.plan.passages[how.turn][number + 1 :][:1]:
        _bring(following.brought, how.kind, x)
    yield from how.closing.exchange(how.position)


def _bring(brought: list[tuple[slice, Array]], kind: Kind, x: Array) -> None:
    for part, room in brought:
        kind.copy(x[part], room)


def _take(taken: list[tuple[slice, Array]], kind: Kind, out: Array) -> None:
    for part, result in taken:
        kind.copy(result, out[part])


def _operands(
    passage: Passage, rank: int, order: str, last: int, x: Array
) -> list[Array]:
    """This rank's piece of all inputs in the order in which they are combined, ``last`` being the last in a ring's."""
    operands = passage.theirs.copy()
    operands[rank] = x[passage.mine]
    return [operands[r] for r in combination(order, last, len(operands))]


# ---- the steps of an all-reduce, which are kept, as the same calls come again and again ---------------


def steps_of(
    plan: Plan, turn: int, rank: int, op: str, order: str, x: Array, out: Array
) -> list[Step]:
    """The steps of all-reduces that differ in the arrays alone.

    Args:
        plan, turn, rank, op, order: see :class:`Reduction`.
        x, out: the flat arrays of one of them.
    """
    steps = plan.steps.get((op, order, turn))
    if steps is None:
        if plan.is_one_shot:
            rooms = plan.rooms[turn]
            fold = _one_shot(plan, rooms, op, order, out)
            steps = [Step([(slice(None), rooms[rank])], fold, None)]
        else:
            steps = [
                Step(
                    passage.brought,
                    _two_shot(passage, plan.keeps, rank, op, order, x, out),
                    passage.taken,
                )
                for passage in plan.passages[turn]
            ]
        plan.steps[op, order, turn] = steps
    return steps


def _two_shot(
    passage: Passage, keeps: bool, rank: int, op: str, order: str, x: Array, out: Array
) -> Fold:
    """What combines this rank's piece of a block."""
    mine, result = passage.mine, passage.result
    operands = _operands(passage, rank, order, rank, x)
    size = len(operands)
    at = combination(order, rank, size).index(rank)
    before, after = operands[:at], operands[at + 1 :]  # but no array of this call's
    kernel = by_addresses(
        op, operands, [out[mine], result] if keeps else [result], size
    )
    step = None
    if size == 2 and not keeps:
        step = plain(op, NUMPY.dtype_name(result))
        (theirs,) = before + after

    def by_arrays(x: Array, out: Array) -> None:
        outs = [out[mine], result] if keeps else [result]
        NUMPY.fold_to_all(op, size, [*before, x[mine], *after], outs)

    def by_numpy(x: Array, out: Array) -> None:
        # Two arrays give the same bits in any order.
        assert step is not None
        step(theirs, x[mine], out=result)

    left, right = [*map(NUMPY.pointer, before)], [*map(NUMPY.pointer, after)]
    start, place = mine.start * x.itemsize, NUMPY.pointer(result)

    def by_kernel(x: Array, out: Array) -> None:
        assert kernel is not None
        here = NUMPY.pointer(x) + start
        kept = [NUMPY.pointer(out) + start] if keeps else []
        kernel([*left, here, *right, *kept, place])

    if kernel is not None:
        return by_kernel
    return by_arrays if step is None else by_numpy


def _one_shot(plan: Plan, rooms: list[Array], op: str, order: str, out: Array) -> Fold:
    """What combines the whole array."""
    size = len(rooms)
    if order == "rank" or any_order(op, NUMPY.dtype_name(out), size):
        return _one_shot_fold(op, rooms, out, slice(0, out.size))
    folds = [
        _one_shot_fold(
            op, [rooms[r] for r in combination(order, home, size)], out, segment
        )
        for home, segment in enumerate(plan.segments)
    ]

    def each(x: Array, out: Array) -> None:
        for fold in folds:
            fold(x, out)

    return each


def _one_shot_fold(op: str, rooms: Sequence[Array], out: Array, part: slice) -> Fold:
    """What combines a part of the arrays, in the order in which they are given."""
    size = len(rooms)
    operands = [room[part] for room in rooms]
    kernel = by_addresses(op, operands, [out[part]], size)
    step = plain(op, NUMPY.dtype_name(out)) if size == 2 else None
    addresses = [NUMPY.pointer(operand) for operand in operands]
    start = part.start * out.itemsize

    def by_kernel(x: Array, out: Array) -> None:
        assert kernel is not None
        kernel([*addresses, NUMPY.pointer(out) + start])

    def by_numpy(x: Array, out: Array) -> None:
        assert step is not None
        step(*operands, out=out[part])

    def by_arrays(x: Array, out: Array) -> None:
        NUMPY.fold_to_all(op, size, operands, [out[part]])

    if kernel is not None:
        return by_kernel
    return by_arrays if step is None else by_numpy
