"""``ring.empty`` in whole jobs: whatever ends them, nothing is left in /dev/shm, and nothing is printed on the way."""

from __future__ import annotations

import ctypes
import os
import tempfile

import pytest

from launch import Completed, launch, wait_until

ENTER = """
import os, random, signal, sys
import numpy as np, mpiring
from mpiring.wire.node import shared, unnamed
from mpiring.wire.opening import agree
unnamed.DIRECTORY = {directory!r}
ring = mpiring.Ring(timeout=20)
"""


def ended(code: str) -> Completed:
    """Run a job that has to end by itself, not well, and before it goes on."""
    job = launch(3, ["-c", code])
    assert job.returncode != 0 and "went on" not in job.stdout, str(job)
    return job


@pytest.fixture
def directory(tmp_path):
    """A file system in memory for the files of one job, of 16 MiB; where we may not mount one, a place in /dev/shm."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = os.fsencode(tmp_path)
    if libc.mount(b"tmpfs", path, b"tmpfs", 0, b"size=16m") == 0:
        yield os.fspath(tmp_path)
        libc.umount2(path, 2)
    else:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
            yield place


def used(directory: str) -> int:
    """Bytes that are taken there, if nobody else takes any."""
    state = os.statvfs(directory)
    is_own = os.path.ismount(directory)
    return (state.f_blocks - state.f_bfree) * state.f_frsize if is_own else 0


def nothing_is_left(directory: str) -> None:
    """No name at any time; and no bytes, once the kernel has done with the last process, which may be just ending."""
    assert os.listdir(directory) == []
    wait_until(lambda: used(directory) == 0)


@pytest.mark.smoke
def test_nothing_is_printed_and_nothing_is_left(directory):
    code = """
x = ring.empty((1000, 1000))
x[...] = 8**ring.rank
ring.allreduce(x, out=x, algorithm="shared")
assert (x == 0o111).all()
y = ring.empty(5)  # not dropped before the end
"""
    job = launch(3, ["-c", ENTER.format(directory=directory) + code]).check()
    assert job.stderr == "" and job.stdout == "", str(job)
    nothing_is_left(directory)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "end",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "raise ValueError('boom-41')",
        "os._exit(3)",
    ],
)
def test_a_rank_that_dies_right_after_leaves_no_file(directory, end):
    code = f"""
x = ring.empty(1 << 20)
x[...] = 1
if ring.rank == 0:  # which made the file first
    {end}
ring.allreduce(x, out=x)
print("went on")
"""
    ended(ENTER.format(directory=directory) + code)
    nothing_is_left(directory)


def test_a_rank_that_dies_in_the_middle_is_not_waited_for(directory):
    """Killed between the opening and the closing exchange."""
    code = """
from mpiring.wire.opening import closing
x = ring.empty(1 << 20)
if ring.rank == 1:
    closing.Closing.exchange = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
ring.allreduce(x, out=x)
print("went on")
"""
    ended(ENTER.format(directory=directory) + code)
    nothing_is_left(directory)


@pytest.mark.parametrize(
    "end", ["os.kill(os.getpid(), signal.SIGKILL)", "comm.Abort(3)"]
)
def test_b52_a_job_that_ends_while_memory_is_made(directory, end):
    """Rank 0 has made the file and has heard that all have it, and the others have taken their memory."""
    code = f"""
from mpi4py import MPI
comm, created, exchanges_since = MPI.COMM_WORLD, shared._created, []
reserve, exchange = os.posix_fallocate, agree.Opening.exchange
def noted(made):
    exchanges_since.append(0)
    return created(made)
def reserved(*place):
    reserve(*place)
    comm.send("reserved", 0)
def counted(*how):
    heard = yield from exchange(*how)
    exchanges_since[:] = [count + 1 for count in exchanges_since]
    if exchanges_since == [2]:
        assert [comm.recv() for _ in range(2)] == ["reserved"] * 2
        {end}
    return heard
if ring.rank == 0:
    shared._created, agree.Opening.exchange = noted, counted
else:
    os.posix_fallocate = reserved
work = ring.allreduce(np.ones(100_000), async_op=True)
while ring.rank == 0 and not work.test():
    pass
work.wait()
print("went on")
"""
    ended(ENTER.format(directory=directory) + code)
    nothing_is_left(directory)


# Each is a job of its own, which takes seconds; HYPOTHESIS_PROFILE=explore has a hundred.
KILLS = 100 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 20


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, KILLS), marks=pytest.mark.slow)]
)
def test_b52_kills_at_any_moment(directory, seeds):
    code = """
moment = random.Random({seed})
while True:
    x = ring.empty(100_000)
    if not moment.randrange(40) and moment.randrange(3) == ring.rank:
        signal.setitimer(signal.ITIMER_REAL, moment.uniform(1e-6, 1e-3))  # which kills
"""
    for seed in seeds:
        ended(ENTER.format(directory=directory) + code.format(seed=seed))
        nothing_is_left(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="to mount a small /dev/shm takes root")
def test_a_small_dev_shm(directory):
    """Really too small: every rank has a MemoryError, nobody dies of SIGBUS, and what fits still works."""
    if not os.path.ismount(directory):
        pytest.skip("cannot mount here, though root")
    code = """
try:
    ring.empty(8 << 20)
except MemoryError as error:
    assert "32.0 MiB of node-shared memory for each of the node's 3 ranks" in str(error), error
    assert "free of 16.0 MiB" in str(error), error
else:
    raise AssertionError("it fits")
x = ring.empty(1 << 20)
x[...] = 8**ring.rank
ring.allreduce(x, out=x, algorithm="shared")
assert (x == 0o111).all()
"""
    launch(3, ["-c", ENTER.format(directory=directory) + code]).check()
    nothing_is_left(directory)
