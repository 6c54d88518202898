"""The machine under the ranks: cores, node-shared memory, a peer's memory.

Rules: a ``find_...`` looks, and only looks; a ``judge_...`` takes what was found, so that a test
can hand it any machine.  What needs Linux says so elsewhere instead of failing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpiring.wire.node.cross_memory import VARIABLE, is_wanted

from .finding import NOTE, OK, PROBLEM, Finding, as_ranges, count, name_ranks

MIB = 1 << 20
DOCKER_SHM = 64 * MIB  # the size of /dev/shm in a container that was not told otherwise
SHM = "/dev/shm"


@dataclass(frozen=True)
class Cores:
    """The cores one process may use.

    Attributes:
        allowed: the numbers of the cores its scheduler affinity allows.
        quota: the CPU time its control group may use, in cores; None without a limit.
    """

    allowed: tuple[int, ...]
    quota: float | None = None


def find_cores() -> Cores:
    """The cores of this process; where affinity is unknown (macOS), all of the machine."""
    if sys.platform == "linux":
        texts = []
        for path in ("cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"):
            file = Path("/sys/fs/cgroup") / path
            texts.append(file.read_text() if file.exists() else "")
        allowed = tuple(sorted(os.sched_getaffinity(0)))
        return Cores(allowed, read_quota(texts[0] or " ".join(texts[1:])))
    return Cores(tuple(range(os.cpu_count() or 1)))


def read_quota(text: str) -> float | None:
    """The limit in ``cpu.max`` (``"150000 100000"``: one and a half cores), None for none."""
    numbers = text.split()
    if len(numbers) < 2 or not all(number.isdigit() for number in numbers[:2]):
        return None  # "max 100000" in version 2, "-1 100000" in version 1
    return int(numbers[0]) / int(numbers[1])


def judge_cores(
    cores: Mapping[int, Cores], hosts: Mapping[int, str], family: str
) -> Finding:
    """Ranks against cores on each host.

    Args:
        cores: of each rank.
        hosts: the host name of each rank.
        family: of the MPI, for the advice.
    """
    name, how = "cores", "sched_getaffinity of each rank, the control group's CPU limit"
    texts, crowded = [], False
    for host in dict.fromkeys(hosts.values()):
        ranks = [rank for rank in cores if hosts[rank] == host]
        allowed = {core for rank in ranks for core in cores[rank].allowed}
        quotas = [q for q in (cores[rank].quota for rank in ranks) if q is not None]
        usable = min([float(len(allowed)), *quotas])
        limit = f" (limited to {min(quotas):g} by the control group)" if quotas else ""
        crowded = crowded or len(ranks) > usable
        texts.append(
            f"{host}: {count(len(ranks), 'rank')} on {count(len(allowed), 'core')}{limit}"
        )
    found = "; ".join(texts)
    if not crowded:
        return Finding(name, OK, found, how)
    advice = (
        "more ranks than cores is fine for trying things out, and slow: a waiting rank spins and"
        " keeps a core from the rank it waits for.  Set OMP_NUM_THREADS=1 and"
        " OPENBLAS_NUM_THREADS=1, so that no rank starts a thread for each core"
    )
    if family == "Open MPI":
        advice += (
            "; OMPI_MCA_mpi_yield_when_idle=1 makes a waiting rank give up its core"
        )
    advice += (
        ".  If the host has more cores than that, the ranks are bound to few of them: see mpirun's"
        " --bind-to none (Intel MPI: I_MPI_PIN=0; srun: --cpu-bind=none)"
    )
    return Finding(name, NOTE, found, how, advice)


@dataclass(frozen=True)
class SharedMemory:
    """The file system for memory that processes share.

    Attributes:
        total, free: its size and what is left, in bytes.
        error: why one MiB could not be reserved there; ``""`` if it could.
    """

    total: int
    free: int
    error: str = ""


def find_shared_memory(path: str = SHM) -> SharedMemory | None:
    """What ``/dev/shm`` offers; None where the system has none, as macOS.

    One MiB is reserved and given back.  ``posix_fallocate`` is what tells: ``ftruncate`` succeeds
    where memory is short, and the process is killed by SIGBUS at its first touch.
    """
    if sys.platform != "linux":
        return None
    try:
        state = os.statvfs(path)
    except OSError as error:
        return SharedMemory(0, 0, str(error))
    total, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            os.posix_fallocate(file.fileno(), 0, MIB)
    except OSError as error:
        return SharedMemory(total, free, str(error))
    return SharedMemory(total, free)


def judge_shared_memory(
    memories: Mapping[str, SharedMemory | None],
    groups: Sequence[Sequence[int]] = (),
    unseen: Sequence[int] = (),
) -> Finding:
    """Whether the ranks of a host can share memory.

    Args:
        memories: of each host, by name.
        groups: the ranks of each group that ``MPI_COMM_TYPE_SHARED`` makes.
        unseen: ranks that cannot open a file which another rank of their group made in
        ``/dev/shm``.
    """
    name = "shared memory"
    how = f"statvfs and posix_fallocate of 1 MiB in {SHM}"
    known = {host: memory for host, memory in memories.items() if memory is not None}
    if not known:
        found = f"not looked at: {SHM} is Linux's"
        return Finding(
            name, OK, found, f"this is {sys.platform}; ordinary messages are used"
        )
    host = min(
        known, key=lambda h: (known[h].error == "", known[h].total, known[h].free)
    )
    memory = known[host]
    if memory.error:
        found = f"{SHM} on {host} cannot be used: {memory.error}"
        advice = (
            f"mount a tmpfs on {SHM} that this user may write to (containers: --shm-size=1g or"
            " --ipc=host), or free what is left there by dead jobs"
        )
        return Finding(name, PROBLEM, found, how, advice)
    found = f"{SHM} on {host}: {memory.total // MIB} MiB, {memory.free // MIB} MiB free"
    found += f" (the least of {count(len(known), 'host')})" if len(known) > 1 else ""
    if groups:
        how += "; MPI_Comm_split_type(SHARED)"
        if max(map(len, groups)) > 1:
            how += "; a file made by one rank and opened by the others"
        together = " | ".join(as_ranges(group) for group in groups)
        found += f"; ranks that share a node: {together}"
    if unseen:
        advice = (
            "these ranks run in containers of their own, each with its own processes: start the containers"
            " with --ipc=host --pid=host, or one container for all ranks of a host"
        )
        found += (
            f"; files made there by the others cannot be opened by {name_ranks(unseen)}"
        )
        return Finding(name, NOTE, found, how, advice)
    if len(groups) > len(known):
        advice = (
            "the MPI sees more nodes than there are host names: containers or namespaces of one"
            " name; ranks of different groups talk over the network"
        )
        return Finding(name, NOTE, found, how, advice)
    if memory.total <= DOCKER_SHM:
        advice = (
            "64 MiB is a container's default, and too little for shared buffers:"
            " docker run --shm-size=1g (or --ipc=host); Kubernetes: an emptyDir with medium: Memory"
        )
        return Finding(name, NOTE, found, how, advice)
    if memory.free < DOCKER_SHM:
        advice = (
            f"see with `ls -l {SHM}` what is left there by dead jobs, and remove it"
        )
        return Finding(name, NOTE, found, how, advice)
    return Finding(name, OK, found, how)


def find_ptrace_scope(path: str = "/proc/sys/kernel/yama/ptrace_scope") -> int | None:
    """Yama's setting; None where the kernel has no Yama."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


PTRACE_SCOPES = (
    "any process of the same user",
    "only a parent, or whom the process has named",
    "only processes with CAP_SYS_PTRACE",
    "nobody",
)


def judge_peer_memory(
    scope: int | None,
    tries: Mapping[int, str],
    linux: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Finding:
    """Whether a rank may read and write the memory of another rank of its host (cross-memory attach).

    A ring moves long ordinary arrays this way, and MPIs use it for large messages: one copy instead of two.

    Args:
        scope: Yama's ``ptrace_scope``, None without Yama.
        tries: for each rank that tried, ``""`` or the error; empty if there was no other rank.
        linux: whether this is Linux at all.
        environment: of rank 0, which lets rings use it or does not.
    """
    name = "peers' memory"
    try:
        wanted = is_wanted(environment or {})
    except ValueError as wrong:
        advice = f"unset {VARIABLE}, or set it to 0 or 1"
        return Finding(name, PROBLEM, f"no ring can be made: {wrong}", VARIABLE, advice)
    if not linux:
        found = "not looked at: process_vm_readv is Linux's"
        return Finding(name, OK, found, f"this is {sys.platform}")
    known = 0 if scope is None else min(scope, len(PTRACE_SCOPES) - 1)
    setting = "no Yama in this kernel" if scope is None else f"ptrace_scope is {scope}"
    how = f"/proc/sys/kernel/yama: {setting}"
    refused = {rank: error for rank, error in tries.items() if error}
    if tries:
        how = f"process_vm_readv and process_vm_writev, tried by every rank on all of its host; {how}"
        found = "every rank can reach the others' memory"
    else:
        found = f"may be read by {PTRACE_SCOPES[known]}; not tried, as there is no other rank"
    if refused:
        error = refused[min(refused)]
        found = (
            f"the others' memory cannot be reached by {name_ranks(refused)}: {error}"
        )
    if not wanted:
        found = f"{found}; rings do not use it, nor stages: {VARIABLE} is off"
    if not refused and (tries or known == 0):
        return Finding(name, OK, found, how)
    advice = (
        "everything works, but long arrays go by messages on one host, and are copied twice.  sysctl"
        " kernel.yama.ptrace_scope=0 allows it; in a container, --cap-add=SYS_PTRACE and one pid"
        " namespace for all ranks"
    )
    return Finding(name, NOTE, found, how, advice)
