"""Promise 9, any count: messages longer than ``message_bytes`` are split, wherever the cut falls.

The 2**31 elements themselves are in test_cases.py, B21.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiring import Ring

from ranks.reference import dtype_of, random_array, reduced, same_bits

ALGORITHMS = ("auto", "ring", "direct")


@settings(max_examples=40)
@given(data=st.data())
def test_any_message_length(comm, agreed, data):
    """Also shorter than an element, and than one element of another rank's segment."""
    message_bytes = data.draw(st.integers(1, 100), "message_bytes")
    dtype = data.draw(st.sampled_from(("uint8", "float16", "float32", "complex128")))
    most = 4 * message_bytes * comm.size // dtype_of(dtype).itemsize + 2
    count = data.draw(st.integers(0, min(most, 200)), "count")
    algorithm = data.draw(st.sampled_from(ALGORITHMS), "algorithm")
    inputs = [random_array(dtype, count, r) for r in range(comm.size)]
    rows = [random_array(dtype, (r * count) % 7, r) for r in range(comm.size)]
    with Ring(comm, message_bytes=message_bytes) as ring:
        everywhere = ring.allreduce(inputs[comm.rank], algorithm=algorithm)
        part = ring.reduce_scatter(inputs[comm.rank], algorithm=algorithm)
        joined = ring.allgather(part, algorithm=algorithm)
        ragged = ring.allgather(rows[comm.rank], algorithm=algorithm)
    with agreed():
        same_bits(everywhere, reduced(inputs))
        same_bits(joined, reduced(inputs))
        same_bits(ragged, np.concatenate(rows))


@pytest.mark.parametrize("message_bytes", [1, 7, 8, 9, 16])
def test_the_cut_falls_on_and_beside_elements(comm, message_bytes):
    inputs = [random_array("int64", 4 * comm.size + 1, r) for r in range(comm.size)]
    with Ring(comm, message_bytes=message_bytes) as ring:
        results = [ring.allreduce(inputs[comm.rank], algorithm=a) for a in ALGORITHMS]
    for result in results:
        same_bits(result, reduced(inputs))


def test_hundreds_of_messages_for_one_segment(comm):
    count = 500 * comm.size
    inputs = [random_array("uint8", count, r) for r in range(comm.size)]
    with Ring(comm, message_bytes=1) as ring:
        result = ring.allreduce(inputs[comm.rank])
    same_bits(result, reduced(inputs))
