"""Who started this process, and did the ranks find each other?

A launcher starts N processes and tells each its rank through the environment and a wire-up
protocol: PMIx (Open MPI, srun --mpi=pmix) or PMI (MPICH and its kin, srun --mpi=pmi2).  An MPI that
finds no launcher it understands does not complain: it starts a job of one rank.  So N processes of
the wrong ``mpirun`` are N jobs, each of which believes that it is the whole ring, and each of which
trains alone.  ``judge_start`` finds that: the launcher's N against the size of COMM_WORLD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpiring.wire.gpu_aware.loaded import Library
from mpiring.wire.settings import launchers

from .finding import NOTE, OK, PROBLEM, Finding, as_ranges, count, name_ranks
from .library import own_launcher, same_wire


@dataclass(frozen=True)
class Kind:
    """A kind of launcher, and how to recognise it.

    Attributes:
        rank, size: the environment variables that hold them.
        marks: at least one of these must be set as well; empty if the first two are enough.
        family: whose programs it starts; ``"unknown"`` if it depends on a setting.
        launcher: one of those that can be told among the ancestors; ``""``: one that cannot.
    """

    name: str
    rank: str
    size: str
    marks: tuple[str, ...]
    family: str
    launcher: str = ""

    def fits(self, nearest: str) -> bool:
        """Whether it is the launcher seen among the ancestors, as far as one is."""
        told = {kind.launcher for kind in KINDS} - {""}
        return nearest not in told or nearest == self.launcher


# The first that fits wins: under Slurm an mpirun starts its own daemons through srun, so that
# srun's variables are there too, and Intel's Hydra is MPICH's with more variables.  Of a launcher
# around the one that started us the variables are there as well, and do not count.
KINDS = (
    Kind(
        "Open MPI's mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        (),
        "Open MPI",
        launchers.OPEN_MPI,
    ),
    Kind("HPE Cray's PALS", "PALS_RANKID", "PMI_SIZE", (), "MPICH", launchers.PALS),
    Kind(
        "Intel MPI's mpirun",
        "PMI_RANK",
        "PMI_SIZE",
        ("I_MPI_HYDRA_UUID",),
        "Intel MPI",
        launchers.HYDRA,
    ),
    Kind(
        "MPICH's mpirun (Hydra)",
        "PMI_RANK",
        "PMI_SIZE",
        ("MPI_LOCALNRANKS", "PMI_HOSTNAME", "HYDI_CONTROL_FD"),
        "MPICH",
        launchers.HYDRA,
    ),
    Kind(
        "Slurm's srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        ("SLURM_STEP_ID",),
        "unknown",
        launchers.SRUN,
    ),
    Kind("a launcher that speaks PMI", "PMI_RANK", "PMI_SIZE", (), "MPICH"),
)

# A variable that shows which wire-up protocol srun was told to serve.
PROTOCOLS = (("PMIX_NAMESPACE", "PMIx"), ("PMI_FD", "PMI"), ("PMI_RANK", "PMI"))

ALLOCATIONS = (
    ("SLURM_JOB_ID", "Slurm job"),
    ("PBS_JOBID", "PBS job"),
    ("LSB_JOBID", "LSF job"),
)

# The programs of launchers, as they show up among the ancestors of a rank.
PROGRAMS = ("mpirun", "mpiexec", "mpiexec.hydra", *launchers.PARENTS)


@dataclass(frozen=True)
class Launcher:
    """What started this process.

    Attributes:
        rank, size: as the launcher says; None where it does not say.
        how: the variables that say it.
        program: the path of the ancestor that is a launcher's program, ``""`` if none is seen.
        protocol: the wire-up that srun serves: ``"PMIx"``, ``"PMI"`` or ``"none"``; ``""`` for
        others.
    """

    name: str
    family: str
    rank: int | None
    size: int | None
    how: str
    program: str = ""
    protocol: str = ""


def find_launcher(
    environment: Mapping[str, str], ancestors: Sequence[tuple[str, str]] = ()
) -> Launcher | None:
    """The launcher of this process, or None if it was started alone.

    Args:
        environment: this process's.
        ancestors: name and path of the parent process, its parent, and so on.
    """
    program = next((path or name for name, path in ancestors if name in PROGRAMS), "")
    nearest = launchers.nearest(ancestors)
    for kind in filter(lambda kind: kind.fits(nearest), KINDS):
        rank = as_number(environment.get(kind.rank))
        size = as_number(environment.get(kind.size))
        marked = not kind.marks or any(mark in environment for mark in kind.marks)
        if rank is None or not marked:
            continue
        known = [v for v in (kind.rank, kind.size, *kind.marks) if v in environment]
        how = ", ".join(f"{variable}={environment[variable]}" for variable in known)
        protocol = ""
        if kind.family == "unknown":
            protocol = next((name for v, name in PROTOCOLS if v in environment), "none")
        return Launcher(kind.name, kind.family, rank, size, how, program, protocol)
    return None


def as_number(text: str | None) -> int | None:
    """The number in an environment variable; None if it is unset or holds none."""
    return int(text) if text is not None and text.isdigit() else None


def judge_launcher(
    launcher: Launcher | None, environment: Mapping[str, str], world_size: int | None
) -> Finding:
    """Who started us."""
    name = "launcher"
    allocation = next(
        (f"{w} {environment[v]}" for v, w in ALLOCATIONS if v in environment), ""
    )
    inside = f", inside {allocation}" if allocation else ""
    if launcher is None:
        how = "none of the variables that launchers set is set"
        if world_size is not None and world_size > 1:
            found = f"a launcher unknown to this command{inside}: COMM_WORLD has {world_size} ranks"
            return Finding(name, OK, found, f"{how}, yet MPI found the others")
        advice = "to check a job of several ranks: mpirun -n 4 mpiring doctor"
        return Finding(name, OK, f"none: started alone{inside}", how, advice)
    size = "" if launcher.size is None else f", {count(launcher.size, 'rank')}"
    protocol = f", serving {launcher.protocol} for wire-up" if launcher.protocol else ""
    found = f"{launcher.name}{size}{protocol}{inside}"
    how = launcher.how + (
        f"; an ancestor is {launcher.program}" if launcher.program else ""
    )
    return Finding(name, OK, found, how)


def judge_start(
    launcher: Launcher | None,
    library: Library,
    world_size: int | None,
    failure: str = "",
) -> Finding:
    """Whether the processes that the launcher started are the ranks of one job.

    Args:
        world_size: the size of COMM_WORLD; None if ``MPI_Init`` did not return.
        failure: why not, in that case.
    """
    name = "one job"
    said = "" if launcher is None or launcher.size is None else f" of {launcher.size}"
    if world_size is None:
        found = f"MPI did not start: {failure}"
        how = "MPI was started in a process of its own"
        return Finding(name, PROBLEM, found, how, advise(launcher, library))
    how = "MPI_Comm_size of COMM_WORLD"
    if launcher is None or launcher.size is None:
        return Finding(name, OK, f"COMM_WORLD has {count(world_size, 'rank')}", how)
    how = f"{how} against {launcher.how}"
    if world_size == launcher.size:
        found = f"COMM_WORLD has {count(world_size, 'rank')}, as the launcher says"
        return Finding(name, OK, found, how)
    if world_size == 1:
        found = (
            f"{launcher.size} jobs of one rank instead of one job{said}: {launcher.name} started"
            f" {launcher.size} processes, but {library.name} found none of the others"
        )
    else:
        found = (
            f"the launcher started {launcher.size} ranks, COMM_WORLD has {world_size}"
        )
    return Finding(name, PROBLEM, found, how, advise(launcher, library))


def advise(launcher: Launcher | None, library: Library) -> str:
    """How to start a job of the library that is loaded."""
    use = own_launcher(library) or f"the mpirun of {library.name}"
    if launcher is None:
        return f"read what the MPI wrote (`messages`), and try {use} -n 2"
    if launcher.protocol:  # srun
        if library.family == "Open MPI":
            want = "srun --mpi=pmix (Open MPI 5 understands nothing else)"
        elif library.family == "Intel MPI":
            want = "srun --mpi=pmi2 with I_MPI_PMI_LIBRARY=/path/to/libpmi2.so"
        else:
            want = "srun --mpi=pmi2, or what the site's manual says for this MPI"
        return f"{want}; `srun --mpi=list` shows what this site has.  Or use {use}"
    if not same_wire(launcher.family, library.family):
        started = f" ({launcher.program})" if launcher.program else ""
        return f"{launcher.name}{started} cannot start {library.name}: use {use}"
    return (
        "see that all ranks run this same program, and that launcher and library come from one"
        f" installation: use {use}.  Several hosts: the same path on each, no firewall between"
        " them.  Containers: one for all ranks of a host, or --ipc=host"
    )


def judge_ranks(hosts: Mapping[int, str], size: int) -> Finding:
    """Which ranks answered, and on which hosts.

    Args:
        hosts: the host name of each rank that answered.
        size: how many should have.
    """
    name, how = "ranks", "each rank sent its host name and process id to rank 0"
    by_host: dict[str, list[int]] = {}
    for rank, host in sorted(hosts.items()):
        by_host.setdefault(host, []).append(rank)
    found = f"{count(size, 'rank')} on {count(len(by_host), 'host')}: " + "; ".join(
        f"{host}: {as_ranges(ranks)}" for host, ranks in by_host.items()
    )
    silent = sorted(set(range(size)) - set(hosts))
    if silent:
        found = f"no answer from {name_ranks(silent)}.  Of {found}"
        advice = (
            "these ranks passed MPI_Init and then sent nothing: look whether they run this program,"
            " are stopped, or sit behind a network that lets nothing through (several interfaces,"
            " a firewall)"
        )
        return Finding(name, PROBLEM, found, how, advice)
    return Finding(name, OK, found, how)


def judge_threads(level: int, names: Sequence[str]) -> Finding:
    """The thread level; ``names`` are the four of the standard in their order."""
    name, how = (
        "threads",
        "MPI_Init_thread, asked for MPI_THREAD_MULTIPLE as mpi4py does",
    )
    found = names[level]
    if level >= len(names) - 1:
        return Finding(name, OK, found, how)
    advice = (
        "use MPI, and rings, from one thread only; an MPI built with thread support"
        " (MPICH: --enable-threads=multiple) lifts that"
    )
    return Finding(name, NOTE, found, how, advice)


def judge_messages(output: str) -> Finding | None:
    """What the MPI wrote while it started, if anything."""
    lines = [line for line in output.splitlines() if line.strip()]
    if not lines:
        return None
    shown = "\n".join(lines[:6]) + ("\n..." if len(lines) > 6 else "")
    advice = "harmless if all else is well; the text is the MPI's or mpi4py's own"
    how = "stdout and stderr of the process that started MPI"
    return Finding("messages", NOTE, shown, how, advice)


def judge_failure(failure: str) -> Finding:
    """MPI started, and then did not do its work."""
    how = "a process of its own tried; each step is reported before it is taken"
    advice = (
        "this is not about your program: a job of this MPI fails here too.  See `messages`, try two"
        " ranks on one host first, then two hosts"
    )
    return Finding("MPI at work", PROBLEM, failure, how, advice)
