"""Promise 3, numbers: wrapping, NaN, true division, 16-bit floats rounded once, and what raises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from mpiring import Ring

from ranks.reference import (
    COMPLEX,
    DTYPES,
    FLOATS,
    HALVES,
    INTEGERS,
    dtype_of,
    ops_of,
    outcome,
    random_array,
    same_bits,
)

ALGORITHMS = ("auto", "ring", "direct")


def test_every_operation_of_every_dtype_on_whole_numbers(comm, ring):
    """Rank r holds r + 1 at each even place, 1 elsewhere: exact in every dtype and order."""
    for dtype in DTYPES:
        whole_numbers(comm, ring, dtype)


def whole_numbers(comm, ring, dtype: str) -> None:
    place = np.arange(2 * comm.size + 1) % 2
    x = np.where(place, 1, comm.rank + 1).astype(dtype_of(dtype))
    size = comm.size
    factorial = int(np.prod(range(1, size + 1)))
    if dtype in ("int8", "uint8"):
        factorial = int(np.array(factorial).astype(dtype))
    even = {"sum": size * (size + 1) / 2, "prod": factorial, "min": 1, "max": size}
    odd = {"sum": size, "prod": 1, "min": 1, "max": 1, "avg": 1}
    even["avg"] = even["sum"] / size
    results = [
        (op, ring.allreduce(x, op, algorithm=algorithm))
        for op in ops_of(dtype)
        for algorithm in ALGORITHMS
    ]
    for op, result in results:
        expected = np.where(place, odd[op], even[op]).astype(dtype_of(dtype))
        same_bits(result, expected, op)


def test_integers_wrap(comm, ring):
    """Against Python's integers, which do not."""
    for dtype in INTEGERS:
        wrapping(comm, ring, dtype)


def wrapping(comm, ring, dtype: str) -> None:
    inputs = [random_array(dtype, 17, r) for r in range(comm.size)]
    results = [
        (op, ring.allreduce(inputs[comm.rank], op, algorithm=algorithm))
        for op in ("sum", "prod")
        for algorithm in ALGORITHMS
    ]
    columns = list(zip(*(x.tolist() for x in inputs)))
    bits = np.iinfo(dtype).bits
    for op, result in results:
        exact = [sum(column) for column in columns]
        if op == "prod":
            exact = [int(np.prod(np.array(column, object))) for column in columns]
        expected = np.array([value % 2**bits for value in exact], f"uint{bits}")
        same_bits(result, expected.view(dtype), op)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_propagates_wherever_it_comes_from(comm, ring, dtype):
    x = np.arange(2 * comm.size, dtype=float).astype(dtype_of(dtype))
    x[comm.rank] = np.nan  # one rank alone has it, at each of the first places
    results = [
        ring.allreduce(x, op, algorithm=algorithm)
        for op in ("min", "max")
        for algorithm in ALGORITHMS
    ]
    for result in results:
        is_nan = np.isnan(result.astype("f8"))
        assert is_nan.tolist() == [True] * comm.size + [False] * comm.size
        same_bits(result[comm.size :], x[comm.size :])


@pytest.mark.parametrize("dtype", HALVES)
@settings(max_examples=15)
@given(data=st.data())
def test_halves_are_rounded_once(comm, agreed, dtype, data):
    """Whole numbers whose sum float32 holds exactly: the result is the exact sum, rounded one time."""
    limit = 2048 if dtype == "float16" else 256  # whole numbers up to here are exact
    rows = st.lists(st.integers(-limit, limit), min_size=3, max_size=3)
    values = np.array([data.draw(rows) for _ in range(comm.size)])
    algorithm = data.draw(st.sampled_from(ALGORITHMS))
    with Ring(comm) as ring:
        x = values[comm.rank].astype(dtype_of(dtype))
        result = ring.allreduce(x, algorithm=algorithm)
    with agreed():
        same_bits(result, values.sum(0).astype("f8").astype(dtype_of(dtype)))


@pytest.mark.parametrize("dtype", HALVES)
def test_an_average_that_fits_does_not_overflow_on_the_way(comm, ring, dtype):
    largest = {"float16": 65504.0, "bfloat16": 2.0**120}[dtype]
    x = np.array([largest, -largest, 2.0**-24], dtype_of(dtype))
    results = [ring.allreduce(x, "avg", algorithm=a) for a in ALGORITHMS]
    for result in results:
        same_bits(result, x)


@pytest.mark.ranks(3, 5)
@pytest.mark.parametrize("dtype", ["float32", "float64", *COMPLEX])
def test_avg_divides_and_does_not_multiply_by_the_inverse(comm, ring, dtype):
    kind = np.dtype(dtype).type(0).real.dtype
    sums = np.arange(1, 201).astype(kind)
    x = (sums if comm.rank == 0 else 0 * sums).astype(dtype)
    if dtype in COMPLEX:
        x = (x + 1j * x[::-1]).astype(dtype)
    result = ring.allreduce(x, "avg")
    exact = sums / kind.type(comm.size)
    assert (exact != sums * (kind.type(1) / kind.type(comm.size))).any()
    same_bits(np.ascontiguousarray(result.real), exact)
    if dtype in COMPLEX:
        same_bits(np.ascontiguousarray(result.imag), exact[::-1].copy())


def test_mpis_operations_by_their_names(comm, ring):
    inputs = [random_array("int64", 9, r) for r in range(comm.size)]
    for name in ("sum", "prod", "min", "max"):
        x = inputs[comm.rank]
        same_bits(
            ring.allreduce(x, getattr(MPI, name.upper())), ring.allreduce(x, name)
        )
        part = ring.reduce_scatter(x, getattr(MPI, name.upper()))
        same_bits(part, ring.reduce_scatter(x, name))


def test_what_has_no_good_answer_says_what_to_do(comm, ring):
    asked = [(np.ones(2, name), "avg") for name in (*INTEGERS, "bool")]
    asked += [(np.ones(2, "bool"), op) for op in ("sum", "prod")]
    asked += [(np.ones(2, name), op) for name in COMPLEX for op in ("min", "max")]
    told = [outcome(lambda: ring.allreduce(x, op)) for x, op in asked]
    told += [outcome(lambda: ring.reduce_scatter(x, op)) for x, op in asked]
    for (x, op), (kind, text) in zip(asked + asked, told):
        assert kind == "TypeError", (x.dtype, op, kind, text)
        assert str(x.dtype) in text and repr(op) in text, text
        assert any(word in text for word in ("convert", "use", "reduce the")), text


def test_no_warning_of_numpys_comes_out(comm, ring, recwarn):
    x = np.array([np.inf, -np.inf, np.nan, 3e38, 65504], "f4")
    ring.allreduce(x if comm.rank else -x)
    ring.allreduce(x, "prod", algorithm="ring")
    ring.allreduce(x.astype("f8").astype("f2"), "sum")
    ring.allreduce(np.array([127, -128], "i1"))
    assert [str(w.message) for w in recwarn.list if "mpiring" in w.filename] == []
