"""Formulas against the evaluated schedules, for every count; choices and crossings; the fit of a machine.

The constants are integers, so seconds are exact and compared with ``==``.
"""

from __future__ import annotations

import sys
import time
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiring.plan import (
    COLLECTIVES,
    ClosedForm,
    Model,
    algorithms,
    best_segments,
    chain_broadcast,
    chain_reduce,
    choices,
    closed_form,
    crossings,
    fit,
    frames,
    lower_bound,
    price,
    schedule,
    server_form,
    star_broadcast,
    star_reduce,
    winner,
)
from mpiring.plan.formulas import _FORMULAS

from plan.compose import composed

MODEL = Model(alpha=100_000, beta=10, gamma=3)
MODELS = [MODEL, Model(0, 1), Model(7, 0, 2), Model(1, 5, 11)]
NAMES = [(c, a) for c in COLLECTIVES for a in algorithms(c)]
ROOTED = ("broadcast", "reduce")
WIDTHS = [(4, None), (2, 4), (8, 3)]  # of an element, of one of a partial


def check(collective, algorithm, size, count, segments, root, widths, model):
    """The formula says of the schedule what running it shows."""
    itemsize, partial = widths
    made = schedule(collective, size, algorithm=algorithm, root=root, segments=segments)
    found = price(made, count, itemsize, model, partial_itemsize=partial)
    turns = price(made, count, itemsize, Model(alpha=1, beta=0))
    formula = closed_form(
        collective,
        algorithm,
        size,
        count,
        itemsize,
        model,
        partial_itemsize=partial,
        segments=segments or 1,
    )
    assert formula.seconds == found.seconds
    assert formula.exchanges == turns.seconds
    assert formula.sent_bytes == max(found.sent_bytes)
    assert formula.received_bytes == max(found.received_bytes)
    assert formula.busiest_bytes == max(*found.sent_bytes, *found.received_bytes)
    steps = [step for rank in range(size) for step in made.steps(rank)]
    at_once = [max(len(step.sends), len(step.receives)) for step in steps]
    assert formula.at_once == max(at_once, default=0)


def test_each_schedule_of_the_catalog_has_a_formula():
    assert list(_FORMULAS) == NAMES


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize(("collective", "algorithm"), NAMES)
def test_every_small_case(collective, algorithm, size):
    rooted = collective in ROOTED
    pieces = (1, 2, 3, 8, 11) if rooted else (0,)
    for count, segments in product((0, 1, 7, 8, 9, 15, 24, 101), pieces):
        root = count % size if rooted else None
        for widths in WIDTHS if count in (9, 15) else WIDTHS[:1]:
            model = MODELS[(count + segments) % 4]
            check(collective, algorithm, size, count, segments, root, widths, model)


@given(
    st.integers(1, 24),
    st.integers(0, 3000),
    st.sampled_from([name for name in NAMES if name[0] in ROOTED]),
    st.integers(1, 40),
    st.integers(0, 10**6),
    st.sampled_from(WIDTHS),
    st.sampled_from(MODELS),
)
def test_rooted_anywhere(size, count, name, segments, root, widths, model):
    collective, algorithm = name
    check(collective, algorithm, size, count, segments, root % size, widths, model)


@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize("segments", [1, 2, 5, 16])
def test_the_lectures_formulas(size, segments):
    """Section 2.2: with N/B seconds for the whole buffer, naive, pipelined, and the server's link."""
    wire = Model(alpha=0, beta=1)
    count = 240 * segments

    def seconds(collective, algorithm):
        return closed_form(
            collective, algorithm, size, count, 1, wire, segments=segments
        ).seconds

    assert seconds("broadcast", "naive") == (size - 1) * count
    pipelined = Fraction(size + segments - 2, segments) * count
    assert seconds("broadcast", "pipelined") == seconds("reduce", "ring") == pipelined
    assert seconds("broadcast", "direct") == seconds("reduce", "direct")
    assert seconds("reduce", "direct") == (size - 1) * count
    server = server_form("star", size, count, 1, wire, segments=segments)
    assert server.seconds == 2 * (size - 1) * count
    assert server.sent_bytes == server.received_bytes == (size - 1) * count


@pytest.mark.parametrize("segments", [1, 2, 5])
@pytest.mark.parametrize("size", range(2, 9))
def test_steps_are_the_rounds_of_the_picture(size, segments):
    for name, turns in (("pipelined", size + segments - 2), ("direct", segments)):
        made = schedule("broadcast", size, algorithm=name, segments=segments)
        formula = closed_form("broadcast", name, size, 100, segments=segments)
        assert formula.exchanges == turns == len(frames(made)) - 1


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("widths", WIDTHS)
def test_the_parameter_server(size, widths):
    """A reduce and a broadcast, one after the other as one schedule."""
    itemsize, partial = widths
    for count, segments in product((0, 1, 16, 23), (1, 2, 5)):
        for form, parts in (
            ("star", (star_reduce, star_broadcast)),
            ("chain", (chain_reduce, chain_broadcast)),
        ):
            for root in {0, size - 1}:
                made = composed(*(part(size, root, segments) for part in parts))
                found = price(made, count, itemsize, MODEL, partial_itemsize=partial)
                turns = price(made, count, model=Model(1, 0)).seconds
                formula = server_form(
                    form,
                    size,
                    count,
                    itemsize,
                    MODEL,
                    partial_itemsize=partial,
                    segments=segments,
                )
                assert (formula.seconds, formula.exchanges) == (found.seconds, turns)
                assert formula.sent_bytes == max(found.sent_bytes)
                assert formula.received_bytes == max(found.received_bytes)


@given(st.integers(1, 10**5), st.integers(0, 10**9), st.sampled_from(NAMES))
def test_no_formula_beats_the_bounds(size, count, name):
    """Also with the best number of segments."""
    for model in MODELS:
        for choice in choices(name[0], size, count, 4, model):
            bound = lower_bound(name[0], size, 4 * count, model)
            assert choice.form.seconds >= bound.seconds * (1 - 1e-15)


def test_a_hundred_thousand_ranks_are_a_number(monkeypatch):
    """Nothing of that length is made: no schedule, no segments, and it takes less than a second."""

    def refuse(*args):
        raise AssertionError(f"built {args}")

    for module in ("schedules", "rooted", "catalog", "segments"):
        for name in ("Schedule", "Segments"):
            if hasattr(sys.modules[f"mpiring.plan.{module}"], name):
                monkeypatch.setattr(f"mpiring.plan.{module}.{name}", refuse)
    with pytest.raises(AssertionError, match="built"):
        schedule("allreduce", 4)  # so it would be seen
    begun = time.perf_counter()
    for collective in COLLECTIVES:
        assert crossings(collective, 100_000, 4, MODEL)
        choices(collective, 100_000, 10**8, 4, MODEL)
    assert time.perf_counter() - begun < 1
    ring = closed_form("allreduce", "ring", 100_000, 10**8, 4, Model(1, 0))
    assert (ring.exchanges, ring.sent_bytes) == (199_998, 2 * 4 * (10**8 - 1000))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: closed_form("gather", "ring", 4, 1),
            "unknown collective 'gather'; known: allreduce",
        ),
        (
            lambda: closed_form("reduce", "tree", 4, 1),
            "unknown reduce algorithm 'tree'; known: ring, direct",
        ),
        (lambda: closed_form("reduce", "ring", 0, 1), "size must be 1 or more, got 0"),
        (lambda: closed_form("reduce", "ring", 1, -1), "count must be 0 or more"),
        (
            lambda: closed_form("reduce", "ring", 1, 1, segments=0),
            "segments must be 1 or more, got 0",
        ),
        (lambda: server_form("tree", 4, 1), "unknown form 'tree'; known: star, chain"),
    ],
)
def test_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# ---- the best number of segments ------------------------------------------------------------------


@given(
    st.integers(1, 40),
    st.integers(0, 300),
    st.integers(0, 500),
    st.integers(0, 20),
    st.integers(0, 3),
)
def test_no_other_number_of_segments_is_better(size, count, alpha, beta, gamma):
    """Of segments that may be cut anywhere: ``(K+S-2) (alpha + T/S)`` in fractions."""
    model = Model(alpha, beta, gamma)
    for name, each in (
        (("broadcast", "pipelined"), 2 * beta),
        (("reduce", "ring"), 4 * (beta + gamma)),
    ):
        best = best_segments(*name, size, count, 2, model, partial_itemsize=4)

        def seconds(pieces):
            return (size + pieces - 2) * (alpha + Fraction(count * each, pieces))

        if size > 1:
            least = min(map(seconds, range(1, max(1, count) + 1)))
            assert seconds(best) <= least * Fraction(10**12 + 1, 10**12)
        assert 1 <= best <= max(1, count)


def test_what_gains_nothing_by_segments():
    for name in (("allreduce", "ring"), ("broadcast", "naive"), ("reduce", "direct")):
        assert best_segments(*name, 8, 10**6, 4, Model(1, 1)) == 1
    assert best_segments("broadcast", "pipelined", 8, 10**6) == 1


# ---- choices and crossings ------------------------------------------------------------------------


def test_choices():
    model = Model(alpha=100, beta=1)
    found = choices("broadcast", 4, 1000, 1, model, segments=5)
    assert [(c.algorithm, c.segments) for c in found] == [
        ("naive", 1),
        ("pipelined", 5),
        ("direct", 1),
    ]
    assert [c.form.seconds for c in found] == [3300, 7 * 300, 3100]
    assert winner(found).algorithm == "pipelined"
    only = choices("broadcast", 4, 1000, 1, model, among=["direct"])
    assert [c.algorithm for c in only] == ["direct"]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("segments", [0, 4])
def test_crossings_are_where_the_priced_schedules_cross(collective, size, segments):
    """One element below a crossing the former wins, at it the next one: by events, not by the formulas."""
    model = Model(alpha=500, beta=1, gamma=1)

    def fastest(count):
        times = []
        for name, pieces, _ in choices(
            collective, size, count, 2, model, partial_itemsize=4, segments=segments
        ):
            made = schedule(collective, size, algorithm=name, segments=pieces)
            found = price(made, count, 2, model, partial_itemsize=4)
            times.append((found.seconds, name))
        return min(times, key=lambda pair: pair[0])[1]

    found = crossings(collective, size, 2, model, partial_itemsize=4, segments=segments)
    assert found[0] == (2, fastest(1))
    for (_, before), (nbytes, after) in zip(found, found[1:]):
        assert nbytes % 2 == 0 and before != after
        assert (fastest(nbytes // 2 - 1), fastest(nbytes // 2)) == (before, after)


def test_a_broadcast_crosses_once_and_an_allreduce_never():
    """A star of 4 ranks takes ``100 + 3 n``, four segments in a chain ``600 + n + 2 ceil(n / 4)``."""
    model = Model(alpha=100, beta=1)
    found = crossings("broadcast", 4, 1, model, segments=4)
    assert found == [(1, "direct"), (334, "pipelined")]
    assert crossings("allreduce", 64, 4, model) == [(4, "direct")]
    assert crossings("allreduce", 64, 4, model, among=["ring"]) == [(4, "ring")]


def test_all_crossings_between_two_powers_of_two_are_found(monkeypatch):
    """Three schedules whose lines cross at 100 and at 110 elements."""
    lines = {"naive": (0, 40), "pipelined": (1000, 30), "direct": (3200, 10)}

    def straight(collective, algorithm, size, count, *rest, **more):
        start, slope = lines[algorithm]
        return ClosedForm(1, 1, 1, 1, start + slope * count)

    monkeypatch.setattr("mpiring.plan.choice.closed_form", straight)
    assert crossings("broadcast", 4, 1, MODEL) == [
        (1, "naive"),
        (101, "pipelined"),
        (111, "direct"),
    ]


# ---- the fit --------------------------------------------------------------------------------------


def test_points_on_a_line_give_the_line():
    points = [(n, 2.0**-14 + n * 2.0**-30) for n in (0, 8, 1 << 10, 1 << 20, 1 << 30)]
    found = fit(points, gamma=0.25)
    assert found.model == Model(2.0**-14, 2.0**-30, 0.25)
    assert found.errors == (0,) * 5 and found.worst == 0
    assert found.points == tuple(points)


def test_small_messages_count():
    """A large message that is 1 % off would move alpha by ten times its value if seconds counted."""
    alpha, beta = 1e-5, 1e-9
    sizes = [8, 64, 512, 4096, 10**5, 10**6, 10**7]
    points = [(n, alpha + n * beta) for n in sizes]
    points[-1] = (10**7, 1.01 * points[-1][1])
    found = fit(points)
    assert abs(found.model.alpha / alpha - 1) < 0.01
    assert found.worst < 0.01


def least(points, alpha, beta):
    return sum(((alpha + n * beta) / t - 1) ** 2 for n, t in points)


@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.integers(1, 1000)), min_size=2, max_size=8
    ).filter(lambda points: len({n for n, _ in points}) > 1)
)
@settings(max_examples=60)
def test_no_line_near_it_fits_better(points):
    model = fit(points).model
    assert model.alpha >= 0 and model.beta >= 0
    best = least(points, model.alpha, model.beta)
    for da, db in product((-1, 0, 1), (-1, 0, 1)):
        alpha = max(0, model.alpha * (1 + da * 1e-3) + da * 1e-4)
        beta = max(0, model.beta * (1 + db * 1e-3) + db * 1e-7)
        assert best <= least(points, alpha, beta) * (1 + 1e-9) + 1e-15


def test_constants_are_not_negative():
    assert fit([(1, 1.0), (2, 4.0)]).model.alpha == 0
    falling = fit([(1, 4.0), (2, 1.0)]).model
    assert falling.beta == 0 and 1 < falling.alpha < 4


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([], "0 points of 0 sizes"),
        ([(8, 1.0), (8, 2.0)], "2 points of 1 sizes"),
        ([(-1, 1.0), (8, 2.0)], "-1 bytes in 1.0 seconds"),
        ([(1, 0.0), (8, 2.0)], "1 bytes in 0.0 seconds"),
        ([(1, 1.0), (8, float("nan"))], "8 bytes in nan seconds"),
        ([(1, 1.0), (8, float("inf"))], "8 bytes in inf seconds"),
    ],
)
def test_points_that_cannot_be(points, words):
    with pytest.raises(ValueError, match=words):
        fit(points)
