"""``mpiring tune`` between four hosts: it measures this wire, and a ring on it takes what was chosen."""

from __future__ import annotations

import json

from mpiring.wire.settings.profiles import parsed
from mpiring.wire.settings.tuning import NETWORK

TAKEN = """
import json
import numpy as np
from mpi4py import MPI
import mpiring
with mpiring.Ring() as ring:
    total = ring.allreduce(np.full(100_000, 8**ring.rank))
    assert (total == 0o1111).all(), total
    told = MPI.COMM_WORLD.gather((ring.wire, ring.tuning.as_json()))
if ring.rank == 0:
    print(json.dumps(told))
"""


def test_the_wire_is_measured_and_rings_take_what_was_chosen(hosts, tmp_path):
    path = tmp_path / "profile.json"
    tune = ["-m", "mpiring", "tune", "--quick", "--max-bytes", "256Ki", "-o", path]
    job = hosts.launch(4, tune).check()
    (entry,) = parsed(path.read_text())
    assert (entry.wire, entry.ranks, entry.measured["hosts"]) == (NETWORK, 4, 4)
    assert "4 ranks on 4 hosts" in job.stdout
    # Only rank 0's environment has to name it.
    told = hosts.launch(4, ["-c", TAKEN], env={"MPIRING_PROFILE": str(path)}).check()
    assert json.loads(told.stdout) == [[NETWORK, entry.tuning.as_json()]] * 4
