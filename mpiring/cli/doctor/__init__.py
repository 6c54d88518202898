"""``mpiring doctor``: which MPI is this, does it fit the launcher, what can the machine do?

Alone it looks at the environment; under ``mpirun`` the ranks look together and rank 0 reports.
The parts: ``probe`` starts MPI where it can do no harm; ``library``, ``launch``, ``machine``,
``refusals``, ``devices``, ``profile`` and ``packages`` hold what there is to find and how it is judged;
``finding`` is the form of the report.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mpiring import __version__
from mpiring.cli import BAD_NEWS, OK, UsageError
from mpiring.device import find_gpus
from mpiring.wire.gpu_aware.loaded import Library
from mpiring.wire.settings.launchers import find_ancestors

from . import (
    device_probe,
    devices,
    launch,
    library,
    machine,
    packages,
    profile,
    refusals,
)
from .child import LEVELS, RankFacts
from .finding import PROBLEM, Finding, as_text
from .probe import Probe, start_probe

if TYPE_CHECKING:
    from mpiring.cli import Subparsers

LINGER = 5.0  # seconds; rank 0 needs about one to report

SUMMARY = "which MPI is this, does it fit the launcher, and what is wrong with it?"

EPILOG = """\
examples:
  mpiring doctor                            the environment: MPI, wheels, GPU, shared memory
  mpirun -n 4 mpiring doctor                a job as well: one report, printed by rank 0
  srun -n 4 --mpi=pmix mpiring doctor       the same through Slurm
  mpiring doctor --json | jq .findings      for programs
  mpiring doctor --probe-device             does this MPI carry device memory?  Two processes try it

Each finding has a status: ok, note (works, but you want to know), problem (a job will not do what
you think).  Exit code 1 if there is a problem, else 0.  MPI is started in a child process: if it
crashes or hangs there, that is a finding too.

--probe-device starts a job of two processes that send each other CuPy arrays.  If every byte
arrives, that is noted in the cache directory ($MPIRING_CACHE, else $XDG_CACHE_HOME/mpiring, else
~/.cache/mpiring), and Ring(device_transport="direct") is accepted on this host also where the MPI
itself does not say that it takes device memory.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command line of ``mpiring doctor``."""
    parser = subparsers.add_parser(
        "doctor", help=SUMMARY, description=SUMMARY, epilog=EPILOG
    )
    parser.add_argument(
        "--json", action="store_true", help="write the findings as JSON"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long MPI may take to start and the ranks to answer (default: 60)",
    )
    parser.add_argument(
        "--probe-device",
        action="store_true",
        help="let two processes send each other device memory; needs a GPU and CuPy",
    )
    parser.add_argument(
        "--launcher",
        metavar="WORDS",
        help="what starts the two (default: the mpirun of this MPI, with -n 2)",
    )


def run(args: argparse.Namespace) -> int:
    """Examine, report on one rank, and return the exit code."""
    if not args.timeout > 0:
        raise UsageError(
            f"--timeout {args.timeout:g}: expected a number of seconds above 0"
        )
    launcher = launch.find_launcher(os.environ, find_ancestors())
    versions = {name: packages.find_version(name) for name in ("numpy", "mpi4py")}
    check_probe_options(args, launcher)
    probe = start_probe(args.timeout) if versions["mpi4py"] else Probe()
    if not is_reporter(launcher, probe):
        return leave_quietly(launcher, probe)
    findings = diagnose(probe, launcher, versions, os.environ)
    if args.probe_device:
        words = shlex.split(args.launcher or "") or find_pair_launcher(probe.library)
        findings.append(device_probe.examine(words, args.timeout, os.environ))
    if args.json:
        report = {
            "mpiring": __version__,
            "findings": [asdict(finding) for finding in findings],
        }
        print(json.dumps(report, indent=2))
    else:
        width = min(100, shutil.get_terminal_size((100, 0)).columns)
        print(f"mpiring {__version__} doctor on {socket.gethostname()}", end="\n\n")
        print(as_text(findings, width))
    return BAD_NEWS if any(finding.status == PROBLEM for finding in findings) else OK


def check_probe_options(
    args: argparse.Namespace, launcher: launch.Launcher | None
) -> None:
    """Refuse what makes no sense about ``--probe-device``."""
    if args.launcher is not None and not args.probe_device:
        raise UsageError(
            "--launcher WORDS: starts the two of --probe-device, and is nothing without"
        )
    if args.probe_device and launcher is not None and (launcher.size or 1) > 1:
        raise UsageError(
            f"--probe-device starts a job of its own: run it alone, not under {launcher.name}"
        )


def find_pair_launcher(loaded: Library | None) -> list[str]:
    """The words that start two processes of this MPI."""
    own = library.own_launcher(loaded) if loaded is not None else ""
    return [own or shutil.which("mpirun") or "mpirun", "-n", "2"]


def is_reporter(launcher: launch.Launcher | None, probe: Probe) -> bool:
    """Whether this process prints: rank 0 of the job, or of the launcher if there is no one job."""
    if probe.size is not None and probe.size > 1:
        return probe.rank == 0
    return launcher is None or launcher.rank in (None, 0)


def leave_quietly(launcher: launch.Launcher | None, probe: Probe) -> int:
    """The exit code of a rank that does not report; it says a word only if its MPI failed.

    In that case it lingers: a launcher ends all ranks as soon as one of them leaves a broken MPI,
    and would end rank 0 in the middle of its report.
    """
    if not probe.failure:
        return OK
    rank = probe.rank if probe.rank is not None else launcher.rank if launcher else None
    print(f"mpiring doctor: rank {rank}: {probe.failure}", file=sys.stderr, flush=True)
    time.sleep(LINGER)
    return BAD_NEWS


def diagnose(
    probe: Probe,
    launcher: launch.Launcher | None,
    versions: Mapping[str, str | None],
    environment: Mapping[str, str],
) -> list[Finding]:
    """All findings, in the order of the report.

    Args:
        versions: of NumPy and mpi4py, None for one that is not installed.
    """
    findings: list[Finding | None] = [packages.judge_python()]
    findings += [packages.judge_needed(name, found) for name, found in versions.items()]
    loaded = probe.library
    if loaded is not None or versions["mpi4py"]:
        findings.append(library.judge_library(loaded, probe.failure))
    findings.append(library.judge_wheels(library.find_wheels(), loaded, sys.prefix))
    if launcher is None and loaded is not None:
        slurm = "SLURM_JOB_ID" in environment
        findings.append(library.judge_mpirun(library.find_mpirun(), loaded, slurm))
    findings.append(launch.judge_launcher(launcher, environment, probe.size))
    family = loaded.family if loaded is not None else ""
    if loaded is not None:
        # A job whose MPI failed later than at its start is one job all the same.
        failure = "" if probe.size is not None else probe.failure
        start = launch.judge_start(launcher, loaded, probe.size, failure)
        findings.append(start)
        if probe.size is not None and start.status != PROBLEM:
            findings += examine_job(probe, family, probe.size)
    findings.append(examine_memory(probe))
    tries = {
        r: n.peer_reach for r, n in probe.nodes.items() if n.peer_reach is not None
    }
    linux = sys.platform == "linux"
    findings.append(
        machine.judge_peer_memory(
            machine.find_ptrace_scope(), tries, linux, environment
        )
    )
    if hasattr(os, "geteuid"):
        findings.append(examine_user(launcher, loaded, environment))
    if launcher is None and loaded is not None and family == "Open MPI":
        findings.append(examine_slots(loaded, environment))
    findings += examine_devices(probe, environment)
    if loaded is not None:
        hosts, ranks = len(set(hosts_of(probe.ranks).values())), probe.size or 1
        found = profile.judge_profile(environment, loaded.name, hosts, ranks)
        findings.append(found)
    findings.append(packages.judge_optional(packages.find_packages()))
    findings.append(launch.judge_messages(probe.output))
    return [finding for finding in findings if finding is not None]


def hosts_of(ranks: Mapping[int, RankFacts]) -> dict[int, str]:
    """The host of each rank; this one's for a rank 0 of which MPI knows nothing."""
    return {rank: facts.host for rank, facts in ranks.items()} or {
        0: socket.gethostname()
    }


def examine_job(probe: Probe, family: str, size: int) -> list[Finding | None]:
    """What the ranks said to each other, as far as they came."""
    findings: list[Finding | None] = []
    hosts = hosts_of(probe.ranks)
    if probe.ranks:
        libraries = {rank: facts.library for rank, facts in probe.ranks.items()}
        cores = {rank: facts.cores for rank, facts in probe.ranks.items()}
        threads = min(facts.threads for facts in probe.ranks.values())
        findings += [
            library.judge_agreement(libraries),
            launch.judge_ranks(hosts, size),
            machine.judge_cores(cores, hosts, family),
            launch.judge_threads(threads, LEVELS),
        ]
    if probe.failure:
        findings.append(launch.judge_failure(probe.failure))
    return findings


def examine_user(
    launcher: launch.Launcher | None,
    loaded: Library | None,
    environment: Mapping[str, str],
) -> Finding:
    """Whether this user may start jobs."""
    family, own = "", ""
    if loaded is not None:
        family, own = loaded.family, library.own_launcher(loaded)
    in_job = launcher is not None and launcher.family == "Open MPI"
    script = refusals.find_script(own)
    return refusals.judge_root(os.geteuid(), environment, family, script, in_job)


def examine_slots(loaded: Library, environment: Mapping[str, str]) -> Finding | None:
    """How many ranks mpirun starts here; None inside an allocation, which says so itself."""
    if any(variable in environment for variable, _ in launch.ALLOCATIONS):
        return None
    home = Path(os.path.expanduser("~"))
    files = refusals.Setting(loaded.major).find_files(loaded, home)
    cores = refusals.count_cores(machine.find_cores().allowed)
    return refusals.judge_slots(cores, environment, files, loaded)


def examine_memory(probe: Probe) -> Finding:
    """Shared memory, of all hosts that are known."""
    hosts = hosts_of(probe.ranks)
    memories = {hosts[rank]: facts.shared_memory for rank, facts in probe.ranks.items()}
    groups = sorted({node.group for node in probe.nodes.values()})
    unseen = [rank for rank, node in probe.nodes.items() if not node.file_seen]
    here = {hosts[0]: machine.find_shared_memory()}
    return machine.judge_shared_memory(memories or here, groups, unseen)


def examine_devices(
    probe: Probe, environment: Mapping[str, str]
) -> list[Finding | None]:
    """GPUs, and what MPI can do with their memory."""
    gpus = {rank: facts.gpus for rank, facts in probe.ranks.items()} or {0: find_gpus()}
    findings: list[Finding | None] = [devices.judge_gpus(gpus, hosts_of(probe.ranks))]
    if probe.facts is not None:
        built: dict[str, bool] = {}
        mpi = probe.facts.library
        if mpi.paths and mpi.family == "Open MPI":
            program = library.command_beside(mpi.paths[0], "ompi_info")
            built = devices.ask_ompi_info(program) if program else {}
        findings.append(
            devices.judge_cuda(probe.facts, built, environment, any(gpus.values()))
        )
    transports = {rank: facts.transport for rank, facts in probe.ranks.items()}
    return [*findings, devices.judge_transport(transports)]
