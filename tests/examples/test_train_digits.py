"""The main job, run as users run it: the model is good, and the same as one process trains."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from launch import launch

pytestmark = pytest.mark.untraced

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = EXAMPLES / "train_digits.py"


def table(stdout: str) -> dict[str, tuple[str, str]]:
    """The rows of the closing table: name -> (value, remark)."""
    rows = [re.split(r" {2,}", line, maxsplit=2) for line in stdout.splitlines()]
    return {row[0]: (row[1], row[-1]) for row in rows if len(row) > 1}


def png_size(path: Path) -> tuple[int, int]:
    """Width and height, after a look at the signature and the first and last chunk."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR"
    assert data[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.mark.parametrize("size", [1, pytest.param(3, marks=pytest.mark.slow), 4])
def test_it_trains_the_model_of_one_process(size, tmp_path):
    picture = tmp_path / "new" / "loss.png"
    job = launch(size, [PROGRAM, "--plot", picture], timeout=180).check()
    rows = table(job.stdout)
    assert float(rows["test accuracy"][0]) >= 0.95
    assert rows["same bits"][0] == f"{size} of {size}"
    difference = float(rows["largest difference"][0])
    if size == 1:
        assert difference == 0 and rows["largest difference"][1].endswith("same bits")
    else:
        # 180 steps, parameters up to about 1: a few hundred roundings of 1.1e-16 at the very most.
        assert 0 < difference < 1e-13
        assert rows["largest difference"][1].endswith(": rounding")
    for ranks in {1, 2, 4, size}:
        name = "images/s, 1 rank" if ranks == 1 else f"images/s, {ranks} ranks"
        assert (name in rows) == (ranks <= size)
        if ranks <= size:
            assert int(rows[name][0].replace(",", "")) > 0
    assert png_size(picture) == (840, 504)
    assert "30/30" in job.stderr and "loss" in job.stderr


@pytest.mark.slow
def test_shards_of_every_length_even_none(tmp_path):
    # The last batch of an epoch has 1437 % 359 = 1 image: two of three ranks have none.
    options = ["--epochs", "2", "--batch", "359", "--plot", tmp_path / "loss.png"]
    job = launch(3, [PROGRAM, *options], timeout=180).check()
    assert float(table(job.stdout)["largest difference"][0]) < 1e-13


@pytest.mark.slow
def test_a_lost_gradient_is_told(tmp_path):
    tampered = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
sys.argv = ["train_digits.py", "--epochs", "1", "--plot", {str(tmp_path / "loss.png")!r}]
import train_digits
average = train_digits.mpiring.average_gradients
def forgetful(nest, ring):
    if ring.rank == 1:
        nest["gradients"]["b2"] = None
    return average(nest, ring)
train_digits.mpiring.average_gradients = forgetful
sys.exit(train_digits.main())
"""
    job = launch(2, ["-c", tampered], timeout=120)
    assert job.returncode == 1
    assert table(job.stdout)["largest difference"][1].endswith("MORE THAN ROUNDING")


def test_a_missing_package_is_said_once_and_how_to_get_it():
    without = f"""
import importlib.util, sys
sys.path.insert(0, {str(EXAMPLES)!r})
import train_digits
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "tqdm" else find(name)
sys.argv = ["train_digits.py"]
sys.exit(train_digits.main())
"""
    job = launch(2, ["-c", without])
    assert job.returncode != 0
    told = "this example needs tqdm: pip install tqdm"
    assert job.stderr.count(told) == 1


def test_help_comes_once():
    job = launch(2, [PROGRAM, "--help"]).check()
    assert job.stdout.count("usage:") == 1
    for option in ("--epochs", "--batch", "--seed", "--plot"):
        assert option in job.stdout
