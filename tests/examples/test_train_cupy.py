"""The training on GPUs, run as users run it: without one it says so, and on a pretended one it trains the same."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import cards
from devices.compiled import no_compiler
from launch import launch

pytestmark = pytest.mark.untraced

EXAMPLES = Path(__file__).parents[2] / "examples"
TESTS = Path(__file__).parents[1]
PROGRAM = EXAMPLES / "train_cupy.py"

PRETENDED = f"""
import sys
sys.path[:0] = [{str(EXAMPLES)!r}, {str(TESTS)!r}]
import pytest
import mpiring
from devices import deferred, numerics
monkeypatch = pytest.MonkeyPatch()
cupy = deferred.install(monkeypatch)
mpiring.choose_device = lambda: str(mpiring.local_rank() % 2)
numerics.add(cupy, monkeypatch)
import train_cupy
train_cupy.train_digits.SPEED_RUNS = train_cupy.train_digits.SPEED_STEPS = 1
sys.argv = ["train_cupy.py", "--epochs", "1", "--batch", "480", "--plot", PLOT]
"""


def table(stdout: str) -> dict[str, tuple[str, str]]:
    """The rows of the closing table: name -> (value, remark)."""
    rows = [re.split(r" {2,}", line, maxsplit=2) for line in stdout.splitlines()]
    return {row[0]: (row[1], row[-1]) for row in rows if len(row) > 1}


def on_the_pretended_device(size, tmp_path, more=""):
    prepared = PRETENDED.replace("PLOT", repr(str(tmp_path / "loss.png")))
    run = f"{prepared}{more}\nsys.exit(train_cupy.main())"
    return launch(size, ["-c", run], timeout=180)


def test_without_a_gpu_it_says_so_once_and_trains_on_the_cpu(tmp_path):
    options = ["--epochs", "1", "--plot", tmp_path / "loss.png"]
    env = {"CUDA_VISIBLE_DEVICES": ""}
    job = launch(2, [PROGRAM, *options], timeout=120, env=env).check()
    why = "there is no GPU here"
    if importlib.util.find_spec("cupy") is None:
        why = "CuPy is not installed here"
    assert job.stdout.count(why) == 1
    assert job.stdout.count("so NumPy trains on the CPU\n") == 1
    rows = table(job.stdout)
    assert rows["same bits"][0] == "2 of 2"
    assert float(rows["largest difference"][0]) < 1e-13
    assert "device memory" not in rows


@pytest.mark.skipif(no_compiler() != "", reason=no_compiler())
def test_on_the_pretended_device_it_trains_the_model_of_one_process(tmp_path):
    job = on_the_pretended_device(3, tmp_path).check()
    assert "CuPy trains on the pretended device\n" in job.stdout
    assert "3 ranks on 2 GPUs" in job.stdout
    rows = table(job.stdout)
    assert rows["same bits"][0] == "3 of 3"
    assert 0 < float(rows["largest difference"][0]) < 1e-13
    assert rows["device memory"][0] == "staged"
    assert rows["images/s, 3 ranks"][1].endswith("they take turns on 2 GPUs")


@pytest.mark.skipif(no_compiler() != "", reason=no_compiler())
def test_one_rank_without_a_gpu_is_told_and_all_train_on_the_cpu(tmp_path):
    refuse = """
from mpi4py import MPI
def none():
    raise cupy.cuda.runtime.CUDARuntimeError("cudaErrorNoDevice")
if MPI.COMM_WORLD.rank == 1:
    cupy.cuda.runtime.getDeviceCount = none
"""
    job = on_the_pretended_device(2, tmp_path, refuse).check()
    told = "there is no GPU here (cudaErrorNoDevice) for rank 1, so NumPy trains on the CPU"
    assert job.stdout.count(told) == 1
    assert table(job.stdout)["same bits"][0] == "2 of 2"


@pytest.mark.gpu
def test_on_a_card_it_trains_the_model_of_one_process(tmp_path):
    if problem := cards.ask().problem:
        pytest.skip(problem)
    job = launch(3, [PROGRAM, "--plot", tmp_path / "loss.png"], timeout=180).check()
    rows = table(job.stdout)
    assert "CuPy trains on " in job.stdout
    assert float(rows["test accuracy"][0]) >= 0.95
    assert rows["same bits"][0] == "3 of 3"
    assert 0 < float(rows["largest difference"][0]) < 1e-9
    assert rows["device memory"][0] in ("direct", "staged")


def test_help_comes_once():
    job = launch(2, [PROGRAM, "--help"]).check()
    assert job.stdout.count("usage:") == 1 and "train_cupy.py" in job.stdout
    for option in ("--epochs", "--batch", "--seed", "--plot"):
        assert option in job.stdout
