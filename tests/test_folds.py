"""lab/folds.py prints its table, and sees wrong bits."""

from __future__ import annotations

import sys

import pytest

from mpiring.wire.reduce import kernels

import folds


@pytest.fixture
def said(monkeypatch, capsys):
    """The exit status and the lines of a short run."""

    def run():
        options = "--sizes 6Ki 100Ki --operands 2 3 --rounds 1 --op avg".split()
        monkeypatch.setattr(sys, "argv", ["lab/folds.py", *options])
        status = folds.main()
        printed = capsys.readouterr()
        return status, printed.out.splitlines(), printed.err

    return run


def test_a_line_for_each_dtype(said):
    status, lines, errors = said()
    assert (status, errors) == (0, "")
    assert len(lines) == 2 + 2 * 2 * 3
    assert [line.split()[3:5] for line in lines[2:5]] == [
        ["kB", "float32"],
        ["kB", "float16"],
        ["kB", "bfloat16"],
    ]
    figures = [[float(n) for n in line.split()[5:]] for line in lines[2:]]
    assert [len(line) for line in figures] == [3, 4, 4] * 4
    assert all(n >= 0 for line in figures for n in line)


def test_wrong_bits_are_seen(said, monkeypatch):
    def find(form):
        return None if "float32" in form.operands else lambda *addresses: None

    monkeypatch.setattr(kernels, "find", find)
    status, _, errors = said()
    assert status == 1
    assert errors == ("lab/folds.py: 8 results differ between NumPy and the kernels\n")


def test_without_kernels(said, monkeypatch):
    monkeypatch.setattr(kernels, "find", lambda form: None)
    monkeypatch.setattr(kernels, "missing", lambda: "not today")
    status, lines, _ = said()
    assert status == 0
    assert lines[0] == "no kernels, both are NumPy: not today"
