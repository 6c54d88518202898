"""The lecture's identities, as they run: all-reduce = reduce + broadcast = reduce-scatter + all-gather.

Bit for bit, because the order of the sum is the same on both sides: ``order="rank"`` for the first, where a
reduce has one order for the whole array and a ring all-reduce one for each segment; any order for the second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiring.plan import ring_allgather, ring_allreduce, ring_reduce_scatter

from ranks.reference import DTYPES, fold, ops_of, random_array, same_bits

SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0), (4099,)]


@st.composite
def inputs(draw) -> dict[str, Any]:
    dtype = draw(st.sampled_from(DTYPES))
    return {
        "dtype": dtype,
        "op": draw(st.sampled_from(ops_of(dtype))),
        "shape": draw(st.sampled_from(SHAPES)),
        "seed": draw(st.integers(0, 1000)),
    }


def mine(comm, case: dict[str, Any]) -> Any:
    return random_array(case["dtype"], case["shape"], comm.rank, case["seed"])


@settings(max_examples=30)
@given(
    case=inputs(),
    root=st.integers(0, 7),
    down=st.sampled_from(["auto", "naive", "pipelined", "direct"]),
)
def test_allreduce_is_reduce_and_broadcast(comm, ring, agreed, case, root, down):
    x, op, root = mine(comm, case), case["op"], root % comm.size
    whole = ring.allreduce(x, op, order="rank")
    at_root = ring.reduce(x, op, root, order="rank")
    everywhere = ring.broadcast(at_root, root, algorithm=down)
    with agreed():
        same_bits(everywhere, whole, case)


@settings(max_examples=30)
@given(
    case=inputs(),
    order=st.sampled_from(["ring", "rank"]),
    way=st.sampled_from(["auto", "ring", "direct"]),
)
def test_allreduce_is_reduce_scatter_and_allgather(
    comm, ring, agreed, case, order, way
):
    x, op = mine(comm, case), case["op"]
    if order == "rank" and way == "ring":
        way = "direct"
    whole = ring.allreduce(x, op, order=order, algorithm=way)
    part = ring.reduce_scatter(x, op, order=order)
    joined = ring.allgather(part).reshape(x.shape)
    with agreed():
        same_bits(joined, whole, case)


@settings(max_examples=15)
@given(case=inputs(), offset=st.integers(0, 3))
def test_as_schedules_with_any_ownership(comm, ring, agreed, case, offset):
    """The lecture's loops one after the other, with its offset; the parts are equally long here."""
    size = comm.size
    x = np.stack([mine(comm, case)] * size)
    whole = ring.run(ring_allreduce(size, offset), x, case["op"])
    part = ring.run(ring_reduce_scatter(size, offset), x, case["op"])
    joined = ring.run(ring_allgather(size, offset), part)
    with agreed():
        same_bits(joined.reshape(x.shape), whole, case)


def test_in_another_order_the_identity_is_one_of_numbers_not_of_bits(comm, ring):
    """What ``order`` is for: in ring order a reduce has one order for all, an all-reduce one for each segment."""
    inputs = [random_array("float32", 4099, rank) for rank in range(comm.size)]
    whole = ring.allreduce(inputs[comm.rank])
    by_root = ring.broadcast(ring.reduce(inputs[comm.rank], root=0), 0)
    same_bits(by_root, fold([*inputs[1:], inputs[0]], "sum"))
    assert np.allclose(by_root, whole, rtol=0, atol=comm.size * 2.0**-16)
    if comm.size > 2:
        assert whole.tobytes() != by_root.tobytes()
