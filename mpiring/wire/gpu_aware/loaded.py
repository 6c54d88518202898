"""Which MPI is loaded, from which file, and what it says of device memory.

For the ring, which has to know whether it may hand device pointers to MPI, and for `mpiring doctor`, which reports it.

Rules: MPI is asked, never started here, and mpi4py is imported by :func:`find_library` only; nothing touches CUDA.

Theory
    Two functions tell of device memory.  Neither is part of the standard, so the loaded library is asked whether it has
    them:

    * ``MPIX_GPU_query_support`` of MPICH and its kin, for this run;
    * ``MPIX_Query_cuda_support`` of Open MPI and others.  Before Open MPI 5 it is a constant of the build, and whether
      device memory is taken in this run is in the variable ``opal_cuda_support``, which the library exports.

    A library that has both is asked by the first only: in MPICH 3.4 the second ends the process on an assertion.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# What MPI_Get_library_version says, and the words we use for it.
VERSION_TEXTS = (
    ("Open MPI", r"Open MPI v?([\d.]+\w*)"),
    ("Intel MPI", r"Intel\(R\) MPI Library ([\d.]+)"),
    ("Cray MPICH", r"CRAY MPICH version ([\d.]+)"),
    ("MVAPICH", r"MVAPICH[\w-]* Version\s*:\s*(\S+)"),
    ("MPICH", r"MPICH Version\s*:\s*(\S+)"),
)

# Names of the shared library of an MPI; libmpi_cxx, libmpi_mpifh and the like are not it.
LIBRARY_NAME = re.compile(
    r"/lib(mpi|mpich|mpi_abi|mpi_cray|mpi_gnu_\d+)(\.so[.\d]*|\.dylib)$"
)

# Type number of MPIX_GPU_query_support: mpi.h of MPICH.
MPIX_GPU_SUPPORT_CUDA = 0


@dataclass(frozen=True)
class Library:
    """The MPI that mpi4py has loaded.

    Attributes:
        text: what ``MPI_Get_library_version`` says.
        standard: the version of the MPI standard, such as ``(4, 1)``.
        paths: the MPI libraries mapped into the process; empty where that cannot be known.
    """

    text: str
    standard: tuple[int, int]
    paths: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """``"Open MPI"``, ``"MPICH"``, ``"Intel MPI"``, ... or ``"unknown"``."""
        return recognise(self.text, VERSION_TEXTS)[0]

    @property
    def major(self) -> int:
        """The first number of its own version; 0 if it is not known."""
        match = re.match(r"\d+", recognise(self.text, VERSION_TEXTS)[1])
        return int(match.group()) if match else 0

    @property
    def name(self) -> str:
        """Family and version, such as ``"Open MPI 5.0.11"``."""
        family, version = recognise(self.text, VERSION_TEXTS)
        return f"{family} {version}" if version else self.text.split("\n")[0][:60]


def recognise(text: str, table: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The family and version that a version text speaks of, by the first row that matches."""
    for family, pattern in table:
        match = re.search(pattern, text)
        if match:
            return family, match.group(1)
    return "unknown", ""


def find_library() -> Library:
    """The MPI that mpi4py has loaded, or loads now; it is not started."""
    from mpi4py import MPI

    text = MPI.Get_library_version().strip("\0\n ")
    return Library(text, MPI.Get_version(), mpi_libraries(mapped_here()))


def mapped_here() -> list[str]:
    """The files mapped into this process; empty where there is no ``/proc``."""
    maps = Path("/proc/self/maps")
    # As names of files are, which need not be text.
    return mapped_files(os.fsdecode(maps.read_bytes())) if maps.exists() else []


def mapped_files(maps: str) -> list[str]:
    """The files in the text of ``/proc/PID/maps``, each once, in order."""
    paths: dict[str, None] = {}
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/"):
            paths[fields[5].removesuffix(" (deleted)")] = None
    return list(paths)


def mpi_libraries(paths: Iterable[str]) -> tuple[str, ...]:
    """Those of the files that are an MPI."""
    return tuple(path for path in paths if LIBRARY_NAME.search(path))


def ask_library(path: str | None) -> dict[str, bool]:
    """What the MPI at this path says of CUDA, by the name of the function asked; empty if it has none.

    To be called after ``MPI_Init``.  ``None`` looks among all that is loaded.
    """
    library = ctypes.CDLL(path)
    query = getattr(library, "MPIX_GPU_query_support", None)
    if query is not None:
        supported = ctypes.c_int(0)
        if query(MPIX_GPU_SUPPORT_CUDA, ctypes.byref(supported)) == 0:
            return {"MPIX_GPU_query_support": bool(supported.value)}
        return {}
    query = getattr(library, "MPIX_Query_cuda_support", None)
    return {} if query is None else {"MPIX_Query_cuda_support": bool(query())}


def read_switch(path: str | None) -> bool | None:
    """Open MPI's ``opal_cuda_support``, which counts before version 5; None if the library has no such variable."""
    try:
        return ctypes.c_bool.in_dll(ctypes.CDLL(path), "opal_cuda_support").value
    except ValueError:
        return None
