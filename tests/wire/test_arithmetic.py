"""What an operation means for a dtype, against NumPy on small arrays and against exact arithmetic."""

from __future__ import annotations

import sys
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.wire.reduce import arithmetic

from wire import reference
from wire.reference import BFLOAT16, COMPLEX, DTYPES, FLOATS, HALVES, INTEGERS

BLOCK = arithmetic.BLOCK_BYTES // 4  # elements of float32


@pytest.fixture(autouse=True)
def numpy_does_not_warn():
    """As in a ring's calls: NaN and infinity are values like others."""
    with np.errstate(all="ignore"):
        yield


def fold(op, operands, out):
    arithmetic.combine(np, op, operands, [out])


def finish(op, size, value, out):
    arithmetic.combine(np, op, [value], [out], size)


# ---- what is allowed ------------------------------------------------------------------------------


def test_the_allowed_combinations_are_these():
    assert arithmetic.DTYPES == set(DTYPES)
    for op, dtype in product(arithmetic.OPS, DTYPES):
        if op in reference.ops_of(dtype):
            arithmetic.check_op(op, dtype)
        else:
            with pytest.raises(TypeError, match=f"op '{op}' of {dtype}"):
                arithmetic.check_op(op, dtype)


@pytest.mark.parametrize(
    "op, dtype, words",
    [
        ("avg", "int32", "would need rounding: convert to float64 first, or use 'sum'"),
        ("avg", "bool", "would need rounding"),
        (
            "sum",
            "bool",
            "use 'max' for or, 'min' for and, or convert to int64 to count",
        ),
        ("prod", "bool", "two meanings"),
        ("max", "complex64", "no order: reduce the absolute values or the parts"),
    ],
)
def test_a_refusal_says_what_to_do(op, dtype, words):
    with pytest.raises(TypeError) as caught:
        arithmetic.check_op(op, dtype)
    assert words in str(caught.value)


@pytest.mark.parametrize("op", ["mean", "SUM", "", None, 3, ("sum",)])
def test_an_unknown_op_lists_the_known_ones(op):
    with pytest.raises(ValueError, match="known: sum, prod, min, max, avg") as caught:
        arithmetic.check_op(op, "float32")
    assert repr(op) in str(caught.value)


def test_accumulators():
    for op, dtype in product(arithmetic.OPS, DTYPES):
        wide = dtype in ("float16", "bfloat16") and op in ("sum", "prod", "avg")
        assert arithmetic.accumulator(op, dtype) == ("float32" if wide else dtype)


# ---- folding --------------------------------------------------------------------------------------

CASES = [(op, dtype) for dtype in DTYPES for op in reference.ops_of(dtype)]


@pytest.mark.parametrize("op, dtype", CASES)
@pytest.mark.parametrize("operands", [1, 2, 3, 4])
def test_combine(op, dtype, operands):
    """From the left, wherever the result goes: elsewhere, or over any of the operands."""
    count = 37
    wide = arithmetic.accumulator(op, dtype)
    for mixed in (False, True):
        values = [reference.varied(dtype, count, r) for r in range(operands)]
        if not mixed:
            values = [value.astype(wide) for value in values]
        elif wide == dtype:
            continue
        else:  # a sum so far, and contributions as they are
            values[0] = values[0].astype(wide)
        want = reference.combined(op, values, range(operands))
        for place in range(-1, operands):
            inputs = [value.copy() for value in values]
            out = inputs[place] if place >= 0 else np.empty(count, want.dtype)
            if out.dtype != want.dtype:
                continue
            fold(op, inputs, out)
            assert reference.same_bits(out, want)
            for i, (value, now) in enumerate(zip(values, inputs)):
                assert i == place or reference.same_bits(now, value)


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
@pytest.mark.parametrize(
    "op, dtype", [("sum", "float32"), ("sum", "float16"), ("prod", "complex64")]
)
def test_combine_around_a_block(count, op, dtype):
    values = [reference.varied(dtype, count, r) for r in range(3)]
    out = np.empty(count, arithmetic.accumulator(op, dtype))
    fold(op, values, out)
    assert reference.same_bits(out, reference.combined(op, values, range(3)))


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("operands", [2, 3])
def test_products_of_complex_numbers_do_not_depend_on_place_or_length(dtype, operands):
    """NumPy's own do: a single one in place is computed in another way."""
    values = [reference.varied(dtype, 33, r) for r in range(operands)]
    want = reference.combined("prod", values, range(operands))
    for step, place in product((1, 2, 3, 5, 8, 33), range(-1, operands)):
        pieces = []
        for start in range(0, 33, step):
            inputs = [value[start : start + step].copy() for value in values]
            out = inputs[place] if place >= 0 else np.empty_like(inputs[0])
            fold("prod", inputs, out)
            pieces.append(out)
        assert reference.same_bits(np.concatenate(pieces), want)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap(dtype):
    info = np.iinfo(dtype)
    extremes = np.array([info.min, info.max, info.max, 1], dtype)
    for op, exact in (("sum", lambda a, b: a + b), ("prod", lambda a, b: a * b)):
        out = np.empty_like(extremes)
        fold(op, [extremes, extremes[::-1].copy()], out)
        span = 1 << info.bits
        for a, b, got in zip(extremes.tolist(), extremes[::-1].tolist(), out.tolist()):
            assert (exact(a, b) - got) % span == 0


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["min", "max", "sum", "prod", "avg"])
def test_nan_propagates_from_each_side(dtype, op):
    nan = np.array([np.nan, 1, np.nan, 2] * 9, reference.dtype_of(dtype))
    other = np.array([1, np.nan, np.nan, 3] * 9, reference.dtype_of(dtype))
    for operands in ([nan, other], [other, nan], [other, other, nan]):
        out = np.empty(36, reference.dtype_of(arithmetic.accumulator(op, dtype)))
        fold(op, operands, out)
        assert np.isnan(out.astype(float)).tolist() == [True, True, True, False] * 9


@pytest.mark.parametrize("count", [0, 1, 37, BLOCK + 1])
@pytest.mark.parametrize("op, dtype", CASES)
def test_one_pass_to_several_outputs(op, dtype, count):
    """Folded, divided and rounded, over the operands themselves and beside them; and rounded later."""
    values = [reference.varied(dtype, count, r) for r in range(3)]
    total = reference.combined(op, values, range(3))
    want = reference.finished(op, total, 3, reference.dtype_of(dtype))
    inputs = [value.copy() for value in values]
    outs = [inputs[2], np.empty_like(want), inputs[0], inputs[1]]
    arithmetic.combine(np, op, inputs, outs, 3)
    assert all(reference.same_bits(out, want) for out in outs)
    outs = [np.empty_like(total), np.empty_like(total)]
    arithmetic.combine(np, op, values, outs)
    assert all(reference.same_bits(out, total) for out in outs)


def test_the_same_array_may_come_twice():
    a, b = reference.varied("float32", 99, 0), reference.varied("float32", 99, 1)
    out = np.empty_like(a)
    fold("sum", [a, b, b, a, b], out)
    assert reference.same_bits(out, (((a + b) + b) + a) + b)


def test_bools_have_and_and_or():
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    for op, want in (("min", a & b), ("max", a | b)):
        out = np.empty(4, bool)
        fold(op, [a, b], out)
        assert reference.same_bits(out, want)


# ---- finishing ------------------------------------------------------------------------------------


def exactly_rounded(value, dtype):
    """The number of a 16-bit dtype nearest to a Fraction, ties to even: by looking at all of them."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    every = bits.view(dtype).astype(np.float64)
    candidates = np.isfinite(every) & (np.signbit(every) == (value < 0))
    every, bits = every[candidates], bits[candidates]
    nearest = np.argsort(np.abs(every - float(value)))[:3]
    return every[
        min(nearest, key=lambda i: (abs(Fraction(every[i]) - value), bits[i] & 1))
    ]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_finishing_every_half(dtype):
    """All 65536 of them: as a sum they come out as they are; an average of equal ones too."""
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    number = ~np.isnan(every.astype(np.float32))
    for op, size in (("sum", 3), ("avg", 1), ("avg", 2), ("avg", 3), ("avg", 7)):
        wide = every.astype(np.float32)
        if op == "avg" and size > 1:
            wide = wide * np.float32(size) if dtype == np.float16 else wide
        out = np.empty_like(every)
        finish(op, size, wide, out)
        if op == "avg" and dtype != np.float16 and size > 1:
            expected = (every.astype(np.float32) / np.float32(size)).astype(dtype)
            assert out[number].tobytes() == expected[number].tobytes()
        else:
            assert out[number].tobytes() == every[number].tobytes()
        nan = np.full(np.count_nonzero(~number), np.nan).astype(dtype)
        assert reference.same_bits(out[~number], abs(nan))


@examples(max_examples=60)
@given(
    dtype=st.sampled_from(HALVES),
    values=st.lists(st.integers(-2048, 2048), min_size=1, max_size=5),
)
def test_halves_are_rounded_once_to_the_nearest(dtype, values):
    """Sums of small integers are exact in float32, so the only rounding is the last."""
    halves = [np.array([v], np.float32).astype(dtype) for v in values]
    exact = sum(Fraction(float(half.astype(np.float64)[0])) for half in halves)
    wide, out = np.empty(1, np.float32), np.empty(1, dtype)
    fold("sum", halves, wide)
    finish("sum", len(values), wide, out)
    assert float(out.astype(np.float64)[0]) == exactly_rounded(exact, dtype)


def test_rounding_twice_would_differ():
    """So the test above can fail."""
    halves = [np.array([v], np.float16) for v in (2048, 1, 1)]
    twice = (halves[0] + halves[1]) + halves[2]
    wide = np.empty(1, np.float32)
    fold("sum", halves, wide)
    assert (float(twice[0]), float(wide[0])) == (2048.0, 2050.0)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_an_average_is_a_true_division(size):
    for dtype in ("float32", "float64"):
        value = reference.varied(dtype, 1000, 1)
        out = np.empty_like(value)
        finish("avg", size, value, out)
        assert reference.same_bits(out, value / value.dtype.type(size))
        if size in (3, 5, 7):  # not a multiplication by the reciprocal
            assert (out != value * (value.dtype.type(1) / value.dtype.type(size))).any()
        same = value.copy()
        finish("avg", size, same, same)
        assert reference.same_bits(same, out)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_an_average_of_complex_numbers_divides_both_parts(dtype):
    value = reference.varied(dtype, 1000, 1)
    value[0] = complex(np.inf, 1)  # a complex division would make a NaN of it
    value[1] = complex(-0.0, np.nan)
    out = np.empty_like(value)
    finish("avg", 3, value, out)
    assert out.real.tobytes() == (value.real / 3).tobytes()
    assert out.imag.tobytes() == (value.imag / 3).tobytes()
    assert out[0] == complex(np.inf, value.imag.dtype.type(1) / 3)


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_other_operations_only_copy(op):
    value = reference.varied("float64", 7, 1)
    out = np.empty_like(value)
    finish(op, 5, value, out)
    assert reference.same_bits(out, value)
    finish(op, 5, value, value)
    assert reference.same_bits(out, value)


def test_finishing_a_wide_value_takes_no_further_memory():
    """So that it cannot fail after the opening exchange."""
    import tracemalloc

    value, out = np.ones(1 << 20, np.float32), np.empty(1 << 20, np.float16)
    tracemalloc.start()
    try:
        finish("avg", 3, value, out)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert (out == np.float16(1 / 3)).all()


def test_bfloat16_is_that_of_ml_dtypes():
    assert "ml_dtypes" in sys.modules and BFLOAT16.itemsize == 2
