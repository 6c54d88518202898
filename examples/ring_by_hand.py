"""The lecture's ring all-reduce, step by step, from a real run.

    mpirun -n 4 python -m mpi4py examples/ring_by_hand.py

Worker 0 holds a0 a1 a2 a3, worker 1 holds b0 b1 b2 b3, and so on: one segment (the lecture says
chunk) for each worker, which MPI calls rank.  After each step this prints what every rank holds:

* as letters, in the order of addition: what the *plan* says (:mod:`mpiring.plan`);
* below them as numbers: what was in the rank's buffer at that moment of the *run*, in which the
  messages are MPI's and the ranks are processes.

You can read off a number who is in it.  Rank 0 brings ones, rank 1 tens, rank 2 hundreds; the digit
is 1 in segment 0, 2 in segment 1:

    a0 = 1   a1 = 2   b0 = 10   b1 = 20   c1 = 200   b1+c1 = 220   b0+c0+d0+a0 = 1111

Every number is compared with its letters; the exit status is 1 if one of them differs.

What runs here is what :class:`mpiring.Ring` is made of: a schedule (plain data), a memory (where
the segments live), a transport (MPI) and ``execute``, the lecture's loops.  At the end the same in
one line, with a Ring.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import mpiring
from mpiring.plan import Action, Frame, Schedule, Segments, Step, frames, ring_allreduce
from mpiring.plan.frames import value_name
from mpiring.plan.programs import rank_program
from mpiring.plan.symbolic import Value, ranks_of
from mpiring.wire.arrays import kind_of
from mpiring.wire.arrays.scratch import Scratch
from mpiring.wire.execute.memory import Memory
from mpiring.wire.execute.steps import execute
from mpiring.wire.transport.mpi import MPITransport
from mpiring.wire.transport.position import Position

import job

MOST_RANKS = 9  # a segment's number is a decimal digit

Array = np.ndarray[Any, np.dtype[np.int64]]

FORMULAS = """\
                              the lecture's C (offset 1)      ours (offset 0)
reduce-scatter   send_chunk   (rank - i + size) % size        (rank - i - 1 + size) % size
                 recv_chunk   (rank - i - 1 + size) % size    (rank - i - 2 + size) % size
all-gather       send_chunk   (rank - i + 1 + size) % size    (rank - i + size) % size
                 recv_chunk   (rank - i + size) % size        (rank - i - 1 + size) % size
at the end of reduce-scatter  rank r has segment r + 1        rank r has segment r
"""

CALLS = {
    "reduce-scatter": "MPI_Irecv(buffer) MPI_Send(segment_send) MPI_Wait reduce(segment_update)",
    "all-gather": "MPI_Sendrecv(segment_send, segment_recv)",
}


def lecture(i: int, rank: int, size: int, offset: int) -> tuple[str, int, int]:
    """The lecture's C in exchange ``i`` of both loops: which loop, send_chunk and recv_chunk.

    >>> [lecture(i, 0, 4, offset=1) for i in (0, 3)]
    [('reduce-scatter', 0, 3), ('all-gather', 1, 0)]
    """
    if i < size - 1:
        send_chunk = (rank - i - 1 + offset + size) % size
        recv_chunk = (rank - i - 2 + offset + size) % size
        return "reduce-scatter", send_chunk, recv_chunk
    i -= size - 1  # the second loop counts from 0 again
    send_chunk = (rank - i + offset + size) % size
    recv_chunk = (rank - i - 1 + offset + size) % size
    return "all-gather", send_chunk, recv_chunk


# ---- the run ------------------------------------------------------------------------------------


class Snapshot(NamedTuple):
    """One worker's whole buffer at one moment, and the step that led to it (None at the start)."""

    step: Step | None
    output: Array


def run(
    comm: MPI.Intracomm, schedule: Schedule, segments: Segments, output: Array
) -> list[Snapshot]:
    """All-reduce ``output`` in place, and keep what it holds after each step."""
    seen = [Snapshot(None, output.copy())]
    memory = Memory(
        kind_of(output),
        rank_program(schedule, comm.rank),
        segments,
        contribution=output,
        result=lambda segment: output[segments[segment].slice],
        op="sum",
        dtype=output.dtype.name,
        scratch=Scratch(),
    )
    transport = MPITransport(comm, message_bytes=1 << 30)
    program = execute(
        memory,
        transport,
        tag=0,
        position=Position(),
        after_step=lambda number, step: seen.append(Snapshot(step, output.copy())),
    )
    for _ in program:  # it yields where the lecture's C would wait
        os.sched_yield()
    return seen


def contributions(rank: int, segments: Segments) -> Array:
    """What a worker brings: all elements of a segment are its digit, in the worker's decimal place.

    >>> contributions(2, Segments(5, 4))
    array([100, 100, 200, 300, 400])
    """
    digits = [(s + 1) * 10**rank for s in range(len(segments))]
    return np.repeat(digits, [segment.length for segment in segments]).astype(np.int64)


# ---- what is printed ----------------------------------------------------------------------------


class Report:
    """The run next to the plan, and in how many places they differ.

    Args:
        schedule, segments: the plan, and how the buffer is cut.
        seen: the snapshots of every rank.
    """

    def __init__(
        self, schedule: Schedule, segments: Segments, seen: list[list[Snapshot]]
    ) -> None:
        self.differences: list[str] = []
        self.compared = 0
        self._schedule = schedule
        self._segments = segments
        self._seen = seen
        self._frames = frames(schedule)
        size = schedule.size
        self._short = size > 5  # sums of more letters do not fit on a line
        self._letters = [
            [
                [self._name(s, value) for s, value in enumerate(row)]
                for row in frame.cells
            ]
            for frame in self._frames
        ]
        cells = [name for table in self._letters for row in table for name in row]
        numbers = [
            self._number(shot.output, s)
            for of_rank in seen
            for shot in of_rank
            for s in range(size)
        ]
        self._width = max(map(len, [*cells, *numbers, "segment 0"]))

    def print_all(self) -> None:
        """Every step of every rank, from the start."""
        for frame, letters in zip(self._frames, self._letters):
            print(f"\n{self._title(frame)}")
            heads = (f"segment {s}" for s in range(self._schedule.size))
            self._print_row("", heads)
            for rank, names in enumerate(letters):
                shot = self._seen[rank][frame.steps[rank]]
                numbers = [self._number(shot.output, s) for s in range(len(names))]
                self._print_row(f"rank {rank}", names, self._done(frame, rank))
                self._print_row("", numbers)
                self._compare(frame, rank, shot.output)

    def _title(self, frame: Frame) -> str:
        if frame.round == 0:
            return "start"
        if self._schedule.size == 1:
            return "step 1: nothing to send, the only segment is complete"
        loop, i = self._loop(frame)
        return f"step {frame.round}: {loop}, i = {i}   {CALLS[loop]}"

    def _loop(self, frame: Frame) -> tuple[str, int]:
        """Which loop of the lecture's a round belongs to, and its ``i``."""
        exchange, turns = frame.round - 1, self._schedule.size - 1
        loop = lecture(exchange, 0, self._schedule.size, self._schedule.offset)[0]
        return loop, exchange % turns

    def _done(self, frame: Frame, rank: int) -> str:
        """The exchange that led here, in the lecture's words; checked against its formulas."""
        before = self._frames[max(0, frame.round - 1)].steps[rank]
        shots = self._seen[rank][before + 1 : frame.steps[rank] + 1]
        steps = [shot.step for shot in shots if shot.step and shot.step.is_exchange]
        if not steps:
            return ""
        (send,), (receive,), _ = steps[0]
        loop, send_chunk, recv_chunk = lecture(
            frame.round - 1, rank, self._schedule.size, self._schedule.offset
        )
        reduces = receive.action is not Action.STORE
        if (send.segment, receive.segment, reduces) != (
            send_chunk,
            recv_chunk,
            loop == "reduce-scatter",
        ):
            self.differences.append(
                f"step {frame.round}, rank {rank}: sent segment {send.segment} and received "
                f"{receive.segment}, the formulas say {send_chunk} and {recv_chunk}"
            )
        return (
            f"send_chunk {send.segment} to {send.peer}, "
            f"recv_chunk {receive.segment} from {receive.peer}"
        )

    def _compare(self, frame: Frame, rank: int, output: Array) -> None:
        for s, value in enumerate(frame.cells[rank]):
            planned = sum((s + 1) * 10**member for member in _members(value))
            held = output[self._segments[s].slice]
            self.compared += 1
            if (held != planned).any():
                self.differences.append(
                    f"step {frame.round}, rank {rank}, segment {s}: the plan says {planned} "
                    f"({self._name(s, value)}), the rank held {held}"
                )

    def _name(self, segment: int, value: Value | None) -> str:
        return value_name(self._schedule, segment, value, short=self._short)

    def _number(self, output: Array, segment: int) -> str:
        held = output[self._segments[segment].slice]
        if len(held) == 0:
            return "(empty)"
        if (held != held[0]).any():
            return str(held)
        return f"{len(held)} x {held[0]}" if len(held) > 1 else str(held[0])

    def _print_row(self, head: str, cells: Iterable[str], note: str = "") -> None:
        padded = [cell.ljust(self._width) for cell in cells]
        print("  ".join([head.ljust(6), *padded, note]).rstrip())


def _members(value: Value | None) -> Sequence[int]:
    return () if value is None else ranks_of(value[0])


# ---- the program --------------------------------------------------------------------------------


def main() -> int:
    """One rank's part; the exit status is 0 if the run did what the plan says."""
    comm = MPI.COMM_WORLD.Dup()  # so that no message here meets one of somebody else's
    args = job.arguments(comm, command_line(comm.size))
    size = comm.size
    if size > MOST_RANKS:
        sys.exit(f"ring_by_hand.py: {size} ranks; it can show {MOST_RANKS} at most")
    segments = Segments(args.count, size)
    schedule = ring_allreduce(size, args.offset)

    output = contributions(comm.rank, segments)
    seen = run(comm, schedule, segments, output)

    expected = np.empty_like(output)
    comm.Allreduce(contributions(comm.rank, segments), expected)
    with mpiring.Ring(comm) as ring:
        in_one_line = ring.allreduce(contributions(comm.rank, segments))
    same = comm.gather(
        (bool((output == expected).all()), bool((in_one_line == expected).all()))
    )
    everything = comm.gather(seen)
    status = 0
    if everything is not None and same is not None:
        print_head(schedule, segments)
        report = Report(schedule, segments, everything)
        report.print_all()
        by_hand, by_ring = (sum(answers) for answers in zip(*same))
        print_foot(report, segments, everything)
        print(f"the same as MPI_Allreduce: {by_hand} of {size} ranks")
        print(f"and as ring.allreduce(x):  {by_ring} of {size} ranks")
        status = 1 if report.differences or by_hand + by_ring < 2 * size else 0
    return int(comm.bcast(status))


def print_head(schedule: Schedule, segments: Segments) -> None:
    """What is about to be seen, and the lecture's formulas beside ours."""
    size, offset = schedule.size, schedule.offset
    whose = ("ours", "the lecture's")[offset]
    print(f"Ring all-reduce of {job.plural(size, 'rank')}, offset {offset} ({whose})\n")
    print(FORMULAS)
    print(
        f"send_to   = (rank + 1) % {size}    recv_from = (rank - 1 + {size}) % {size}"
    )
    print(f"segment_sizes = {[segment.length for segment in segments]}")
    print(f"segment_ends  = {[segment.stop for segment in segments]}\n")
    print("Letters: what the plan says.  *: the sum is complete.")
    print("Numbers: what was in the rank's buffer (the lecture's output) in this run.")


def print_foot(report: Report, segments: Segments, seen: list[list[Snapshot]]) -> None:
    """Whether the run was the plan, and what it cost."""
    size = segments.size
    sent = [
        sum(segments[send.segment].length for send in shot.step.sends)
        for of_rank in seen
        for shot in of_rank
        if shot.step is not None
    ]
    messages = job.plural(2 * (size - 1), "message")
    print(f"\nEach rank sent {messages}; the ranks together sent {sum(sent)} elements,")
    print("2 (size - 1) times the buffer: 2 (size - 1) / size of it each.\n")
    if report.differences:
        print("THE RUN DIFFERS FROM THE PLAN:", *report.differences, sep="\n  ")
    else:
        print(
            f"The run is the plan: all {report.compared} sums, and every send_chunk and recv_chunk."
        )


def command_line(size: int) -> argparse.ArgumentParser:
    """What the user may choose."""
    parser = argparse.ArgumentParser(
        usage="mpirun -n 4 python -m mpi4py examples/ring_by_hand.py [options]",
        description="The lecture's ring all-reduce, step by step, from a real run "
        f"of 1 to {MOST_RANKS} ranks.",
    )
    parser.add_argument(
        "--offset",
        type=int,
        choices=(0, 1),
        default=0,
        help="which segment is complete on rank r after the reduce-scatter: r (0, ours) or "
        "r + 1 (1, the lecture's slides and C)",
    )
    parser.add_argument(
        "--count",
        type=job.positive,
        metavar="N",
        default=size,
        help="elements in the buffer; try 10, or 2, to see uneven segments (one for each rank)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
