"""torch, JAX and Numba on a GPU: the same kind out as in, on the same device, in step with their own streams.

Where there is no GPU the same runs with their arrays in host memory, of those that are installed.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import mpiring

from devices.on_gpu import HERE, ON_GPU, late, on_a_stream, problem
from ranks.reference import random_array, reduced
from wire import libraries
from wire.libraries import check

pytestmark = pytest.mark.ranks(2, 3)
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "complex64")


def places(*names):
    """Parameters: where, and which library."""
    here = [
        ("pretended", n) for n in names if n in HERE and importlib.util.find_spec(n)
    ]
    return [
        *(pytest.param(place, id="-".join(place)) for place in here),
        *(
            pytest.param(("real", name), id=f"real-{name}", marks=pytest.mark.gpu)
            for name in names
        ),
    ]


@pytest.fixture(params=places(*ON_GPU))
def place(request):
    return request.param


@pytest.fixture
def where(place):
    return place[0]


@pytest.fixture
def library(place, cupy, comm):
    """The library; skipped on all ranks if one of them cannot."""
    where, name = place
    problems = [told for told in comm.allgather(problem(name, where)) if told]
    if problems:
        pytest.skip(problems[0])
    return (ON_GPU if where == "real" else HERE)[name]


def test_every_collective(comm, ring, library):
    size, me = comm.size, comm.rank
    got, wanted = [], []
    for name in filter(library.dtypes.__contains__, DTYPES):
        values = [random_array(name, (3, 70), rank) for rank in range(size)]
        x = library.asarray(values[me])
        ops = ["sum", "avg"] if name != "int32" else ["sum", "max"]
        for op in ops:
            total = reduced(values, op)
            got.append(ring.allreduce(x, op))
            got.append(ring.allgather(ring.reduce_scatter(x, op)))
            wanted += [total, total.ravel()]
        got.append(ring.allgather(x))
        wanted.append(np.concatenate(values))
        got.append(ring.broadcast(library.asarray(values[me]), 1))
        wanted.append(values[1])
        ones = np.ones((3, 70), values[0].dtype)
        root = ring.reduce(library.asarray(ones * 8**me), root=1)
        if root is not None:
            got.append(root)
            wanted.append(ones * int("1" * size, base=8))
        got.append(x)
        wanted.append(values[me])
    for result, want in zip(got, wanted):
        check(library, result, want)


def test_in_place_and_strided(comm, ring, library):
    values = [random_array("float32", (6, 50), rank) for rank in range(comm.size)]
    mine = values[comm.rank]
    strided = ring.allreduce(library.strided(mine))
    check(library, strided, reduced(values))
    if library.fills:
        x = library.asarray(mine)
        assert ring.allreduce(x, out=x) is x
        check(library, x, reduced(values))
        out = library.strided(np.zeros_like(mine))
        assert ring.allreduce(library.asarray(mine), out=out) is out
        check(library, library.asarray(library.asnumpy(out)), reduced(values))


@pytest.mark.parametrize("place", places("torch", "jax"), indirect=True)
def test_promise_10(comm, ring, library, scale):
    """What the library has queued counts, and what it queues next finds the result, without a word from the host."""
    total = float(int("1" * comm.size, base=8))
    count, seen = scale.many // 8, []
    with on_a_stream(library):
        for turn in range(scale.repeats):
            x = late(library, 8.0**comm.rank, count, scale.turns // 100)
            seen.append((ring.allreduce(x) != total).sum())
            if library.fills:
                ring.allreduce(x, out=x)
                seen.append((x != total).sum())
                x.fill_(-1)
    assert [int(wrong) for wrong in seen] == [0] * len(seen)


def test_messages(comm, ring, library):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    values = [random_array("float32", 3000, rank) for rank in range(comm.size)]
    out = library.asarray(np.zeros(3000, "f4"))
    if not library.fills:
        out = np.zeros(3000, "f4")
    with ring.group():
        ring.send(library.asarray(values[comm.rank]), right)
        ring.recv(out, left)
    check(library if library.fills else libraries.NUMPY, out, values[left])


def test_gradients(comm, ring, library):
    values = [
        {"w": random_array("float32", (4, 90), r), "b": random_array("float32", 7, r)}
        for r in range(comm.size)
    ]
    grads = {name: library.asarray(g) for name, g in values[comm.rank].items()}
    averaged = mpiring.average_gradients(grads, ring, order="rank")
    for name in grads:
        want = reduced([value[name] for value in values], "avg", "rank")
        check(library, averaged[name], want)


def test_beside_cupy_and_numpy(comm, ring, cupy, library):
    """Every rank gets its own kind back."""
    values = [random_array("float32", 20_000, rank) for rank in range(comm.size)]
    mine, want = values[comm.rank], reduced(values)
    if comm.rank == 0:
        check(library, ring.allreduce(library.asarray(mine)), want)
    elif comm.rank == 1:
        result = ring.allreduce(cupy.asarray(mine))
        assert isinstance(result, cupy.ndarray)
        check(libraries.NUMPY, cupy.asnumpy(result), want)
    else:
        check(libraries.NUMPY, ring.allreduce(mine), want)
