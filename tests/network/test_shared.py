"""``ring.empty`` on several hosts, which have one /dev/shm here: nobody shares with more ranks than the MPI says."""

from __future__ import annotations

PROGRAM = """
import mpiring
from mpiring.wire.arrays import NUMPY
from mpiring.wire.shared import place_of

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
