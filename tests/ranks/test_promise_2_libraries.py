"""Promise 2 for the arrays of other libraries: torch, JAX, and array_api_strict for whatever speaks DLPack.

Each result is of the library that this rank passed, with the dtype, shape and bits that NumPy arrays give.  In
tests/wire/test_kinds.py the same is tried in one process, where more can be tried.
"""

from __future__ import annotations

import numpy as np
import pytest

import mpiring
from mpiring.plan import ring_allreduce

from ranks.reference import ops_of, random_array, reduced
from wire import libraries
from wire.libraries import KNOWN, LIBRARIES, OTHERS, STRICT, check

# Each rank imports the libraries, which takes seconds where many share a core.
pytestmark = pytest.mark.ranks(1, 2, 3)


@pytest.fixture(params=LIBRARIES)
def library(request):
    return request.param


@pytest.fixture(params=[x for x in OTHERS if x.fills], ids=str)
def filled(request):
    return request.param


@pytest.mark.parametrize("known", KNOWN, ids=str)
def test_the_library_is_here(known):
    if known not in OTHERS:
        pytest.skip(f"{known} is not installed: nothing here has tried its arrays")
    assert isinstance(known.asarray(np.ones(2)), known.ndarray)


def test_every_dtype(comm, ring, library):
    rank, size = comm.rank, comm.size
    given, wanted, got = [], [], []
    for name in library.dtypes:
        values = [random_array(name, (3, 5), r) for r in range(size)]
        x = library.asarray(values[rank])
        given.append((x, values[rank]))
        for op in ops_of(name):
            total = reduced(values, op)
            wanted += [total, total, np.concatenate(values)]
            got.append(ring.allreduce(x, op))
            got.append(ring.allgather(ring.reduce_scatter(x, op)))
            got.append(ring.allgather(x))
        filled = library.asarray(values[rank])
        got.append(ring.broadcast(filled, size - 1))
        wanted.append(values[-1])
    for result, want in zip(got, wanted):
        shape = want.shape if len(result.shape) > 1 else (-1,)
        check(library, result, want.reshape(shape))
    for x, value in given:
        check(library, x, value, "the input is as it was")


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (9,)], ids=str)
def test_shapes(comm, ring, library, shape):
    values = [random_array("float32", shape, r) for r in range(comm.size)]
    x = library.asarray(values[comm.rank])
    result = ring.allreduce(x, "avg")
    reduced_to_root = ring.reduce(x, root=comm.size - 1)
    check(library, result, reduced(values, "avg"))
    assert (reduced_to_root is None) == (comm.rank < comm.size - 1)


def test_out_in_place_and_strided(comm, ring, filled):
    values = [random_array("float64", (4, 3), r) for r in range(comm.size)]
    x = filled.asarray(values[comm.rank])
    out = filled.asarray(np.zeros((4, 3)))
    whole = filled.asarray(np.full((4, 6), 99.0))
    columns = whole[:, ::2]
    results = [ring.allreduce(x, out=out), ring.allreduce(x, out=columns)]
    work = ring.allreduce(x, out=x, async_op=True)
    results.append(work.wait())
    assert results[0] is out and results[1] is columns and results[2] is x
    for result in results:
        check(filled, result, reduced(values))
    check(filled, whole[:, 1::2], np.full((4, 3), 99.0))


def test_out_of_an_immutable_kind_is_refused(comm, ring, library):
    x = library.asarray(np.ones(3))
    if library.fills:
        assert ring.allreduce(x, out=x) is x
    else:
        with pytest.raises(ValueError, match="which cannot be filled; leave it out"):
            ring.allreduce(x, out=x)
    each = float(comm.size) if library.fills else 1.0
    check(library, x, np.full(3, each))


@pytest.mark.skipif(not OTHERS, reason="no library but NumPy is installed")
@pytest.mark.ranks(2, 3)
def test_ranks_of_different_libraries(comm, ring):
    """NumPy on the last rank; each of the others has the library whose turn it is."""
    others = OTHERS or (libraries.NUMPY,)
    kinds = [others[r % len(others)] for r in range(comm.size - 1)]
    kinds.append(libraries.NUMPY)
    mine = kinds[comm.rank]
    values = [random_array("float32", 11, r) for r in range(comm.size)]
    x = mine.asarray(values[comm.rank])
    total = ring.allreduce(x)
    joined = ring.allgather(x)
    sent = [
        ring.broadcast(mine.asarray(values[comm.rank]), r) for r in range(comm.size)
    ]
    check(mine, total, reduced(values))
    check(mine, joined, np.concatenate(values))
    for value, result in zip(values, sent):
        check(mine, result, value)


def test_none_off_the_root(comm, ring, library):
    value = random_array("float64", (2, 3), 0)
    root = comm.size - 1
    x = library.asarray(value)
    ring.barrier()  # each has imported the library
    if library is STRICT and comm.size > 1:
        with pytest.raises(TypeError, match="pass an array to fill there"):
            ring.broadcast(x if comm.rank == root else None, root)
    else:
        result = ring.broadcast(x if comm.rank == root else None, root)
        check(library, result, value)
    assert ring.broadcast(x, root) is not None


@pytest.mark.ranks(2, 3)
def test_messages(comm, ring, library):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    values = [random_array("int32", (3, 4), r) for r in range(comm.size)]
    x = library.asarray(values[comm.rank])
    out = library.asarray(np.zeros((3, 4), "i4"))
    if comm.rank == 0:
        ring.send(x, 1, tag=3)
    if comm.rank == 1:
        received = ring.recv(out, 0, tag=3)
        check(library, received, values[0])
        assert (received is out) == library.fills
    room = out if library.fills else np.zeros((3, 4), "i4")
    with ring.group():
        ring.recv(room, left)
        ring.send(x, right)
    kind = library if library.fills else libraries.NUMPY
    check(kind, room, values[left])


def test_the_mpis_own(comm, ring, library):
    values = [np.arange(9) * 8**r for r in range(comm.size)]
    x = library.asarray(values[comm.rank])
    results = [
        ring.allreduce(x, algorithm="mpi"),
        ring.allgather(ring.reduce_scatter(x, algorithm="mpi"), algorithm="mpi"),
        ring.broadcast(library.asarray(sum(values)), algorithm="mpi"),
    ]
    for result in results:
        check(library, result, sum(values))


@pytest.mark.ranks(2, 3)
def test_a_schedule_and_members(comm, ring, library):
    values = [random_array("float32", 13, r) for r in range(2 * comm.size)]
    result = ring.run(ring_allreduce(comm.size), library.asarray(values[comm.rank]))
    with mpiring.Ring(comm, members=2) as wide:
        xs = [library.asarray(values[wide.rank + i]) for i in range(2)]
        both = wide.allreduce(xs)
    check(library, result, reduced(values[: comm.size]))
    for one in both:
        check(library, one, reduced(values))


# ---- gradients and servers ------------------------------------------------------------------------


@pytest.mark.parametrize("bucket_bytes", [8, None])
def test_average_gradients(comm, ring, library, bucket_bytes):
    names = [n for n in ("float32", "float16", "float64") if n in library.dtypes]
    shapes = [(3, 2), (), (0,), (5,)]
    made = [
        [random_array(name, shape, r) for name in names for shape in shapes]
        for r in range(comm.size)
    ]
    grads = {str(i): library.asarray(value) for i, value in enumerate(made[comm.rank])}
    grads["number"] = float(comm.rank)
    averaged = mpiring.average_gradients(
        grads, ring, order="rank", bucket_bytes=bucket_bytes
    )
    assert list(averaged) == list(grads)
    for i, values in enumerate(zip(*made)):
        check(library, averaged[str(i)], reduced(values, "avg", "rank"), i)
        check(library, grads[str(i)], values[comm.rank], "the input is as it was")
    assert averaged["number"] == sum(range(comm.size)) / comm.size
    del grads["number"]
    how = {"order": "rank", "bucket_bytes": bucket_bytes, "out": grads}
    if not library.fills:
        with pytest.raises(ValueError, match="cannot be filled, as out=grads asks for"):
            mpiring.average_gradients(grads, ring, **how)
        return
    again = mpiring.average_gradients(grads, ring, **how)
    for i, values in enumerate(zip(*made)):
        assert again[str(i)] is grads[str(i)]
        check(library, grads[str(i)], reduced(values, "avg", "rank"), i)


@pytest.mark.ranks(2, 3)
def test_a_gradient_that_a_rank_has_not(comm, ring, library):
    x = library.asarray(np.full(3, 6.0 * comm.size))
    mine = [x, x] if comm.rank == 0 else [None, x]
    averaged = mpiring.average_gradients(mine, ring)
    check(library, averaged[0], np.full(3, 6.0))
    check(library, averaged[1], np.full(3, 6.0 * comm.size))


@pytest.mark.ranks(2, 3)
def test_a_gradient_of_two_kinds_is_an_error_on_all(comm, ring, library):
    x = np.ones(3) if comm.rank else library.asarray(np.ones(3))
    with pytest.raises(ValueError, match=rf"rank 1 has a numpy .* a {library} float64"):
        mpiring.average_gradients([x], ring)


@pytest.mark.ranks(2)
def test_a_rank_that_cannot_make_the_gradient(comm, ring, library, monkeypatch):
    from mpiring.training import gradients

    x = library.asarray(np.ones(3))
    monkeypatch.setattr(gradients, "kinds_here", lambda: ("numpy",))
    monkeypatch.setattr(gradients, "libraries_here", lambda: [])
    told = f"rank 0 has a {library} .*, rank 1 None, and it has not imported {library};"
    with pytest.raises(TypeError, match=told):
        mpiring.average_gradients([None if comm.rank else x], ring)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_parameter_server(comm, ring, library, mode):
    params = {"w": library.asarray(np.arange(6.0).reshape(2, 3)), "b": 0.5}

    def update(params, grads):
        assert isinstance(grads["w"], library.ndarray)
        return {n: params[n] + grads[n] for n in params}

    server = mpiring.ParameterServer(ring, params, update, root=0, mode=mode)
    workers = comm.size - 1
    if comm.rank == 0:
        final = server.serve()
    else:
        first = server.pull()
        assert isinstance(first["w"], library.ndarray)
        server.push({"w": library.asarray(np.ones((2, 3))), "b": 1.0})
        server.push({"w": None})
        server.done()
    if comm.rank == 0:
        check(library, final["w"], np.arange(6.0).reshape(2, 3) + workers)
        assert final["b"] == 0.5 + workers


@pytest.mark.ranks(2)
def test_a_server_whose_update_writes_in_place(comm, ring, filled):
    def update(params, grads):
        params["w"] += grads["w"]

    params = {"w": filled.asarray(np.zeros(3))}
    server = mpiring.ParameterServer(ring, params, update)
    if comm.rank == 0:
        check(filled, server.serve()["w"], np.full(3, 7.0))
    else:
        server.push({"w": filled.asarray(np.full(3, 7.0))})
        server.done()
