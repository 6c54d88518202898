"""Numbers that users pass: of any library, but neither True nor text."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from mpiring.wire.settings.arguments import seconds_of, whole_number


class Index:
    """What only says that it is a whole number."""

    def __index__(self):
        return 2


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2), Index(), np.array(2)])
def test_b45_whole_numbers(value):
    number = whole_number("root", value, 0, 2)
    assert number == 2 and type(number) is int


@pytest.mark.parametrize(
    "value", [True, np.True_, 2.0, "2", None, -1, 3, np.int64(3), [2], 10**30]
)
def test_b45_what_is_no_whole_number(value):
    with pytest.raises(ValueError, match="root must be 0 to 2, got "):
        whole_number("root", value, 0, 2)


@pytest.mark.parametrize(
    "value", [0.5, np.float32(0.5), np.float16(0.5), Fraction(1, 2), Decimal("0.5")]
)
def test_b45_seconds(value):
    seconds = seconds_of(value)
    assert seconds == 0.5 and type(seconds) is float


@pytest.mark.parametrize("value", [0, np.int64(0), 0.0, -0.0, Fraction(0), np.uint8(0)])
def test_b45_no_seconds_at_all(value):
    assert seconds_of(value) == 0


@pytest.mark.parametrize(
    "value", [None, math.inf, np.float32(math.inf), Decimal("inf"), 10**400]
)
def test_b45_for_ever(value):
    assert seconds_of(value) is None


@pytest.mark.parametrize(
    "value",
    [
        *(True, np.True_, "1", b"1", 1j, np.complex64(1), [1], -1, -0.1, -(10**400)),
        *(math.nan, -math.inf, np.float32("nan"), Decimal("nan"), Decimal("snan")),
    ],
)
def test_b45_what_are_no_seconds(value):
    with pytest.raises(ValueError, match="timeout must be seconds of 0 or more"):
        seconds_of(value)
