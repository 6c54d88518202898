"""The measures themselves: the reference against numbers worked out by hand, and each checker failing."""

from __future__ import annotations

import numpy as np
import pytest

from ranks.reference import (
    DTYPES,
    balanced,
    dtype_of,
    fold,
    ops_of,
    outcome,
    random_array,
    reduced,
    same_bits,
    same_on_all_ranks,
)

pytestmark = pytest.mark.ranks(1, 2)
LARGE = [np.full(4, value, "f4") for value in (1e8, 1, -1e8, 1)]


def test_ring_order_by_hand():
    # Near 1e8 a float32 cannot add 1.  So ((1 - 1e8) + 1) + 1e8 = 0, and ((-1e8 + 1) + 1e8) + 1 = 1,
    # then ((1 + 1e8) + 1) - 1e8 = 0, and ((1e8 + 1) - 1e8) + 1 = 1.
    assert reduced(LARGE).tolist() == [0, 1, 0, 1]


def test_rank_order_by_hand():
    assert reduced(LARGE, "sum", "rank").tolist() == [1, 1, 1, 1]


def test_a_half_is_rounded_once():
    halves = [np.full(1, value, "f2") for value in (2048, 1, 1, 1, 1)]
    assert reduced(halves).tolist() == [2052]
    large = [np.full(1, 60000, "f2")] * 4
    assert reduced(large, "avg").tolist() == [60000]


def test_segments_by_hand():
    lengths = [part.stop - part.start for part in balanced(10, 4)]
    assert lengths == [3, 3, 2, 2]
    assert balanced(1, 3) == [slice(0, 1), slice(1, 1), slice(1, 1)]


def test_complex_averages_divide_both_parts():
    assert fold([np.array([2 + 4j]), np.array([4 + 2j])], "avg").tolist() == [3 + 3j]


def test_the_bits_of_order_matter_in_these_inputs():
    """The random arrays can tell one order from another, whatever the dtype that rounds."""
    for name in ("float32", "float64", "complex64", "complex128"):
        for op in ("sum", "prod"):
            inputs = [random_array(name, 40, rank) for rank in range(3)]
            ring, by_rank = reduced(inputs, op), reduced(inputs, op, "rank")
            assert outcome(lambda: same_bits(by_rank, ring))[0] == "AssertionError"


@pytest.mark.parametrize("name", DTYPES)
def test_same_bits_sees_every_fault(name):
    inputs = [random_array(name, 41, rank) for rank in range(3)]
    for op in ops_of(name):
        right = reduced(inputs, op)
        same_bits(right.copy(), right)
        one_bit = right.copy()
        one_bit.view("u1")[-1] ^= 1
        without_rank_2 = reduced(inputs[:2], op)
        wrong = [np.roll(right, 14), one_bit, right[:-1], right.reshape(1, -1)]
        wrong += [right.view("i1"), list(right), right[0], without_rank_2]
        for array in wrong if name != "int8" else wrong[:4]:
            assert outcome(lambda: same_bits(array, right))[0] == "AssertionError"


def test_same_bits_tells_zeros_and_says_where():
    with pytest.raises(AssertionError, match="spot: 1 of 2 elements differ.*at 1: "):
        same_bits(np.array([1.0, -0.0]), np.array([1.0, 0.0]), "spot")


def test_same_on_all_ranks_fails_on_all_ranks(comm):
    same_on_all_ranks(comm, [np.arange(3)])
    if comm.size > 1:
        with pytest.raises(AssertionError, match="rank 1 and rank 0 differ .*1"):
            same_on_all_ranks(comm, [np.arange(3), np.arange(3) + comm.rank])


def test_random_arrays_differ_by_rank_and_repeat():
    for name in DTYPES:
        one = random_array(name, 100, 1)
        assert one.dtype == dtype_of(name)
        same_bits(random_array(name, 100, 1), one)
        assert one.tobytes() != random_array(name, 100, 2).tobytes()
