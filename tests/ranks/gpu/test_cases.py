"""The cases of tests/devices/cases.py and the "h+d" cases of whole rings, on device arrays over the MPI."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpiring

from devices import cases
from devices.cases import CASES, Programs, drive

pytestmark = pytest.mark.ranks(1, 2, 3, 4, 5)
SIZE = MPI.COMM_WORLD.size
FIT = [name for name, (_, sizes) in CASES.items() if SIZE in sizes]
SHORT = [name for name in FIT if name != "b03_everybody_sends_first"]  # that is large


def places(names: list[str]) -> list[Any]:
    """Each on a card; on the pretended device one is enough here: tests/ranks/test_device.py has them all."""
    real = [pytest.param("real", name, marks=pytest.mark.gpu) for name in names]
    return [*(("pretended", name) for name in names[-1:]), *real]


LONG, PLACES = places(FIT), places(SHORT)
BUCKETS = [8, 1 << 20, None]


@pytest.mark.parametrize("where, name", LONG, indirect=["where"])
def test_case(cupy, ring, scale, name):
    drive(CASES[name][0](Programs(ring, scale.many, 20), cupy))


@pytest.mark.parametrize("where, name", PLACES, indirect=["where"])
def test_case_in_short_messages(cupy, comm, transport, name):
    """Every buffer of more than five numbers goes in pieces."""
    with mpiring.Ring(
        comm, timeout=30, device_transport=transport, message_bytes=40
    ) as ring:
        drive(CASES[name][0](Programs(ring, 50, 3), cupy))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("bucket_bytes", BUCKETS)
def test_b14_no_gradient(cupy, ring, bucket_bytes):
    mine = [
        [np.ones(2), np.full(3, 4.0), np.full(2, 6.0), None],
        [np.ones(2), None, np.full(2, 2.0), None],
    ][ring.rank]
    grads = [None if g is None else cupy.asarray(g) for g in mine]
    averaged = mpiring.average_gradients(grads, ring, bucket_bytes=bucket_bytes)
    for want, result in zip(([1.0, 1], [2.0, 2, 2], [4.0, 4]), averaged):
        cases.check(cupy, result, np.array(want))
    assert averaged[3] is None


@pytest.mark.ranks(2)
@pytest.mark.parametrize("bucket_bytes", BUCKETS)
def test_b16_mixed_bucket(cupy, ring, bucket_bytes):
    shapes: list[tuple[str, Any]] = [
        ("f4", 3),
        ("f2", 5),
        ("f8", 1),
        ("f4", 0),
        ("f2", ()),
        ("c8", 2),
    ]
    grads = [
        cupy.asarray(np.full(shape, ring.rank + 1, dtype)) for dtype, shape in shapes
    ]
    averaged = mpiring.average_gradients(grads, ring, bucket_bytes=bucket_bytes)
    for (dtype, shape), result in zip(shapes, averaged):
        cases.check(cupy, result, np.full(shape, 1.5, dtype))
    again = mpiring.average_gradients(grads, ring, bucket_bytes=bucket_bytes, out=grads)
    for (dtype, shape), grad, result in zip(shapes, grads, again):
        assert result is grad
        cases.check(cupy, grad, np.full(shape, 1.5, dtype))


@pytest.mark.ranks(2, 3)
def test_one_rank_on_the_host_another_on_the_device(cupy, ring):
    mine = cases.Numpy if ring.rank == 1 else cupy
    for count in (5, 100_000):
        result = ring.allreduce(mine.asarray(np.full(count, 8.0**ring.rank)))
        want = np.full(count, float(int("1" * ring.size, base=8)))
        cases.check(mine, result, want)


@pytest.mark.ranks(3, 4)
def test_a_call_that_differs_raises_everywhere_and_the_ring_goes_on(cupy, comm, ring):
    mine = cupy.asarray(np.ones(7 + (ring.rank == 1), "f4"))
    try:
        ring.allreduce(mine)
        told = ""
    except ValueError as error:
        told = str(error)
    after = ring.allreduce(cupy.asarray(np.ones(3)))
    assert set(comm.allgather(told)) == {told}
    assert "rank 1 passed array float32[8]" in told
    cases.check(cupy, after, np.full(3, float(ring.size)))
