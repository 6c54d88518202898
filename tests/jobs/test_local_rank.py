"""The rank within the node before MPI starts, from the launcher alone: nothing is started for it, and it stays."""

from __future__ import annotations

import pytest

from launch import find_mpi, launch

pytestmark = pytest.mark.untraced

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
