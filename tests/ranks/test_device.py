"""Device arrays over a real MPI: mpi4py takes the way that it takes for a GPU.

The device is host memory that is written late (tests/devices/deferred.py): every MPI can reach it, with GPU support or
without, and a synchronisation that is missing gives wrong numbers.  ``direct`` is what a probe between the processes
allows, as on an MPI of unknown abilities.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from mpi4py import MPI

import mpiring
from mpiring.plan.catalog import schedule
from mpiring.wire.arrays.cupy import CupyKind
from mpiring.wire.gpu_aware import loaded, probe_record
from mpiring.wire.transport import device

from devices import cases, deferred, local
from devices.cases import CASES, drive

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
ALL_RANKS = int("1" * SIZE, base=8)  # the sum of 8**rank
TRANSPORTS = ["direct", "staged"]


@pytest.fixture(params=[0, pytest.param(1, marks=pytest.mark.slow)])
def cupy(request, monkeypatch):
    seed = 10 * request.param + RANK  # each rank's device has its own mood
    return local.install(monkeypatch, choose=deferred.seeded(seed))


@pytest.fixture(params=TRANSPORTS)
def transport(request):
    return request.param


@pytest.fixture
def probed(monkeypatch, tmp_path, cupy):
    """A probe between the processes has passed: each has got device memory of its neighbour."""
    given, taken = cupy.asarray(np.full(1000, RANK)), cupy.asarray(np.zeros(1000, int))
    cupy.cuda.get_current_stream().synchronize()
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    COMM.Sendrecv(
        given.view(np.uint8), right, 3, recvbuf=taken.view(np.uint8), source=left
    )
    assert cupy.asnumpy(taken).tolist() == [left] * 1000
    monkeypatch.setenv("MPIRING_CACHE", str(tmp_path))
    subject = probe_record.find_subject(loaded.find_library(), os.environ)
    assert subject is not None
    probe_record.write_record(tmp_path, subject, {})


@pytest.fixture
def ring(comm, probed, transport):
    with mpiring.Ring(
        comm, timeout=30, message_bytes=40, device_transport=transport
    ) as ring:
        assert ring.device_transport.transport == transport
        yield ring


@pytest.fixture
def travelled(monkeypatch):
    """By which transports buffers have gone."""
    seen: set[str] = set()
    for kind in (device.Direct, device.Staged):
        start = kind.isend

        def isend(self, *args, start=start, kind=kind):
            seen.add(kind.__name__.lower())
            return start(self, *args)

        monkeypatch.setattr(kind, "isend", isend)
    return seen


FIT = [name for name, (_, sizes) in CASES.items() if SIZE in sizes]


@pytest.mark.parametrize("name", FIT)
def test_case_on_the_device(cupy, ring, transport, travelled, name):
    drive(CASES[name][0](cases.Programs(ring), cupy))
    assert travelled <= {transport}
    if name != "b06_nothing_to_send":
        assert travelled or SIZE == 1


@pytest.mark.parametrize("name", FIT)
def test_case_on_the_host(monkeypatch, comm, name):
    with mpiring.Ring(comm, timeout=30, message_bytes=40) as ring:
        drive(CASES[name][0](cases.Programs(ring), cases.Numpy))


@pytest.mark.parametrize("non_blocking", [False, True])
def test_promise_10_the_current_stream_is_enough(cupy, ring, non_blocking):
    """B24: what is queued before the call counts, what is queued after it sees the result; 50 times."""
    stream = cupy.cuda.Stream(non_blocking=non_blocking)
    with stream:
        x, out = cupy.empty(100, "f4"), cupy.empty(100, "f4")
        for _ in range(50):
            x.fill(-1)
            x.fill(8**RANK)
            result = ring.allreduce(x, out=out)
            cases.check(cupy, result * 2, np.full(100, 2 * ALL_RANKS, "f4"))
            out.fill(0)


@pytest.mark.ranks(2, 3)
def test_promise_10_recv_into_what_was_just_cleared(cupy, ring):
    with cupy.cuda.Stream(non_blocking=True):
        for repeat in range(20):
            x = cupy.empty(50, "i8")
            x.fill(100 * RANK + repeat)
            out = cupy.empty(50, "i8")
            out.fill(0)
            with ring.group():
                ring.send(x, (RANK + 1) % SIZE)
                ring.recv(out, (RANK - 1) % SIZE)
            x.fill(-5)
            cases.check(
                cupy, out + 1, np.full(50, 100 * ((RANK - 1) % SIZE) + repeat + 1)
            )


def test_promise_10_asynchronous_calls_on_several_streams(cupy, ring):
    """The stream of a call is the one that was current when it was made."""
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    started = []
    for number, stream in enumerate(streams):
        with stream:
            x = cupy.empty(30, "f8")
            x.fill(8.0**RANK * (number + 1))
            started.append(ring.allreduce(x, async_op=True))
    for number, (stream, work) in enumerate(zip(streams, started)):
        result = work.wait()
        with stream:
            cases.check(cupy, result, np.full(30, ALL_RANKS * (number + 1.0)))


def test_promise_4_the_same_bits_as_on_the_host(cupy, ring):
    values = np.random.default_rng(RANK).standard_normal(60)
    for dtype in ("f4", "f8", "f2", "c8"):
        x = (values * 100).astype(dtype)
        for op in ("sum", "avg", "prod"):
            for algorithm in ("ring", "direct"):
                if (op, dtype) == ("prod", "c8"):
                    continue  # NumPy's own bits depend on the place in memory
                host = ring.allreduce(x, op, algorithm=algorithm)
                device = ring.allreduce(cupy.asarray(x), op, algorithm=algorithm)
                cases.check(cupy, device, host)


@pytest.mark.ranks(2, 3, 4)
def test_a_forgotten_synchronisation_gives_wrong_numbers(
    cupy, ring, transport, monkeypatch
):
    """Over MPI too: nothing is said, the numbers are wrong on some rank."""

    def wrong(count=20):
        found = 0
        for _ in range(count):
            x = cupy.empty(5, "f8")
            x.fill(8.0**RANK)
            result = ring.allreduce(x, algorithm="ring")
            found += (cupy.asnumpy(result) != float(ALL_RANKS)).any()
        return COMM.allreduce(found)

    assert wrong() == 0
    monkeypatch.setattr(CupyKind, "_enter", lambda self: None)
    assert wrong() > 0


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("host", [0, 1])
def test_one_rank_on_the_host_another_on_the_device(cupy, ring, host):
    """Each gets its own kind; messages are as long on both ends, whoever stages."""
    mine = cases.Numpy if RANK == host else cupy
    for algorithm in ("ring", "direct"):
        x = mine.asarray(np.full(50, 8.0**RANK))
        result = ring.allreduce(x, algorithm=algorithm)
        cases.check(mine, result, np.full(50, float(ALL_RANKS)))
    joined = ring.allgather(mine.asarray(np.full(10 * RANK, RANK)))
    cases.check(mine, joined, np.repeat(np.arange(SIZE), 10 * np.arange(SIZE)))
    y = ring.broadcast(mine.asarray(np.full(50, RANK)), root=1)
    cases.check(mine, y, np.full(50, 1))
    out = mine.asarray(np.zeros(50))
    with ring.group():
        ring.send(x, (RANK + 1) % SIZE)
        ring.recv(out, (RANK - 1) % SIZE)
    cases.check(mine, out, np.full(50, 8.0 ** ((RANK - 1) % SIZE)))


STAGED_ALL_THE_SAME = "ignore:.*is staged through the host:RuntimeWarning"


@pytest.mark.filterwarnings(STAGED_ALL_THE_SAME)
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("memory", ["malloc_managed", "malloc_async"])
@pytest.mark.parametrize("where", ["everywhere", "on rank 1"])
def test_memory_that_cannot_go_direct_is_staged(cupy, ring, travelled, memory, where):
    if where == "everywhere" or RANK == 1:
        allocator = getattr(cupy.cuda, memory)
        with cupy.cuda.using_allocator(allocator):
            x = cupy.asarray(np.full(50, 8.0**RANK))
            result = ring.allreduce(x, algorithm="ring")
            joined = ring.allgather(x[:3])
            copy = ring.broadcast(None, root=0) if RANK else ring.broadcast(x)
            assert travelled == {"staged"}
    else:
        x = cupy.asarray(np.full(50, 8.0**RANK))
        result = ring.allreduce(x, algorithm="ring")
        joined = ring.allgather(x[:3])
        copy = ring.broadcast(None, root=0) if RANK else ring.broadcast(x)
        assert travelled == {ring.device_transport.transport}
    cases.check(cupy, result, np.full(50, float(ALL_RANKS)))
    cases.check(cupy, joined, np.repeat(8.0 ** np.arange(SIZE), 3))
    cases.check(cupy, copy, np.full(50, 1.0))


def test_a_managed_array_alone_is_staged_and_says_so(
    cupy, ring, transport, travelled, recwarn
):
    """With the usual allocator around it; once for each ring."""
    warnings.simplefilter("always")
    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        x = cupy.asarray(np.full(50, 8.0**RANK))
    for _ in range(2):
        result = ring.allreduce(x, algorithm="ring")
        cases.check(cupy, result, np.full(50, float(ALL_RANKS)))
    told = [str(w.message) for w in recwarn if w.category is RuntimeWarning]
    assert [f"rank {RANK}: " in text for text in told] == [True] * (
        transport == "direct"
    )
    assert travelled == ({"staged"} if SIZE > 1 else set())


@pytest.mark.ranks(3)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_b22_parameter_server(cupy, ring, mode):
    """The server and its workers keep everything on the device."""
    params = {"w": cupy.asarray(np.zeros(300)), "v": cupy.asarray(np.zeros(7))}

    def update(params, grads):
        for name in params:
            params[name][...] = cupy.subtract(params[name], grads[name])

    server = mpiring.ParameterServer(ring, params, update, mode=mode)
    if RANK == 0:
        end = server.serve()
        cases.check(cupy, end["w"], np.full(300, -20.0))
        cases.check(cupy, end["v"], np.full(7, -40.0))
        return
    for step in range(10):
        server.push(
            {"w": cupy.asarray(np.full(300, 1.0)), "v": cupy.asarray(np.full(7, 2.0))}
        )
        if step % 4 == 0:
            pulled = server.pull()
            values = set(cupy.asnumpy(pulled["w"]).tolist())
            assert len(values) == 1 and 2 * values.pop() == cupy.asnumpy(pulled["v"])[0]
    server.done()


# ---- the decision ---------------------------------------------------------------------------------


def test_b23_staged_is_said(comm, cupy):
    """These MPIs say that they cannot take device memory, or nothing: so it is staged, and the ring says so."""
    with mpiring.Ring(comm, timeout=30) as ring:
        assert ring.device_transport.transport == "staged"
        assert ring.device_transport.why
        x = cupy.arange(10, dtype="i4")
        result = ring.allreduce(x)
        cases.check(cupy, result, SIZE * np.arange(10, dtype="i4"))


def test_b23_forcing_the_device_path_is_an_error_on_every_rank(
    comm, cupy, monkeypatch, tmp_path
):
    monkeypatch.setenv("MPIRING_CACHE", str(tmp_path))  # no probe has passed
    with pytest.raises(ValueError, match="device_transport='direct'.*doctor"):
        mpiring.Ring(comm, timeout=30, device_transport="direct")
    with mpiring.Ring(comm, timeout=30) as ring:
        assert ring.allreduce(1) == SIZE


@pytest.mark.ranks(2, 3)
def test_promise_5_ranks_that_ask_for_different_transports(comm, cupy, probed):
    asked = "direct" if RANK == 1 else "staged"
    with pytest.raises(ValueError, match="rank 1 asks for .*'direct'"):
        mpiring.Ring(comm, timeout=30, device_transport=asked)


def test_promise_5_the_environment_is_rank_0_s(comm, cupy, monkeypatch):
    name = "MPIRING_DEVICE_TRANSPORT"
    monkeypatch.setenv(name, "staged" if RANK == 0 else "nonsense")
    with mpiring.Ring(comm, timeout=30) as ring:
        assert ring.device_transport.why == f"{name}=staged asks for it"
    monkeypatch.setenv(name, "nonsense" if RANK == 0 else "staged")
    with pytest.raises(ValueError, match="rank 0: MPIRING_DEVICE_TRANSPORT=nonsense"):
        mpiring.Ring(comm, timeout=30)
    with mpiring.Ring(comm, timeout=30, device_transport="staged") as ring:
        assert ring.device_transport.why == "device_transport='staged' asks for it"


@pytest.mark.ranks(2, 3)
def test_promise_5_direct_on_a_rank_without_evidence(
    comm, cupy, probed, monkeypatch, tmp_path
):
    if RANK == 1:
        monkeypatch.setenv("MPIRING_CACHE", str(tmp_path / "elsewhere"))
    with pytest.raises(ValueError, match="the MPI of rank 1"):
        mpiring.Ring(comm, timeout=30, device_transport="direct")


@pytest.mark.parametrize(
    "call",
    [
        lambda ring, x: ring.allreduce(x, algorithm="mpi"),
        lambda ring, x: ring.reduce_scatter(x, algorithm="mpi"),
        lambda ring, x: ring.allgather(x, algorithm="mpi"),
        lambda ring, x: ring.reduce(x, algorithm="mpi"),
        lambda ring, x: ring.broadcast(x, algorithm="mpi"),
    ],
)
def test_the_mpis_own_collectives_are_refused(cupy, ring, call):
    x = cupy.asarray(np.ones(3))
    with pytest.raises(ValueError, match="takes host memory only"):
        call(ring, x)
    cases.check(cupy, ring.allreduce(x), np.full(3, float(SIZE)))


@pytest.mark.ranks(2, 3)
def test_promise_5_a_device_failure_on_one_rank_is_raised_by_all(
    cupy, ring, monkeypatch
):
    """Memory that cannot be had is missed before anything moves."""
    x = cupy.asarray(np.ones(40))
    with monkeypatch.context() as patch:
        if RANK == 1:

            def full(*args):
                raise MemoryError("out of memory allocating 320 bytes")

            patch.setattr(cupy, "empty", full)
        with pytest.raises(MemoryError, match="rank 1: out of memory"):
            ring.allreduce(x)
    cases.check(cupy, ring.allreduce(x), np.full(40, float(SIZE)))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("transport", ["staged"], indirect=True)
@pytest.mark.parametrize(
    "call",
    [
        lambda ring, x: ring.allreduce(x),
        lambda ring, x: ring.reduce(x),
        lambda ring, x: ring.allgather(x),
        lambda ring, x: ring.broadcast(x),
        lambda ring, x: ring.broadcast(x if RANK == 0 else None),
        lambda ring, x: ring.run(schedule("broadcast", SIZE), x),
    ],
)
def test_promise_5_pinned_memory_that_one_rank_cannot_have(
    cupy, ring, call, monkeypatch
):
    """However little it is: a limit on locked memory does not ask."""
    x = cupy.asarray(np.ones(40))
    with monkeypatch.context() as patch:
        if RANK == 1:

            def refused(nbytes):
                raise MemoryError(f"cannot lock {nbytes} bytes")

            patch.setattr(cupy.cuda, "alloc_pinned_memory", refused)
        with pytest.raises(MemoryError, match="rank 1: cannot lock 40 bytes"):
            call(ring, x)
    cases.check(cupy, ring.allreduce(x), np.full(40, float(SIZE)))


def test_no_growth_over_many_calls(cupy, ring):
    """Scratch, pinned chunks and events are used again."""
    x = cupy.asarray(np.full(40, 1.0))
    out = cupy.empty(40, "f8")
    sizes = []
    for _ in range(4):
        for _ in range(30):
            ring.allreduce(x, out=out, algorithm="ring")
        cupy.cuda.get_current_stream().synchronize()
        sizes.append(cupy.get_default_memory_pool().used_bytes())
    assert sizes[1:] == sizes[:-1]
    cases.check(cupy, out, np.full(40, float(SIZE)))
