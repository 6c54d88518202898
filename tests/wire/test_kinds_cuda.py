"""torch, JAX and Numba arrays on a GPU, on the deferred device: seen by CuPy, each in the order of its own library.

What stands for the libraries is in tests/devices/lookalikes.py; nothing here has run on a GPU.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

from mpiring.wire import rooted
from mpiring.wire.arrays import (
    KINDS,
    foreign,
    kind_code,
    kind_named,
    kind_of,
    kinds_here,
)
from mpiring.wire.arrays.cupy import CupyKind
from mpiring.wire.arrays.torch import TorchCudaKind
from mpiring.wire.device_transport import Carriage
from mpiring.wire.execute import Position
from mpiring.wire.messages import Message, exchange

from devices import deferred, lookalikes
from devices.deferred import on_a_stream_of_its_own
from devices.kernels import no_compiler
from wire.ranks import Ranks, call, kept
from wire.reference import dtype_of, reduced_flat, same_bits, varied

pytestmark = pytest.mark.skipif(bool(no_compiler()), reason=no_compiler())

ORDERS = {"lazy": deferred.lazy, "eager": deferred.eager}
ORDERS |= {f"seed {seed}": deferred.seeded(seed) for seed in range(3)}


@pytest.fixture(params=ORDERS)
def cupy(request, monkeypatch):
    return deferred.install(monkeypatch, ORDERS[request.param])


@pytest.fixture(params=["torch", "numba", "jax"])
def library(request, monkeypatch, cupy):
    return getattr(lookalikes, request.param)(monkeypatch, cupy)


@pytest.fixture
def torch(monkeypatch, cupy):
    return lookalikes.torch(monkeypatch, cupy)


def run(size, program, seed=1, device=0):
    """``program(rank, collectives)`` on each rank; what it returned."""
    ranks = Ranks(size, seed, None, message_bytes=40)
    return ranks.network.run(
        [
            on_a_stream_of_its_own(kept(program(r, c)), True, device)
            for r, c in enumerate(ranks.collectives)
        ]
    )


def well(results):
    """Whether no rank has raised."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return True


# ---- all three -------------------------------------------------------------------------------------


def test_what_is_still_queued_counts_and_what_comes_after_waits(library):
    values = [varied("float32", (2, 5), r) for r in range(3)]
    want = (4 * reduced_flat("sum", [2 * v for v in values], "ring")).reshape(2, 5)

    def program(rank, c):
        for algorithm in ("ring", "direct"):
            x = library.asarray(values[rank]) * 2
            result = yield from call(c, "allreduce", x, "sum", None, "ring", algorithm)
            assert isinstance(result, library.ndarray)
            assert same_bits(library.asnumpy(result * 4), want)
            assert same_bits(library.asnumpy(x), values[rank] * np.float32(2))

    assert well(run(3, program))


def test_the_other_collectives(library):
    values = [varied("int64", 7, r) for r in range(3)]
    whole = reduced_flat("sum", values, "ring")

    def program(rank, c):
        x = library.asarray(values[rank]) * 1
        part = yield from call(c, "reduce_scatter", x)
        joined = yield from call(c, "allgather", x)
        total = yield from rooted.reduce(
            c, x, "sum", 1, None, "ring", "auto", Position()
        )
        sent = yield from rooted.broadcast(c, x, 2, "auto", Position())
        new = yield from rooted.broadcast(
            c, x if rank == 2 else None, 2, "auto", Position()
        )
        starts = [0, 3, 5, 7]
        for array, want in (
            (part, whole[starts[rank] : starts[rank + 1]]),
            (joined, np.concatenate(values)),
            (total, whole if rank == 1 else None),
            (sent, values[2]),
            (new, values[2]),
        ):
            if want is None:
                assert array is None
            else:
                assert isinstance(array, library.ndarray)
                assert same_bits(library.asnumpy(array), want)

    assert well(run(3, program))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (4, 1, 3)], ids=str)
def test_shapes(library, shape):
    values = [varied("float64", shape, r) for r in range(2)]

    def program(rank, c):
        result = yield from call(c, "allreduce", library.asarray(values[rank]))
        want = reduced_flat("sum", values, "ring").reshape(shape)
        assert same_bits(library.asnumpy(result), want)

    assert well(run(2, program))


def test_messages(library):
    value = varied("float32", 11, 0)

    def program(rank, c):
        x = library.asarray(value * (1 - rank)) * 1
        message = Message(rank == 0, x, 1 - rank, 0)
        carriage = Carriage(c.transport, "staged")
        (result,) = yield from exchange(carriage, [message], is_group=False)
        assert same_bits(library.asnumpy(result), value)
        is_filled = rank == 0 or not kind_of(x).is_immutable(x)
        assert (result is x) == is_filled

    assert well(run(2, program))


def test_one_rank_has_cupy_and_another_the_host(library, cupy):
    values = [varied("float32", 9, r) for r in range(3)]
    want = reduced_flat("sum", values, "ring")

    def program(rank, c):
        make = [library.asarray, cupy.asarray, np.array][rank]
        result = yield from call(c, "allreduce", make(values[rank]))
        get = [library.asnumpy, cupy.asnumpy, np.asarray][rank]
        assert type(result) is type(make(values[rank]))
        assert same_bits(get(result), want)

    assert well(run(3, program))


def test_names(library):
    x = library.asarray(np.ones(2))
    kind = kind_of(x)
    assert kind.name in ("torch CUDA", "jax CUDA", "numba")
    assert KINDS[kind_code(kind)] == kind.name and kind.name in kinds_here()
    assert isinstance(kind, CupyKind) and kind.is_device
    assert type(kind_named(kind.name)) is type(kind)


# ---- torch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bool", "int8", "float16", "bfloat16", "complex64"])
def test_dtypes_of_torch(torch, name):
    values = [varied(name, 9, r) for r in range(2)]
    op = "max" if name == "bool" else "prod"

    def program(rank, c):
        result = yield from call(c, "allreduce", torch.asarray(values[rank]), op)
        assert result.dtype is getattr(torch, name)
        assert same_bits(torch.asnumpy(result), reduced_flat(op, values, "ring"))

    assert dtype_of(name) == values[0].dtype
    assert well(run(2, program))


def test_in_place_and_strided(torch):
    def program(rank, c):
        whole = torch.asarray(np.full((4, 6), 8.0**rank))
        columns = whole[:, 1::2]
        whole.fill_(8.0 ** (rank + 1))  # what a view sees when its turn comes
        result = yield from call(c, "allreduce", columns, "sum", columns)
        assert result is columns and columns.version == 1 and whole.version == 0
        values = torch.asnumpy(whole)
        assert (values[:, 1::2] == 8 + 64 + 512).all()
        assert (values[:, ::2] == 8.0 ** (rank + 1)).all()

    assert well(run(3, program))


def test_a_lazy_view(torch):
    def program(rank, c):
        x = torch.Tensor(torch.asarray(np.full(5, 8.0**rank)).array, is_lazy=True)
        result = yield from call(c, "allreduce", x)
        assert torch.asnumpy(result).tolist() == [9.0] * 5
        yield from call(c, "allreduce", x, "sum", x if rank else None)

    results = run(2, program)
    assert {type(error) for error in results} == {ValueError}, results


def test_results_are_where_x_is(torch, cupy):
    """On device 1, while CuPy's current device is another one."""

    def program(rank, c):
        x = torch.asarray(np.full(5, 8.0**rank))
        assert x.device.index == 1
        with cupy.cuda.Device(0):
            program = call(c, "allreduce", x)
        result = yield from program
        assert result.device.index == 1
        assert torch.asnumpy(result).tolist() == [9.0] * 5

    assert well(run(2, program, device=1))


@pytest.mark.parametrize("patched", ["current_stream", "_enter", "_leave"])
def test_cupys_stream_is_not_torchs(torch, monkeypatch, patched):
    """Each of these mistakes is seen, in one of the orders at least."""
    if patched == "current_stream":
        method = CupyKind.current_stream
    else:
        method = lambda self: None  # noqa: E731
    values = [varied("float32", 9, r) for r in range(2)]
    want = 4 * reduced_flat("sum", [2 * v for v in values], "ring")

    def program(rank, c):
        x = torch.asarray(values[rank]) * 2
        result = yield from call(c, "allreduce", x)
        return same_bits(torch.asnumpy(result * 4), want)

    assert run(2, program) == [True, True]
    monkeypatch.setattr(TorchCudaKind, patched, method)
    wrong = []
    for choose in ORDERS.values():
        with pytest.MonkeyPatch.context() as patch:
            lookalikes.torch(patch, deferred.install(patch, choose))
            wrong += run(2, program)
    assert wrong.count(True) < len(wrong)


# ---- where CuPy is not -----------------------------------------------------------------------------


def test_without_cupy(library, monkeypatch):
    x = library.asarray(np.ones(3))
    monkeypatch.setitem(sys.modules, "cupy", None)
    if library.__name__ == "jax":  # it goes through the host
        assert kind_of(x).name == "jax" and not kind_of(x).is_device
        return
    with pytest.raises(
        TypeError, match=r"on CUDA is reduced by CuPy: pip install 'mpi"
    ):
        kind_of(x)
    assert kinds_here() == ("numpy", *(["torch"] if "torch" in sys.modules else []))


# ---- views -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index", [np.s_[:], np.s_[1:, ::2], np.s_[::-1, 1], np.s_[2:2], np.s_[..., None]]
)
def test_a_view_of_foreign_memory(cupy, index):
    owner = cupy.asarray(np.arange(12.0).reshape(3, 4))
    part = owner[index]
    flat = part.flags.c_contiguous and part.size > 0
    for strides in [part.strides] + [None] * flat:
        view = foreign.view(
            cupy, part.data.ptr, part.shape, part.dtype, strides, owner, -1
        )
        assert same_bits(
            cupy.asnumpy(view), np.arange(12.0).reshape(3, 4)[index].copy()
        )
        if view.size:
            view[...] = view + 1
            assert (cupy.asnumpy(owner[index]) == cupy.asnumpy(view)).all()
            view[...] = view - 1


def test_streams_by_their_handles(cupy):
    mine = cupy.cuda.Stream()
    assert foreign.stream_at(cupy, mine.ptr) == mine
    assert foreign.stream_at(cupy, 0) is foreign.stream_at(cupy, 1)
    assert foreign.stream_at(cupy, 1) is cupy.cuda.Stream.null


def test_a_read_only_array_counts_as_immutable(monkeypatch, cupy):
    numba = lookalikes.numba(monkeypatch, cupy)
    x = numba.asarray(np.ones(3), read_only=True)
    assert kind_of(x).is_immutable(x) and not kind_of(x).is_array(x)

    def program(rank, c):
        yield from call(c, "allreduce", x, "sum", x)

    assert {type(error) for error in run(2, program)} == {ValueError}
