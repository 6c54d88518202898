"""The proof that a schedule does what its collective promises.

A collective is a pre- and a postcondition over (rank, segment):

================  ================================  ===============================================
collective        before                            after
================  ================================  ===============================================
allreduce         a contribution everywhere         every rank holds the result of every segment
reduce_scatter    a contribution everywhere         each rank holds the result of the segment it owns
reduce            a contribution everywhere         the root holds the result of every segment
allgather         each rank its own segment         every rank holds every segment
broadcast         the root every segment            every rank holds every segment
================  ================================  ===============================================

:func:`verify` runs the schedule on symbols (:mod:`mpiring.plan.symbolic`) and shows that

* each contribution arrives exactly once in each result, where the postcondition wants it;
* results are combined in the order the schedule states, and in the same order on every rank, so that
  floating-point bits agree;
* no order of progress deadlocks, even when every send waits for its receive;
* what each rank sends and receives, from the actual lengths of the segments.

The idea of a collective as pre- and postcondition is that of MSCCL's checker (Cowan et al., "MSCCLang",
ASPLOS 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ScheduleError
from .schedules import Form, Schedule, combination
from .symbolic import Cells, Value, order_of, ranks_of, run, segment_lengths


@dataclass(frozen=True)
class Proof:
    """What :func:`verify` has shown.

    Attributes:
        schedule: what was proven.
        count: elements in the buffer for which traffic was counted.
        exchanges: for each rank, steps that send or receive.
        sent, received: for each rank, elements.
        orders: for each segment the ranks in their order of combination, ``()`` where data only moves.
    """

    schedule: Schedule
    count: int
    exchanges: tuple[int, ...]
    sent: tuple[int, ...]
    received: tuple[int, ...]
    orders: tuple[tuple[int | str, ...], ...]

    def order_text(self, segment: int) -> str:
        """The combination of a segment as a formula.

        >>> from mpiring.plan.schedules import ring_allreduce
        >>> verify(ring_allreduce(4)).order_text(0)
        '((x1 op x2) op x3) op x0'
        """
        return fold_text(
            [f"x{t}" if isinstance(t, int) else t for t in self.orders[segment]]
        )


def verify(
    schedule: Schedule,
    count: int | None = None,
    *,
    lengths: Sequence[int] | None = None,
) -> Proof:
    """Prove that a schedule keeps its collective's promise.

    >>> from mpiring.plan.schedules import ring_allreduce
    >>> proof = verify(ring_allreduce(4), count=400)
    >>> proof.sent, proof.exchanges                     # 2 (K-1)/K N elements, 2 (K-1) exchanges
    ((600, 600, 600, 600), (6, 6, 6, 6))

    Args:
        schedule: the schedule; nothing about it is taken on trust.
        count: elements in the buffer, for the traffic; one for each segment if None.
        lengths: elements in each segment instead, for an allgather of uneven parts.

    Returns:
        the :class:`Proof`.

    Raises:
        ScheduleError: naming rank, step, segment and what is missing or double.
        DeadlockError: with the cycle of ranks that wait for each other.
        ValueError: if the number of lengths is not that of the segments, or one is negative.
    """
    elements = segment_lengths(schedule, count, lengths)
    cells, exchanges, sent, received = run(schedule, lengths=elements)
    orders = _check_after(schedule, cells)
    return Proof(
        schedule,
        sum(elements),
        tuple(exchanges),
        tuple(sent),
        tuple(received),
        tuple(orders),
    )


def fold_text(tokens: Sequence[str]) -> str:
    """A left-to-right fold with its brackets written out.

    >>> fold_text(["x1", "x2", "x3"])
    '(x1 op x2) op x3'
    >>> fold_text(["x0", "x1", "(", "x2", "x3", ")"])
    '(x0 op x1) op (x2 op x3)'
    """
    stack: list[list[str]] = [[]]
    for token in tokens:
        if token == "(":
            stack.append([])
        elif token == ")":
            inner = _fold(stack.pop())
            stack[-1].append(f"({inner})")
        else:
            stack[-1].append(token)
    return _fold(stack[0])


def _fold(operands: list[str]) -> str:
    text = " op ".join(operands[:2])
    for operand in operands[2:]:
        text = f"({text}) op {operand}"
    return text


def _stated_order(schedule: Schedule, segment: int) -> tuple[int, ...] | None:
    """The order the schedule states, or None."""
    if schedule.order is None:
        return None
    last = schedule.owner(segment) if schedule.root is None else schedule.root
    return combination(schedule.order, last, schedule.size)


def _check_after(schedule: Schedule, cells: Cells) -> list[tuple[int | str, ...]]:
    """Check the postcondition and the orders of combination; return the orders."""
    name = f"{schedule.algorithm} {schedule.collective} of {schedule.size} ranks"
    moves = schedule.collective in ("allgather", "broadcast")
    found: list[tuple[Value, tuple[int | str, ...], int] | None] = [
        None
    ] * schedule.segments
    for rank in range(schedule.size):
        for segment in schedule.results(rank):
            value = cells[rank][segment]
            if value is None or value[1] is not Form.RESULT:
                raise ScheduleError(
                    f"{name}: at the end rank {rank} does not hold the result of segment {segment}, "
                    + _short_of(schedule, value),
                    rank=rank,
                    segment=segment,
                )
            first = found[segment]
            if first is None:
                order = () if moves else order_of(value)
                stated = None if moves else _stated_order(schedule, segment)
                if stated is not None and order != stated:
                    raise ScheduleError(
                        f"{name}: segment {segment} is combined in the order {order}, but order="
                        f"{schedule.order!r} states {stated}",
                        rank=rank,
                        segment=segment,
                    )
                found[segment] = (value, order, rank)
            elif value is not first[0] and not moves and order_of(value) != first[1]:
                raise ScheduleError(
                    f"{name}: rank {rank} combines segment {segment} in the order {order_of(value)}, "
                    f"rank {first[2]} in the order {first[1]}: their bits would differ",
                    rank=rank,
                    segment=segment,
                )
    return [() if item is None else item[1] for item in found]


def _short_of(schedule: Schedule, value: Value | None) -> str:
    if value is None:
        return "it never receives it"
    missing = [rank for rank in range(schedule.size) if not value[0] >> rank & 1]
    if missing:
        return f"it holds that of ranks {ranks_of(value[0])[:8]}, missing are {missing[:8]}"
    return "the sum is complete but no step finishes it"
