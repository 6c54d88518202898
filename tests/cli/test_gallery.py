"""The pictures in docs/gallery are what its commands draw today."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mpiring.cli import main

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
COMMANDS = re.findall(r"`mpiring (show [^`]*)`", (GALLERY / "README.md").read_text())


def drawn(command, path):
    """What a command draws, with its file put elsewhere."""
    *words, option, kept = shlex.split(command)
    assert option == "--svg" and Path(kept).parent == Path("docs/gallery")
    assert main([*words, "--svg", str(path)]) == 0
    return Path(kept).name, path.read_text()


@pytest.mark.parametrize("command", [c for c in COMMANDS if "--svg" in c])
def test_picture_is_up_to_date(command, tmp_path, capsys):
    name, picture = drawn(command, tmp_path / "picture.svg")
    kept = (GALLERY / name).read_text()
    assert picture == kept, f"run again, in the repository: mpiring {command}"


def test_every_picture_has_its_command():
    named = {Path(shlex.split(command)[-1]).name for command in COMMANDS}
    assert named == {path.name for path in GALLERY.glob("*.svg")} and named


def test_another_picture_would_be_seen(tmp_path, capsys):
    command = COMMANDS[0].replace("--ranks 4", "--ranks 3")
    name, picture = drawn(command, tmp_path / "picture.svg")
    assert picture != (GALLERY / name).read_text()
