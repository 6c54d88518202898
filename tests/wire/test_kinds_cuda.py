"""torch, JAX and Numba arrays on a GPU, on the deferred device: seen by CuPy, each in the order of its own library.

What stands for the libraries is in tests/devices/lookalikes.py; nothing here has run on a GPU.
"""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

from mpiring.errors import RingError
from mpiring.wire.arrays import (
    KINDS,
    foreign,
    kind_code,
    kind_named,
    kind_of,
    kinds_here,
)
from mpiring.wire.arrays.cupy import CupyKind

from devices import local, lookalikes
from devices.cases import CASES
from devices.deferred import seeded
from wire.reference import DTYPES, reduced_flat, same_bits, varied
from wire.test_device import with_mistake

pytestmark = pytest.mark.untraced

LIBRARIES = ["torch", "numba", "jax"]
TRANSPORTS = ["direct", "staged"]
FILL = {
    "b01_counts_against_ranks",
    "b03_everybody_sends_first",
    "b05_zero_dimensional",
    "b07_width",
    "groups_of_messages",
    "with_a_root",
    "work_still_queued",
    "overlapping_in_and_out",
}
# What a case needs that the library has not: steps backwards, being filled.
UNFIT = {"torch": {"b04_strided_views"}, "jax": {"b04_strided_views", *FILL}}
RUNS = [
    (library, name)
    for library in LIBRARIES
    for name in CASES
    if name not in UNFIT.get(library, {"b04_strided_views"})
]


def install(monkeypatch, library, seed=0):
    """The device, and a library on it."""
    cupy = local.install(monkeypatch, choose=seeded(seed))
    return getattr(lookalikes, library)(monkeypatch, cupy)


@pytest.fixture
def cupy(monkeypatch):
    return local.install(monkeypatch)


@pytest.fixture(params=LIBRARIES)
def library(request, monkeypatch, cupy):
    return getattr(lookalikes, request.param)(monkeypatch, cupy)


@pytest.fixture
def torch(monkeypatch, cupy):
    return lookalikes.torch(monkeypatch, cupy)


# ---- all three -------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name, case", RUNS)
def test_case(monkeypatch, name, case, transport):
    program, sizes = CASES[case]
    size = sizes[len(sizes) // 2]
    local.run(program, size, install(monkeypatch, name, 1), transport)


def test_the_cases_that_do_not_fit_exist():
    assert set().union(*UNFIT.values()) <= set(CASES)


def in_order(ring, xp):
    """What is queued before a call counts, what is queued after it comes after, and the input may be dropped."""
    values = [varied("float32", (2, 5), r) for r in range(ring.size)]
    doubled = reduced_flat("sum", [2 * v for v in values], "ring").reshape(2, 5)
    for algorithm in ("ring", "direct"):
        for _ in range(3):
            x = xp.asarray(values[ring.rank]) * 2
            result = yield from ring.allreduce(x, algorithm=algorithm)
            assert isinstance(result, xp.ndarray)
            del x
            noise = xp.asarray(values[0]) * 0
            assert same_bits(xp.asnumpy(result * 4), 4 * doubled)
            assert not xp.asnumpy(noise).any()
    x = xp.asarray(values[ring.rank]) * 2
    given = x if ring.rank == 0 else None
    result = yield from ring.broadcast(given)
    assert same_bits(xp.asnumpy(result * 4), 8 * values[0])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", LIBRARIES)
def test_in_the_order_of_its_library(monkeypatch, name, transport):
    for seed in range(4):
        local.run(in_order, 3, install(monkeypatch, name, seed), transport, seed)


# What is left out -> (library, file, what the source says, what the mistake says).
MISTAKES = {
    "CuPy's stream for torch's": (
        "torch",
        "torch",
        "return foreign.stream_at(self.cupy, self._theirs_in_torch.cuda_stream)",
        "return CupyKind.current_stream(self)",
    ),
    "torch's new memory is used at once": (
        "torch",
        "torch",
        "        self._enter()\n",
        "",
    ),
    "CuPy's stream for Numba's": (
        "numba",
        "dlpack",
        'return foreign.stream_at(self.cupy, self._interface["stream"])',
        "return CupyKind.current_stream(self)",
    ),
    "a result goes to JAX on CuPy's stream": (
        "jax",
        "jax",
        "with self._at_work(), _dtypes_of",
        "with _dtypes_of",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_missing_synchronisation_is_seen(monkeypatch, what):
    """Each is caught in some order; without it the same runs pass, above."""
    name, file, right, wrong = MISTAKES[what]
    module = importlib.import_module(f"mpiring.wire.arrays.{file}")
    with_mistake(monkeypatch, module, right, wrong)
    for seed in range(4):
        for transport in TRANSPORTS:
            library = install(monkeypatch, name, seed)
            try:
                local.run(in_order, 3, library, transport, seed)
            except Exception as error:
                assert isinstance(error, (AssertionError, RingError)), error
                return
    pytest.fail("nothing was wrong")


def test_one_rank_has_cupy_and_another_the_host(library, cupy):
    values = [varied("float32", 9, r) for r in range(3)]
    want = reduced_flat("sum", values, "ring")

    def program(ring, _):
        make = [library.asarray, cupy.asarray, np.array][ring.rank]
        get = [library.asnumpy, cupy.asnumpy, np.asarray][ring.rank]
        x = make(values[ring.rank])
        result = yield from ring.allreduce(x)
        assert type(result) is type(x) and same_bits(get(result), want)
        sent = yield from ring.broadcast(x, 1)
        assert type(sent) is type(x) and same_bits(get(sent), values[1])

    local.run(program, 3, library, "staged")


def test_names(library):
    x = library.asarray(np.ones(2))
    kind = kind_of(x)
    assert kind.name in ("torch CUDA", "jax CUDA", "numba")
    assert KINDS[kind_code(kind)] == kind.name and kind.name in kinds_here()
    assert isinstance(kind, CupyKind) and kind.is_device
    assert type(kind_named(kind.name)) is type(kind)


def test_without_cupy(library, monkeypatch):
    x = library.asarray(np.ones(3))
    monkeypatch.setitem(sys.modules, "cupy", None)
    if library.__name__ == "jax":  # it goes through the host
        assert kind_of(x).name == "jax" and not kind_of(x).is_device
        return
    with pytest.raises(
        TypeError, match=r"on CUDA is reduced by CuPy: pip install 'cupy"
    ):
        kind_of(x)
    assert {"torch CUDA", "jax CUDA", "numba"}.isdisjoint(kinds_here())


# ---- torch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_of_torch(torch, name):
    values = [varied(name, 9, r) for r in range(2)]
    op = "max" if name == "bool" else "sum"

    def program(ring, xp):
        result = yield from ring.allreduce(xp.asarray(values[ring.rank]), op)
        assert result.dtype is getattr(xp, name)
        assert same_bits(xp.asnumpy(result), reduced_flat(op, values, "ring"))

    local.run(program, 2, torch, "staged")


def test_in_place_and_strided(torch):
    def program(ring, xp):
        whole = xp.asarray(np.full((4, 6), 8.0**ring.rank))
        columns = whole[:, 1::2]
        whole[...] = 8.0 ** (ring.rank + 1)  # what a view sees when its turn comes
        result = yield from ring.allreduce(columns, out=columns)
        assert result is columns and columns.version == 1 and whole.version == 0
        values = xp.asnumpy(whole)
        assert (values[:, 1::2] == 8 + 64 + 512).all()
        assert (values[:, ::2] == 8.0 ** (ring.rank + 1)).all()

    local.run(program, 3, torch, "staged")


def test_a_lazy_view(torch):
    def program(ring, xp):
        x = xp.Tensor(xp.asarray(np.full(5, 8.0**ring.rank)).array, is_lazy=True)
        result = yield from ring.allreduce(x)
        assert xp.asnumpy(result).tolist() == [9.0] * 5
        for call in (ring.allreduce(x, out=x), ring.broadcast(x)):
            with pytest.raises(ValueError, match="read-only or its elements share"):
                yield from call

    local.run(program, 2, torch, "staged")


def test_results_are_where_x_is(torch, cupy):
    """On device 1, while the current device is another one."""

    def program(ring, xp):
        with cupy.cuda.Device(1):
            x = xp.asarray(np.full(5, 8.0**ring.rank))
        assert x.device.index == 1
        result = yield from ring.allreduce(x)
        joined = yield from ring.allgather(x)
        assert result.device.index == joined.device.index == 1
        with cupy.cuda.Device(1):
            assert xp.asnumpy(result).tolist() == [9.0] * 5
            assert xp.asnumpy(joined).tolist() == [1.0] * 5 + [8.0] * 5
        other = yield from ring.allreduce(xp.asarray(np.full(5, 8.0**ring.rank)))
        assert other.device.index == 0 and xp.asnumpy(other).tolist() == [9.0] * 5

    local.run(program, 2, torch, "staged")


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


def new_one(cupy, numba):
    """A Numba array on a new stream."""
    with cupy.cuda.Stream(non_blocking=True) as stream:
        return numba.ndarray(cupy.empty(20, "f8"), stream)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_out_that_names_a_stream_of_its_own(monkeypatch, transport):
    """Not that of x: what its stream does before the call counts, and what it does after it."""
    for seed in range(8):
        cupy = local.install(monkeypatch, choose=seeded(seed))
        numba = lookalikes.numba(monkeypatch, cupy)

        def case(ring, xp, cupy=cupy, numba=numba):
            x, out = (new_one(cupy, numba) for _ in range(2))
            x[...] = 8.0**ring.rank
            out[...] = -1
            result = yield from ring.allreduce(x, out=out)
            twice = result * 2
            assert result is out
            assert set(numba.asnumpy(twice).tolist()) == {2 * (1.0 + 8)}

        local.run(case, 2, cupy, transport, seed)


def test_a_read_only_array_counts_as_immutable(monkeypatch, cupy):
    numba = lookalikes.numba(monkeypatch, cupy)

    def program(ring, xp):
        x = xp.asarray(np.full(3, 8.0**ring.rank), read_only=True)
        assert kind_of(x).is_immutable(x) and not kind_of(x).is_array(x)
        with pytest.raises(ValueError, match="rank 0: out is a DeviceNDArray, which"):
            yield from ring.allreduce(x, out=x)
        result = yield from ring.broadcast(x)
        assert (result is x) == (ring.rank == 0)
        assert xp.asnumpy(result).tolist() == [1, 1, 1]

    local.run(program, 2, numba, "staged")
