"""Promise 4, same bits: every path gives the bits of the order written in the contract, on every rank.

The inputs are real random floats, so that another order, a rounding too many or a misplaced segment
shows.  All calls of a test come before its first assertion: a rank that fails does not leave the others waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiring import Ring, average_gradients

from ranks.reaching import reaching, staging
from ranks.reference import (
    COMPLEX,
    DTYPES,
    FLOATS,
    HALVES,
    balanced,
    dtype_of,
    ops_of,
    random_array,
    reduced,
    same_bits,
    same_on_all_ranks,
)
from ranks.tuned import PROFILES, tuned

ALGORITHMS = {"ring": ("auto", "ring", "direct"), "rank": ("auto", "direct")}
ROUNDING = (*FLOATS, *COMPLEX)


class Result(NamedTuple):
    """What a path gave, and what it should have given."""

    path: str
    actual: Any
    expected: np.ndarray


def check(comm, results: list[Result]) -> None:
    for path, actual, expected in results:
        same_bits(actual, expected, path)
    same_on_all_ranks(comm, [actual for _, actual, _ in results])


# ---- the ways to pass an array --------------------------------------------------------------------


def out_of_place(ring, x, **how):
    before = x.tobytes()
    result = ring.allreduce(x, **how)
    assert x.tobytes() == before, "the input was changed"
    return result


def in_place(ring, x, **how):
    x = x.copy()
    assert ring.allreduce(x, out=x, **how) is x
    return x


def strided_input(ring, x, **how):
    wide = np.zeros(2 * x.size, x.dtype)
    wide[::-2] = x
    return ring.allreduce(wide[::-2], **how)


def strided_output(ring, x, **how):
    wide = np.ones(3 * x.size, x.dtype)
    ring.allreduce(x, out=wide[1::3], **how)
    assert (wide[0::3] == 1).all() and (wide[2::3] == 1).all(), "wrote beside out"
    return wide[1::3].copy()


def unaligned(ring, x, **how):
    raw = np.zeros(x.nbytes + 1, "u1")
    shifted = raw[1:].view(x.dtype)
    shifted[...] = x
    ring.allreduce(shifted, out=shifted, **how)
    return shifted.copy()


def node_shared(ring, x, **how):
    """In place, in memory that all ranks of the node reach: ``auto`` is ``shared`` there."""
    if how["algorithm"] == "auto":
        how["algorithm"] = "shared"
    shared = ring.empty(x.shape, x.dtype)
    shared[...] = x
    assert ring.allreduce(shared, out=shared, **how) is shared
    return shared.copy()


def asynchronous(ring, x, **how):
    return ring.allreduce(x, async_op=True, **how).wait()


FORMS = (in_place, strided_input, strided_output, unaligned, node_shared, asynchronous)


def paths(rings: dict[str, Ring], x, forms) -> Iterator[tuple[str, Any, dict]]:
    """Every algorithm of both orders, on every ring and in every form: (name, function, arguments)."""
    for order, algorithms in ALGORITHMS.items():
        for algorithm in algorithms:
            how = {"order": order, "algorithm": algorithm}
            for kind, ring in rings.items():
                name = f"{order} order, {algorithm}, {kind}"
                yield name, lambda ring=ring, **w: out_of_place(ring, x, **w), how
            near = ("peers", "stages") if algorithm == "auto" else ()
            for form, kind in product(forms, ("plain", *near)):
                name = f"{order} order, {algorithm}, {form.__name__}, {kind}"
                ring = rings[kind]
                yield name, lambda f=form, r=ring, **w: f(r, x, **w), how


@pytest.fixture
def rings(comm):
    with ExitStack() as stack:
        found = {
            "plain": stack.enter_context(Ring(comm)),
            "short messages": stack.enter_context(Ring(comm, message_bytes=24)),
            "unchecked": stack.enter_context(Ring(comm, check=False)),
            "peers": stack.enter_context(reaching(comm)),
            "stages": stack.enter_context(staging(comm)),
        }
        for name, profile in PROFILES.items():
            with tuned(profile):
                found[name] = stack.enter_context(Ring(comm))
        yield found


@pytest.mark.parametrize("dtype", ROUNDING)
def test_every_path_gives_the_bits_of_the_written_order(comm, rings, dtype):
    inputs = [random_array(dtype, 4 * comm.size + 1, r, 1) for r in range(comm.size)]
    results = []
    for op in ops_of(dtype):
        expected = {o: reduced(inputs, op, o) for o in ALGORITHMS}
        forms = FORMS if op in ("sum", "avg") and comm.size < 8 else (in_place,)
        for path, call, how in paths(rings, inputs[comm.rank], forms):
            actual = call(op=op, **how)
            results.append(Result(f"{op}, {path}", actual, expected[how["order"]]))
    check(comm, results)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_large_arrays_take_other_paths_to_the_same_bits(comm, ring, dtype):
    """Past 64 KiB, where ``auto`` changes over, and past the block of the fold, 32 Ki elements."""
    count = 10_007 if comm.size == 8 else 70_001
    inputs = [random_array(dtype, count, r, 2) for r in range(comm.size)]
    results = []
    op = "prod" if dtype == "float64" else "avg"
    for order, algorithms in ALGORITHMS.items():
        expected = reduced(inputs, op, order)
        for algorithm in algorithms:
            for form in (out_of_place, in_place, node_shared):
                how = {"order": order, "algorithm": algorithm}
                actual = form(ring, inputs[comm.rank], op=op, **how)
                results.append(Result(f"{how} {form.__name__}", actual, expected))
    check(comm, results)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_what_does_not_round_has_one_result(comm, ring, dtype):
    inputs = [random_array(dtype, 4 * comm.size + 1, r, 3) for r in range(comm.size)]
    results = []
    for op in ops_of(dtype):
        expected = reduced(inputs, op)
        same_bits(reduced(inputs, op, "rank"), expected)
        for order, algorithms in ALGORITHMS.items():
            for algorithm in (*algorithms, "mpi"):
                how = {"op": op, "order": order, "algorithm": algorithm}
                actual = ring.allreduce(inputs[comm.rank], **how)
                results.append(Result(str(how), actual, expected))
    check(comm, results)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex128"])
def test_reduce_scatter_and_allgather_make_the_allreduce(comm, ring, dtype):
    results = []
    for count in (4 * comm.size + 1, comm.size - 1):
        inputs = [random_array(dtype, count, r, 4) for r in range(comm.size)]
        x = inputs[comm.rank]
        mine = balanced(count, comm.size)[comm.rank]
        for op in ("sum", "avg"):
            for order, algorithms in ALGORITHMS.items():
                expected = reduced(inputs, op, order)
                for algorithm in algorithms:
                    how = {"op": op, "order": order, "algorithm": algorithm}
                    part = ring.reduce_scatter(x, **how)
                    same_bits(x, inputs[comm.rank])
                    in_x = x.copy()
                    ring.reduce_scatter(in_x, out=in_x[mine], **how)
                    gather = "ring" if algorithm == "ring" else "direct"
                    joined = ring.allgather(part, algorithm=gather)
                    results.append(Result(str(how), joined, expected))
                    joined = ring.allgather(in_x[mine], algorithm="auto")
                    results.append(Result(f"{how} in place", joined, expected))
    check(comm, results)


def test_the_mpis_own_reduction_is_equal_on_whole_numbers(comm, ring):
    """``algorithm="mpi"`` promises no bits; where no order rounds it has to agree."""
    values = np.arange(4 * comm.size + 1)
    results = []
    for dtype, op in [(d, op) for d in DTYPES for op in ops_of(d) if op != "avg"]:
        most = 3 if op == "prod" else 1 << 30  # products stay exact in 16 bits
        inputs = [
            (values % min(r + 3, most)).astype(dtype_of(dtype))
            for r in range(comm.size)
        ]
        expected = reduced(inputs, op)
        actual = ring.allreduce(inputs[comm.rank], op, algorithm="mpi")
        results.append(Result(f"{dtype} {op}", actual, expected))
        part = ring.reduce_scatter(inputs[comm.rank], op, algorithm="mpi")
        joined = ring.allgather(part, algorithm="mpi")
        results.append(Result(f"{dtype} {op}, scattered", joined, expected))
    check(comm, results)


def test_the_same_call_repeats_to_the_same_bytes(comm, ring):
    inputs = [random_array("float32", 1000, r, 5) for r in range(comm.size)]
    work = [ring.allreduce(inputs[comm.rank], async_op=True) for _ in range(10)]
    results = [w.wait() for w in work]
    results += [ring.allreduce(inputs[comm.rank]) for _ in range(10)]
    check(comm, [Result("", actual, reduced(inputs)) for actual in results])


def test_ranks_are_those_of_the_communicator_wherever_they_are(comm):
    """A communicator that lists the processes backwards combines them backwards."""
    backwards = comm.Split(0, key=-comm.rank)
    inputs = [random_array("float32", 41, r, 6) for r in reversed(range(comm.size))]
    results = []
    with Ring(backwards) as ring:
        for order, algorithms in ALGORITHMS.items():
            for algorithm in algorithms:
                x = inputs[ring.rank]
                actual = ring.allreduce(x, order=order, algorithm=algorithm)
                expected = reduced(inputs, "sum", order)
                results.append(Result(f"{order}, {algorithm}", actual, expected))
    backwards.Free()
    check(comm, results)


def test_gradients_in_rank_order_do_not_depend_on_buckets(comm, ring):
    shapes = {"a": (3, 5), "b": (7,), "c": (), "d": (2, 0), "e": (11, 2)}
    everyone = [
        {
            f"{name}-{dtype}": random_array(dtype, shape, r, seed)
            for seed, (name, shape) in enumerate(shapes.items())
            for dtype in ("float32", "bfloat16", "complex64")
        }
        for r in range(comm.size)
    ]
    results = []
    for bucket_bytes in (1, 50, 100, 1 << 20, None):
        averaged = average_gradients(
            everyone[comm.rank], ring, order="rank", bucket_bytes=bucket_bytes
        )
        for name, actual in averaged.items():
            expected = reduced([grads[name] for grads in everyone], "avg", "rank")
            results.append(Result(f"{name} {bucket_bytes}", actual, expected))
    check(comm, results)


def test_nan_and_infinity_are_the_same_bytes_everywhere(comm, ring):
    """Which NaN comes out is not promised, that all ranks have the same one is."""
    results = []
    for dtype in FLOATS:
        x = random_array(dtype, 40, comm.rank, 7)
        x[comm.rank :: 7] = np.nan
        x[comm.rank + 1 :: 5] = np.inf if comm.rank % 2 else -np.inf
        x[3::11] = -0.0 if comm.rank % 2 else 0.0
        for op in ops_of(dtype):
            for algorithm in ALGORITHMS["ring"]:
                results.append(ring.allreduce(x, op, algorithm=algorithm))
    same_on_all_ranks(comm, results)


@settings(max_examples=25)
@given(data=st.data())
def test_any_count_dtype_and_path(comm, agreed, data):
    dtype = data.draw(st.sampled_from(ROUNDING), "dtype")
    op = data.draw(st.sampled_from(ops_of(dtype)), "op")
    order = data.draw(st.sampled_from(sorted(ALGORITHMS)), "order")
    algorithm = data.draw(st.sampled_from(ALGORITHMS[order]), "algorithm")
    count = data.draw(st.integers(0, 300), "count")
    seed = data.draw(st.integers(0, 1000), "seed")
    form = data.draw(st.sampled_from((out_of_place, *FORMS)), "form")
    make = data.draw(st.sampled_from((Ring, reaching, staging)), "ring")
    inputs = [random_array(dtype, count, r, seed) for r in range(comm.size)]
    with make(comm) as ring:
        how = {"op": op, "order": order, "algorithm": algorithm}
        actual = form(ring, inputs[comm.rank], **how)
    with agreed():
        same_bits(actual, reduced(inputs, op, order))
    same_on_all_ranks(comm, [actual])


@pytest.mark.ranks(3, 4, 5)
@pytest.mark.parametrize("dtype", HALVES)
def test_these_inputs_see_a_second_rounding(comm, dtype):
    """What the tests above compare with is not what rounding at each hop would give."""
    inputs = [random_array(dtype, 40, r, 1) for r in range(comm.size)]
    hops = inputs[1 % comm.size]
    for rank in range(2, comm.size + 1):
        hops = hops + inputs[rank % comm.size]
    assert hops.tobytes() != reduced(inputs, "sum").tobytes()
