"""Whole jobs that end well: promise 7 at the end of a process, and B15 with other hashes on each rank."""

from __future__ import annotations

import pytest

from launch import launch

# What a rank may leave behind when it ends, each in every way that rings end.
ENDINGS = {
    "a ring is alive": "ring = mpiring.Ring()\nring.allreduce(1)",
    "rings are closed": "with mpiring.Ring() as ring: ring.allreduce(1)",
    "rings are dropped": "for _ in range(9): mpiring.Ring().allreduce(1)",
    "in a cycle": "ring = mpiring.Ring(); ring.itself = ring; ring.barrier(); del ring",
    "in a module": "import builtins; builtins.ring = mpiring.Ring(); builtins.ring.barrier()",
    "of other communicators": """
from mpi4py import MPI
half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
a = mpiring.Ring(half)
b = mpiring.Ring(MPI.COMM_SELF)
a.barrier(), b.barrier()
""",
    "of a freed communicator": """
from mpi4py import MPI
twin = MPI.COMM_WORLD.Dup()
ring = mpiring.Ring(twin)
twin.Free()
ring.barrier()
""",
    "raised inside with": """
try:
    with mpiring.Ring() as ring:
        ring.barrier()
        raise KeyError
except KeyError: pass
""",
    "a work is left": "ring = mpiring.Ring(); work = ring.allreduce(1, async_op=True); ring.barrier()",
}

FINALISED = {
    "finalised by the user": """
from mpi4py import MPI
ring = mpiring.Ring()
other = mpiring.Ring()
ring.barrier()
del other
MPI.Finalize()
ring.close()
del ring
import gc; gc.collect()
""",
    "dropped after finalise": """
from mpi4py import MPI
ring = mpiring.Ring()
ring.itself = ring
ring.barrier()
MPI.Finalize()
del ring
import gc; gc.collect()
""",
}


def ends_silently(size: int, code: str) -> None:
    warnings = {"PYTHONWARNINGS": "error"}
    job = launch(size, ["-c", f"import mpiring\n{code}"], env=warnings).check()
    assert (job.stdout, job.stderr) == ("", ""), str(job)


@pytest.mark.parametrize("ending", ["a ring is alive", "in a module", *FINALISED])
def test_one_ending_alone(ending):
    ends_silently(2, {**ENDINGS, **FINALISED}[ending])


@pytest.mark.smoke
def test_all_endings_in_one_job():
    ends_silently(3, "\n".join(ENDINGS.values()))


def test_a_job_that_prints_at_the_end_is_seen():
    code = "import atexit; atexit.register(print, 'last words')"
    assert launch(2, ["-c", code]).check().stdout.split() == ["last", "words"] * 2


@pytest.mark.smoke
def test_b15_names_pair_whatever_order_they_come_in():
    """Each rank has another hash seed, and its names come out of a set."""
    code = """
import os, sys
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
if "PYTHONHASHSEED" not in os.environ:
    sys.exit("no hash seed")
import numpy as np, mpiring
names = {f"layer-{i}" for i in range(40)}
grads = {name: np.full(5, (rank + 1.0) * int(name[6:])) for name in names}
ring = mpiring.Ring()
averaged = mpiring.average_gradients(grads, ring, bucket_bytes=100)
assert list(averaged) == list(grads)
for name, value in averaged.items():
    assert (value == 1.5 * int(name[6:])).all(), (name, value)
orders = MPI.COMM_WORLD.allgather(list(names))
print("orders differ" if orders[0] != orders[1] else "orders agree")
"""
    # Each rank becomes a new interpreter with a seed of its own, before any of them starts MPI.
    rank_of = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
    outer = f"""
import os, sys
rank = next(os.environ[name] for name in {rank_of} if name in os.environ)
os.environ["PYTHONHASHSEED"] = str(int(rank) + 1)
os.execv(sys.executable, [sys.executable, "-m", "mpi4py", "-c", {code!r}])
"""
    job = launch(2, ["-c", outer], module=False).check()
    assert job.stdout.split("\n")[:2] == ["orders differ"] * 2, str(job)
