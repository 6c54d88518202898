"""The hosts are what they say, and they go away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hosts import Hosts, namespaces, processes, remove_stale
from launch import is_alive, wait_until

HERE = Path(__file__).parent
TESTS = HERE.parent
LAB = TESTS.parent / "lab"

# Each rank: its host, and the other ends of its established connections (state 01 in /proc).
WHERE = """
import json, os, socket
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.alltoall(list(range(comm.size)))
rows = [line.split() for line in open("/proc/net/tcp")][1:]
peers = [bytes.fromhex(row[2].split(":")[0])[::-1] for row in rows if row[3] == "01"]
ends = set(map(socket.inet_ntoa, peers))
told = comm.gather((socket.gethostname(), os.environ["MPIRING_A"], sorted(ends)))
if comm.rank == 0:
    print(json.dumps(told))
"""

# Every rank writes its process id, then waits for a message that nobody sends.
HANG = """
import os, sys
from mpi4py import MPI
open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
MPI.COMM_WORLD.recv(source=MPI.ANY_SOURCE)
"""

# A pytest of its own, which builds hosts, hangs on them, and is stopped from outside.
WAITS = """
from hosts import Hosts
def test_waits():
    with Hosts(2, rate="100mbit") as hosts:
        hosts.launch(2, ["-c", {program!r}, {ranks!r}], timeout=60)
"""


def test_each_rank_has_a_host_and_talks_to_hosts_only(hosts):
    job = hosts.launch(4, ["-c", WHERE], env={"MPIRING_A": "17"}).check()
    told = json.loads(job.stdout)
    assert [name for name, _, _ in told] == ["node0", "node1", "node2", "node3"]
    assert [value for _, value, _ in told] == ["17"] * 4
    ends = {end for _, _, each in told for end in each}
    assert ends <= {"127.0.0.1", *(f"10.77.0.{i}" for i in (1, 2, 3, 4))}
    assert len(ends - {"127.0.0.1"}) == 4


def test_no_way_leads_out(hosts):
    for name in hosts.names:
        shown = subprocess.run(
            ["ip", "-n", hosts.namespace(name), "route"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert [line.split()[0] for line in shown.splitlines()] == ["10.77.0.0/24"]


def test_a_failure_inside_leaves_nothing():
    with pytest.raises(ZeroDivisionError):
        with Hosts(2, rate="100mbit") as hosts:
            prefix = hosts.namespace("")
            sleeper = subprocess.Popen(hosts.on("node1", ["sleep", "60"]))
            wait_until(lambda: sleeper.pid in processes(hosts.namespace("node1")))
            assert len(namespaces(prefix)) == 3
            1 / 0
    assert sleeper.wait(10) == -signal.SIGKILL
    assert namespaces(prefix) == []


def test_a_failure_while_building_leaves_nothing():
    hosts = Hosts(2, rate="no rate")
    with pytest.raises(RuntimeError, match="no rate"):
        hosts.__enter__()
    assert namespaces(hosts.namespace("")) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(tmp_path, how):
    with _waiting(tmp_path) as (outer, ranks):
        outer.send_signal(how)
        assert outer.wait(30) != 0
        assert [pid for pid in ranks if is_alive(pid)] == []
        assert namespaces(f"mpiring-{outer.pid}-") == []


def test_what_a_killed_process_leaves_is_removed_later(tmp_path):
    with _waiting(tmp_path) as (outer, ranks):
        outer.kill()
        outer.wait()
        assert len(namespaces(f"mpiring-{outer.pid}-")) == 3
        remove_stale()
        wait_until(lambda: not any(is_alive(pid) for pid in ranks))
        assert namespaces(f"mpiring-{outer.pid}-") == []


class _waiting:
    """A pytest process whose job on two hosts hangs, and the process ids of its ranks."""

    def __init__(self, where: Path) -> None:
        self.ranks = where / "ranks"
        self.ranks.mkdir()
        source = WAITS.format(program=HANG, ranks=str(self.ranks))
        (where / "test_waits.py").write_text(source)
        (where / "conftest.py").write_text((TESTS / "conftest.py").read_text())
        options = [
            "-c",
            os.devnull,
            "-o",
            f"pythonpath={LAB}",
            "-p",
            "no:cacheprovider",
        ]
        self.outer = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, f"--rootdir={where}", where],
            stdout=subprocess.DEVNULL,
            # A job in the background is started with the interrupt ignored, and so are its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def __enter__(self) -> tuple[subprocess.Popen, list[int]]:
        wait_until(lambda: len(list(self.ranks.iterdir())) == 2)
        return self.outer, [int(path.name) for path in self.ranks.iterdir()]

    def __exit__(self, *exc: object) -> None:
        self.outer.kill()
        self.outer.wait()
        remove_stale()


def test_links_take_as_much_at_a_time_as_was_asked_for():
    with Hosts(2, rate="100mbit", packet_bytes=8192) as hosts:
        for name, links in (("net", ["port0", "port1"]), ("node1", ["eth0"])):
            command = ["ip", "-n", hosts.namespace(name), "-details", "link", "show"]
            for link in links:
                shown = subprocess.run(
                    [*command, link], capture_output=True, text=True, check=True
                ).stdout
                assert "gso_max_size 8192 " in shown
