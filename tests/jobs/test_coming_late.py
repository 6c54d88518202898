"""B51: ranks that give up, and leave with messages under way; and calls when MPI has been finalised (B54).

What a rank that has given up has posted, MPI may still fill when the rank has come to the end of its program: mpi4py
finalises MPI after the interpreter has cleared its modules.  The job ends without a crash only if the memory is there
until then.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from launch import launch

# The ranks but one make calls and give up; when they are at the end of the program the last one makes the same calls,
# and really sends: nobody has to take part in more than the opening exchange, if that, before it does.
LATE = """
import itertools, sys
import numpy as np
from mpi4py import MPI
import mpiring
from mpiring.wire.ring import status

status.GRACE_SECONDS = 0.02  # for answers, of which there are none
comm = MPI.COMM_WORLD
late = comm.rank == 1
counts, algorithms, checks = (1, 40_000, 1 << 20), {algorithms}, (False, True)
everything = list(itertools.product(counts, algorithms, checks))
rings = [mpiring.Ring(comm, check=check) for _, _, check in everything]
told = comm.Dup()

def calls():
    for ring, (count, algorithm, check) in zip(rings, everything):
        x = np.full(count, 8.0**comm.rank)
        try:
            ring.allreduce(x, algorithm=algorithm, timeout=0.02)
        except mpiring.RingTimeout:
            yield 1
        else:
            yield 0

if late:
    for rank in (0, 2):
        told.recv(source=rank)
    print("late", sum(calls()))
else:
    print("gave up", sum(calls()), "of", len(everything))
    told.send("at the end", 1)
"""

# The same with calls that are interrupted, and rings that are dropped while they are under way.
DROPPED = """
import sys
import numpy as np
from mpi4py import MPI
import mpiring

comm = MPI.COMM_WORLD
told = comm.Dup()
rings = [mpiring.Ring(comm, check=False) for _ in range(3)]
x = [np.full(count, 8.0**comm.rank) for count in (1, 40_000, 1 << 20)]
if comm.rank == 1:
    for rank in (0, 2):
        told.recv(source=rank)
    for ring, each in zip(rings, x):
        ring.allreduce(each, algorithm="ring", async_op=True).test()
else:
    for place, each in enumerate(x):
        if comm.rank == 0:  # dropped
            rings[place].allreduce(each, algorithm="ring", async_op=True).test()
            rings[place] = None
        else:  # interrupted
            def trace(frame, event, arg):
                if frame.f_code.co_name == "_wait":
                    raise KeyboardInterrupt
                return None
            sys.settrace(trace)
            try:
                rings[place].allreduce(each, algorithm="ring")
            except KeyboardInterrupt:
                print("interrupted")
            sys.settrace(None)
    del x, each
    told.send("at the end", 1)
"""


@pytest.mark.smoke
def test_b51_the_others_have_given_up_and_left():
    job = launch(3, ["-c", LATE.format(algorithms=("ring", "auto"))]).check()
    assert job.stdout.count("gave up 12 of 12") == 2, str(job)
    assert "late" in job.stdout


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ring", "direct", "auto"])
def test_b51_again_and_again(algorithm):
    for _ in range(2):
        launch(3, ["-c", LATE.format(algorithms=(algorithm,))]).check()


@pytest.mark.smoke
def test_b51_calls_that_were_interrupted_and_rings_that_were_dropped():
    job = launch(3, ["-c", DROPPED]).check()
    assert job.stdout.count("interrupted") == 3, str(job)


def test_b54_a_call_when_mpi_has_been_finalised():
    program = """
from mpi4py import MPI
import numpy as np, mpiring
ring, other = mpiring.Ring(), mpiring.Ring()
work = ring.allreduce(np.ones(3), async_op=True)
MPI.Finalize()
for call in (
    lambda: ring.allreduce(1), ring.barrier, lambda: ring.send(1, 0), lambda: ring.empty(3), mpiring.Ring,
    lambda: mpiring.average_gradients([1.0], ring),
):
    try:
        call()
    except mpiring.RingError as error:
        assert "MPI has been finalised" in str(error), error
    else:
        raise AssertionError("no error")
assert work.wait().tolist() == [1, 1, 1]  # it was done
ring.close()
print("closed")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr
