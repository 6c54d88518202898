"""The settings of a ring: what they may be, and the forms in which they are kept and travel."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpiring.wire.settings.tuning import (
    DEFAULTS,
    NAMES,
    NETWORK,
    NODE,
    PACKED_BYTES,
    RANGES,
    WHOLE,
    WIRES,
    Tuning,
    from_json,
    unpacked,
)

EDGES = [
    (name, value)
    for name, (least, most, may_be_whole) in RANGES.items()
    for value in (least, most, *([WHOLE] if may_be_whole else []))
]


def in_range(name):
    least, most, may_be_whole = RANGES[name]
    numbers = st.integers(least, most)
    return numbers | st.just(WHOLE) if may_be_whole else numbers


tunings = st.builds(Tuning, **{name: in_range(name) for name in NAMES})


@given(tuning=tunings, wire=st.sampled_from(WIRES))
def test_both_forms_have_all_of_it(tuning, wire):
    text = json.dumps(tuning.as_json())
    assert from_json(json.loads(text), DEFAULTS[wire]) == tuning
    assert str(WHOLE) not in text
    assert unpacked(tuning.packed()) == tuning
    assert len(tuning.packed()) == PACKED_BYTES


@given(tuning=tunings, other=tunings)
def test_different_settings_have_different_forms(tuning, other):
    assert (tuning == other) == (tuning.packed() == other.packed())
    assert (tuning == other) == (tuning.as_json() == other.as_json())


@pytest.mark.parametrize("name, value", EDGES)
def test_the_ends_of_the_ranges(name, value):
    tuning = replace(DEFAULTS[NODE], **{name: value})
    assert getattr(unpacked(tuning.packed()), name) == value
    assert from_json(tuning.as_json(), DEFAULTS[NETWORK]) == tuning


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_what_is_out_of_range_is_refused(name, data):
    least, most, may_be_whole = RANGES[name]
    outside = st.integers(max_value=least - 1) | st.integers(min_value=most + 1)
    value = data.draw(outside.filter(lambda v: not (may_be_whole and v == WHOLE)))
    with pytest.raises(ValueError) as told:
        replace(DEFAULTS[NODE], **{name: value})
    expected = f"expected a whole number, {least} to {most}"
    assert f"{name} is {value}, {expected}" in str(told.value)
    with pytest.raises(ValueError, match=f"^{name} is "):
        from_json({name: value}, DEFAULTS[NODE])


@pytest.mark.parametrize("name", NAMES)
@given(value=st.none() | st.booleans() | st.floats() | st.text() | st.lists(st.just(1)))
@example(value="whole")
@example(value=2.0)
def test_what_is_no_number_is_refused(name, value):
    if value == "whole" and RANGES[name][2]:
        assert getattr(from_json({name: value}, DEFAULTS[NODE]), name) == WHOLE
        return
    with pytest.raises(TypeError, match=f"^{name} is .*, expected a whole number, "):
        from_json({name: value}, DEFAULTS[NODE])


def test_what_is_left_out_is_the_wires_default():
    for wire in WIRES:
        assert from_json({}, DEFAULTS[wire]) == DEFAULTS[wire]
        changed = asdict(from_json({"window": 9}, DEFAULTS[wire]))
        assert changed == {**asdict(DEFAULTS[wire]), "window": 9}


@pytest.mark.parametrize("value", [None, [], "whole", 3, [["window", 2]]])
def test_settings_are_an_object(value):
    with pytest.raises(TypeError, match="^settings are .*, expected an object$"):
        from_json(value, DEFAULTS[NODE])


@given(st.text().filter(lambda name: name not in NAMES))
def test_unknown_settings_are_refused(name):
    with pytest.raises(ValueError, match="there is no setting .*; known are chunk_"):
        from_json({"window": 2, name: 2}, DEFAULTS[NODE])


def test_the_defaults_differ_where_the_wires_do():
    """Measured: a host wants whole segments, TCP pieces below its eager limit."""
    assert set(DEFAULTS) == set(WIRES)
    assert DEFAULTS[NODE].chunk_bytes == WHOLE
    assert DEFAULTS[NETWORK].chunk_bytes == DEFAULTS[NETWORK].piece_bytes == 16 << 10
