"""The form of the report."""

from __future__ import annotations

import doctest

import pytest

from mpiring.cli.doctor import finding
from mpiring.cli.doctor.finding import Finding, as_ranges, as_text, name_ranks, verdict

FINE = Finding("a", "ok", "found", "known")
NOTED = Finding("b", "note", "slow", "measured", "buy a faster one")
BAD = Finding("c", "problem", "gone", "looked", "bring it back")


@pytest.mark.parametrize(
    "wrong",
    [
        ("a", "fine", "found", "how", "do"),
        ("a", "ok", "", "how", ""),
        ("a", "ok", "found", "", ""),
        ("a", "note", "found", "how", ""),
        ("a", "problem", "found", "how", ""),
    ],
)
def test_a_finding_must_say_what_how_and_what_to_do(wrong):
    with pytest.raises(ValueError):
        Finding(*wrong)


def test_page():
    assert as_text([FINE, NOTED, BAD]).splitlines() == [
        "ok       a found",
        "           how: known",
        "note     b slow",
        "           how: measured",
        "           do:  buy a faster one",
        "problem  c gone",
        "           how: looked",
        "           do:  bring it back",
        "",
        "1 problem (c), 1 note (b)",
    ]


def test_long_text_wraps_under_itself_and_paths_stay_whole():
    path = "/a/very/long/path/" + "x" * 60
    page = as_text(
        [Finding("a", "ok", f"one\ntwo {path}", "how")], width=40
    ).splitlines()
    assert page[:3] == ["ok       a one", "           two", f"           {path}"]


def test_verdict():
    assert verdict([FINE]) == "0 problems, 0 notes"
    assert verdict([BAD, BAD, NOTED]) == "2 problems (c, c), 1 note (b)"


@pytest.mark.parametrize(
    "numbers, text",
    [
        ([], ""),
        ([4], "4"),
        ([2, 0, 1], "0-2"),
        ([0, 2, 3, 7], "0, 2-3, 7"),
        ([1, 1], "1"),
    ],
)
def test_ranges(numbers, text):
    assert as_ranges(numbers) == text


def test_examples_in_docstrings():
    assert doctest.testmod(finding) == (0, 3)


def test_ranks_by_name():
    assert [name_ranks([0]), name_ranks([0, 1]), name_ranks([0, 2])] == [
        "rank 0",
        "ranks 0-1",
        "ranks 0, 2",
    ]
