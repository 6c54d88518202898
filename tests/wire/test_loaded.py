"""Which MPI is loaded and what it says of device memory: made-up texts, and libraries compiled here."""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path

import pytest

from mpiring.wire.gpu_aware import loaded
from mpiring.wire.gpu_aware.loaded import Library

OPEN_MPI = (
    "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11"
)
MPICH = "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25 20:45:26 UTC 2026"
INTEL = "Intel(R) MPI Library 2021.18.1 for Linux* OS"
CRAY = (
    "MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)\nMPI BUILD INFO : x"
)
MVAPICH = "MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Release date :\tWed"

MAPS = """\
55d0-55d1 r--p 00000000 fe:00 123 /usr/bin/python3.11
7f00-7f01 r--p 00000000 fe:00 124 /opt/my mpi/lib/libmpi.so.40.30.1
7f01-7f02 r-xp 00001000 fe:00 124 /opt/my mpi/lib/libmpi.so.40.30.1
7f02-7f03 r--p 00000000 fe:00 125 /opt/my mpi/lib/libmpi_cxx.so.40
7f04-7f05 r--p 00000000 fe:00 126 /opt/my mpi/lib/libmpi_mpifh.so.40 (deleted)
7f06-7f07 rw-p 00000000 00:00 0
7ffd-7ffe rw-p 00000000 00:00 0 [stack]
"""


@pytest.mark.parametrize(
    "text, family, name",
    [
        (OPEN_MPI, "Open MPI", "Open MPI 5.0.11"),
        ("Open MPI v4.1.4, package: Debian OpenMPI", "Open MPI", "Open MPI 4.1.4"),
        (MPICH, "MPICH", "MPICH 5.0.2"),
        (INTEL, "Intel MPI", "Intel MPI 2021.18.1"),
        (CRAY, "Cray MPICH", "Cray MPICH 8.1.25.17"),
        (MVAPICH, "MVAPICH", "MVAPICH 2.3.7"),
        ("MVAPICH2-GDR Version : 2.3.6", "MVAPICH", "MVAPICH 2.3.6"),
        ("Some MPI 1.0\nbuilt", "unknown", "Some MPI 1.0"),
    ],
)
def test_version_texts(text, family, name):
    library = Library(text, (4, 0))
    assert (library.family, library.name) == (family, name)


def test_major_version():
    assert Library(OPEN_MPI, (3, 1)).major == 5
    assert Library(INTEL, (3, 1)).major == 2021
    assert Library("Some MPI 1.0", (3, 1)).major == 0  # who knows whose number that is
    assert Library("MVAPICH Version : beta", (3, 1)).major == 0


def test_the_mpi_among_the_mapped_files():
    files = loaded.mapped_files(MAPS)
    assert files[0] == "/usr/bin/python3.11"
    assert files[-1] == "/opt/my mpi/lib/libmpi_mpifh.so.40"
    assert loaded.mpi_libraries(files) == ("/opt/my mpi/lib/libmpi.so.40.30.1",)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
def test_b54_a_mapped_file_whose_name_is_no_text(tmp_path):
    path = tmp_path / os.fsdecode(b"\xfflib")
    path.write_bytes(b"x")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 1):
        assert str(path) in loaded.mapped_here()


@pytest.mark.parametrize(
    "name",
    ["libmpi.so", "libmpi.so.12.1.8", "libmpich.so.12", "libmpi_cray.so.12"]
    + ["libmpi_gnu_123.so.12", "libmpi_abi.so.1", "libmpi.40.dylib"[:6] + ".dylib"],
)
def test_names_of_an_mpi(name):
    assert loaded.mpi_libraries([f"/lib/{name}"]) == (f"/lib/{name}",)


@pytest.mark.parametrize(
    "name", ["libmpi_cxx.so.40", "libmpifort.so.12", "libmpi.so.py", "libmpiz.so"]
)
def test_names_of_something_else(name):
    assert loaded.mpi_libraries([f"/lib/{name}"]) == ()


# ---- libraries, compiled here if there is a compiler: no MPI at hand says yes ---------------------

QUERY = "int MPIX_Query_cuda_support(void) { return %s; }\n"
GPU_QUERY = "int MPIX_GPU_query_support(int type, int *is) { *is = type == 0 && %s; return %s; }\n"
ASSERTION = "#include <stdlib.h>\nint MPIX_Query_cuda_support(void) { abort(); }\n"
SWITCH = "#include <stdbool.h>\nbool opal_cuda_support = %s;\n"


@pytest.fixture
def build(tmp_path):
    """A function: compile this source to a shared library, and return its path."""

    def compile_it(source):
        path = tmp_path / "m.c"
        path.write_text(source)
        built = tmp_path / f"m{len(list(tmp_path.iterdir()))}.so"
        try:
            command = ["cc", "-shared", "-fPIC", "-o", built, path]
            subprocess.run(command, check=True, timeout=60)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no C compiler here")
        return str(built)

    return compile_it


@pytest.mark.parametrize(
    "source, answers",
    [
        (QUERY % 1, {"MPIX_Query_cuda_support": True}),
        (QUERY % 0, {"MPIX_Query_cuda_support": False}),
        (GPU_QUERY % (1, 0), {"MPIX_GPU_query_support": True}),
        (GPU_QUERY % (0, 0), {"MPIX_GPU_query_support": False}),
        (GPU_QUERY % (1, 16), {}),  # it failed: an error class, not MPI_SUCCESS
        (GPU_QUERY % (1, 0) + ASSERTION, {"MPIX_GPU_query_support": True}),
        (GPU_QUERY % (1, 16) + ASSERTION, {}),
        ("int MPI_Init;", {}),
    ],
)
def test_a_library_is_asked(build, source, answers):
    assert loaded.ask_library(build(source)) == answers


def test_all_that_is_loaded_is_asked():
    assert loaded.ask_library(None) == {}  # this process has loaded no MPI


@pytest.mark.parametrize("word, value", [("true", True), ("false", False)])
def test_the_switch_of_open_mpi_4_is_read(build, word, value):
    assert loaded.read_switch(build(SWITCH % word)) is value


def test_a_library_without_the_switch(build):
    assert loaded.read_switch(build("int MPI_Init;")) is None


def test_this_process_maps_files():
    if not Path("/proc/self/maps").exists():
        pytest.skip("no /proc here")
    assert any("python" in path for path in loaded.mapped_here())
