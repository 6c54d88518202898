"""The cases people ran into, B01 to B21, each a whole kind of fault reduced to a small input.

Values are exact.  Where it says fingerprint, rank r contributes ``8**r``: a sum in octal has one digit
for each rank, 0 if it was lost and 2 if it was counted twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from mpiring import Ring, average_gradients

from ranks.reference import (
    DTYPES,
    balanced,
    dtype_of,
    outcome,
    same_bits,
    same_on_all_ranks,
)

ALGORITHMS = ("auto", "ring", "direct")


def raised_everywhere(comm, ring, call, kind: str, *words: str) -> None:
    """``call`` raises the same on every rank, naming ``words`` and a rank; the ring works after."""
    told = comm.allgather(outcome(call))
    after = ring.allreduce(np.ones(3))
    assert set(told) == {told[0]}, told
    assert told[0][0] == kind, told[0]
    assert all(word in told[0][1] for word in ("rank ", *words)), told[0]
    assert after.tolist() == [comm.size] * 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_b01_counts_against_ranks(comm, ring, algorithm):
    size = comm.size
    results = []
    for count in range(2 * size + 2):
        x = 100.0 * comm.rank + np.arange(count)
        part = ring.reduce_scatter(x, algorithm=algorithm)
        results.append((ring.allreduce(x, algorithm=algorithm), count))
        results.append((ring.allreduce(x, out=x, algorithm=algorithm), count))
        results.append((ring.allgather(part), count))
    for result, count in results:
        expected = 100.0 * size * (size - 1) / 2 + size * np.arange(count)
        same_bits(result, expected, count)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_b02_bookkeeping(comm, ring, algorithm):
    count = 4 * comm.size + 1
    x = np.full(count, 8**comm.rank)
    everywhere = ring.allreduce(x, algorithm=algorithm)
    mine = ring.reduce_scatter(x, algorithm=algorithm)
    order = ring.allgather(1000 * comm.rank + np.arange(7), algorithm=algorithm)
    fingerprint = int("1" * comm.size, base=8)
    same_bits(everywhere, np.full(count, fingerprint))
    part = balanced(count, comm.size)[comm.rank]
    same_bits(mine, np.full(part.stop - part.start, fingerprint))
    assert order.tolist() == [1000 * r + j for r in range(comm.size) for j in range(7)]


@pytest.mark.ranks(3)
def test_b04_strided_views(comm, ring):
    o = np.arange(24.0).reshape(4, 6)
    a = o * (comm.rank + 1)
    ring.allreduce(a[:, 1::2], out=a[:, 1::2])
    same_bits(np.ascontiguousarray(a[:, 1::2]), 6 * o[:, 1::2])
    same_bits(np.ascontiguousarray(a[:, ::2]), o[:, ::2] * (comm.rank + 1))
    a = o * (comm.rank + 1)
    results = [ring.allreduce(x) for x in (a[::-1], np.asfortranarray(a), a.T)]
    for result, expected in zip(results, (o[::-1], o, o.T)):
        same_bits(np.ascontiguousarray(result), 6 * np.ascontiguousarray(expected))


@pytest.mark.ranks(3)
def test_b05_zero_dimensional(comm, ring):
    x = np.array(comm.rank + 1.0)
    same_bits(ring.allreduce(x), np.array(6.0))
    same_bits(ring.allreduce(x, "avg"), np.array(2.0))
    assert ring.allreduce(x, out=x) is x
    same_bits(x, np.array(6.0))


@pytest.mark.ranks(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_b06_nothing_to_send(comm, ring, algorithm):
    nothing = np.zeros((3, 0, 2), "f4")
    lengths = (2, 0, 1)
    x = 10 * comm.rank + np.arange(lengths[comm.rank])
    same_bits(ring.allreduce(nothing, algorithm=algorithm), nothing)
    same_bits(ring.reduce_scatter(nothing, algorithm=algorithm), np.zeros(0, "f4"))
    gathered = ring.allgather(nothing, algorithm=algorithm)
    same_bits(gathered, np.zeros((9, 0, 2), "f4"))
    assert ring.allgather(x, algorithm=algorithm).tolist() == [0, 1, 20]
    same_bits(average_gradients([nothing], ring)[0], nothing)
    assert average_gradients([], ring) == []


@pytest.mark.ranks(2)
def test_b07_width(comm, ring):
    results = []
    for dtype in map(dtype_of, DTYPES):
        op = "max" if dtype == bool else "sum"
        for n in range(4, 8):
            for algorithm in ALGORITHMS:
                g = np.full(n + 8, 99).astype(dtype)
                x = (np.arange(n) % 3 + comm.rank).astype(dtype)
                ring.allreduce(x, op, out=g[4:-4], algorithm=algorithm)
                results.append((n, g))
    for n, g in results:
        values = 2 * (np.arange(n) % 3) + 1  # as a bool: True
        same_bits(g[4:-4].copy(), values.astype(g.dtype))
        guards = np.full(4, 99).astype(g.dtype)
        same_bits(g[:4].copy(), guards)
        same_bits(g[-4:].copy(), guards)


@pytest.mark.ranks(5)
@pytest.mark.parametrize(
    "dtype, large, total", [("float16", 2048, 2052), ("bfloat16", 256, 260)]
)
def test_b08a_half_precision_keeps_small_parts(comm, ring, dtype, large, total):
    """Rounding at each hop would give ``large``."""
    results = [
        ring.allreduce(
            np.full(11, large if comm.rank == q else 1).astype(dtype_of(dtype)),
            algorithm=algorithm,
        )
        for q in range(comm.size)
        for algorithm in ALGORITHMS
    ]
    for result in results:
        same_bits(result, np.full(11, total).astype(dtype_of(dtype)))
    same_on_all_ranks(comm, results)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("dtype, large", [("float16", 60000), ("bfloat16", 2.0**125)])
def test_b08b_half_precision_averages(comm, ring, dtype, large):
    x = np.array([large, 2.0**-24]).astype(dtype_of(dtype))
    results = [ring.allreduce(x, "avg", algorithm=a) for a in ALGORITHMS]
    for result in results:
        same_bits(result, x)


@pytest.mark.ranks(2)
def test_b09_averaging_integers(comm, ring):
    x = np.array([1, -1], "i4") * (comm.rank + 1)
    for call in (
        lambda: ring.allreduce(x, "avg"),
        lambda: ring.reduce_scatter(x, "avg"),
        lambda: average_gradients([x], ring),
    ):
        raised_everywhere(comm, ring, call, "TypeError", "int32", "convert to float64")


@pytest.mark.ranks(2)
def test_b10_what_cannot_work(comm, ring):
    cannot = [
        (np.ones(3, "c8"), "max", ("complex64", "'max'")),
        (np.zeros(3, [("a", "f4")]), "sum", ("'a'",)),
        (np.array([None, 1]), "sum", ("object",)),
        (np.zeros(3, "M8[D]"), "sum", ("datetime64",)),
        (np.array(["abc"]), "sum", ("<U3",)),
        (np.ones(3, "?"), "sum", ("bool", "'sum'")),
    ]
    for x, op, words in cannot:
        before = x.copy()
        call = lambda: ring.allreduce(x, op, out=x)  # noqa: E731
        raised_everywhere(comm, ring, call, "TypeError", *words)
        assert (x == before).all()
    complex_sum = ring.allreduce(np.full(3, (1 + 1j) * (comm.rank + 1), "c8"))
    same_bits(complex_sum, np.full(3, 3 + 3j, "c8"))
    x = np.array([[True, False, True], [False, False, True]][comm.rank])
    assert ring.allreduce(x, "min").tolist() == [False, False, True]
    assert ring.allreduce(x, "max").tolist() == [True, False, True]


@pytest.mark.ranks(3)
def test_b11_ranks_disagree(comm, ring):
    pairs = [
        (np.ones(7), np.ones(8), "float64[7]", "float64[8]"),
        (np.ones(7, "f4"), np.ones(7), "float32[7]", "float64[7]"),
        (np.ones((2, 3)), np.ones(6), "float64[2,3]", "float64[6]"),
        (np.ones(7, "i8"), np.ones(7), "int64[7]", "float64[7]"),
    ]
    for odd in range(comm.size):
        for here, there, *words in pairs:
            x = here if comm.rank == odd else there
            raised_everywhere(
                comm, ring, lambda: ring.allreduce(x), "ValueError", *words
            )
        op = "sum" if comm.rank == odd else "max"
        call = lambda: ring.allreduce(np.ones(7), op)  # noqa: E731
        raised_everywhere(comm, ring, call, "ValueError", "op sum", "op max")
        name = "allreduce" if comm.rank == odd else "reduce_scatter"
        call = lambda: getattr(ring, name)(np.ones(7))  # noqa: E731
        raised_everywhere(comm, ring, call, "ValueError", "allreduce", "reduce_scatter")


@pytest.mark.ranks(2)
@pytest.mark.parametrize("bucket_bytes", [8, 1 << 20, None])
def test_b14_no_gradient(comm, ring, bucket_bytes):
    mine = [
        [np.ones(2), np.full(3, 4.0), np.full(2, 6.0), None],
        [np.ones(2), None, np.full(2, 2.0), None],
    ][comm.rank]
    averaged = average_gradients(mine, ring, bucket_bytes=bucket_bytes)
    assert [None if g is None else g.tolist() for g in averaged] == [
        [1, 1],
        [2, 2, 2],
        [4, 4],
        None,
    ]
    assert mine[0].tolist() == [1, 1]


@pytest.mark.ranks(2)
def test_b15_pairing_by_name(comm, ring):
    w, b = np.ones(3), np.full(3, 10.0)
    mine = {"w": w, "b": b} if comm.rank == 0 else {"b": 2 * b, "w": 3 * w}
    averaged = average_gradients(mine, ring)
    assert list(averaged) == list(mine)
    assert averaged["w"].tolist() == [2, 2, 2] and averaged["b"].tolist() == [15] * 3
    for name in ("extra-17", "a"):
        unlike = {**mine, name: w} if comm.rank == 1 else mine
        call = lambda: average_gradients(unlike, ring)  # noqa: E731
        raised_everywhere(comm, ring, call, "ValueError", name)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("bucket_bytes", [8, 1 << 20, None])
def test_b16_mixed_bucket(comm, ring, bucket_bytes):
    kinds: list[tuple[Any, Any]] = [
        ("f4", 3),
        ("f2", 5),
        ("f8", 1),
        ("f4", 0),
        ("f2", ()),
        ("c8", 2),
    ]
    mine = [np.full(shape, comm.rank + 1, dtype) for dtype, shape in kinds]
    averaged = average_gradients(mine, ring, bucket_bytes=bucket_bytes)
    for (dtype, shape), result in zip(kinds, averaged):
        same_bits(result, np.full(shape, 1.5, dtype))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_b17_same_bits(comm, ring, op):
    """Near 1e8 a float32 cannot add 1: every order has its own sums, here worked out by hand."""
    x = np.full(16, [1e8, 1, -1e8, 1][comm.rank], "f4")
    by_order: dict[str, list] = {"ring": [], "rank": []}
    for turn in range(20):
        for order, algorithms in (("ring", ALGORITHMS), ("rank", ("auto", "direct"))):
            for algorithm in algorithms:
                how = {"op": op, "order": order, "algorithm": algorithm}
                by_order[order].append(ring.allreduce(x, **how))
                if turn < 3:
                    part = ring.reduce_scatter(x, **how)
                    by_order[order].append(ring.allgather(part))
    by_order["rank"] += [
        average_gradients([x], ring, op=op, order="rank", bucket_bytes=n)[0]
        for n in (4, 17, None)
    ]
    one = 1.0 if op == "sum" else 0.25
    # Segment 0 is ((1 - 1e8) + 1) + 1e8; in rank order all are ((1e8 + 1) - 1e8) + 1.
    expected = {"ring": np.repeat([0, one, 0, one], 4), "rank": np.full(16, one)}
    for order, results in by_order.items():
        for result in results:
            same_bits(result, expected[order].astype("f4"), order)
        same_on_all_ranks(comm, results)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sign", [1, -1])
def test_b18_sub_communicators(comm, ring, sign):
    half = comm.Split(comm.rank // 2, key=sign * comm.rank)
    with Ring(half) as pair:
        average = pair.allreduce(float(comm.rank), "avg")
        order = pair.allgather(comm.rank)
        place = (pair.rank, pair.size)
        both = ring.allreduce(8**comm.rank)  # the ring over all, in between
        again = pair.allreduce(8**pair.rank)
    half.Free()
    members = [0, 1] if comm.rank < 2 else [2, 3]
    assert average == sum(members) / 2
    assert order.tolist() == members[::sign]
    assert place == (members[::sign].index(comm.rank), 2)
    assert (both, again) == (0o1111, 0o11)


def test_b18_other_communicators(comm, ring):
    alone = Ring(MPI.COMM_SELF)
    same_bits(alone.allreduce(np.arange(3) * 8**comm.rank), np.arange(3) * 8**comm.rank)
    same_bits(alone.allgather(np.arange(3)), np.arange(3))
    assert (alone.rank, alone.size) == (0, 1)
    alone.close()
    grid = comm.Create_cart(MPI.Compute_dims(comm.size, 2), periods=[True, False])
    line = grid.Sub([True, False])
    with Ring(grid) as on_grid, Ring(line) as on_line:
        everywhere = on_grid.allreduce(8**on_grid.rank)
        along = on_line.allgather(on_grid.rank)
    coordinates = grid.Get_coords(grid.rank)
    column = [grid.Get_cart_rank([i, *coordinates[1:]]) for i in range(grid.dims[0])]
    line.Free()
    grid.Free()
    assert everywhere == int("1" * comm.size, base=8)
    assert along.tolist() == column


@pytest.mark.ranks(2, 3)
def test_b18_no_communicator(comm, ring):
    part = comm.Split(0 if comm.rank == 0 else MPI.UNDEFINED)
    kind, text = outcome(lambda: Ring(part).close())
    if comm.rank == 0:
        part.Free()
        assert (kind, text) == ("", "")
    else:
        assert kind == "ValueError" and "COMM_NULL" in text


@pytest.mark.ranks(3)
def test_b20_aliasing(comm, ring):
    x = np.arange(8.0) * (comm.rank + 1)
    assert ring.allreduce(x, out=x) is x
    same_bits(x, np.arange(8.0) * 6)
    one_place = np.broadcast_to(comm.rank + 1, (4,))
    same_bits(ring.allreduce(one_place), np.full(4, 6))
    for out in (np.zeros(4), np.broadcast_to(0.0, (4,))):
        out.flags.writeable = False
        call = lambda: ring.allreduce(np.ones(4), out=out)  # noqa: E731
        raised_everywhere(comm, ring, call, "ValueError", "read-only")
    for algorithm in ALGORITHMS:
        buf = np.arange(8.0) * (comm.rank + 1)
        ring.allreduce(buf[0:6], out=buf[2:8], algorithm=algorithm)
        assert buf[2:8].tolist() == (6 * np.arange(6.0)).tolist()
        assert buf[:2].tolist() == [0, comm.rank + 1]
    before = np.arange(100.0) * (comm.rank + 1)
    x = before.copy()
    for algorithm in ALGORITHMS:
        for op in ("sum", "avg", "prod", "min"):
            ring.allreduce(x, op, algorithm=algorithm)
            ring.reduce_scatter(x, op, algorithm=algorithm)
    ring.allgather(x)
    same_bits(x, before)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_b21b_messages_of_a_thousand_bytes(comm, algorithm):
    with Ring(comm, message_bytes=1000) as ring:
        x = np.arange(10007) + comm.rank
        result = ring.allreduce(x, algorithm=algorithm)
        joined = ring.allgather(ring.reduce_scatter(x, algorithm=algorithm))
    expected = comm.size * np.arange(10007) + sum(range(comm.size))
    same_bits(result, expected)
    same_bits(joined, expected)


@pytest.mark.slow
@pytest.mark.limit(400)
@pytest.mark.ranks(2)
def test_b21a_more_than_two_to_the_31(comm, ring):
    """In place: 2 GiB on each rank, and scratch of half of that."""
    x = np.ones(2**31 + 5, "u1")
    ring.allreduce(x, out=x)
    # In pieces, or the comparison would want another 2 GiB.
    assert all((x[i : i + (1 << 24)] == 2).all() for i in range(0, x.size, 1 << 24))
