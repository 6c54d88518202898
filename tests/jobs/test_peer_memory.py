"""A rank that dies while the others reach into its memory: an error or the end of the job, never a hang or a crash."""

from __future__ import annotations

import os

import pytest

from launch import launch

ENTER = """
import os, signal, sys
import numpy as np, mpiring
from mpiring.wire.node import peers
ring = mpiring.Ring(timeout=5)
x = np.full(1 << 20, 8.0**ring.rank)
ring.allreduce(x)
if why := ring._session.members[0].ways.peer_memory.why_not:
    print("not here:", why)
    sys.exit()
"""


@pytest.mark.smoke
def test_nothing_is_printed():
    code = "assert (ring.allreduce(x) == 0o111).all()"
    job = launch(3, ["-c", ENTER + code]).check()
    if "not here" in job.stdout:
        pytest.skip(job.stdout)
    assert job.stderr == "" and job.stdout == "", str(job)


@pytest.mark.parametrize(
    "end",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "raise ValueError('boom-51')",
        "os._exit(3)",
    ],
)
def test_a_rank_that_dies_in_the_middle(end):
    """Between the opening and the closing exchange, when the others have its address already."""
    code = f"""
def dies(*_):
    {end}
if ring.rank == 1:
    peers.allreduce = dies
ring.allreduce(x, out=x)
print("went on")
"""
    job = launch(3, ["-c", ENTER + code])
    if "not here" in job.stdout:
        pytest.skip(job.stdout)
    assert job.returncode != 0 and "went on" not in job.stdout, str(job)
    assert "Segmentation fault" not in job.stderr, str(job)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to give up")
def test_b54_a_rank_that_gives_up_its_privileges():
    """The rank lives; the kernel does not let it reach into the others any more."""
    code = """
if ring.rank == 1:
    os.setresuid(65534, 65534, 65534)
    try:
        ring.allreduce(x)
    except mpiring.RingError as error:
        print(error, flush=True)
        sys.exit(3)
ring.allreduce(x)
"""
    job = launch(2, ["-c", ENTER + code])
    if "not here" in job.stdout:
        pytest.skip(job.stdout)
    assert job.returncode != 0, str(job)
    assert "Operation not permitted" in job.stdout, str(job)
    assert "changed its user" in job.stdout and "has ended" not in job.stdout, str(job)
