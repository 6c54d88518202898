"""Importing mpiring.plan pulls in nothing but the standard library; and this test can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mpiring

HERE = Path(mpiring.__file__).parent.parent

# Run without site-packages (-S) and without the environment (-I): what is not in the standard library
# cannot even be found, and what was found is listed.
PROGRAM = """
import sys
sys.path.insert(0, {path!r})
import {module}
own = {{name.split(".")[0] for name in sys.modules}} - {{"__main__"}}
print(*sorted(own - set(sys.stdlib_module_names)))
"""


def foreign_modules(module: str, path: Path) -> list[str]:
    """Top-level modules outside the standard library that are loaded with ``module``."""
    program = PROGRAM.format(path=str(path), module=module)
    command = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise ImportError(done.stderr)
    return done.stdout.split()


@pytest.mark.parametrize("module", ["mpiring.plan", "mpiring.plan.draw", "mpiring"])
def test_the_plan_needs_the_standard_library_only(module):
    assert foreign_modules(module, HERE) == ["mpiring"]


def test_a_foreign_import_would_be_seen(tmp_path):
    (tmp_path / "stranger.py").write_text("import json\n")
    (tmp_path / "user.py").write_text("import stranger\n")
    assert foreign_modules("user", tmp_path) == ["stranger", "user"]


def test_a_package_of_the_environment_cannot_be_found(tmp_path):
    (tmp_path / "user.py").write_text("import hypothesis\n")
    with pytest.raises(ImportError, match="No module named 'hypothesis'"):
        foreign_modules("user", tmp_path)
