"""``ring.empty`` in whole jobs: whatever ends them, nothing is left in /dev/shm, and nothing is printed on the way."""

from __future__ import annotations

import ctypes
import os
import uuid

import pytest

from launch import Completed, launch

pytestmark = pytest.mark.untraced

ENTER = """
import os, signal, sys
import numpy as np, mpiring
from mpiring.wire import shared
shared._PREFIX = {prefix!r}
ring = mpiring.Ring(timeout=20)
"""


def ended(code: str) -> Completed:
    """Run a job that has to end by itself, not well, and before it goes on."""
    job = launch(3, ["-c", code])
    assert job.returncode != 0 and "went on" not in job.stdout, str(job)
    return job


@pytest.fixture
def prefix():
    """A name for the files of one job; what is left of them is found, and taken away."""
    prefix = f"mpiring-test-{uuid.uuid4().hex}-"
    yield prefix
    for name in left(prefix):
        os.unlink(f"/dev/shm/{name}")


def left(prefix):
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


@pytest.mark.smoke
def test_nothing_is_printed_and_nothing_is_left(prefix):
    code = """
x = ring.empty((1000, 1000))
x[...] = 8**ring.rank
ring.allreduce(x, out=x, algorithm="shared")
assert (x == 0o111).all()
y = ring.empty(5)  # not dropped before the end
"""
    job = launch(3, ["-c", ENTER.format(prefix=prefix) + code]).check()
    assert job.stderr == "" and job.stdout == "", str(job)
    assert left(prefix) == []


@pytest.mark.smoke
@pytest.mark.parametrize(
    "end",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "raise ValueError('boom-41')",
        "os._exit(3)",
    ],
)
def test_a_rank_that_dies_right_after_leaves_no_file(prefix, end):
    code = f"""
x = ring.empty(1 << 20)
x[...] = 1
if ring.rank == 0:  # which made the file
    {end}
ring.allreduce(x, out=x)
print("went on")
"""
    ended(ENTER.format(prefix=prefix) + code)
    assert left(prefix) == []


def test_a_rank_that_dies_in_the_middle_is_not_waited_for(prefix):
    """Killed between the opening and the closing exchange."""
    code = """
from mpiring.wire import fused
x = ring.empty(1 << 20)
if ring.rank == 1:
    fused.Closing.exchange = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
ring.allreduce(x, out=x)
print("went on")
"""
    ended(ENTER.format(prefix=prefix) + code)
    assert left(prefix) == []


def test_while_the_file_has_a_name_it_is_empty(prefix):
    """A rank dies in the only moment in which there is a name: after it was told, before all have opened the file."""
    code = """
if ring.rank == 1:
    shared.Backing.attach = lambda identity: sys.exit("boom-42")
ring.empty(100 << 20)
print("went on")
"""
    job = ended(ENTER.format(prefix=prefix) + code)
    assert "boom-42" in job.stderr
    assert all(os.path.getsize(f"/dev/shm/{name}") == 0 for name in left(prefix))


@pytest.fixture
def small(tmp_path):
    """A file system in memory, of 16 MiB."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = os.fsencode(tmp_path)
    if libc.mount(b"tmpfs", path, b"tmpfs", 0, b"size=16m") != 0:
        pytest.skip(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    yield tmp_path
    libc.umount2(path, 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="to mount a small /dev/shm takes root")
def test_a_small_dev_shm(small, prefix):
    """Really too small: every rank has a MemoryError, nobody dies of SIGBUS, and what fits still works."""
    code = f"""
shared.DIRECTORY = {os.fspath(small)!r}
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
    launch(3, ["-c", ENTER.format(prefix=prefix) + code]).check()
    assert list(small.iterdir()) == []
