"""The seam for device arrays over a real MPI: mpi4py takes the way that it takes for a GPU.

The device is host memory (tests/devices/host_cupy.py), so every MPI can reach it, built for GPUs or not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpiring
from mpiring.wire.arrays import CupyKind

from devices import cases, host_cupy
from devices.cases import CASES

SIZE = MPI.COMM_WORLD.size


@pytest.fixture
def cupy(monkeypatch):
    return host_cupy.install(monkeypatch)


@pytest.fixture
def ring(comm):
    with mpiring.Ring(comm, timeout=30, message_bytes=40) as ring:
        yield ring


class Programs:
    """A ring whose calls are programs to ``yield from``, as the cases want them."""

    repeats = 20

    def __init__(self, ring):
        self._ring = ring
        self.rank, self.size = ring.rank, ring.size

    def __getattr__(self, name):
        def program(*args, **kwargs):
            return getattr(self._ring, name)(*args, **kwargs)
            yield

        return program


def drive(program):
    assert list(program) == []


FIT = [name for name, (_, sizes) in CASES.items() if SIZE in sizes]


@pytest.mark.parametrize("name", FIT)
def test_case_on_the_device(cupy, ring, name):
    drive(CASES[name][0](Programs(ring), cupy))
    assert cupy.cuda.get_current_stream().synchronisations > 0 or SIZE == 1


@pytest.mark.parametrize("name", FIT)
def test_case_on_the_host(ring, name):
    drive(CASES[name][0](Programs(ring), cases.Numpy))


def test_messages_go_by_the_cuda_array_interface(cupy, ring, monkeypatch):
    """mpi4py reads it, and nothing else: the arrays have no other way in."""
    asked = []
    interface = host_cupy.ndarray.__cuda_array_interface__

    def ask(self):
        asked.append(self.dtype)
        return interface.fget(self)

    monkeypatch.setattr(host_cupy.ndarray, "__cuda_array_interface__", property(ask))
    x = cupy.asarray(np.full(3 * SIZE, 8.0**ring.rank))
    result = ring.allreduce(x)
    cases.check(cupy, result, np.full(3 * SIZE, float(int("1" * SIZE, base=8))))
    assert (asked.count(np.dtype(np.uint8)) > 0) == (SIZE > 1)


@pytest.mark.ranks(2, 3, 4)
def test_a_forgotten_synchronisation_gives_wrong_numbers(cupy, ring, monkeypatch):
    monkeypatch.setattr(CupyKind, "message", lambda self, piece: piece.view(np.uint8))
    x = cupy.asarray(np.zeros(5))
    x[...] = 8.0**ring.rank
    result = ring.allreduce(x, algorithm="ring")
    assert (cupy.asnumpy(result) != float(int("1" * SIZE, base=8))).any()


@pytest.mark.ranks(2, 3)
def test_one_rank_on_the_host_another_on_the_device(cupy, ring):
    mine = cases.Numpy if ring.rank == 1 else cupy
    result = ring.allreduce(mine.asarray(np.full(5, 8.0**ring.rank)))
    cases.check(mine, result, np.full(5, float(int("1" * SIZE, base=8))))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("bucket_bytes", [8, 1 << 20, None])
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


@pytest.mark.ranks(2)
def test_b14_no_gradient(cupy, ring):
    mine = [
        [np.ones(2), np.full(3, 4.0), np.full(2, 6.0), None],
        [np.ones(2), None, np.full(2, 2.0), None],
    ][ring.rank]
    grads = [None if g is None else cupy.asarray(g) for g in mine]
    averaged = mpiring.average_gradients(grads, ring)
    for want, result in zip(([1.0, 1], [2.0, 2, 2], [4.0, 4]), averaged):
        cases.check(cupy, result, np.array(want))
    assert averaged[3] is None
