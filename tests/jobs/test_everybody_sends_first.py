"""B03 with the MPI's eager limit forced down: then even small sends wait for their receive.

Open MPI has such a limit between the processes of a machine.  MPICH and Intel MPI take messages of any length
at once that fit into their buffers there, whatever their variables say; for them B03's large messages in
``tests/ranks/test_messages.py`` are the test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from launch import find_mpi, launch

RANKS = Path(__file__).parents[1] / "ranks"
NO_EAGER = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl_sm_eager_limit": "128"}

only_open_mpi = pytest.mark.skipif(
    find_mpi().name != "openmpi",
    reason="only Open MPI can be told to send less eagerly",
)


@only_open_mpi
@pytest.mark.parametrize(
    "size", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (3, 4))]
)
def test_b03_without_eager_sends(size):
    files = [RANKS / "test_messages.py", RANKS / "test_parameter_server.py"]
    options = ["-q", "-p", "no:cacheprovider", "-k", "b03 or everybody or b22 or mix"]
    job = launch(size, ["-m", "pytest", *files, *options], timeout=120, env=NO_EAGER)
    assert job.returncode == 0, str(job)
    assert " passed" in job.stdout and " failed" not in job.stdout


@only_open_mpi
@pytest.mark.slow
def test_the_limit_is_forced_down():
    """Everybody sends first, by MPI's own blocking calls: 2000 bytes pass as ever, and hang with the limit."""
    code = """
from mpi4py import MPI
other = 1 - MPI.COMM_WORLD.rank
MPI.COMM_WORLD.Send(bytes(2000), other)
MPI.COMM_WORLD.Recv(bytearray(2000), other)
"""
    launch(2, ["-c", code]).check()
    with pytest.raises(AssertionError, match="still running after 6 s"):
        launch(2, ["-c", code], timeout=6, env=NO_EAGER)
