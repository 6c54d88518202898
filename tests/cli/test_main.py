"""The command itself: what is loaded, what is printed where, and with which exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from mpiring.cli import BAD_NEWS, COMMANDS, doctor, main

ROOT = Path(__file__).parents[2]


def mpiring(*words, **environment):
    """Run ``python -m mpiring`` as a shell would."""
    return subprocess.run(
        [sys.executable, "-m", "mpiring", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_version_is_one_line(capsys):
    assert main(["--version"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("mpiring ") and out.count("\n") == 1 and err == ""


def test_b54_what_is_no_text_comes_out_escaped(monkeypatch):
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(BytesIO(), "utf-8"))
    monkeypatch.setattr(doctor, "run", lambda args: print("a name: \udcff") or 0)
    assert main(["doctor"]) == 0
    sys.stdout.seek(0)
    assert sys.stdout.read() == "a name: \\udcff\n"


@pytest.mark.parametrize(
    "words", [["--help"], *([name, "--help"] for name in COMMANDS)]
)
def test_help_has_examples(words, capsys):
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "examples:\n  " in out and err == ""
    assert all(len(line) <= 100 for line in out.splitlines())


def test_help_names_every_command(capsys):
    main(["--help"])
    out = capsys.readouterr().out
    assert all(f"\n    {name} " in out for name in COMMANDS)


@pytest.mark.parametrize(
    "words, complaint",
    [
        ([], "mpiring: the following arguments are required: COMMAND"),
        (["doktor"], "mpiring: argument COMMAND: invalid choice: 'doktor'"),
        (
            ["doctor", "--timeout", "soon"],
            "mpiring doctor: argument --timeout: invalid float",
        ),
        (
            ["doctor", "--timeout", "0"],
            "mpiring doctor: --timeout 0: expected a number of",
        ),
        (
            ["doctor", "--timeout", "nan"],
            "mpiring doctor: --timeout nan: expected a number of",
        ),
        (["doctor", "now"], "mpiring: unrecognized arguments: now"),
    ],
)
def test_a_wrong_line_is_one_line_and_exit_code_2(words, complaint, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(complaint) and err.count("\n") == 1


def test_the_module_is_the_command():
    done = mpiring("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("mpiring ")
    assert mpiring("doktor").returncode == 2


@pytest.mark.parametrize("heavy", ["mpi4py", "numpy"])
def test_help_loads_nothing_heavy(heavy):
    code = (
        "import sys; from mpiring.cli import main; main(['--help']);"
        f"sys.exit(7 if {heavy!r} in sys.modules else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    done = subprocess.run(
        [sys.executable, "-c", f"import {heavy};{code}"],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 7  # the test above can fail


@pytest.mark.parametrize("buffering", ["", "1"])
def test_a_reader_that_leaves_is_no_traceback(buffering):
    code = (
        "import sys, mpiring.cli.doctor as d; from mpiring.cli import main\n"
        "d.run = lambda args: print('to nobody') or 0\n"
        "sys.exit(main(['doctor']))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": buffering},
            stdout=pipe,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_interrupt_is_no_traceback(monkeypatch, capsys):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("mpiring.cli.doctor.run", interrupted)
    assert main(["doctor"]) == 130
    assert capsys.readouterr() == ("", "")


def test_exit_code_of_a_command_is_handed_on(monkeypatch):
    monkeypatch.setattr("mpiring.cli.doctor.run", lambda args: BAD_NEWS)
    assert main(["doctor"]) == 1
