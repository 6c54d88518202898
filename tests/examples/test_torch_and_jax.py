"""The examples with torch's tensors and JAX's arrays, run as users run them: a good model, the one of one process."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from launch import launch

pytestmark = pytest.mark.untraced

EXAMPLES = Path(__file__).parents[2] / "examples"
# Program -> the library it needs.
NEEDS = {"torch_tensors": "torch", "jax_arrays": "jax"}


def table(stdout: str) -> dict[str, tuple[str, str]]:
    """The rows of the closing table: name -> (value, remark)."""
    rows = [re.split(r" {2,}", line, maxsplit=2) for line in stdout.splitlines()]
    return {row[0]: (row[1], row[-1]) for row in rows if len(row) > 1}


@pytest.fixture(params=NEEDS)
def program(request):
    """An example whose library is installed."""
    library = NEEDS[request.param]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    return EXAMPLES / f"{request.param}.py"


@pytest.mark.parametrize("size", [1, 3])
def test_it_trains_the_model_of_one_process(program, size):
    job = launch(size, [program], timeout=240).check()
    rows = table(job.stdout)
    assert rows["ranks"] == (str(size), "20 epochs")
    assert float(rows["test accuracy"][0]) >= 0.95
    difference, remark = rows["largest difference"]
    if size == 1:
        assert float(difference) == 0 and remark.endswith("the same bits")
    else:
        # 120 steps, parameters up to about 1: a few hundred roundings of 1.1e-16 at the very most.
        assert 0 < float(difference) < 1e-13 and remark.endswith(": rounding")
    assert rows["parameters"][1].endswith(("float64 on cpu", "float64 on cpu:0"))


def test_shards_of_every_length_even_none(program):
    # The last batch of an epoch has 1437 % 359 = 1 image: two of three ranks have none.
    job = launch(3, [program, "--epochs", "2", "--batch", "359"], timeout=240).check()
    assert float(table(job.stdout)["largest difference"][0]) < 1e-13


def test_a_wrong_weight_is_told(program, tmp_path):
    source = program.read_text()
    assert source.count("size / len(batch)") == 1
    mistaken = tmp_path / "mistaken.py"
    mistaken.write_text(source.replace("size / len(batch)", "1 / max(1, len(mine))"))
    environment = {"PYTHONPATH": f"{EXAMPLES}:{EXAMPLES.parent}"}
    job = launch(3, [mistaken, "--epochs", "1"], timeout=240, env=environment)
    assert job.returncode == 1
    assert "MORE THAN ROUNDING" in table(job.stdout)["largest difference"][1]


@pytest.mark.parametrize("name", NEEDS)
def test_a_missing_library_is_said_once_and_how_to_get_it(name):
    library = NEEDS[name]
    without = f"""
import importlib.util, sys
sys.path.insert(0, {str(EXAMPLES)!r})
import {name}
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == {library!r} else find(name)
sys.argv = ["{name}.py"]
sys.exit({name}.main())
"""
    job = launch(2, ["-c", without])
    assert job.returncode != 0
    told = f"this example needs {library}: pip install {library}"
    assert job.stderr.count(told) == 1


@pytest.mark.parametrize("name", NEEDS)
def test_help_comes_once_and_needs_no_library(name):
    hidden = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
sys.modules[{NEEDS[name]!r}] = None
import {name}
sys.argv = ["{name}.py", "--help"]
sys.exit({name}.main())
"""
    job = launch(2, ["-c", hidden]).check()
    assert job.stdout.count("usage:") == 1
    for option in ("--epochs", "--batch", "--seed"):
        assert option in job.stdout
