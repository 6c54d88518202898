"""docs/lecture.md is true: no empty cell, what it names exists, its commands run, its figures are the lab's."""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

import mpiring

import report
from launch import Completed, find_mpi, job_environment, run

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "lecture.md"
LAB = ROOT / "docs" / "lecture" / "lab.json"
HEAD = [
    "lecture section",
    "what it claims",
    "our function",
    "file to read",
    "command that shows it",
    "figure measured",
]
SECTIONS = ["1.3", "1.4", "2.1.1", "2.1.2", "2.1.3", "2.1.4", "2.1.5", "2.1.6"]
SECTIONS += ["2.2", "2.3", "3", "3.1.1", "3.1.2", "3.2"]


def table() -> list[list[str]]:
    """The cells of the document's table, line by line, without its head."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == HEAD
    return cells[2:]


def code(cell: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def commands() -> list[str]:
    """Each command of the table once."""
    return sorted({command for row in table() for command in code(row[4])})


def test_no_cell_is_empty_and_no_section_is_left_out():
    rows = table()
    assert [len(row) for row in rows] == [len(HEAD)] * len(rows)
    assert [cell for row in rows for cell in row if len(cell) < 3 and cell != "3"] == []
    assert [s for s in SECTIONS if s not in {row[0].split()[0] for row in rows}] == []


def test_each_function_exists():
    for row in table():
        assert code(row[2]), row
        for text in code(row[2]):
            dotted = re.match(r"[\w.]+", text)
            assert dotted, text
            functools.reduce(getattr, dotted[0].split("."), mpiring)


def test_each_file_exists():
    for row in table():
        for _, target in re.findall(r"\[([^\]]+)\]\(([^)]+)\)", row[3]):
            assert (DOCUMENT.parent / target).resolve().is_file(), target
        assert "](" in row[3], row


@pytest.mark.parametrize("command", commands())
def test_each_command_runs(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)
    if words[0] == "make":  # `make lecture` needs root: tests/network/test_lab.py
        targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
        assert words[1] in targets
        return
    bin = Path(sys.prefix) / "bin"
    words = [word.replace(".venv/bin", str(bin), 1) for word in words]
    mpi = find_mpi()
    if words[0] == str(bin / "mpirun"):
        words[0] = str(mpi.mpirun)
    else:
        assert words[0].startswith(str(bin)), command
    done: Completed = run(words, timeout=240, env=job_environment(mpi))
    done.check()


def test_each_figure_is_in_the_labs_table():
    """Every "K = 8: 1.23 s, 1.04 of the bound" is a line of the JSON, for the case of that row's note."""
    rows = json.loads(LAB.read_text())["rows"]
    known = {
        (row["ranks"], f"{row['median']:.2f}", f"{row['to_bound']:.2f}")
        for row in rows
        if row["rate"] == "100mbit" and row["nbytes"] == 8_000_000
    }
    told = re.findall(
        r"K = (\d): ([\d.]+) s, ([\d.]+) of the bound", DOCUMENT.read_text()
    )
    assert len(told) > 10
    wrong = [each for each in told if (int(each[0]), *each[1:]) not in known]
    assert wrong == []


def test_the_text_is_the_jsons():
    lab = json.loads(LAB.read_text())
    text = report.text(lab["machine"], lab["links"], lab["rows"])
    assert (LAB.parent / "lab.txt").read_text() == text + "\n"
