"""The ring by hand, run as users run it; its numbers against the lecture's C loops, written down again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launch import launch

pytestmark = pytest.mark.untraced

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = EXAMPLES / "ring_by_hand.py"

# (ranks, offset): ours, and the lecture's form.
RUNS = [
    (1, 0),
    (2, 0),
    pytest.param(3, 0, marks=pytest.mark.smoke),
    (4, 0),
    pytest.param(5, 0, marks=pytest.mark.slow),
    pytest.param(8, 0, marks=pytest.mark.slow),
    (2, 1),
    pytest.param(4, 1, marks=pytest.mark.smoke),
    pytest.param(5, 1, marks=pytest.mark.slow),
]


def the_lectures_loops(size: int, offset: int) -> list[list[list[int]]]:
    """output[rank] after each exchange, as the C of the slides (offset 1) does it, on all ranks at once."""
    output = [[(s + 1) * 10**rank for s in range(size)] for rank in range(size)]
    seen = [[list(row) for row in output]]
    for loop, first in (("reduce", 0), ("gather", 1)):
        for i in range(size - 1):
            before = seen[-1]
            for rank in range(size):
                recv_chunk = (rank - i - 1 + first + (offset - 1) + size) % size
                received = before[(rank - 1 + size) % size][recv_chunk]
                if loop == "reduce":
                    output[rank][recv_chunk] += received
                else:
                    output[rank][recv_chunk] = received
            seen.append([list(row) for row in output])
    return seen


def printed(stdout: str) -> list[list[list[int]]]:
    """The numbers of each step: [step][rank][segment]."""
    steps = []
    for block in stdout.split("\n\n"):
        lines = block.splitlines()
        if re.match(r"start|step \d", lines[0]):
            rows = [
                lines[n + 1].split()
                for n, line in enumerate(lines)
                if line.startswith("rank")
            ]
            steps.append([[int(number) for number in row] for row in rows])
    return steps


@pytest.mark.parametrize("size, offset", RUNS)
def test_every_number_is_the_lectures(size, offset):
    job = launch(size, [PROGRAM, "--offset", str(offset)]).check()
    expected = the_lectures_loops(size, offset)
    if size == 1:  # a step of its own says that nothing is to be sent
        expected *= 2
    assert printed(job.stdout) == expected
    total = int("1" * size)
    assert expected[-1] == [[(s + 1) * total for s in range(size)]] * size
    assert f"all {len(expected) * size * size} sums" in job.stdout
    assert f"the same as MPI_Allreduce: {size} of {size} ranks" in job.stdout
    assert f"and as ring.allreduce(x):  {size} of {size} ranks" in job.stdout


def test_the_first_step_word_for_word():
    job = launch(4, [PROGRAM]).check()
    step = """\
step 1: reduce-scatter, i = 0   MPI_Irecv(buffer) MPI_Send(segment_send) MPI_Wait reduce(segment_update)
        segment 0     segment 1     segment 2     segment 3
rank 0  a0            a1            d2+a2         a3            send_chunk 3 to 1, recv_chunk 2 from 3
        1             2             3003          4
rank 1  b0            b1            b2            a3+b3         send_chunk 0 to 2, recv_chunk 3 from 0
        10            20            30            44
rank 2  b0+c0         c1            c2            c3            send_chunk 1 to 3, recv_chunk 0 from 1
        110           200           300           400
rank 3  d0            c1+d1         d2            d3            send_chunk 2 to 0, recv_chunk 1 from 2
        1000          2200          3000          4000
"""
    assert step in job.stdout
    assert (
        "Each rank sent 6 messages; the ranks together sent 24 elements" in job.stdout
    )


def test_uneven_and_empty_segments():
    job = launch(4, [PROGRAM, "--count", "5"]).check()
    assert "segment_sizes = [2, 1, 1, 1]" in job.stdout
    assert job.stdout.count("2 x 1111 ") == 4 + 3 + 2 + 1
    job = launch(4, [PROGRAM, "--count", "2"]).check()
    assert job.stdout.count("(empty)") == 2 * 4 * 7
    assert "4 of 4" in job.stdout


def test_a_run_that_differs_from_the_plan_is_told():
    tampered = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import ring_by_hand
contributions = ring_by_hand.contributions
def wrong(rank, segments):
    brought = contributions(rank, segments)
    brought[1] += 7 * (rank == 2)
    return brought
ring_by_hand.contributions = wrong
sys.exit(ring_by_hand.main())
"""
    job = launch(3, ["-c", tampered])
    assert job.returncode == 1
    assert "THE RUN DIFFERS FROM THE PLAN" in job.stdout
    told = "step 0, rank 2, segment 1: the plan says 200 (c1), the rank held [207]"
    assert told in job.stdout
    assert "The run is the plan" not in job.stdout


def test_help_and_complaints_come_once():
    job = launch(3, [PROGRAM, "--help"]).check()
    assert job.stdout.count("usage:") == 1 and "--offset" in job.stdout
    job = launch(3, [PROGRAM, "--count", "0"])
    assert job.returncode != 0
    assert job.stderr.count("--count: must be 1 or more, got 0") == 1
