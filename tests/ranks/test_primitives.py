"""Broadcast, reduce and a user's own schedules, over MPI.

What they give is compared with plain loops over ranks, bit for bit; that their errors are on every rank, and
that the ring works afterwards, with ``raised_everywhere``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpiring import Ring
from mpiring.plan import from_steps, ring_allreduce, ring_reduce_scatter, verify

from plan.written import WRITTEN, written
from ranks.reference import (
    COMPLEX,
    DTYPES,
    FLOATS,
    HALVES,
    balanced,
    dtype_of,
    fold,
    ops_of,
    random_array,
    same_bits,
    same_on_all_ranks,
)
from ranks.test_cases import raised_everywhere
from ranks.test_promise_6_no_silent_hang import meet, timed_out

BROADCASTS = ("auto", "naive", "pipelined", "direct", "mpi")
REDUCES = ("auto", "ring", "direct")


# ---- broadcast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", BROADCASTS)
def test_broadcast_from_every_root(comm, ring, algorithm):
    """Of 3 elements, and of enough for a pipeline; ``x`` is filled and returned, None makes a new array."""
    found: list[Any] = []
    for root in range(comm.size):
        for count in (3, 100_003):
            sent = random_array("float32", count, root, count)
            x = sent.copy() if comm.rank == root else np.zeros(count, "f4")
            new = x if comm.rank == root else None
            found.append((sent, ring.broadcast(x, root, algorithm=algorithm), x))
            found.append((sent, ring.broadcast(new, root, algorithm=algorithm), new))
    for sent, result, x in found:
        assert x is None or result is x
        same_bits(result, sent)


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast_of_every_dtype_and_shape(comm, ring, dtype):
    root = comm.size - 1
    found = []
    for shape in ((), (0,), (3, 0, 2), (5,), (2, 3, 4)):
        sent = random_array(dtype, shape, root)
        room = np.zeros((2, *shape, 2), dtype_of(dtype))[1, ..., 1]
        for algorithm in BROADCASTS:
            x = sent if comm.rank == root else None
            found.append((sent, ring.broadcast(x, root, algorithm=algorithm)))
            room[...] = sent if comm.rank == root else 0
            assert ring.broadcast(room, root, algorithm=algorithm) is room
            found.append((sent, room.copy()))
    for sent, result in found:
        same_bits(result, sent)


def test_broadcast_leaves_what_is_around_alone(comm, ring):
    """A column with guards on both sides; the root's array is read-only."""
    sent = np.arange(5.0)
    sent.flags.writeable = False
    table = np.full((5, 3), -1.0)
    x = sent if comm.rank == 0 else table[:, 1]
    assert ring.broadcast(x) is x
    assert sent.tolist() == [0, 1, 2, 3, 4]
    if comm.rank:
        assert table.tolist() == [[-1, n, -1] for n in range(5)]


@pytest.mark.ranks(2, 3)
def test_broadcast_between_byte_orders(comm, ring):
    x: Any = np.arange(7, dtype=">f8" if comm.rank == 0 else "<f8") * (comm.rank == 0)
    assert ring.broadcast(x) is x
    assert x.tolist() == list(range(7))
    new = ring.broadcast(x.astype(">i4") if comm.rank == 0 else None)
    assert new.tolist() == list(range(7))
    assert comm.rank == 0 or new.dtype == np.dtype("i4")


def test_b05_and_b06_of_the_rooted(comm, ring):
    size = comm.size
    value = np.array(comm.rank + 1.0)
    mean = ring.reduce(value, "avg", root=size - 1)
    total = ring.reduce(value, root=size // 2)
    sent = ring.broadcast(value, size - 1)
    nothing = np.zeros((3, 0, 2), "f4")
    for algorithm in REDUCES:
        none = ring.reduce(nothing, algorithm=algorithm)
        assert none is None if comm.rank else same_bits(none, nothing) is None
    if comm.rank == size // 2:
        same_bits(total, np.array(size * (size + 1) / 2))
    if comm.rank == size - 1:
        same_bits(mean, np.array((size + 1) / 2))
    assert sent is value
    same_bits(sent, np.array(float(size)))
    number = ring.broadcast(2.5 if comm.rank == 0 else None)
    same_bits(np.asarray(number), np.array(2.5))


@pytest.mark.ranks(3)
def test_b11_broadcasts_that_differ(comm, ring):
    pairs: list[Any] = [
        (np.ones(7), np.ones(8), "float64[7]", "float64[8]"),
        (np.ones(7, "f4"), np.ones(7), "float32[7]", "float64[7]"),
        (np.ones((2, 3)), np.ones(6), "float64[2,3]", "float64[6]"),
        (np.ones(7, "i8"), np.ones(7), "int64[7]", "float64[7]"),
        (1.0, np.ones(1), "float64[]", "float64[1]"),
    ]
    for odd in range(comm.size):
        for here, there, *words in pairs:
            x = here if comm.rank == odd else there
            call = lambda: ring.broadcast(x, 1)  # noqa: E731
            raised_everywhere(comm, ring, call, "ValueError", *words, "rank 1")
        x = np.ones(7)
        root = 1 if comm.rank == odd else 0
        for name in ("broadcast", "reduce"):
            call = lambda: getattr(ring, name)(x, root=root)  # noqa: E731
            raised_everywhere(comm, ring, call, "ValueError", "root 0", "root 1")
        name = "broadcast" if comm.rank == odd else "allreduce"
        call = lambda: getattr(ring, name)(x)  # noqa: E731
        raised_everywhere(comm, ring, call, "ValueError", "broadcast", "allreduce")


@pytest.mark.ranks(2, 3)
def test_what_cannot_work_raises_everywhere(comm, ring):
    """On one rank, and on all."""
    x, size = np.ones(3), comm.size
    locked = np.ones(3)
    locked.flags.writeable = False
    bad_root = f"root must be 0 to {size - 1}"
    for odd in (comm.size - 1, None):
        here = odd is None or comm.rank == odd
        wrong: list[Any] = [
            (lambda: ring.broadcast(x, size if here else 0), bad_root, f"got {size}"),
            (lambda: ring.broadcast(x, -1 if here else 0), bad_root, "got -1"),
            (lambda: ring.reduce(x, root=2.0 if here else 0), bad_root, "got 2.0"),
            (lambda: ring.broadcast(None if here else x, size - 1), "x is None on the"),
            (lambda: ring.broadcast(x, algorithm="ring" if here else "auto"), "'ring'"),
            (lambda: ring.reduce(x, algorithm="naive" if here else "auto"), "'naive'"),
            (lambda: ring.reduce(x, timeout=-1 if here else None), "timeout", "-1"),
        ]
        if odd is not None:
            wrong.append((lambda: ring.broadcast(locked if here else x), "read-only"))
        for call, *words in wrong:
            raised_everywhere(comm, ring, call, "ValueError", *words)


@pytest.mark.ranks(2, 3)
def test_without_the_check(comm):
    with Ring(comm, check=False) as ring:
        x = np.full(5, 8**comm.rank)
        for root in range(comm.size):
            new = ring.broadcast(x if comm.rank == root else None, root)
            same_bits(new, np.full(5, 8**root))
            total = ring.reduce(x, root=root)
            fingerprint = np.full(5, int("1" * comm.size, base=8))
            assert total is None if comm.rank != root else (total == fingerprint).all()
        plan = ring_allreduce(comm.size)
        same_bits(ring.run(plan, x), fingerprint)


# ---- reduce ---------------------------------------------------------------------------------------


def order_of(order: str, root: int, size: int) -> list[int]:
    first = 0 if order == "rank" else root + 1
    return [(first + i) % size for i in range(size)]


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, "int8", "uint64", "bool"])
def test_reduce_has_the_bits_of_the_plain_loop(comm, ring, dtype):
    """root + 1, ..., root; or 0, 1, ...: from every algorithm the same, in place or not."""
    size = comm.size
    inputs = [random_array(dtype, (3, 7), rank) for rank in range(size)]
    found = []
    for op in ops_of(dtype):
        for root in sorted({0, size // 2, size - 1}):
            for order, algorithms in (("ring", REDUCES), ("rank", ("auto", "direct"))):
                ranks = order_of(order, root, size)
                expected = fold([inputs[rank] for rank in ranks], op)
                for algorithm in algorithms:
                    x = inputs[comm.rank].copy()
                    out = x if algorithm == "direct" else None
                    how: Any = {"out": out, "order": order, "algorithm": algorithm}
                    result = ring.reduce(x, op, root, **how)
                    found.append((op, root, how, expected, x, result))
    for op, root, how, expected, x, result in found:
        is_in_place = comm.rank == root and how["out"] is x
        if comm.rank == root:
            same_bits(result, expected, (op, root, how))
            assert not is_in_place or result is x
        else:
            assert result is None
        same_bits(x, expected if is_in_place else inputs[comm.rank])


@pytest.mark.ranks(2, 3, 5)
def test_reduce_in_pieces(comm, ring):
    """Long enough for a pipeline of several chunks, and cut unevenly; 16-bit floats travel wide."""
    for dtype in ("float32", "float16"):
        inputs = [random_array(dtype, 100_003, rank) for rank in range(comm.size)]
        for root in range(comm.size):
            ranks = order_of("ring", root, comm.size)
            expected = fold([inputs[rank] for rank in ranks], "avg")
            results = [
                ring.reduce(inputs[comm.rank], "avg", root, algorithm=algorithm)
                for algorithm in REDUCES
            ]
            for result in results:
                assert comm.rank == root or result is None
                assert comm.rank != root or same_bits(result, expected) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_by_the_mpi(comm, ring, dtype):
    """Exact where every order gives the same: small integers, and what stays in range wraps as NumPy's."""
    x = (np.arange(70) % 3 + comm.rank).astype(dtype_of(dtype))
    if dtype not in (*FLOATS, *COMPLEX, "bool"):
        x = random_array(dtype, 70, comm.rank)
    root = comm.size - 1
    found = []
    for op in ops_of(dtype):
        if op == "prod" and dtype in (*FLOATS, *COMPLEX):
            continue
        ours = ring.reduce(x, op, root)
        found.append((op, ours, ring.reduce(x, op, root, algorithm="mpi")))
    for op, ours, theirs in found:
        assert (ours is None) == (comm.rank != root)
        assert ours is None or same_bits(theirs, ours, op) is None


@pytest.mark.ranks(3)
@pytest.mark.parametrize("dtype", HALVES)
def test_b08_a_reduce_rounds_once(comm, ring, dtype):
    large = 2048 if dtype == "float16" else 256  # where the next number is 2 further
    for root in range(comm.size):
        x = np.full(11, large if comm.rank == root else 1).astype(dtype_of(dtype))
        for algorithm in REDUCES:
            result = ring.reduce(x, root=root, algorithm=algorithm)
            assert comm.rank != root or (result.astype("f8") == large + 2).all()


def test_out_counts_on_the_root_only(comm, ring):
    x = np.full(5, 8**comm.rank)
    wide = np.zeros((5, 2), x.dtype)
    out: Any = wide[:, 1] if comm.rank == 0 else np.zeros(77, "u1")
    result = ring.reduce(x, out=out)
    if comm.rank == 0:
        assert result is out
        assert wide.tolist() == [[0, int("1" * comm.size, base=8)]] * 5
    else:
        assert result is None and not out.any()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("sign", [1, -1])
def test_b18_rooted_on_sub_communicators(comm, ring, sign):
    half = comm.Split(comm.rank // 2, key=sign * comm.rank)
    members = ([0, 1] if comm.rank < 2 else [2, 3])[::sign]
    with Ring(half) as pair:
        first = pair.broadcast(np.array(comm.rank), 0)
        total = pair.reduce(comm.rank, root=1)
        for root in (2, -1):
            call = lambda: pair.broadcast(np.ones(3), root)  # noqa: E731
            raised_everywhere(half, pair, call, "ValueError", f"got {root}")
    half.Free()
    assert int(first) == members[0]
    assert total is None if comm.rank == members[0] else int(total) == sum(members)


@pytest.mark.ranks(3)
def test_b19_ragged_allgather_after_a_broadcast_of_the_lengths(comm, ring):
    lengths = ring.broadcast(np.array([2, 0, 3]) if comm.rank == 1 else None, 1)
    x = 10 * comm.rank + np.arange(lengths[comm.rank])
    assert ring.allgather(x).tolist() == [0, 1, 20, 21, 22]
    rows = np.full((lengths[comm.rank], 2), comm.rank)
    assert ring.allgather(rows).tolist() == [[0, 0]] * 2 + [[2, 2]] * 3
    unlike = np.zeros((2, 2 + comm.rank // 2))
    call = lambda: ring.allgather(unlike)  # noqa: E731
    raised_everywhere(comm, ring, call, "ValueError", "[2]", "[3]")


def test_rooted_calls_go_in_order_with_asynchronous_ones(comm, ring):
    x = np.full(3, 8**comm.rank)
    room = np.zeros(3, int)
    works = [
        ring.reduce(x, root=0, out=x if comm.rank == 0 else None, async_op=True),
        ring.broadcast(x if comm.rank == 0 else room, async_op=True),
        ring.allreduce(room, "max", async_op=True),
    ]
    blocking = ring.broadcast(np.full(2, comm.rank), comm.size - 1)
    total = [int("1" * comm.size, base=8)] * 3
    reduced, sent, largest = (work.wait() for work in works)
    assert blocking.tolist() == [comm.size - 1] * 2
    assert reduced is None if comm.rank else reduced.tolist() == total
    assert sent.tolist() == total
    assert largest.tolist() == (total if comm.size > 1 else [0] * 3)


@pytest.mark.ranks(2, 5)
def test_b13_one_rank_leaves_early(comm):
    """The others, wherever they wait, name it: rank 3 of 5, which is nobody's root; rank 1 of 2, who is."""
    leaves, root = (3, 1) if comm.size == 5 else (1, 1)
    x = np.ones(100_000)
    calls = {
        "broadcast": lambda ring: ring.broadcast(x, root),
        "reduce": lambda ring: ring.reduce(x, root=root),
        "run": lambda ring: ring.run(ring_allreduce(comm.size), x),
    }
    for name, call in calls.items():
        ring = Ring(comm, timeout=0.3 if comm.rank != leaves else None)
        if comm.rank != leaves:
            error, _ = timed_out(lambda: call(ring))
            assert error.silent == (leaves,), str(error)
            assert str(error).startswith(f"{name}: rank {comm.rank} waited 0.3 s")
        meet(comm)
        ring.close()


# ---- a user's schedules ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_user_s_schedules(comm, ring, dtype):
    """Chain, star, tree, halving, hierarchy: combined as their proof says."""
    size = comm.size
    inputs = [random_array(dtype, (5, 2), rank) for rank in range(size)]
    names = [name for name, (_, sizes) in WRITTEN.items() if size in sizes]
    results, plans = [], [written(name, size) for name in names]
    plans += [ring_allreduce(size, 1), ring_reduce_scatter(size, 1)]
    for plan in plans:
        x = inputs[comm.rank].copy()
        results.append((ring.run(plan, x), x))
    for plan, (result, x) in zip(plans, results):
        check_run(comm, plan, inputs, result, x)
    same_on_all_ranks(comm, [r for p, (r, _) in zip(plans, results) if all_have(p)])


def all_have(plan) -> bool:
    return plan.collective not in ("reduce", "reduce_scatter")


def check_run(comm, plan, inputs, result, x) -> None:
    what = f"{plan.algorithm} {plan.collective}"
    if plan.collective == "broadcast":
        assert result is x
    else:
        same_bits(x, inputs[comm.rank], what)
    if plan.collective == "reduce" and comm.rank != plan.root:
        assert result is None
    else:
        same_bits(result, expected_of(comm.rank, plan, inputs), what)


def expected_of(rank, plan, inputs) -> Any:
    """What a schedule must give on a rank, by the orders of its proof."""
    if plan.collective == "broadcast":
        return inputs[plan.root]
    if plan.collective == "allgather":
        return np.concatenate([inputs[plan.owner(s)] for s in range(plan.size)])
    flat = [array.ravel() for array in inputs]
    parts = [
        evaluated([array[part] for array in flat], order)
        for part, order in zip(balanced(10, plan.segments), verify(plan).orders)
    ]
    if plan.collective == "reduce_scatter":
        return parts[plan.owned(rank)]
    return np.concatenate(parts).reshape(5, 2)


def evaluated(operands: list[Any], order: tuple[int | str, ...]) -> Any:
    """A sum in the order of a proof, brackets and all; 16-bit floats are rounded at the end only."""
    tokens = iter(order)

    def total() -> Any:
        found = None
        for token in tokens:
            if token == ")":
                break
            value = total() if token == "(" else operands[int(token)].astype("f4")
            found = value if found is None else found + value
        return found

    return total().astype(operands[0].dtype)


@pytest.mark.ranks(2, 3)
def test_a_broken_schedule_raises_everywhere(comm, ring):
    size, x = comm.size, np.ones(4)
    good = ring_allreduce(size)
    whole = [list(good.steps(rank)) for rank in range(size)]
    forgets = from_steps("allreduce", [*whole[:-1], whole[-1][:-1]])
    early = from_steps("allreduce", [s[1:] for s in whole])
    for broken in (forgets, early):
        call = lambda: ring.run(broken, x)  # noqa: E731
        raised_everywhere(comm, ring, call, "ScheduleError", "custom allreduce")
        one = broken if comm.rank == 0 else good
        call = lambda: ring.run(one, x)  # noqa: E731
        raised_everywhere(comm, ring, call, "ScheduleError", "run: rank 0")
    other = written("tree allreduce", size) if comm.rank else good
    call = lambda: ring.run(other, x)  # noqa: E731
    raised_everywhere(comm, ring, call, "ValueError", "schedule ring", "schedule tree")
    call = lambda: ring.run(ring_allreduce(size + 1), x)  # noqa: E731
    raised_everywhere(comm, ring, call, "ValueError", f"for {size + 1} ranks")
    call = lambda: ring.run(good, x) if comm.rank else ring.allreduce(x)  # noqa: E731
    raised_everywhere(comm, ring, call, "ValueError", "called run", "called allreduce")
    assert ring.run(good, x, "prod").tolist() == [1] * 4
