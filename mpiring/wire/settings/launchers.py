"""Which launcher started this process, from its ancestors: before MPI starts, and whatever the environment says.

Rules: standard library only; nothing is started, and where there is no ``/proc`` nothing is known.

Theory
    A launcher tells each process by variables which one it is, and processes pass their variables on.  So inside a job
    of Open MPI's ``mpirun`` one of MPICH's sees the variables of both, each of which calls it another rank; and a
    variable that a shell once exported is in every job after that.  Only those count that belong to the launcher which
    is nearest among the ancestors: on each host a rank is a child of a program of its launcher's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

OPEN_MPI = "Open MPI's mpirun"
HYDRA = "Hydra"
MVAPICH = "MVAPICH's mpirun_rsh"
PALS = "PALS"
SRUN = "srun"
FLUX = "Flux"

# The programs that are the parents of ranks.
PARENTS = {
    **dict.fromkeys(("prterun", "prte", "prted", "orterun", "orted"), OPEN_MPI),
    "hydra_pmi_proxy": HYDRA,
    "mpispawn": MVAPICH,
    "palsd": PALS,
    "slurmstepd": SRUN,
    "flux-shell": FLUX,
}

# Whose programs a launcher starts; those that are left out start any.
STARTS_OPEN_MPI = {OPEN_MPI: True, HYDRA: False, MVAPICH: False, PALS: False}

Ancestor = tuple[str, str]  # name and path of a process


def find_ancestors(proc: Path = Path("/proc")) -> list[Ancestor]:
    """Name and path of this process's parent, its parent, and so on; empty without ``/proc``."""
    found: list[Ancestor] = []
    pid = "self"
    try:
        while pid != "0":
            # Fields after the name, which may itself hold spaces and parentheses, and is cut at 15
            # bytes, so that it need not be text: state, parent, ...
            text = os.fsdecode((proc / pid / "stat").read_bytes())
            before, _, after = text.rpartition(")")
            name = before.partition("(")[2]
            try:
                path = str((proc / pid / "exe").readlink())
            except OSError:
                path = ""
            found.append((name, path))
            pid = after.split()[1]
    except (OSError, IndexError):
        pass
    return found[1:]


def nearest(ancestors: Sequence[Ancestor]) -> str:
    """The launcher that started this process, ``""`` if none of those that are known is seen.

    >>> nearest([("bash", "/bin/bash"), ("hydra_pmi_proxy", ""), ("prterun", "")])
    'Hydra'
    >>> nearest([("mpirun", "/usr/bin/orterun"), ("slurmstepd", "")])
    "Open MPI's mpirun"
    """
    for name, path in ancestors:
        for program in (name, os.path.basename(path)):
            if program in PARENTS:
                return PARENTS[program]
    return ""


def can_start(launcher: str, family: str) -> bool:
    """Whether a launcher makes jobs of programs of that MPI; of an MPI that is not known, ``""``, it may."""
    is_open_mpi = STARTS_OPEN_MPI.get(launcher)
    if family in ("", "unknown") or is_open_mpi is None:
        return True
    return is_open_mpi == (family == "Open MPI")
