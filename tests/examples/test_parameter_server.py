"""The parameter server's example, run as users run it: three models that are good, two that are the same."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

from launch import launch

pytestmark = pytest.mark.untraced

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = EXAMPLES / "parameter_server.py"
N = 8 * (64 * 512 + 512 + 512 * 10 + 10)  # bytes of parameters


def table(stdout: str) -> dict[str, tuple[str, str]]:
    """The rows of the closing table: name -> (value, remark)."""
    rows = [re.split(r" {2,}", line, maxsplit=2) for line in stdout.splitlines()]
    return {row[0]: (row[1], row[-1]) for row in rows if len(row) > 1}


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_three_trainings(size):
    job = launch(size, [PROGRAM], timeout=180).check()
    rows = table(job.stdout)
    for name in ("all-reduce", "server, sync", "server, async"):
        assert float(rows[f"test accuracy, {name}"][0]) >= 0.93
        assert float(rows[f"seconds a step, {name}"][0]) > 0
    # 120 steps: a few hundred roundings of 1.1e-16 of parameters up to about 1.
    off = re.search(r"off by (\S+): rounding", rows["test accuracy, server, sync"][1])
    assert off and float(off[1]) < 1e-13
    nbytes = {
        name: int(rows[f"bytes a step, {name}"][0].replace(",", ""))
        for name in ("all-reduce", "server, sync", "server, async")
    }
    assert abs(nbytes["all-reduce"] - 2 * (size - 1) / size * N) < 8 * 2 * size
    assert nbytes["server, sync"] == 2 * N
    assert nbytes["server, async"] == 2 * (size - 1) * N
    assert "360/360" in job.stderr


@pytest.mark.slow
def test_shards_of_no_image():
    # The last batch of an epoch has 1437 % 359 = 1 image: one of two workers has none.
    job = launch(3, [PROGRAM, "--epochs", "1", "--batch", "359"], timeout=180).check()
    assert "rounding" in table(job.stdout)["test accuracy, server, sync"][1]


@pytest.mark.slow
def test_a_wrong_weight_is_found(tmp_path):
    """The program compares: with a mistake in it, it ends with status 1."""
    source = PROGRAM.read_text()
    right = "weight = min(1, len(batch) / 256) / len(batch)"
    assert source.count(right) == 1
    mistaken = tmp_path / "mistaken.py"
    mistaken.write_text(source.replace(right, "weight = 1 / len(batch)"))
    job = launch(
        3,
        [mistaken, "--epochs", "1"],
        timeout=180,
        env={"PYTHONPATH": f"{EXAMPLES}:{EXAMPLES.parent}"},
    )
    assert job.returncode == 1
    assert "another path" in table(job.stdout)["test accuracy, server, sync"][1]


def test_one_rank_is_told_what_it_needs():
    job = launch(1, [PROGRAM])
    assert job.returncode == 1
    assert "needs 2 ranks or more" in job.stderr


def test_help_comes_once():
    job = launch(2, [PROGRAM, "--help"]).check()
    assert job.stdout.count("usage:") == 1
    for option in ("--epochs", "--batch", "--seed"):
        assert option in job.stdout


def test_the_bytes_it_counts(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    failed, tried = doctest.testmod(import_module("parameter_server"))
    assert (failed, tried) == (0, 4)
