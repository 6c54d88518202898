"""The rank within the node before MPI starts, from the launcher alone: nothing is started for it, and it stays."""

from __future__ import annotations

import pytest

from launch import find_mpi, launch

BEFORE = """
import sys
import mpiring

before = mpiring.local_rank()
assert "mpi4py.MPI" not in sys.modules and "numpy" not in sys.modules, sorted(sys.modules)
from mpi4py import MPI

after, asked = mpiring.local_rank(), mpiring.local_rank(MPI.COMM_WORLD)
sys.stdout.write(f"{before} {after} {asked}\\n")
"""


@pytest.mark.smoke
@pytest.mark.parametrize("module", [False, True], ids=["python", "-m mpi4py"])
def test_before_and_after_mpi_starts(module):
    job = launch(3, ["-c", BEFORE], module=module).check()
    told = [line.split() for line in job.stdout.splitlines()]
    assert sorted(before for before, _, _ in told) == ["0", "1", "2"]
    assert sorted(asked for _, _, asked in told) == ["0", "1", "2"]
    for before, after, asked in told:
        assert before == after
        # Open MPI numbers by place, so that with more ranks than cores its order is another one.
        assert asked == before or find_mpi().name == "openmpi"


@pytest.mark.smoke
def test_b47_what_another_launcher_has_left_behind_does_not_count():
    """As in a job that was started inside another one, or from a shell that a variable was once exported in."""
    others = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}
    mine = (
        "OMPI_COMM_WORLD_LOCAL_RANK"
        if find_mpi().name == "openmpi"
        else "MPI_LOCALRANKID"
    )
    env = dict.fromkeys(others - {mine}, "7") | {"SLURM_STEP_ID": "0"}
    job = launch(3, ["-c", BEFORE], env=env).check()
    told = [line.split() for line in job.stdout.splitlines()]
    assert sorted(before for before, _, _ in told) == ["0", "1", "2"]
    assert [before for before, _, _ in told] == [after for _, after, _ in told]
