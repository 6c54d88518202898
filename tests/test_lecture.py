"""docs/lecture.md is true: no empty cell, what it names exists, its commands run, its figures are the lab's."""

from __future__ import annotations

import doctest
import functools
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import mpiring

import expected
import lecture
import report
from launch import find_mpi, job_environment, run

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "lecture.md"
TEXT = DOCUMENT.read_text()
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
SECTIONS += ["2.2", "2.3", "3", "3.1", "3.1.1", "3.1.2", "3.2"]

Rows = list[list[str]]


def table(text: str) -> Rows:
    """The cells of the document's table, line by line, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    assert cells[0] == HEAD
    return cells[2:]


def code(cell: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", cell)


# ---- the checks, which are tested below, too --------------------------------------------------------


def check_cells(rows: Rows) -> None:
    for row in rows:
        assert len(row) == len(HEAD) and all(row), f"an empty cell: {row}"
    found = {row[0].split()[0] for row in rows}
    left_out = [section for section in SECTIONS if section not in found]
    assert left_out == [], f"left out: {left_out}"


def check_functions(rows: Rows) -> None:
    for row in rows:
        assert code(row[2]), f"no function: {row}"
        for text in code(row[2]):
            dotted = re.match(r"[\w.]+", text)
            assert dotted, text
            functools.reduce(getattr, dotted[0].split("."), mpiring)


def check_files(rows: Rows) -> None:
    for row in rows:
        targets = re.findall(r"\]\(([^)]+)\)", row[3])
        assert targets, f"no file: {row}"
        for target in targets:
            assert (DOCUMENT.parent / target).resolve().is_file(), f"no {target}"


def check_figures(text: str, rows: list[dict[str, Any]]) -> int:
    """How many there are; each "K = 8: 1.23 s, 1.04 of the bound" has to be a line of the lab's table."""
    known = {
        (str(row["ranks"]), f"{row['median']:.2f}", f"{row['to_bound']:.2f}")
        for row in rows
        if row["rate"] == "100mbit" and row["nbytes"] == 8_000_000
    }
    told = re.findall(r"K = (\d): ([\d.]+) s, ([\d.]+) of the bound", text)
    wrong = [figure for figure in told if figure not in known]
    assert wrong == [], f"not in the lab's table: {wrong}"
    return len(told)


# ---- the document -----------------------------------------------------------------------------------


def test_no_cell_is_empty_and_no_section_is_left_out():
    check_cells(table(TEXT))


def test_each_function_exists():
    check_functions(table(TEXT))


def test_each_file_exists():
    check_files(table(TEXT))


def test_each_figure_is_in_the_labs_table():
    assert check_figures(TEXT, json.loads(LAB.read_text())["rows"]) > 20


COMMANDS = sorted({command for row in table(TEXT) for command in code(row[4])})


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)
    if words[0] == "make":  # it needs root, and tests/network/test_lab.py runs it
        assert re.search(rf"(?m)^{words[1]}:", (ROOT / "Makefile").read_text())
        return
    programs = Path(sys.prefix) / "bin"
    assert words[0].startswith(".venv/bin/")
    words = [word.replace(".venv/bin", str(programs), 1) for word in words]
    mpi = find_mpi()
    if words[0] == str(programs / "mpirun"):
        words[0] = str(mpi.mpirun)
    run(words, timeout=240, env=job_environment(mpi)).check()


def test_the_text_is_the_jsons():
    lab = json.loads(LAB.read_text())
    text = report.text(lab["machine"], lab["links"], lab["rows"])
    assert (LAB.parent / "lab.txt").read_text() == text + "\n"


@pytest.mark.parametrize(
    "check, old, new, why",
    [
        (check_cells, "| `Ring.allgather` |", "| |", "an empty cell"),
        (check_cells, "| 2.1.4 AllGather", "| 2.1.3 AllGather", "left out: .'2.1.4"),
        (check_functions, "`Ring.allgather`", "`Ring.gather`", "gather"),
        (check_functions, "`Ring.allgather`", "Ring.allgather", "no function"),
        (check_files, "mpiring/ring.py)", "mpiring/rong.py)", "no .*rong.py"),
        (check_files, "[mpiring/ring.py](../mpiring/ring.py)", "x", "no file"),
    ],
)
def test_the_checks_can_fail(check, old, new, why):
    assert old in TEXT
    with pytest.raises((AssertionError, AttributeError), match=why):
        check(table(TEXT.replace(old, new)))


def test_the_check_of_figures_can_fail():
    row = {"ranks": 8, "rate": "100mbit", "nbytes": 8_000_000}
    row |= {"median": 1.234, "to_bound": 1.04}
    assert check_figures("K = 8: 1.23 s, 1.04 of the bound", [row]) == 1
    for wrong in ("K = 4: 1.23 s, 1.04", "K = 8: 1.24 s, 1.04", "K = 8: 1.23 s, 1.05"):
        with pytest.raises(AssertionError, match="not in the lab's table"):
            check_figures(f"{wrong} of the bound", [row])


# ---- the lab's arithmetic: all that needs no network ------------------------------------------------


@pytest.mark.parametrize("module", [expected, report])
def test_doctests(module):
    found = doctest.testmod(module)
    assert found.attempted > 0 and found.failed == 0


def test_bounds_are_the_lectures_formulas():
    def turns(name: str, size: int, segments: int = 1) -> float:
        return expected.CASES[name].bound(size, segments, nbytes=1000, rate=1000)

    for size in range(2, 9):
        assert turns("broadcast, naive", size) == size - 1
        assert turns("broadcast, pipelined", size, 1) == size - 1
        assert turns("broadcast, pipelined", size, 256) == (size + 254) / 256
        assert turns("all-reduce, ring", size) == 2 * (size - 1) / size
        assert turns("server, star", size) == 2 * (size - 1)
        assert turns("server, chain", size, 4) == (size + 2) / 2


def test_the_model_without_latency_is_the_bound():
    """Where every rank's link carries what the formula says, price agrees with it exactly."""
    model = mpiring.plan.Model(alpha=0, beta=1)
    count = 840 * 4  # divisible by K and by S
    for case in expected.CASES.values():
        for size in range(2, 9):
            for segments in (1, 4, 8):
                found = case.prediction(size, segments, 4 * count, model)
                bound = case.bound(size, segments, 4 * count, 1)
                assert found is None or found == pytest.approx(bound, rel=1e-12)


def test_it_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "needs root" in (lecture.problem() or "")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "tc" else tool)
    assert (lecture.problem() or "").startswith("tc is missing")
    monkeypatch.setattr("shutil.which", lambda tool: tool)
    assert lecture.problem() is None
