"""The ring between four hosts."""

from __future__ import annotations

import pytest

PROGRAM = """
import socket, sys
import numpy as np
from mpi4py import MPI
import mpiring

algorithm, counts = sys.argv[1], map(int, sys.argv[2:])
with mpiring.Ring() as ring:
    assert ring.size == 4
    for count in counts:
        mine = np.full(count, 8**ring.rank, "i8")
        total = ring.allreduce(mine, algorithm=algorithm)
        assert total.shape == (count,) and total.dtype == np.int64
        assert (total == 0o1111).all(), total
        assert (mine == 8**ring.rank).all(), mine
names = MPI.COMM_WORLD.gather(socket.gethostname())
if ring.rank == 0:
    print(*names)
"""


@pytest.mark.parametrize("algorithm", ["auto", "ring", "direct"])
def test_fingerprints_cross_the_wire(hosts, algorithm):
    before = hosts.bytes_sent()
    job = hosts.launch(4, ["-c", PROGRAM, algorithm, "17", "100000"]).check()
    after = hosts.bytes_sent()
    assert job.stdout.split() == ["node0", "node1", "node2", "node3"]
    sent = sum(after[name] - before[name] for name in hosts.names)
    assert sent >= 2 * (4 - 1) * 100_000 * 8
