"""``ring.empty`` on several hosts, which have one /dev/shm here: nobody shares with more ranks than the MPI says."""

from __future__ import annotations

import pytest

from hosts import Hosts

PROGRAM = """
import mpiring
from mpiring.wire.arrays import NUMPY
from mpiring.wire.node.shared import place_of

with mpiring.Ring() as ring:
    x = ring.empty(100_000, "int64")
    assert place_of(NUMPY, x) is None, "alone on its host, and shared"
    x[...] = 8**ring.rank
    ring.allreduce(x, out=x)
    assert (x == 0o1111).all(), x
    try:
        ring.allreduce(x, out=x, algorithm="shared")
    except ValueError as error:
        assert "rank 0, 1, 2, 3 passed other memory" in str(error), error
    else:
        raise AssertionError("shared between hosts")
    print("fine")
"""


def test_hosts_share_no_memory(hosts):
    job = hosts.launch(4, ["-c", PROGRAM]).check()
    assert job.stdout.split() == ["fine"] * 4


SEVERAL = """
import socket, sys
import numpy as np
from mpi4py import MPI
import mpiring
from mpiring.wire.execute import hierarchy
from mpiring.wire.arrays import NUMPY
from mpiring.wire.node.shared import place_of

algorithm, count = sys.argv[1], int(sys.argv[2])
comm = MPI.COMM_WORLD
with mpiring.Ring(timeout=60) as ring:
    x, y = ring.empty(count, "int64"), ring.empty(count, "int64")
    hosts = hierarchy.hosts_of(comm.allgather(place_of(NUMPY, x)))
    total = int("1" * ring.size, base=8)
    for out in (y, x):
        x[...] = 8**ring.rank
        ring.allreduce(x, out=out, algorithm=algorithm)
        assert (out == total).all(), out
    x[...] = 8**ring.rank
    assert (ring.reduce_scatter(x, algorithm=algorithm) == total).all()
names = comm.gather(socket.gethostname())
if ring.rank == 0:
    print(*names, hosts)
"""


@pytest.mark.parametrize(
    "size, where",
    [
        (4, "node0 node0 node1 node1 (2, 2)"),
        # A rank alone on its host is one, too.
        (3, "node0 node0 node1 (2, 1)"),
    ],
)
def test_hosts_combine_inside_and_send_between(size, where):
    """Fewer bytes cross the links than with the ring of all ranks."""
    count, sent = 100_000, {}
    with Hosts(2, rate="100mbit") as two:
        for algorithm in ("shared", "ring"):
            before = two.bytes_sent()
            command = ["-c", SEVERAL, algorithm, str(count)]
            job = two.launch(size, command, map_by="slot").check()
            after = two.bytes_sent()
            assert job.stdout.strip() == where
            sent[algorithm] = sum(after[name] - before[name] for name in two.names)
    # Two all-reduces, each with at least a whole array each way, and half of one for the reduce-scatter.
    assert (2 * 2 + 1) * count * 8 <= sent["shared"] < 0.95 * sent["ring"]


def test_ranks_that_take_turns_go_the_ordinary_way():
    """Each next rank on the next host: they lie not behind each other, and the answer is right all the same."""
    with Hosts(2, rate="100mbit") as two:
        job = two.launch(4, ["-c", SEVERAL, "auto", "5000"]).check()
    assert job.stdout.strip() == "node0 node1 node0 node1 ()"
