"""Cores, shared memory, peers' memory and root, on made-up machines."""

from __future__ import annotations

import os
import sys

import pytest

from mpiring.cli.doctor import machine
from mpiring.cli.doctor.machine import MIB, Cores, SharedMemory

linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="looks at Linux's /dev/shm"
)


@pytest.mark.parametrize(
    "text, quota",
    [
        ("150000 100000\n", 1.5),
        ("max 100000\n", None),
        ("-1 100000", None),
        ("400000\n 100000\n", 4.0),
        ("", None),
        (" ", None),
    ],
)
def test_control_group_limits(text, quota):
    assert machine.read_quota(text) == quota


def judge_cores(*per_rank, family="MPICH", hosts=None):
    cores = dict(enumerate(per_rank))
    return machine.judge_cores(cores, hosts or {rank: "a" for rank in cores}, family)


def test_enough_cores():
    finding = judge_cores(Cores((0, 1)), Cores((0, 1)))
    assert (finding.status, finding.found) == ("ok", "a: 2 ranks on 2 cores")
    assert (
        judge_cores(Cores((0,)), Cores((1,))).status == "ok"
    )  # bound, each to its own


@pytest.mark.parametrize(
    "ranks, fact",
    [
        ([Cores((0, 1))] * 3, "a: 3 ranks on 2 cores"),
        ([Cores((0,))] * 2, "a: 2 ranks on 1 core"),  # bound, both to the same
        ([Cores((0, 1, 2, 3), 1.5)] * 2, "a: 2 ranks on 4 cores (limited to 1.5 by"),
    ],
)
def test_too_few_cores_are_noted(ranks, fact):
    finding = judge_cores(*ranks)
    assert finding.status == "note" and fact in finding.found
    assert "OMP_NUM_THREADS=1" in finding.advice and "OMPI_MCA" not in finding.advice
    assert (
        "OMPI_MCA_mpi_yield_when_idle=1"
        in judge_cores(*ranks, family="Open MPI").advice
    )


def test_each_host_is_counted_for_itself():
    hosts = {0: "a", 1: "b", 2: "b"}
    finding = judge_cores(Cores((0,)), Cores((0,)), Cores((0,)), hosts=hosts)
    assert finding.status == "note"
    assert finding.found == "a: 1 rank on 1 core; b: 2 ranks on 1 core"


def test_this_machine_has_cores():
    cores = machine.find_cores()
    assert len(cores.allowed) >= 1
    assert cores.quota is None or cores.quota > 0


ROOMY = SharedMemory(16 << 30, 15 << 30)


def test_shared_memory():
    finding = machine.judge_shared_memory({"a": ROOMY})
    assert finding.status == "ok"
    assert finding.found == "/dev/shm on a: 16384 MiB, 15360 MiB free"
    assert "a file made by one rank" not in finding.how
    finding = machine.judge_shared_memory({"a": ROOMY, "b": ROOMY}, [(0, 1), (2, 3)])
    assert finding.status == "ok"
    assert finding.found.endswith(
        "(the least of 2 hosts); ranks that share a node: 0-1 | 2-3"
    )
    assert "a file made by one rank" in finding.how


def test_where_there_is_no_shared_memory_to_look_at():
    finding = machine.judge_shared_memory({"a": None})
    assert finding.status == "ok" and "not looked at" in finding.found


@pytest.mark.parametrize(
    "memory, status, advice",
    [
        (
            SharedMemory(0, 0, "[Errno 2] No such file"),
            "problem",
            "mount a tmpfs on /dev/shm",
        ),
        (
            SharedMemory(16 << 30, 0, "[Errno 28] No space left"),
            "problem",
            "free what is left",
        ),
        (SharedMemory(64 * MIB, 64 * MIB), "note", "docker run --shm-size=1g"),
        (SharedMemory(16 << 30, 63 * MIB), "note", "ls -l /dev/shm"),
        (SharedMemory(65 * MIB, 65 * MIB), "ok", ""),
    ],
)
def test_little_shared_memory(memory, status, advice):
    finding = machine.judge_shared_memory({"roomy": ROOMY, "b": memory})
    assert finding.status == status and advice in finding.advice
    assert "/dev/shm on b" in finding.found


def test_containers_of_their_own_are_noted():
    finding = machine.judge_shared_memory({"a": ROOMY}, [(0, 1, 2)], unseen=[1])
    assert finding.status == "note" and "--pid=host" in finding.advice
    assert "cannot be opened by rank 1" in finding.found
    finding = machine.judge_shared_memory({"a": ROOMY}, [(0,), (1,)])
    assert finding.status == "note" and "more nodes than" in finding.advice


@linux_only
def test_shared_memory_is_tried(tmp_path):
    found = machine.find_shared_memory(str(tmp_path))
    assert found is not None and found.error == "" and found.total >= found.free
    assert list(tmp_path.iterdir()) == []
    found = machine.find_shared_memory(str(tmp_path / "not there"))
    assert found is not None and "No such file" in found.error
    found = machine.find_shared_memory("/proc")  # there, but no place for a file
    assert found is not None and found.error


@pytest.mark.parametrize("text, scope", [("1\n", 1), ("0\n", 0), ("?", None)])
def test_ptrace_scope(tmp_path, text, scope):
    (tmp_path / "scope").write_text(text)
    assert machine.find_ptrace_scope(str(tmp_path / "scope")) == scope
    assert machine.find_ptrace_scope(str(tmp_path / "no Yama")) is None


@pytest.mark.parametrize(
    "scope, tries, status, found",
    [
        (None, {}, "ok", "may be read by any process of the same user; not tried"),
        (0, {}, "ok", "may be read by any process of the same user; not tried"),
        (
            1,
            {},
            "note",
            "may be read by only a parent, or whom the process has named; not tried",
        ),
        (3, {}, "note", "may be read by nobody"),
        (9, {}, "note", "may be read by nobody"),
        (None, {0: "", 1: ""}, "ok", "every rank can reach the others' memory"),
        (
            1,
            {0: "", 1: ""},
            "ok",
            "every rank can reach the others' memory",
        ),  # MPI named them
        (
            1,
            {0: "", 1: "Operation not permitted"},
            "note",
            "by rank 1: Operation not permitted",
        ),
        (None, {0: "Bad address", 1: "x"}, "note", "by ranks 0-1: Bad address"),
    ],
)
def test_peers_memory(scope, tries, status, found):
    finding = machine.judge_peer_memory(scope, tries)
    assert finding.status == status and found in finding.found
    assert ("ptrace_scope=0" in finding.advice) == (status == "note")


def test_peers_memory_that_is_not_wanted():
    off = {"MPIRING_PEER_MEMORY": "No"}
    finding = machine.judge_peer_memory(None, {0: "", 1: ""}, environment=off)
    assert finding.status == "ok"
    assert finding.found.endswith(
        "rings do not use it, nor stages: MPIRING_PEER_MEMORY is off"
    )


@pytest.mark.parametrize("value", ["junk", "2", os.fsdecode(b"\xff")])
def test_b54_peers_memory_of_which_nobody_knows_whether_it_is_wanted(value):
    wrong = {"MPIRING_PEER_MEMORY": value}
    finding = machine.judge_peer_memory(None, {0: "", 1: ""}, environment=wrong)
    assert finding.status == "problem"
    assert finding.found.startswith(
        f"no ring can be made: MPIRING_PEER_MEMORY={value!r} says neither yes nor no"
    )
    assert "set it to 0 or 1" in finding.advice


def test_peers_memory_elsewhere():
    finding = machine.judge_peer_memory(None, {}, linux=False)
    assert finding.status == "ok" and "Linux" in finding.found
