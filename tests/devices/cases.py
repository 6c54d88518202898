"""Cases of collectives on one kind of array, host or device, written once for every way to run them.

A case is a generator ``case(ring, xp)`` for one rank: ``ring`` has ``rank``, ``size``, ``repeats`` (how often to try
what has to repeat), ``many`` (elements that are many) and the collectives, each a program to ``yield from``, and
``exchange`` for a group of messages; ``xp`` makes arrays (``xp.asarray``) and
gives them back (``xp.asnumpy``).  A name begins with the number of the case that people ran into.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mpiring.plan.catalog import schedule

from wire import reference, schedules
from wire.reference import same_bits

CASES: dict[str, Any] = {}  # name -> (case, the numbers of ranks it is for)


def case(*sizes):
    def keep(program):
        CASES[program.__name__] = (program, sizes)
        return program

    return keep


class Numpy:
    """The host, with the names that a case uses."""

    ndarray = np.ndarray
    asarray = staticmethod(np.array)

    @staticmethod
    def asnumpy(x):
        return np.asarray(x)


class Programs:
    """A ring whose calls are programs to ``yield from``, as the cases want them."""

    def __init__(self, ring, many=3000, repeats=5):
        self._ring = ring
        self.rank, self.size = ring.rank, ring.size
        self.many, self.repeats = many, repeats

    def __getattr__(self, name):
        def program(*args, **kwargs):
            return getattr(self._ring, name)(*args, **kwargs)
            yield

        return program

    def exchange(self, *given):
        with self._ring.group():
            for is_send, array, peer, tag in given:
                (self._ring.send if is_send else self._ring.recv)(array, peer, tag)
        return
        yield


def drive(program):
    """Run a case on a ring to its end."""
    assert list(program) == []


def check(xp, result, want):
    """The right bits, of the right kind."""
    assert isinstance(result, xp.ndarray)
    assert same_bits(xp.asnumpy(result), want), (xp.asnumpy(result), want)


@case(1, 2, 3, 4, 5)
def b01_counts_against_ranks(ring, xp):
    rank, size = ring.rank, ring.size
    for count in range(2 * size + 2):
        want = 100.0 * size * (size - 1) / 2 + size * np.arange(count)
        for algorithm in ("ring", "direct"):
            x = xp.asarray(100.0 * rank + np.arange(count))
            result = yield from ring.allreduce(x, algorithm=algorithm)
            check(xp, result, want)
            part = yield from ring.reduce_scatter(x, algorithm=algorithm)
            start, stop = reference.bounds(count, size)[rank]
            check(xp, part, want[start:stop])
            check(xp, x, 100.0 * rank + np.arange(count))
            result = yield from ring.allreduce(x, out=x, algorithm=algorithm)
            assert result is x
            check(xp, x, want)


@case(2, 3, 4, 5)
def b02_bookkeeping(ring, xp):
    count = 4 * ring.size + 1
    for algorithm in ("ring", "direct"):
        x = xp.asarray(np.full(count, 8**ring.rank))
        result = yield from ring.allreduce(x, algorithm=algorithm)
        check(xp, result, np.full(count, int("1" * ring.size, base=8)))
        part = xp.asarray(1000 * ring.rank + np.arange(count))
        joined = yield from ring.allgather(part, algorithm=algorithm)
        every = [1000 * r + np.arange(count) for r in range(ring.size)]
        check(xp, joined, np.concatenate(every))


@case(3)
def b04_strided_views(ring, xp):
    o = np.arange(24.0).reshape(4, 6)
    a = xp.asarray(o * (ring.rank + 1))
    columns = a[:, 1::2]
    result = yield from ring.allreduce(columns, out=columns)
    assert result is columns
    want = o * (ring.rank + 1)
    want[:, 1::2] = 6 * o[:, 1::2]
    check(xp, a, want)
    a = xp.asarray(o * (ring.rank + 1))
    for view, seen in ((a[::-1], o[::-1]), (a.T, o.T), (a[1:, ::-2], o[1:, ::-2])):
        result = yield from ring.allreduce(view)
        check(xp, result, np.ascontiguousarray(6 * seen))
    fortran = xp.asarray(np.asfortranarray(o * (ring.rank + 1)))
    result = yield from ring.allreduce(fortran)
    check(xp, result, 6 * o)


@case(3)
def b05_zero_dimensional(ring, xp):
    x = xp.asarray(np.array(ring.rank + 1.0))
    result = yield from ring.allreduce(x)
    check(xp, result, np.array(6.0))
    result = yield from ring.allreduce(x, "avg")
    check(xp, result, np.array(2.0))
    result = yield from ring.allgather(x)
    check(xp, result, np.array([1.0, 2.0, 3.0]))
    result = yield from ring.reduce(x, root=2)
    assert (result is not None) == (ring.rank == 2)
    if result is not None:
        check(xp, result, np.array(6.0))
    result = yield from ring.broadcast(x, 1)
    assert result is x
    check(xp, result, np.array(2.0))


@case(3)
def b06_nothing_to_send(ring, xp):
    x = xp.asarray(np.empty((3, 0, 2), "f4"))
    for algorithm in ("ring", "direct"):
        result = yield from ring.allreduce(x, algorithm=algorithm)
        check(xp, result, np.empty((3, 0, 2), "f4"))
        result = yield from ring.reduce_scatter(x, algorithm=algorithm)
        check(xp, result, np.empty(0, "f4"))
        result = yield from ring.allgather(x, algorithm=algorithm)
        check(xp, result, np.empty((9, 0, 2), "f4"))
        result = yield from ring.broadcast(x, 1)
        check(xp, result, np.empty((3, 0, 2), "f4"))
        yield from ring.reduce(x, root=1)
        part = np.full([2, 0, 1][ring.rank], ring.rank)
        result = yield from ring.allgather(xp.asarray(part), algorithm=algorithm)
        check(xp, result, np.array([0, 0, 2]))


@case(2)
def b07_width(ring, xp):
    for name in reference.DTYPES:
        if name == "bfloat16" and xp is not Numpy:
            continue  # CuPy has none
        dtype = reference.dtype_of(name)
        for n in (0, 1, 5):
            values = np.array(
                [(4 + i % 4) * (name != "bool") for i in range(n)]
            ).astype(dtype)
            guarded = xp.asarray(np.full(n + 8, 99).astype(dtype))
            out = guarded[4:-4]
            op = "max" if name == "bool" else "sum"
            yield from ring.allreduce(xp.asarray(values), op, out=out)
            want = np.full(n + 8, 99).astype(dtype)
            want[4 : n + 4] = values if name == "bool" else values + values
            check(xp, guarded, want)


@case(5)
def b08_half_precision(ring, xp):
    for q in range(5):
        x = np.full(11, 2048 if ring.rank == q else 1, "f2")
        for algorithm in ("ring", "direct"):
            result = yield from ring.allreduce(xp.asarray(x), algorithm=algorithm)
            check(xp, result, np.full(11, 2052, "f2"))
    x = np.array([60000, 2**-24], "f2")
    for algorithm in ("ring", "direct"):
        result = yield from ring.allreduce(xp.asarray(x), "avg", algorithm=algorithm)
        check(xp, result, x)


@case(4)
def b17_same_bits(ring, xp):
    # Ring order, segments of four: ((x1 + x2) + x3) + x0 and so on, in float32 by hand.
    x = np.full(16, [1e8, 1, -1e8, 1][ring.rank], "f4")
    values = [np.full(16, v, "f4") for v in (1e8, 1, -1e8, 1)]
    for order in ("ring", "rank"):
        want = reference.reduced_flat("sum", values, order)
        average = reference.reduced_flat("avg", values, order)
        for _ in range(ring.repeats):
            result = yield from ring.allreduce(xp.asarray(x), order=order)
            check(xp, result, want)
            result = yield from ring.allreduce(xp.asarray(x), "avg", order=order)
            check(xp, result, average)
            part = yield from ring.reduce_scatter(xp.asarray(x), order=order)
            result = yield from ring.allgather(part)
            check(xp, result, want)


@case(2, 3, 4)
def b03_everybody_sends_first(ring, xp):
    rank, size = ring.rank, ring.size
    count = ring.many
    x = xp.asarray(np.full(count, rank + 1, "f4"))
    total = np.full(count, size * (size + 1) / 2, "f4")
    result = yield from ring.allreduce(x)
    check(xp, result, total)
    part = yield from ring.reduce_scatter(x)
    start, stop = reference.bounds(count, size)[rank]
    check(xp, part, total[start:stop])
    result = yield from ring.allgather(x)
    check(xp, result, np.repeat(np.arange(1, size + 1, dtype="f4"), count))
    y = xp.asarray(np.full(count, rank + 1, "f4"))
    result = yield from ring.broadcast(y, size - 1)
    check(xp, result, np.full(count, size, "f4"))
    out = xp.asarray(np.zeros(count, "f4"))
    right, left = (rank + 1) % size, (rank - 1) % size
    yield from ring.exchange((True, x, right, 0), (False, out, left, 0))
    check(xp, out, np.full(count, left + 1, "f4"))


@case(3)
def b19_ragged_allgather(ring, xp):
    length = [2, 0, 3][ring.rank]
    for algorithm in ("ring", "direct"):
        flat = 10 * ring.rank + np.arange(length)
        result = yield from ring.allgather(xp.asarray(flat), algorithm=algorithm)
        check(xp, result, np.array([0, 1, 20, 21, 22]))
        rows = np.stack([flat, -flat], axis=1)
        result = yield from ring.allgather(xp.asarray(rows), algorithm=algorithm)
        check(xp, result, np.array([[0, 0], [1, -1], [20, -20], [21, -21], [22, -22]]))


@case(1, 2, 3, 5)
def with_a_root(ring, xp):
    rank, size = ring.rank, ring.size
    x = 8.0**rank * np.arange(1, 30)
    for root in range(size):
        for algorithm in ("ring", "direct"):
            result = yield from ring.reduce(
                xp.asarray(x), root=root, algorithm=algorithm
            )
            assert (result is not None) == (rank == root)
            if result is not None:
                want = float(int("1" * size, base=8)) * np.arange(1, 30)
                check(xp, result, want)
        for algorithm in ("naive", "pipelined", "direct"):
            full = xp.asarray(np.stack([x, x]))
            y = full[:, ::2]  # strided: filled off the root
            result = yield from ring.broadcast(y, root, algorithm=algorithm)
            assert result is y
            want = np.stack([x, x])
            want[:, ::2] = 8.0**root * np.arange(1, 30)[::2]
            check(xp, full, want)
            given = xp.asarray(x) if rank == root else None
            result = yield from ring.broadcast(given, root, algorithm=algorithm)
            check(xp, result, 8.0**root * np.arange(1, 30))


@case(2, 3)
def a_schedule_of_ones_own(ring, xp):
    for collective in ("allreduce", "reduce_scatter", "allgather", "broadcast"):
        plan = schedule(collective, ring.size)
        x = xp.asarray(np.full(7, 8.0**ring.rank))
        result = yield from ring.run(plan, x)
        value = float(int("1" * ring.size, base=8))
        if collective == "allreduce":
            check(xp, result, np.full(7, value))
        if collective == "reduce_scatter":
            start, stop = reference.bounds(7, ring.size)[ring.rank]
            check(xp, result, np.full(stop - start, value))
        if collective == "allgather":
            check(xp, result, np.repeat(8.0 ** np.arange(ring.size), 7))
        if collective == "broadcast":
            check(xp, result, np.full(7, 1.0))


@case(2, 4)
def schedules_written_by_hand(ring, xp):
    """Folds from both sides, partials that are stored, several messages to one rank in a step."""
    size = ring.size
    doubling = partial(schedules.recursive_doubling, segments=5)
    for make in (*schedules.HAND_MADE.values(), doubling):
        plan = make(size)
        for dtype in ("i8", "f2"):
            x = xp.asarray(np.arange(1, 30).astype(dtype) * 8**ring.rank)
            result = yield from ring.run(plan, x)
            if result is None:
                assert plan.collective == "reduce" and ring.rank != plan.root
                continue
            total = int("1" * size, base=8)
            if plan.collective == "broadcast":
                total = 8**plan.root
            want = (np.arange(1, 30) * total).astype(dtype)
            if plan.collective == "reduce_scatter":
                start, stop = reference.bounds(29, size)[ring.rank]
                want = want[start:stop]
            check(xp, result, want)


@case(1, 2, 3)
def groups_of_messages(ring, xp):
    """To everybody and oneself, several to one with one tag, nothing among them, strided ends."""
    rank, size = ring.rank, ring.size
    lengths = [0, 25, 3]
    given, outs = [], {}
    for peer in range(size):
        for number, length in enumerate(lengths):
            x = 1000 * rank + 100 * peer + 30 * number + np.arange(2 * length)
            given.append((True, xp.asarray(x)[::2], peer, 5))
            out = xp.asarray(np.full(2 * length, -1))
            outs[peer, number] = out
            given.append((False, out[1::2], peer, 5))
    yield from ring.exchange(*given)
    for (peer, number), out in outs.items():
        want = np.full(2 * lengths[number], -1)
        sent = 1000 * peer + 100 * rank + 30 * number + np.arange(2 * lengths[number])
        want[1::2] = sent[::2]
        check(xp, out, want)


@case(2, 3)
def products_and_extremes(ring, xp):
    x = np.array([2.0, -1.0, 0.5, 3.0, 1.0], "f4") * (ring.rank + 1)
    every = [
        np.array([2.0, -1.0, 0.5, 3.0, 1.0], "f4") * (r + 1) for r in range(ring.size)
    ]
    for op in ("prod", "min", "max"):
        for algorithm in ("ring", "direct"):
            result = yield from ring.allreduce(xp.asarray(x), op, algorithm=algorithm)
            check(xp, result, reference.reduced_flat(op, every, "ring"))
    z = np.array([1 + 2j, 3 - 1j, 0.5j], "c8")
    for op in ("prod", "avg"):
        result = yield from ring.allreduce(xp.asarray(z), op)
        check(xp, result, reference.reduced_flat(op, [z] * ring.size, "ring"))


@case(2, 3)
def work_still_queued(ring, xp):
    """What the host did with an array just before a call counts, and what it does after."""
    for algorithm in ("ring", "direct"):
        for repeat in range(3):
            x = xp.asarray(np.zeros(7, "f4"))
            x[...] = 8.0**ring.rank
            y = x + x
            result = yield from ring.allreduce(y, algorithm=algorithm)
            z = result * 2
            want = np.full(7, 2 * int("1" * ring.size, base=8), "f4")
            check(xp, result, want)
            check(xp, z, 2 * want)


@case(2, 3)
def overlapping_in_and_out(ring, xp):
    buffer = xp.asarray(np.arange(9.0) + ring.rank)
    x, out = buffer[0:6], buffer[2:8]
    result = yield from ring.allreduce(x, out=out, algorithm="ring")
    assert result is out
    k = ring.size
    check(xp, out, k * np.arange(6.0) + k * (k - 1) / 2)
