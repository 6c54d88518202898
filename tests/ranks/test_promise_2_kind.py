"""Promise 2, kind: the result is an array of the input's dtype and shape, whatever counts as an array."""

from __future__ import annotations

import numpy as np
import pytest

from ranks.reference import DTYPES, dtype_of, same_bits


def test_dtype_and_shape_are_those_of_the_input(comm, ring):
    shapes = ((), (1,), (0,), (3, 0, 2), (2, 3), (2, 1, 2, 1))
    ones = [np.ones(shape, dtype_of(name)) for name in DTYPES for shape in shapes]
    results = [ring.allreduce(x, "avg" if x.dtype.kind == "c" else "max") for x in ones]
    for x, result in zip(ones, results):
        same_bits(result, x)


@pytest.mark.parametrize(
    "number, dtype",
    [(3, "int64"), (2.5, "float64"), (1 + 2j, "complex128")]
    + [(np.dtype(name).type(3), name) for name in ("uint8", "float16", "float32")],
)
def test_a_number_is_an_array_of_no_dimensions(comm, ring, number, dtype):
    reduced = ring.allreduce(number)
    scattered = ring.reduce_scatter(number)
    gathered = ring.allgather(number)
    same_bits(reduced, np.array(number * comm.size, dtype))
    assert scattered.tolist() == ([number * comm.size] if comm.rank == 0 else [])
    assert scattered.dtype == dtype
    same_bits(gathered, np.full(comm.size, number, dtype))


def test_bools_are_numbers_too(comm, ring):
    same_bits(ring.allreduce(comm.rank == 0, "max"), np.array(True))
    same_bits(ring.allreduce(comm.rank < 0, "max"), np.array(False))


def test_out_is_what_is_returned(comm, ring):
    x = np.arange(6.0).reshape(2, 3)
    outs = [np.zeros((2, 3)), np.zeros((3, 2)).T, np.zeros((4, 6))[::2, ::2]]
    returned = [ring.allreduce(x, out=out) for out in outs]
    waited = ring.allreduce(x, out=outs[0], async_op=True).wait()
    for out, result in zip(outs, returned):
        assert result is out
        assert result.tolist() == (x * comm.size).tolist()
    assert waited is outs[0]


def test_the_result_is_memory_of_its_own(comm, ring):
    """Results do not share scratch: a later call leaves an earlier result alone."""
    first = ring.allreduce(np.full(50, 8**comm.rank))
    kept = first.copy()
    second = ring.allreduce(np.zeros(50, int))
    same_bits(first, kept)
    assert not np.may_share_memory(first, second)
