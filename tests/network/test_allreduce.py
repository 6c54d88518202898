"""The MPI's own all-reduce between four hosts: the ground that the ring's tests stand on."""

from __future__ import annotations

COUNT = 100_000

PROGRAM = f"""
import socket
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
mine = np.full({COUNT}, 8**comm.rank, "i8")
total = np.empty_like(mine)
comm.Allreduce(mine, total)
assert (total == 0o1111).all(), total
names = comm.gather(socket.gethostname())
if comm.rank == 0:
    print(*names)
"""


def test_the_sum_crosses_the_wire(hosts):
    before = hosts.bytes_sent()
    job = hosts.launch(4, ["-c", PROGRAM]).check()
    after = hosts.bytes_sent()
    assert job.stdout.split() == ["node0", "node1", "node2", "node3"]
    # No all-reduce of N bytes sends fewer than 2 (K - 1) N in all: each element has to be combined
    # K - 1 times, and its sum to reach K - 1 other ranks.
    sent = sum(after[name] - before[name] for name in hosts.names)
    assert sent >= 2 * (4 - 1) * COUNT * 8
