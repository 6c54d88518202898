"""Whole jobs in which one rank fails: B12, B13, and promise 6 for those who start jobs otherwise."""

from __future__ import annotations

import time

import pytest

from launch import Completed, launch

SECONDS = 30.0


def ended(size: int, code: str, **how) -> Completed:
    """Run a job that has to end by itself, soon and not well."""
    began = time.monotonic()
    job = launch(size, ["-c", code], **how)
    assert job.returncode != 0, str(job)
    assert time.monotonic() - began < SECONDS, str(job)
    return job


ENTER = """
import sys
import numpy as np, mpiring
ring = mpiring.Ring()
assert ring.allreduce(1) == ring.size
if ring.rank == 1:
    {failure}
ring.allreduce(np.ones(3))
print("went on")
"""


@pytest.mark.smoke
@pytest.mark.parametrize("module", [True, False])
def test_b12_one_rank_throws(module):
    """Started as the README says; and by those who forget ``-m mpi4py``, thanks to the excepthook."""
    job = ended(3, ENTER.format(failure="raise ValueError('boom-17')"), module=module)
    assert "ValueError: boom-17" in job.stderr and "Traceback" in job.stderr
    assert "went on" not in job.stdout


@pytest.mark.smoke
def test_b12_one_rank_exits():
    job = ended(3, ENTER.format(failure="sys.exit(3)"))
    assert "went on" not in job.stdout


def test_b12_inside_with():
    code = """
import mpiring
with mpiring.Ring() as ring:
    ring.allreduce(1)
    work = ring.allreduce(8, async_op=True)
    if ring.rank == 1:
        raise ValueError("boom-18")
    ring.barrier()
    print("went on")
"""
    for module in (True, False):
        job = ended(3, code, module=module)
        assert "boom-18" in job.stderr and "went on" not in job.stdout


def test_b12_a_hook_that_was_there_runs_too():
    code = """
import sys
def hook(kind, error, traceback):
    print("seen", error)
sys.excepthook = hook
import mpiring
ring = mpiring.Ring()
if ring.rank == 1:
    raise ValueError("boom-19")
ring.barrier()
"""
    job = ended(2, code, module=False)
    assert "seen boom-19" in job.stdout


# What a program may have made of its streams and hooks before an exception ends it, on one rank.
STREAMS = {
    "no flush": "type('Tee', (), {'write': lambda self, text: len(text)})()",
    "none": "None",
    "closed": "open(os.devnull, 'w')",  # and closed below
    "broken pipe": "os.fdopen(pipe[1], 'w')",
    "full": "open('/dev/full', 'w')",
}
LAST = """
import os, sys
import mpiring

def hook(kind, error, traceback):
    {hook}

if {hook!r} != "pass":
    sys.excepthook = hook
ring = mpiring.Ring()
ring.barrier()
if ring.rank == 1:
    pipe = os.pipe()
    os.close(pipe[0])
    sys.{stream} = {made}
    {then}
    raise ValueError("boom-37")
ring.barrier()
"""


def ended_by_1(stream="stdout", made="sys.stdout", then="pass", hook="pass") -> None:
    """The job ends though rank 1 leaves that behind, and tells what it died of."""
    code = LAST.format(stream=stream, made=made, then=then, hook=hook)
    job = ended(2, code, module=False, timeout=SECONDS)
    assert "Traceback" in job.stderr and "ValueError: boom-37" in job.stderr, str(job)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(
    "made",
    [
        "no flush",
        *(pytest.param(each, marks=pytest.mark.slow) for each in list(STREAMS)[1:]),
    ],
)
def test_b37_the_job_ends_whatever_the_streams_are(stream, made):
    # Of a tee that goes nowhere only the one for stdout leaves stderr alone.
    text = STREAMS[made] if (stream, made) != ("stderr", "no flush") else "object()"
    then = "print('x', file=sys.{0})" if made in ("broken pipe", "full") else "pass"
    then = "sys.{0}.close()" if made == "closed" else then
    ended_by_1(stream, text, then.format(stream))


@pytest.mark.smoke
def test_b37_the_job_ends_though_an_earlier_hook_exits():
    ended_by_1(hook="sys.exit(0)")


@pytest.mark.slow
def test_b37_the_job_ends_though_an_earlier_hook_raises():
    ended_by_1(hook="raise RuntimeError('of the hook')")


@pytest.mark.slow
def test_b37_an_exception_in_a_thread_ends_the_thread():
    """And not the job: what else a program does in threads is its own affair."""
    code = """
import threading
import mpiring
ring = mpiring.Ring()
def run():
    raise ValueError("boom-38")
if ring.rank == 1:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
assert ring.allreduce(1) == 2
"""
    job = launch(2, ["-c", code], module=False).check()
    assert "ValueError: boom-38" in job.stderr


@pytest.mark.smoke
def test_b13_one_rank_leaves_early():
    code = """
import mpiring
import numpy as np
ring = mpiring.Ring(timeout=5)
for turn in range(5 if ring.rank == 0 else 3):
    mpiring.average_gradients([np.ones(4)], ring)
print("rank", ring.rank, "left")
"""
    job = ended(2, code)
    assert "RingTimeout: average_gradients: rank 0 waited 5 s" in job.stderr, str(job)
    assert "in no call of this ring: rank 1" in job.stderr
    assert "rank 0 left" not in job.stdout


@pytest.mark.slow
def test_b13_one_of_five_leaves_early():
    """Rank 3 is missed by all others, and is not the neighbour of each."""
    code = """
import mpiring
import numpy as np
ring = mpiring.Ring(timeout=5)
for turn in range(3 if ring.rank == 3 else 5):
    mpiring.average_gradients([np.ones(4)], ring)
    ring.broadcast(np.ones(4), root=turn)
print("rank", ring.rank, "left")
"""
    job = ended(5, code)
    assert "RingTimeout: average_gradients: rank " in job.stderr, str(job)
    assert "in no call of this ring: rank 3;" in job.stderr
    assert "rank 3 left" in job.stdout and job.stdout.count("left") == 1


def test_b13_the_others_go_on_with_what_they_know():
    """Who catches the timeout may end in order: nothing hangs on the way out."""
    code = """
import mpiring
ring = mpiring.Ring(timeout=1)
for turn in range(3 if ring.rank == 2 else 5):
    try:
        ring.allreduce(1)
    except mpiring.RingTimeout as error:
        print("rank", ring.rank, "misses", error.silent)
        break
"""
    job = launch(3, ["-c", code], timeout=SECONDS).check()
    lines = sorted(job.stdout.split("\n"))
    assert "rank 0 misses (2,)" in lines and "rank 1 misses (2,)" in lines, str(job)


@pytest.mark.slow
def test_a_job_that_hangs_is_seen_to_hang():
    """``ended`` can fail: without a timeout and a hook the others of B13 wait for ever."""
    code = """
import mpiring
ring = mpiring.Ring()
if ring.rank == 0:
    ring.barrier()
"""
    with pytest.raises(AssertionError, match="still running after 6 s"):
        launch(2, ["-c", code], timeout=6)
