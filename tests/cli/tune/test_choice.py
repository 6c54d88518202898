"""The rule of choice: what is clearly faster is taken, and noise keeps the default."""

from __future__ import annotations

import random
from math import log
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiring.cli.tune.choice import LEAST_GAIN, by_limit, choose, judge, stays

seconds = st.floats(1e-6, 1.0)
rounds = st.integers(3, 9)


@st.composite
def measured(draw):
    """Times of some candidates on some tasks, in as many rounds."""
    tasks, number = draw(st.integers(1, 4)), draw(rounds)
    row = st.lists(seconds, min_size=number, max_size=number)
    rows = st.lists(row, min_size=tasks, max_size=tasks)
    return draw(st.dictionaries(st.integers(0, 5), rows, min_size=1))


@given(measured())
def test_what_is_chosen_beats_the_default_and_saves_most(times):
    default = min(times)
    chosen, verdicts = choose(times, default), judge(times, default)
    better = {key for key, found in verdicts.items() if found.beats}
    assert default not in better
    if not better:
        assert chosen == default
        return
    assert chosen in better
    assert all(verdicts[chosen].saved >= verdicts[other].saved for other in better)


@given(measured(), st.floats(0.01, 100))
def test_what_slows_a_whole_round_decides_nothing(times, factor):
    default = min(times)
    slowed = {
        key: [[row[0] * factor, *row[1:]] for row in rows]
        for key, rows in times.items()
    }
    for key, found in judge(times, default).items():
        assert judge(slowed, default)[key].saved == pytest.approx(found.saved)


@given(measured(), st.randoms())
def test_the_order_of_the_rounds_does_not_count(times, shuffle):
    default = min(times)
    order = list(range(len(times[default][0])))
    shuffle.shuffle(order)
    mixed = {
        key: [[row[r] for r in order] for row in rows] for key, rows in times.items()
    }
    for key, found in judge(times, default).items():
        other = judge(mixed, default)[key]
        assert other.share == found.share
        assert other.gain == pytest.approx(found.gain)


@given(rounds, st.integers(1, 3), st.floats(1.1, 10))
def test_a_clear_winner_is_taken(number, tasks, factor):
    slow, fast = [[factor] * number] * tasks, [[1.0] * number] * tasks
    assert choose({1: slow, 2: fast, 3: slow}, 1) == 2
    assert choose({1: fast, 2: slow, 3: slow}, 1) == 1
    assert judge({1: slow, 2: fast}, 1)[2].gain == pytest.approx(factor)


def test_noise_keeps_the_default():
    """Candidates that are the same thing, on a machine that is off by a fifth now and then."""
    draw = random.Random(5)
    kept = fastest = 0
    for _ in range(200):
        times = {
            key: [
                [
                    1 + draw.random() * 0.04 + 0.2 * (draw.random() < 0.1)
                    for _ in range(15)
                ]
                for _ in range(2)
            ]
            for key in range(11)
        }
        kept += choose(times, 0) == 0
        fastest += min(times, key=lambda key: sum(map(sum, times[key]))) == 0
    assert kept >= 198
    assert fastest < 40  # who just takes the fastest leaves it most of the time
    # The same noise does not hide what is a tenth faster.
    times[7] = [[each / 1.1 for each in row] for row in times[7]]
    assert choose(times, 0) == 7


def test_a_little_is_not_enough_and_neither_is_now_and_then():
    default = [[1.0] * 8]
    little = 1 / (LEAST_GAIN - 0.01)
    assert choose({0: default, 1: [[little] * 8]}, 0) == 0
    # Faster in five rounds of eight, by a lot.
    assert choose({0: default, 1: [[0.5] * 5 + [1.1] * 3]}, 0) == 0
    assert choose({0: default, 1: [[0.5] * 6 + [1.1] * 2]}, 0) == 1


def test_a_gain_is_one_of_what_differs():
    """A limit that changes one task of four does not have to win on the three others."""
    same = [1.0] * 4
    times = {0: [same, same, same, [2.0] * 4], 1: [same, same, same, [1.8] * 4]}
    found = judge(times, 0)[1]
    assert found.gain == pytest.approx(2 / 1.8) and found.beats


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=9))
def test_all_choices_together_stay_unless_they_are_slower(ratios):
    """In the median of the rounds: no margin speaks for them."""
    times = {0: [[1.0] * len(ratios)], 1: [ratios]}
    assert stays(times, 0, 1) == (median(map(log, ratios)) <= 0)


@given(st.data())
def test_limits(data):
    """Where one way is faster up to some size and slower above, that size is the limit, whatever the default."""
    sizes = [1 << power for power in range(4, 10)]
    best = data.draw(st.sampled_from([0, *sizes]))
    default = data.draw(st.sampled_from([0, *sizes]))
    up_to = [[1.0 if size <= best else 2.0] * 3 for size in sizes]
    above = [[2.0 if size <= best else 1.0] * 3 for size in sizes]
    assert choose(by_limit(sizes, up_to, above), default) == best


@given(st.lists(st.integers(1, 9), max_size=6), st.data())
def test_by_limit_is_one_way_up_to_it_and_the_other_above(sizes, data):
    one, other = (
        [[way + number] for number in range(len(sizes))] for way in (0.5, 100.5)
    )
    found = by_limit(sizes, one, other)
    assert set(found) == {0, *sizes}
    for limit, tasks in found.items():
        assert tasks == [
            a if size <= limit else b for size, a, b in zip(sizes, one, other)
        ]
