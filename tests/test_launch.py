"""launch: what it runs, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch import MARK, find_mpi, is_alive, job_processes, launch, wait_until

FINGERPRINT = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
print(oct(comm.allreduce(8**comm.rank)))
"""

# Every rank writes its process id, then waits for a message that nobody sends.
HANG = """
import os, sys
from mpi4py import MPI
open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
MPI.COMM_WORLD.recv(source=MPI.ANY_SOURCE)
"""


@pytest.mark.smoke
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_all_ranks_are_one_job(size):
    job = launch(size, ["-c", FINGERPRINT]).check()
    assert job.stdout.split() == ["0o" + "1" * size] * size


def test_the_mpi_is_the_one_of_this_interpreter():
    mpi = find_mpi()
    assert mpi.name in ("openmpi", "mpich", "impi")
    library = "from mpi4py import MPI; print(MPI.Get_library_version())"
    shown = {"openmpi": "Open MPI", "mpich": "MPICH", "impi": "Intel(R) MPI"}
    assert shown[mpi.name] in launch(1, ["-c", library]).check().stdout


def test_standard_input_is_closed():
    code = "import sys; print(repr(sys.stdin.read()))"
    assert launch(1, ["-c", code]).check().stdout.strip() == "''"


def test_output_and_status_come_back():
    code = "import sys; print('to out'); print('to err', file=sys.stderr); sys.exit(3)"
    job = launch(2, ["-c", code])
    assert job.returncode != 0
    assert "to out" in job.stdout and "to err" in job.stderr
    with pytest.raises(AssertionError, match="expected 0.*(?s:.)*to err"):
        job.check()


def test_the_environment_reaches_the_ranks(monkeypatch):
    monkeypatch.setenv("MPIRING_B", "not for the ranks")
    code = "import os; print(os.environ.get('MPIRING_A'), os.environ.get('MPIRING_B'))"
    job = launch(1, ["-c", code], env={"MPIRING_A": "17", "MPIRING_B": None}).check()
    assert job.stdout.split() == ["17", "None"]


@pytest.mark.smoke
def test_a_hanging_job_is_killed_with_all_its_ranks(tmp_path):
    with pytest.raises(AssertionError, match="still running after 5 s"):
        launch(3, ["-c", HANG, tmp_path], timeout=5)
    ranks = [int(path.name) for path in tmp_path.iterdir()]
    assert len(ranks) == 3
    assert [pid for pid in ranks if is_alive(pid)] == []


@pytest.mark.slow
def test_a_rank_that_ignores_signals_is_killed(tmp_path):
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + HANG
    with pytest.raises(AssertionError, match="still running after 5 s"):
        launch(2, ["-c", code, tmp_path], timeout=5)
    ranks = [int(path.name) for path in tmp_path.iterdir()]
    assert len(ranks) == 2
    assert [pid for pid in ranks if is_alive(pid)] == []


@pytest.mark.slow
def test_an_interrupted_test_leaves_no_rank(tmp_path):
    """pytest, told to stop while a job runs, ends that job."""
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    source = f"from launch import launch\ndef test(): launch(2, ['-c', {HANG!r}, {str(ranks)!r}])\n"
    (tmp_path / "test_waits.py").write_text(source)
    here = Path(__file__).parent
    lab = here.parent / "lab"
    (tmp_path / "conftest.py").write_text((here / "conftest.py").read_text())
    outer = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "-o", f"pythonpath={lab}"]
        + [f"--rootdir={tmp_path}", "-p", "no:cacheprovider", tmp_path],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(list(ranks.iterdir())) == 2)
        outer.send_signal(signal.SIGTERM)
        assert outer.wait(30) != 0
    finally:
        outer.kill()
        outer.wait()
    for path in ranks.iterdir():
        assert not is_alive(int(path.name))


def test_the_search_for_leftovers_finds_one():
    """job_processes sees a process by its mark, also one that left its parent's session."""
    child = subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True); input()"],
        env={**os.environ, MARK: "test-17"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        assert job_processes("test-17") == [child.pid]
    finally:
        child.kill()
        child.communicate()
    assert job_processes("test-17") == []
