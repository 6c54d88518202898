"""What a ring does on a GPU: each test runs on a card where there is one, and on a pretended one everywhere.

The fixture ``cupy`` is the module, and comes in two: ``real`` under the marker ``gpu`` (``make test-gpu``), and
``pretended``, tests/devices/deferred.py, whose device is host memory and which does its work as late as it can.  So a
mistake in a test for GPUs shows where there is none.

All ranks share one card if there is one only: that is what is tested, and an MPI that takes device memory has to map
the memory of another process there too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import mpiring
from mpiring.wire.gpu_aware import decision
from mpiring.wire.gpu_aware.evidence import Clue

from devices import compiled, deferred, local, numerics

REAL = pytest.param("real", marks=pytest.mark.gpu)


@pytest.fixture(params=["pretended", REAL])
def where(request):
    """Where the arrays live: ``"pretended"`` or ``"real"``."""
    return request.param


@pytest.fixture
def cupy(where, comm, monkeypatch) -> Iterator[Any]:
    """CuPy with this rank's device current, or what stands in for it."""
    if where == "pretended":
        if compiled.no_compiler():
            pytest.skip(compiled.no_compiler())
        choose = deferred.seeded(comm.rank)
        module = local.install(monkeypatch, choose=choose, devices=1)
        numerics.add(module, monkeypatch)
        yield module
        return
    module, problem = real_cupy()
    problems = [problem for problem in comm.allgather(problem) if problem]
    if problems:
        pytest.skip(problems[0])
    device = module.cuda.Device(
        mpiring.local_rank() % module.cuda.runtime.getDeviceCount()
    )
    with device:
        yield module
        device.synchronize()  # what a kernel did wrong is this test's failure


def real_cupy() -> tuple[Any, str]:
    """CuPy, or the reason why there is none to test with."""
    try:
        import cupy
    except ImportError as error:
        return None, f"no CuPy: {error}"
    try:
        if cupy.cuda.runtime.getDeviceCount() == 0:
            return None, "CUDA sees no GPU"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return None, f"no GPU: {error}"
    return cupy, ""


class Scale(NamedTuple):
    """How much a test does.

    Attributes:
        many: elements that are many.
        turns: of a slow kernel's loop; on a card some ten milliseconds for so many elements.
        repeats: of what has to come out right each time.
    """

    many: int
    turns: int
    repeats: int


@pytest.fixture
def scale(where) -> Scale:
    """As large and as often as the cases say on a card; small and thrice on the pretended one."""
    return Scale(1 << 24, 5000, 50) if where == "real" else Scale(1 << 10, 10, 3)


@pytest.fixture(params=["staged", "direct"])
def transport(request, where, comm, monkeypatch) -> str:
    """``"staged"``, and ``"direct"`` where the MPI can: on the pretended device, which is host memory, any MPI."""
    if request.param == "direct" and where == "pretended":
        yes = (Clue("yes", "the pretended device is host memory"),)
        monkeypatch.setattr(decision, "weigh", lambda *facts: yes)
    elif request.param == "direct":
        with mpiring.Ring(comm) as ring:
            how = ring.device_transport
        if how.transport != "direct":
            pytest.skip(f"this MPI does not take device memory: {how.why}")
    return str(request.param)


@pytest.fixture
def ring(comm, transport) -> Iterator[mpiring.Ring]:
    """A ring that moves device memory by this transport."""
    with mpiring.Ring(comm, timeout=30, device_transport=transport) as ring:
        yield ring
