"""Two processes that send each other device memory: a pass, and all the ways to fail, with the record of each."""

from __future__ import annotations

import doctest
import json
import os
import re
import uuid
from pathlib import Path

import numpy as np
import pytest

from mpiring.cli import doctor, main
from mpiring.cli.doctor import device_probe, pair
from mpiring.cli.doctor.device_probe import examine, judge_pair, read_line
from mpiring.cli.doctor.finding import Finding
from mpiring.cli.doctor.pair import MARK, SIZES, pattern
from mpiring.cli.doctor.probe import Probe
from mpiring.wire.gpu_aware.loaded import Library
from mpiring.wire.gpu_aware.probe_record import Subject, read_record

from launch import MARK as LAUNCHED
from launch import find_mpi, job_environment, job_processes, wait_until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def probe(monkeypatch, tmp_path):
    """A function: probe with arrays that behave in this way; returns the finding, and leaves no process behind."""

    def run(mode, timeout=60.0, launcher=None):
        mpi = find_mpi()
        for name, value in job_environment(mpi).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv(
            "PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'devices'}"
        )
        monkeypatch.setenv("PROBE_CUPY", mode)
        monkeypatch.setenv("MPIRING_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        mark = uuid.uuid4().hex
        monkeypatch.setenv(LAUNCHED, mark)
        words = launcher or [str(mpi.mpirun), "-n", "2"]
        finding = examine(words, timeout, os.environ, "probe_cupy")
        wait_until(lambda: job_processes(mark) == [])
        return finding

    return run


def records(tmp_path):
    return sorted((tmp_path / "cache").glob("*.json"))


def test_a_pass_is_noted_and_a_failure_forgets_it(probe, tmp_path):
    finding = probe("pass")
    assert finding.status == "ok", finding
    (path,) = records(tmp_path)
    host = os.uname().nodename
    sizes = "8 bytes, 4 KiB, 64 KiB, 1 MiB, 16 MiB"
    assert finding.found.startswith(f"passed: {sizes}, to the byte, between ")
    assert finding.found.endswith(f" of {host}; noted in {path}")
    content = json.loads(path.read_text())
    assert content["arrays"] == "probe_cupy 17" and content["hosts"] == [host]
    assert content["sizes"] == list(SIZES)
    names = ("library", "path", "mtime_ns", "host", "settings")
    subject = Subject(**{name: content[name] for name in names})
    assert read_record(tmp_path / "cache", subject)[0] is True

    finding = probe("wrong")
    assert finding.status == "problem" and "staged" in finding.advice
    told = r"rank 1: \d+ of the 64 KiB received are wrong, byte 0 first"
    assert re.match(told, finding.found), finding.found
    assert records(tmp_path) == []


def test_a_crash_is_no_pass(probe, tmp_path):
    finding = probe("crash")
    assert finding.status == "problem"
    assert "ended with exit code" in finding.found
    assert "rank 1 was sending and receiving 64 KiB" in finding.found
    assert records(tmp_path) == []


@pytest.mark.slow
def test_a_hang_is_ended_and_no_pass(probe, tmp_path):
    finding = probe("hang", timeout=5.0)
    assert finding.status == "problem"
    assert "rank 1 was sending and receiving 64 KiB" in finding.found, finding.found
    assert records(tmp_path) == []


@pytest.mark.parametrize(
    "mode, words",
    [
        ("nothing", "RuntimeError: probe_cupy finds no device"),
        ("raise", "RuntimeError: an illegal memory access was encountered"),
        ("leave", "rank 1 was sending and receiving 64 KiB"),
    ],
)
def test_other_ends_are_no_pass(probe, tmp_path, mode, words):
    finding = probe(mode, timeout=20.0)
    assert finding.status == "problem" and words in finding.found, finding.found
    assert records(tmp_path) == []


def test_a_launcher_that_starts_two_jobs_of_one(probe, tmp_path):
    """What the wrong launcher does: each process is a job of its own."""
    finding = probe("pass", launcher=["env"])
    assert finding.status == "problem" and "a job of 1, not of 2" in finding.found
    assert records(tmp_path) == []


@pytest.mark.parametrize(
    "launcher, words",
    [
        (["/nonexistent/mpirun"], "/nonexistent/mpirun cannot be started"),
        (["false"], "the job ended with exit code 1"),
        (["true"], "the job ended early"),
    ],
)
def test_a_launcher_that_starts_nothing(probe, tmp_path, launcher, words):
    finding = probe("pass", launcher=launcher)
    assert finding.status == "problem" and finding.found.startswith(words)
    assert records(tmp_path) == []


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    passed = judge_pair(written(0, 1), 0, 9)
    monkeypatch.setattr(device_probe, "probe_pair", lambda *_: passed)
    cache = tmp_path / "cache"
    cache.write_text("a file where the directory would be")
    finding = examine(["mpirun"], 9, {"MPIRING_CACHE": str(cache)}, "x")
    assert finding.status == "problem"
    assert finding.found.startswith("no record was kept: ")
    assert "MPIRING_CACHE" in finding.advice


def test_an_mpi_whose_file_is_not_known_leaves_no_record(monkeypatch, tmp_path):
    passed = judge_pair(written(0, 1), 0, 9)
    passed.subjects.clear()
    monkeypatch.setattr(device_probe, "probe_pair", lambda *_: passed)
    finding = examine(["mpirun"], 9, {"MPIRING_CACHE": str(tmp_path)}, "x")
    assert finding.status == "problem" and "passed, but not kept" in finding.found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [True, False])
def test_announcements_go_to_a_file_if_its_directory_is_there(tmp_path, capfd, there):
    directory = tmp_path if there else tmp_path / "of another host"
    announcer = pair.Announcer(str(directory))
    announcer.stage("one")
    announcer.rank = 1
    announcer.say(passed=True)
    want = f"{line(None, stage='one')}\n{line(1, passed=True)}\n"
    files = [path.read_text() for path in tmp_path.iterdir()]
    told = (files, capfd.readouterr().out)
    assert told == (([want], "") if there else ([], want))


# ---- judging what was written -------------------------------------------------------------------------

SUBJECT = {"library": "MPI 7", "path": "/l", "mtime_ns": 1, "host": "a", "settings": ""}


def line(rank, **facts):
    return MARK + json.dumps({"rank": rank, **facts})


def written(*ranks, library="MPI 7", host="a", passed=True):
    lines = [line(None, stage="importing")]
    for rank in ranks:
        subject = {**SUBJECT, "host": host if rank else "a"}
        facts = {"host": subject["host"], "device": str(rank), "arrays": "x"}
        lines.append(
            line(rank, library=library if rank else "MPI 7", subject=subject, **facts)
        )
        lines.append(line(rank, stage="sending"))
        lines += [line(rank, passed=True)] if passed else []
    return "\n".join(lines)


def test_both_have_to_say_that_all_was_well():
    assert judge_pair(written(0, 1), 0, 9).failure == ""
    at = " (rank 0 was sending; rank 1 was sending)"
    assert (
        judge_pair(written(0, 1), 1, 9).failure == f"the job ended with exit code 1{at}"
    )
    assert (
        judge_pair(written(0, 1), -11, 9).failure
        == f"the job ended with exit code -11{at}"
    )
    assert judge_pair(written(0, 1), None, 9).failure == f"no end within 9 s{at}"
    one = " (rank 0 was sending)"
    assert judge_pair(written(0), 0, 9).failure == f"the job ended early{one}"
    assert judge_pair(written(0, 0), 0, 9).failure == f"the job ended early{one}"
    assert (
        judge_pair(written(0, 1, passed=False), 0, 9).failure
        == f"the job ended early{at}"
    )
    early = " (a process was importing)"
    assert judge_pair(written(), 0, 9).failure == f"the job ended early{early}"
    assert judge_pair("", 0, 9).failure == "the job ended early"


def test_a_failure_counts_whatever_else_is_said():
    text = written(0, 1) + "\n" + line(1, failure="it broke")
    assert judge_pair(text, 0, 9).failure == "it broke"


def test_different_mpis_are_no_pass():
    outcome = judge_pair(written(0, 1, library="MPI 8"), 0, 9)
    assert outcome.failure == "the processes have different MPIs: MPI 7, MPI 8"


def test_there_is_a_record_for_each_host(tmp_path):
    environment = {"MPIRING_CACHE": str(tmp_path)}
    for host, count in (("a", 1), ("b", 2)):
        outcome = judge_pair(written(0, 1, host=host), 0, 9)
        assert len(device_probe.keep_record(outcome, environment, "x")) == count
    assert len(list(tmp_path.iterdir())) == 2
    failed = judge_pair(written(0, 1, host="b"), 1, 9)
    assert device_probe.keep_record(failed, environment, "x") == []
    assert list(tmp_path.iterdir()) == []


def test_what_else_was_written_is_kept():
    text = f"warning\n[0] {line(0, stage='s')}\n{MARK}{{cut\n{MARK}7\nbye"
    outcome = judge_pair(text, 0, 9)
    assert outcome.output.splitlines() == [
        "warning",
        "[0] ",
        f"{MARK}{{cut",
        f"{MARK}7",
        "bye",
    ]
    assert outcome.failure == "the job ended early (rank 0 was s)"
    assert read_line("nothing") == ("nothing", None)


# ---- the pattern --------------------------------------------------------------------------------------


def test_doctests():
    outcome = doctest.testmod(pair)
    assert outcome.attempted > 0 and outcome.failed == 0


@pytest.mark.parametrize("nbytes", SIZES[:-1])
def test_the_pattern_tells_origin_place_and_repetition(nbytes):
    mine = pattern(0, nbytes, 0)
    assert mine.dtype == np.uint8 and mine.nbytes == nbytes
    for other in (pattern(1, nbytes, 0), pattern(2, nbytes, 0), pattern(0, nbytes, 1)):
        assert (mine != other).mean() > 0.9
    for shift in (1, 256, 4096, 65536):
        if shift < nbytes:
            assert (mine[shift:] != mine[:-shift]).mean() > 0.9


# ---- the command ----------------------------------------------------------------------------------------


def test_without_a_gpu_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(device_probe, "find_gpus", lambda: [])
    environment = {"MPIRING_CACHE": str(tmp_path)}
    finding = examine(["/nonexistent/mpirun"], 9, environment)
    assert (finding.status, finding.found) == ("problem", "no GPU here: not tried")
    assert list(tmp_path.iterdir()) == []


def test_without_cupy_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(device_probe, "find_gpus", lambda: ["/dev/nvidia0"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    finding = examine(["/nonexistent/mpirun"], 9, {"MPIRING_CACHE": str(tmp_path)})
    assert finding.found == "CuPy is not installed: not tried"
    assert (
        finding.status == "problem"
        and "pip install 'cupy-cuda13x[ctk]', or" in finding.advice
    )
    assert list(tmp_path.iterdir()) == []


def test_the_command_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(device_probe, "find_gpus", lambda: [])
    monkeypatch.setattr(
        doctor, "start_probe", lambda timeout: Probe(failure="not tried")
    )
    monkeypatch.setattr(doctor.launch, "find_launcher", lambda *_: None)
    assert main(["doctor", "--probe-device", "--json"]) == 1
    found = {f["name"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert found["device probe"]["found"] == "no GPU here: not tried"


def test_the_launcher_is_that_of_the_mpi_unless_it_is_named(monkeypatch):
    seen: list[list[str]] = []

    def note(launcher, timeout, environment):
        seen.append(list(launcher))
        return Finding("device probe", "ok", "x", "x")

    monkeypatch.setattr(device_probe, "examine", note)
    monkeypatch.setattr(doctor.launch, "find_launcher", lambda *_: None)
    library = Library("Open MPI v5.0.11", (3, 1), ("/nowhere/lib/libmpi.so.40",))
    monkeypatch.setattr(doctor, "start_probe", lambda timeout: Probe(library=library))
    monkeypatch.setattr(
        doctor.library, "own_launcher", lambda loaded: "/nowhere/bin/mpirun"
    )
    main(["doctor", "--probe-device"])
    main(["doctor", "--probe-device", "--launcher", "srun -n 2 '--mpi=p m'"])
    assert seen == [
        ["/nowhere/bin/mpirun", "-n", "2"],
        ["srun", "-n", "2", "--mpi=p m"],
    ]


def test_options_that_make_no_sense(monkeypatch, capsys):
    assert main(["doctor", "--launcher", "srun"]) == 2
    assert "--probe-device" in capsys.readouterr().err
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert main(["doctor", "--probe-device"]) == 2
    assert "run it alone, not under Open MPI's mpirun" in capsys.readouterr().err
