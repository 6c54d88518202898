"""The primitives, run as users run them; their numbers written down again."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch import launch

pytestmark = pytest.mark.untraced

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = EXAMPLES / "primitives.py"


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.smoke), 5])
def test_all_of_them(size):
    job = launch(size, [PROGRAM]).check()
    assert "All as NumPy has it." in job.stdout
    assert job.stdout.count(f"{size} of {size} ranks") == 3
    assert "WRONG" not in job.stdout
    sums = " ".join(str((s + 1) * int("1" * size)) for s in range(size))
    assert job.stdout.count(f"->  {sums}\n") == 1 + size  # reduce, and all-reduce


def test_broadcast_word_for_word():
    job = launch(3, [PROGRAM, "broadcast"]).check()
    assert job.stdout == """\
broadcast, 2.1.1: ring.broadcast(x, root=0)
  rank 0   1 2 3    ->  1 2 3
  rank 1   nothing  ->  1 2 3
  rank 2   nothing  ->  1 2 3

All as NumPy has it.
"""


def test_a_wrong_result_on_one_rank_is_told():
    tampered = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import primitives
from mpi4py import MPI
brought = primitives.brought
primitives.brought = lambda rank, size: brought(rank, size) + (MPI.COMM_WORLD.rank == 1)
sys.argv = ["primitives.py", "allgather"]
sys.exit(primitives.main())
"""
    job = launch(3, ["-c", tampered])
    assert job.returncode == 1
    assert job.stdout.count("WRONG") == 3 and "NOT all as NumPy has it." in job.stdout


def test_complaints_come_once():
    job = launch(2, [PROGRAM, "coffee"])
    assert job.returncode != 0
    assert job.stderr.count("no primitive is called 'coffee'; there are broadcast") == 1
    job = launch(1, [PROGRAM])
    assert job.returncode != 0 and job.stderr.count("2 to 9 ranks, please") == 1
