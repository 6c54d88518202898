"""Every one-step mutation of the rooted schedules, for up to 5 ranks: refused, or right.

Judged as in ``test_mutations.py``: by ``verify`` and by the simulator, which shares no code with it.  Nothing that
is accepted is wrong; what is accepted is of the harmless kinds listed there; and what is refused though the bytes
would be right falls under the rules listed there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest

from mpiring.plan import (
    Schedule,
    ScheduleError,
    chain_broadcast,
    chain_reduce,
    star_broadcast,
    star_reduce,
    verify,
)

from plan.mutations import mutants, rebuild
from plan.simulator import is_right, promise_of
from plan.test_mutations import HARMLESS, STRICTER, rule_of

pytestmark = pytest.mark.untraced

MADE: dict[str, Callable[[int, int, int], Schedule]] = {
    "chain broadcast": chain_broadcast,
    "chain reduce": chain_reduce,
    "star broadcast": star_broadcast,
    "star reduce": star_reduce,
    "star reduce, rank order": lambda size, root, segments: star_reduce(
        size, root, segments, "rank"
    ),
}
# (schedule, ranks), over two roots and one or two segments: refused and wrong, accepted and right, refused though
# right.  A change of the rules, of the schedules or of the mutations shows here.
COUNTS = {
    ("chain broadcast", 1): (5, 7, 0),
    ("chain broadcast", 2): (164, 8, 32),
    ("chain broadcast", 3): (394, 16, 64),
    ("chain broadcast", 4): (672, 30, 96),
    ("chain broadcast", 5): (992, 50, 128),
    ("chain reduce", 1): (19, 3, 0),
    ("chain reduce", 2): (196, 14, 14),
    ("chain reduce", 3): (450, 22, 22),
    ("chain reduce", 4): (758, 30, 30),
    ("chain reduce", 5): (1114, 38, 38),
    ("star broadcast", 1): (5, 7, 0),
    ("star broadcast", 2): (164, 8, 32),
    ("star broadcast", 3): (352, 22, 64),
    ("star broadcast", 4): (588, 48, 96),
    ("star broadcast", 5): (872, 86, 128),
    ("star reduce", 1): (19, 3, 0),
    ("star reduce", 2): (184, 14, 26),
    ("star reduce", 3): (388, 18, 52),
    ("star reduce", 4): (648, 26, 78),
    ("star reduce", 5): (968, 34, 104),
    ("star reduce, rank order", 1): (19, 3, 0),
    ("star reduce, rank order", 2): (184, 14, 26),
    ("star reduce, rank order", 3): (381, 25, 52),
    ("star reduce, rank order", 4): (640, 34, 78),
    ("star reduce, rank order", 5): (957, 45, 104),
}


def judged(made):
    """(refused and wrong, accepted by kind, refused though right by rule)."""
    promise = promise_of(made)
    refused = 0
    harmless: Counter[str] = Counter()
    stricter: Counter[str] = Counter()
    for kind, where, programs in mutants(made):
        right = is_right(promise, programs)
        try:
            verify(rebuild(made, programs))
        except ScheduleError as error:
            if right:
                stricter[rule_of(str(error))] += 1
            else:
                refused += 1
        else:
            assert right, f"accepted but wrong: {kind}, {where}"
            harmless[kind] += 1
    return refused, harmless, stricter


@pytest.mark.parametrize(("name", "size"), COUNTS)
def test_every_mutation_is_refused_or_right(name, size):
    total = [0, 0, 0]
    for root, segments in product({0, size // 2}, (1, 2)):
        refused, harmless, stricter = judged(MADE[name](size, root, segments))
        assert set(harmless) <= set(HARMLESS) and set(stricter) <= set(STRICTER)
        for place, more in enumerate((refused, harmless.total(), stricter.total())):
            total[place] += more
    assert tuple(total) == COUNTS[name, size]


def test_no_case_is_left_out():
    assert list(COUNTS) == list(product(MADE, range(1, 6)))
