"""B23 and B24, as people ran into them: an MPI that cannot take device memory, and work that is still queued."""

from __future__ import annotations

import numpy as np
import pytest

import mpiring
from mpiring.wire.arrays import CupyKind
from mpiring.wire.gpu_aware import decision
from mpiring.wire.gpu_aware.evidence import Clue

from devices import cases
from devices.slow import slow_copy

pytestmark = pytest.mark.ranks(2)


def test_b23_an_mpi_that_cannot_take_device_memory(cupy, comm, where):
    """``device_transport`` says "staged" where the MPI cannot, and everything is right."""
    with mpiring.Ring(comm, timeout=30) as ring:
        how = ring.device_transport
        total = ring.allreduce(cupy.arange(10, dtype="i4"))
        y = cupy.arange(10, dtype="i4") * (ring.rank + 1)
        sent = ring.broadcast(y, root=1)
        part = ring.reduce_scatter(cupy.arange(10, dtype="i4"))
        out = cupy.zeros(10, dtype="i4")
        if ring.rank == 0:
            ring.send(total, 1)
            ring.recv(out, 1)
        else:
            ring.recv(out, 0)
            ring.send(total, 0)
    if where == "pretended":
        assert how.transport == "staged"
    assert how.transport in ("direct", "staged") and how.why
    numbers = np.arange(10, dtype="i4")
    cases.check(cupy, total, 2 * numbers)
    cases.check(cupy, sent, 2 * numbers)
    cases.check(cupy, part, 2 * numbers[5 * ring.rank : 5 * ring.rank + 5])
    cases.check(cupy, out, 2 * numbers)


def test_b23_forcing_the_device_path_there_is_an_error(cupy, comm, monkeypatch):
    """A clear one, on every rank, and not a crash; the next ring works."""
    no = (Clue("no", "MPIX_Query_cuda_support of this MPI says no"),)
    monkeypatch.setattr(decision, "weigh", lambda *facts: no)
    nothing = Clue("", "no probe has passed here")
    monkeypatch.setattr(decision, "find_probe", lambda *about: nothing)
    with pytest.raises(ValueError, match="takes pointers into device memory") as caught:
        mpiring.Ring(comm, device_transport="direct")
    assert len(set(comm.allgather(str(caught.value)))) == 1
    assert "says no" in str(caught.value)
    with mpiring.Ring(comm, timeout=30) as ring:
        assert ring.device_transport.transport == "staged"
        total = ring.allreduce(cupy.asarray(np.full(3, 8.0**ring.rank)))
        cases.check(cupy, total, np.full(3, float(0o11)))


def sum_what_is_still_queued(cupy, ring, scale):
    """How many numbers of each all-reduce are wrong."""
    slow, stream = slow_copy(cupy, scale.turns), cupy.cuda.Stream(non_blocking=True)
    wrong = []
    with stream:
        x, y = cupy.empty(scale.many, "f4"), cupy.empty(scale.many, "f4")
        for _ in range(scale.repeats):
            x.fill(-1)
            slow(x, y)
            y.fill(ring.rank + 1)
            total = ring.allreduce(y)
            wrong.append(int((total != 3).sum()))  # read on the same stream
    return wrong


def test_b24_work_still_queued(cupy, ring, scale):
    assert sum_what_is_still_queued(cupy, ring, scale) == [0] * scale.repeats


def test_b24_sees_a_call_that_does_not_wait(cupy, ring, scale, monkeypatch):
    """Without the event that orders our stream behind the user's, the same comes out wrong, on a card too."""
    monkeypatch.setattr(CupyKind, "_enter", lambda self: None)
    wrong = sum_what_is_still_queued(cupy, ring, scale)
    assert any(ring.allgather(np.array(sum(wrong))) > 0)


def test_b24_the_slow_kernels_own_result(cupy, ring, scale):
    """The kernel is what is summed: its end is waited for, and not only that of what is queued behind it."""
    slow, stream = slow_copy(cupy, scale.turns), cupy.cuda.Stream(non_blocking=True)
    results = []
    with stream:
        x, y = cupy.empty(scale.many, "f4"), cupy.empty(scale.many, "f4")
        for _ in range(scale.repeats):
            x.fill(ring.rank + 1)
            y.fill(-1)
            slow(x, y)
            total = ring.allreduce(y, out=y)
            results.append(int((total != 3).sum()))
    assert results == [0] * scale.repeats


def test_b24_a_buffer_just_zeroed_keeps_what_was_received(cupy, ring, scale):
    slow, stream = slow_copy(cupy, scale.turns), cupy.cuda.Stream(non_blocking=True)
    results = []
    with stream:
        x, out = cupy.full(scale.many, 7, "f4"), cupy.empty(scale.many, "f4")
        for _ in range(scale.repeats):
            slow(x, out)
            out.fill(0)
            if ring.rank == 0:
                ring.send(x, 1)
                ring.recv(out, 1)
            else:
                ring.recv(out, 0)
                ring.send(x, 0)
            results.append(int((out != 7).sum()))
    assert results == [0] * scale.repeats
