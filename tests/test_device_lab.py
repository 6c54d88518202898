"""lab/device.py measures GPUs: here it runs on the pretended one, and says that there is none."""

from __future__ import annotations

import doctest
import importlib.util
import json
from pathlib import Path

import pytest

import cards
import device
import device_cases
import device_report
from devices.compiled import no_compiler
from launch import Completed, launch

TESTS = Path(__file__).parent
LAB = TESTS.parent / "lab"
DOCS = TESTS.parent / "docs"
PROGRAM = LAB / "device.py"
NAME = "the-pretended-device-2-ranks"

PRETENDED = f"""
import sys
sys.path[:0] = [{str(LAB)!r}, {str(TESTS)!r}]
import pytest
import mpiring
from devices import deferred, numerics
monkeypatch = pytest.MonkeyPatch()
cupy = deferred.install(monkeypatch, deferred.eager)
numerics.add(cupy, monkeypatch)
sys.argv = ["lab/device.py", "--sizes", "1Ki", "70Ki", "--rounds", "2", *OPTIONS]
"""

# NCCL by way of the MPI, with the face that CuPy gives it; and a card for each rank.
MADE_UP_NCCL = """
import types
import numpy as np
from devices.machine import present
mpiring.choose_device = lambda: str(mpiring.local_rank())
class Communicator:
    def __init__(self, size, unique, rank):
        from mpi4py import MPI
        self.comm = MPI.COMM_WORLD
        assert (unique, size, rank) == ("an id", self.comm.size, self.comm.rank)
    def allReduce(self, sent, got, count, kind, op, stream):
        assert op == "sum" and stream == cupy.cuda.get_current_stream().ptr
        def memory(ptr):
            block = present().block_at(ptr)
            start = ptr - block.ptr
            return block.raw[start : start + count * kind.itemsize].view(kind)
        total = np.empty(count)
        self.comm.Allreduce(memory(sent).astype(float), total)
        memory(got)[...] = total
nccl = sys.modules["cupy.cuda.nccl"] = types.ModuleType("cupy.cuda.nccl")
nccl.available, nccl.NCCL_SUM, nccl.NcclCommunicator = True, "sum", Communicator
nccl.get_unique_id = lambda: "an id"
nccl.NCCL_FLOAT32, nccl.NCCL_FLOAT16 = np.dtype("f4"), np.dtype("f2")
"""

# An MPI that takes device memory, as any takes that of the pretended device.
DIRECT = """
from mpiring.wire.gpu_aware import decision
from mpiring.wire.arrays import cuda_driver
from mpiring.wire.gpu_aware.evidence import Clue
decision.weigh = lambda *facts: (Clue("yes", "it is host memory"),)
cuda_driver.driver = deferred.Driver
"""
RUN = """
import device
sys.exit(device.main())
"""


def on_the_pretended_device(size: int, *options: str, more: str = "") -> Completed:
    source = PRETENDED.replace("OPTIONS", repr(options)) + more + RUN
    return launch(size, ["-c", source], timeout=120)


needs_a_compiler = pytest.mark.skipif(no_compiler() != "", reason=no_compiler())


@needs_a_compiler
def test_it_measures_and_writes(tmp_path):
    job = on_the_pretended_device(2, "--out", str(tmp_path / "new")).check()
    found = json.loads((tmp_path / "new" / f"{NAME}.json").read_text())
    machine, rows = found["machine"], found["rows"]
    text = "\n".join(device_report.lines(machine, rows))
    assert text in job.stdout
    title = "# All-reduces on the pretended device, 2 ranks"
    assert (tmp_path / "new" / f"{NAME}.md").read_text() == f"{title}\n\n{text}\n"
    assert machine["cards"] == 1 and machine["transport"] == "staged"
    assert "2 ranks sharing on 1 host" in text and "No element was wrong." in text
    assert "Not measured: NCCL: it refuses ranks that share a GPU" in text
    assert f"Not measured: {device_cases.DIRECT}: " in text
    measured = {(row["way"], row["dtype"], row["in_place"]) for row in rows}
    for dtype in device_cases.EXACT:
        for way in (device_cases.STAGED, device_cases.HOST):
            assert {(way, dtype, False), (way, dtype, True)} <= measured
        for way in (device_cases.D2D, device_cases.D2H, device_cases.H2D):
            assert (way, dtype, False) in measured
    assert (device_cases.MPI_THROUGH_HOST, "float32", True) in measured
    for row in rows:
        assert row["wrong"] == 0 and all(t > 0 for t in row["seconds"])
        assert len(row["seconds"]) == 2 * device.MOST_CALLS


@pytest.mark.gpu
def test_it_measures_a_card(tmp_path):
    if problem := cards.ask().problem:
        pytest.skip(problem)
    options = ["--sizes", "64Ki", "4Mi", "--rounds", "2", "--out", tmp_path]
    job = launch(2, [PROGRAM, *options], timeout=240).check()
    assert "No element was wrong." in job.stdout
    assert f"| {device_cases.STAGED}" in job.stdout
    (figures,) = tmp_path.glob("*-2-ranks.json")
    machine = json.loads(figures.read_text())["machine"]
    assert "0.0" not in machine.values() and machine["card"] and machine["why"]


@pytest.mark.slow
@needs_a_compiler
def test_it_measures_direct_where_the_mpi_can():
    options = ["--dtypes", "float32", "--rounds", "1"]
    job = on_the_pretended_device(3, *options, more=DIRECT).check()
    assert "Device memory travels direct: it is host memory." in job.stdout
    assert f"| {device_cases.DIRECT}" in job.stdout
    assert f"| {device_cases.STAGED}" in job.stdout
    assert "No element was wrong." in job.stdout


@pytest.mark.slow
@needs_a_compiler
def test_it_measures_nccl_where_each_rank_has_a_card():
    options = ["--dtypes", "float32", "float16", "--rounds", "1"]
    job = on_the_pretended_device(2, *options, more=MADE_UP_NCCL).check()
    assert "2 ranks a GPU each on 1 host" in job.stdout
    assert job.stdout.count("| NCCL ") == 4
    assert "Not measured: NCCL" not in job.stdout


@pytest.mark.slow
@needs_a_compiler
def test_a_wrong_result_is_counted_and_ends_with_status_1():
    tampered = """
allreduce = mpiring.Ring.allreduce
def wrong(self, x, op="sum", *, out=None, **more):
    result = allreduce(self, x, op, out=out, **more)
    if self.rank == 1 and x is out and hasattr(out, "data") and len(out) > 17:
        out[17] = 3
    return result
mpiring.Ring.allreduce = wrong
"""
    options = ["--dtypes", "float32", "--rounds", "1"]
    job = on_the_pretended_device(2, *options, more=tampered)
    assert job.returncode == 1
    # In place, 2 ways and 2 sizes, 2 rounds of 8 calls, on one rank.
    assert "64 elements were wrong." in job.stdout


def test_without_a_gpu_it_says_so_once():
    job = launch(2, [PROGRAM], env={"CUDA_VISIBLE_DEVICES": ""})
    assert job.returncode == 2
    why = "no NVIDIA driver here"
    if importlib.util.find_spec("cupy") is None:
        why = "CuPy is not installed"
    assert job.stderr.count(f"lab/device.py: {why}") == 1


@pytest.mark.slow
def test_help_and_complaints_come_once():
    job = launch(2, [PROGRAM, "--help"]).check()
    assert job.stdout.count("usage:") == 1
    for option in ("--sizes", "--dtypes", "--rounds", "--out"):
        assert option in job.stdout
    job = launch(2, [PROGRAM, "--rounds", "0"])
    assert job.returncode == 2 and job.stderr.count("must be 1 or more, got 0") == 1


def test_the_drivers_version(tmp_path):
    path = tmp_path / "version"
    assert device.driver_version(path) == "unknown"
    path.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\n"
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2)\n"
    )
    assert device.driver_version(path) == "580.82.07"


def test_figures_in_docs_are_those_of_their_json_and_in_the_table():
    """As long as there are none, the page says that nothing has run on a GPU."""
    page = (DOCS / "gpu.md").read_text()
    figures = sorted((DOCS / "gpu").glob("*.json"))
    for path in figures:
        found = json.loads(path.read_text())
        text = "\n".join(device_report.lines(found["machine"], found["rows"]))
        assert path.with_suffix(".md").read_text().endswith(f"\n\n{text}\n")
        assert f"gpu/{path.stem}.md)" in page
    assert ("Nothing of this has run on a GPU yet" in page) == (not figures)
    assert ("| none yet |" in page) == (not figures)


@pytest.mark.parametrize("module", [device, device_report])
def test_doctests(module):
    failed, tried = doctest.testmod(module)
    assert failed == 0 and tried > 0
