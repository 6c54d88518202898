"""The whole command: from what was found to the report, alone and under mpirun."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpiring.cli import doctor, main
from mpiring.cli.doctor import launch
from mpiring.cli.doctor.child import NodeFacts, RankFacts
from mpiring.cli.doctor.machine import Cores, SharedMemory
from mpiring.cli.doctor.probe import Probe
from mpiring.wire.gpu_aware.decision import Found
from mpiring.wire.gpu_aware.evidence import Facts
from mpiring.wire.gpu_aware.loaded import Library

from launch import find_mpi, job_environment
from launch import launch as launch_job
from launch import run as run_command

VERSIONS = {"numpy": "2.4.6", "mpi4py": "4.1.2"}
OPEN_MPI = Library(
    "Open MPI v5.0.11, package: x", (3, 1), ("/nowhere/lib/libmpi.so.40",)
)
MPIRUN = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def healthy(size=3):
    """A job of ``size`` ranks on one roomy host."""
    facts = RankFacts(
        "a",
        1,
        OPEN_MPI.name,
        3,
        Cores(tuple(range(8))),
        SharedMemory(1 << 34, 1 << 34),
        [],
        Found("auto", "default", "staged", "it says no"),
    )
    node = NodeFacts(tuple(range(size)), True, "")
    return Probe(
        stage="done",
        library=OPEN_MPI,
        rank=0,
        size=size,
        facts=Facts(OPEN_MPI, (("MPIX_Query_cuda_support", False),)),
        ranks={rank: facts for rank in range(size)},
        nodes={rank: node for rank in range(size)},
    )


def diagnose(probe, environment=None, versions=None):
    environment = {**ROOT, **(MPIRUN if environment is None else environment)}
    environment = {"MPIRING_PROFILE": "none", **environment}
    launcher = launch.find_launcher(environment)
    findings = doctor.diagnose(probe, launcher, versions or VERSIONS, environment)
    return {finding.name: finding for finding in findings}


def problems(findings):
    return {name for name, finding in findings.items() if finding.status == "problem"}


# The wheels of this test's own environment are looked at, and are no part of the case.
@pytest.fixture(autouse=True)
def no_wheels(monkeypatch):
    monkeypatch.setattr("mpiring.cli.doctor.library.find_wheels", lambda: [])


def test_a_healthy_job():
    findings = diagnose(healthy())
    assert problems(findings) == set()
    assert list(findings) == [
        "Python",
        "numpy",
        "mpi4py",
        "MPI library",
        "MPI wheels",
        "launcher",
        "one job",
        "ranks",
        "cores",
        "threads",
        "shared memory",
        "peers' memory",
        "user",
        "GPU",
        "CUDA-aware MPI",
        "device transport",
        "profile",
        "optional",
    ]


def test_every_finding_is_in_the_manual():
    manual = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()
    broken = healthy()
    broken.failure, broken.output = "MPI_Finalize did not return", "words"
    broken.ranks[2] = dataclasses.replace(broken.ranks[2], library="Open MPI 4.1.4")
    names = {*diagnose(broken), *diagnose(healthy(size=1), {})}
    assert "slots" in names
    assert {"one MPI", "MPI at work", "messages", "mpirun on PATH"} < names
    headings = re.findall(r"^\| ([^|]+) \|", manual, re.MULTILINE)
    assert names <= {name for heading in headings for name in heading.split(", ")}


def test_three_jobs_of_one_rank():
    findings = diagnose(healthy(size=1))
    assert problems(findings) == {"one job"}
    assert not {"ranks", "cores", "threads"} & set(
        findings
    )  # of a job that is not the one


def test_a_silent_rank():
    probe = healthy()
    del probe.ranks[1]
    probe.nodes = {}
    assert problems(diagnose(probe)) == {"ranks"}


def test_no_mpi_library():
    probe = Probe(
        stage="importing mpi4py.MPI", failure="RuntimeError: cannot load MPI library"
    )
    findings = diagnose(probe, {})
    assert problems(findings) == {"MPI library"}
    assert "one job" not in findings and "CUDA-aware MPI" not in findings


def test_no_mpi4py():
    findings = diagnose(Probe(), {}, {"numpy": "2", "mpi4py": None})
    assert problems(findings) == {"mpi4py"} and "MPI library" not in findings


def test_an_mpi_that_aborts_at_its_start():
    probe = Probe(
        stage="MPI_Init_thread",
        failure="MPI_Init_thread died",
        output="why",
        library=OPEN_MPI,
    )
    findings = diagnose(probe)
    assert problems(findings) == {"one job"}
    assert findings["messages"].found == "why"


def test_an_mpi_that_fails_at_work():
    probe = healthy()
    probe.failure = "MPI_Finalize did not return within 60 s"
    assert problems(diagnose(probe)) == {"MPI at work"}


def test_different_libraries():
    probe = healthy()
    probe.ranks[2] = dataclasses.replace(probe.ranks[2], library="Open MPI 4.1.4")
    assert problems(diagnose(probe)) == {"one MPI"}


def test_containers():
    probe = healthy()
    probe.nodes[2] = NodeFacts((0, 1, 2), False, "Bad address")
    findings = diagnose(probe)
    assert (
        findings["shared memory"].status == findings["peers' memory"].status == "note"
    )


def test_alone_the_mpirun_on_path_is_looked_at():
    assert "mpirun on PATH" in diagnose(healthy(size=1), {})


@pytest.mark.parametrize(
    "rank, size, launcher_rank, reports",
    [
        (0, 1, None, True),  # alone
        (0, 4, 0, True),
        (3, 4, 3, False),
        (0, 4, 3, True),  # MPI's ranks count
        (0, 1, 0, True),  # jobs of one rank: each believes that it is rank 0
        (0, 1, 3, False),
        (None, None, 0, True),  # MPI did not start
        (None, None, 2, False),
    ],
)
def test_one_rank_reports(rank, size, launcher_rank, reports):
    launcher = None
    if launcher_rank is not None:
        launcher = launch.Launcher("x", "MPICH", launcher_rank, 4, "x")
    assert doctor.is_reporter(launcher, Probe(rank=rank, size=size)) is reports


def test_a_quiet_rank(monkeypatch, capsys):
    launcher = launch.Launcher("x", "MPICH", 2, 4, "x")
    assert doctor.leave_quietly(launcher, healthy()) == 0
    assert capsys.readouterr() == ("", "")
    waited: list[float] = []
    monkeypatch.setattr("mpiring.cli.doctor.time.sleep", waited.append)
    assert doctor.leave_quietly(launcher, Probe(failure="it died")) == 1
    assert capsys.readouterr() == ("", "mpiring doctor: rank 2: it died\n")
    assert waited == [doctor.LINGER]  # rank 0 has the time to report


def stand_in(monkeypatch, probe):
    monkeypatch.setattr("mpiring.cli.doctor.start_probe", lambda timeout: probe)
    for name in (*MPIRUN, *ROOT, "PMI_RANK", "SLURM_STEP_ID", "PALS_RANKID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**MPIRUN, **ROOT}.items():
        monkeypatch.setenv(name, value)


def test_exit_codes_and_page(monkeypatch, capsys):
    stand_in(monkeypatch, healthy())
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "\nok       one job" in out and "\n0 problems" in out
    stand_in(monkeypatch, healthy(size=1))
    assert main(["doctor"]) == 1
    assert "\n1 problem (one job)" in capsys.readouterr().out


def test_json(monkeypatch, capsys):
    stand_in(monkeypatch, healthy(size=1))
    assert main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"mpiring", "findings"}
    found = {finding["name"]: finding for finding in report["findings"]}
    assert set(found["one job"]) == {"name", "status", "found", "how", "advice"}
    assert found["one job"]["status"] == "problem"


def run(size, *words, **options):
    return launch_job(size, ["-m", "mpiring", "doctor", *words], **options)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "size", [1, 3, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 5, 8))]
)
def test_under_mpirun_one_rank_reports_for_all(size):
    job = run(size, "--json")
    assert job.returncode == 0, str(job)
    found = {finding["name"]: finding for finding in json.loads(job.stdout)["findings"]}
    ranks = "1 rank" if size == 1 else f"{size} ranks"
    assert found["one job"]["found"] == f"COMM_WORLD has {ranks}, as the launcher says"
    every = "0" if size == 1 else f"0-{size - 1}"
    assert (
        found["ranks"]["found"] == f"{ranks} on 1 host: {os.uname().nodename}: {every}"
    )
    assert found["shared memory"]["found"].endswith(f"ranks that share a node: {every}")
    crowded = size > len(os.sched_getaffinity(0))
    assert found["cores"]["status"] == "note" or not crowded


@pytest.mark.slow
def test_a_silent_rank_is_named_for_real():
    """Two ranks of the command, and one of a program that starts MPI and then says nothing."""
    mpi = find_mpi()
    python = [
        sys.executable,
        "-c",
        "from mpi4py import MPI; import signal; signal.pause()",
    ]
    command = [sys.executable, "-m", "mpiring", "doctor", "--timeout", "40"]
    job = run_command(
        [str(mpi.mpirun), "-n", "2", *command, ":", "-n", "1", *python],
        timeout=120,
        env=job_environment(mpi),
    )
    assert job.returncode != 0
    assert re.search(r"^problem +ranks +no answer from rank 2\.", job.stdout, re.M)
    assert job.stdout.count("1 problem (ranks)") == 1


@pytest.mark.smoke
def test_jobs_of_one_rank_are_found_for_real():
    """Another MPI's mpirun, as this MPI sees it: it says 3 ranks, and nobody can be reached."""
    theirs = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}
    if find_mpi().name == "openmpi":
        theirs = {"PMI_RANK": "0", "PMI_SIZE": "3", "MPI_LOCALNRANKS": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "mpiring", "doctor"],
        env={**os.environ, **theirs},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "problem  one job" in done.stdout
