"""Every one-step mutation of the schedules: refused, or right and listed.

Each mutant is judged twice: by ``verify``, and by the simulator, which shares no code with it.  There
are four outcomes:

* refused and wrong: the rule.
* accepted and right: harmless changes, the kinds of :data:`HARMLESS`.
* refused though right: where ``verify`` is stricter than the bytes need; the rules of :data:`STRICTER`.
* accepted and wrong: none.

The counts are pinned in :data:`COUNTS`: a change of the rules, or of the mutations, shows there.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache

import pytest

from mpiring.plan import (
    ScheduleError,
    direct_allgather,
    direct_allreduce,
    direct_reduce_scatter,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    verify,
)

from plan.mutations import mutants, programs_of, rebuild
from plan.simulator import count_orders, is_right, promise_of
from plan.written import CASES as WRITTEN_CASES
from plan.written import written

pytestmark = pytest.mark.untraced

BUILT = {
    "ring reduce_scatter": ring_reduce_scatter,
    "ring allgather": ring_allgather,
    "ring allreduce": ring_allreduce,
    "ring allreduce, offset 1": lambda size: ring_allreduce(size, 1),
    "direct reduce_scatter": direct_reduce_scatter,
    "direct reduce_scatter, rank order": lambda size: direct_reduce_scatter(
        size, "rank"
    ),
    "direct allgather": direct_allgather,
    "direct allreduce": direct_allreduce,
    "direct allreduce, rank order": lambda size: direct_allreduce(size, "rank"),
}


def largest(name):
    """Up to how many ranks: an offset only gives the segments other names."""
    return 6 if name in BUILT and "offset" not in name else 4


CASES = [
    *((name, size) for name in BUILT for size in range(1, largest(name) + 1)),
    *(case for case in WRITTEN_CASES if case[1] <= largest(case[0])),
]

# Changes that can do no harm: how many, and why.
HARMLESS = {
    "reorder sends": (1152, "messages to different ranks are independent"),
    "reorder receives": (
        583,
        "so are receives into different segments, or at either side of the own value",
    ),
    "move receive": (
        465,
        "a receive may be posted in another step if nobody waits in vain",
    ),
    "move send": (
        160,
        "so may a send, if the value is there by then and still the same",
    ),
    "move pair": (235, "so may both"),
    "move finish": (
        102,
        "a value may be finished at any time between completion and use",
    ),
    "move step": (
        73,
        "a step may change places with one that has nothing to do with it",
    ),
    "other form, pair": (444, "a contribution may travel wide, or as it is"),
    "other source, pair": (301, "a result is the same from whoever holds it"),
    "other dest, pair": (39, "the next rank may combine both, if the order stays"),
    "receive: reduce after to reduce": (34, "no order is stated, and all get the same"),
    "receive: reduce to reduce after": (20, "no order is stated, and all get the same"),
    "drop step": (29, "a step that does nothing"),
    "duplicate step": (29, "a step that does nothing"),
}

# Where verify refuses what would have moved the right bytes: how many, and why it stays so.
STRICTER = {
    "a result is not a contribution": (
        2656,
        "both travel as wide as the array's dtype, so the bytes are right; but the label says whether "
        "a value is finished, and one that lies is a mistake waiting to be one",
    ),
    "a result does not travel wide": (
        508,
        "it would be widened and narrowed again without loss, at twice the bytes",
    ),
    "no idle finish": (
        1294,
        "nobody uses the value any more; but finishing what is incomplete, or twice, or is not there, "
        "has no use in any schedule",
    ),
    "no store beside a use": (
        754,
        "either the same value is stored twice, or what comes back was caused by what is sent; the first "
        "only costs time, the second takes an argument about other ranks, while the rule can be checked "
        "by a reader of the one step",
    ),
}


def rule_of(message: str) -> str:
    """The rule of STRICTER by which verify refused, or the message."""
    for rule, pattern in (
        ("no idle finish", r" finishes segment "),
        ("no store beside a use", r"while the same step also uses it"),
        (
            "a result does not travel wide",
            r"as a partial; what rank \d+ holds is a result",
        ),
        ("a result is not a contribution", r"as a contribution; .* a result"),
        ("a result is not a contribution", r"as a result; .* a contribution"),
    ):
        if re.search(pattern, message):
            return rule
    return message


def schedule_of(name, size):
    return BUILT[name](size) if name in BUILT else written(name, size)


@cache
def judge(name, size):
    """(refused, harmless by kind, stricter by rule) of all mutants; asserts that none is unsound."""
    schedule = schedule_of(name, size)
    promise = promise_of(schedule)
    refused = 0
    harmless: Counter[str] = Counter()
    stricter: Counter[str] = Counter()
    for kind, where, programs in mutants(schedule):
        right = is_right(promise, programs)
        try:
            verify(rebuild(schedule, programs))
        except ScheduleError as error:
            if right:
                stricter[rule_of(str(error))] += 1
            else:
                refused += 1
        else:
            assert right, f"accepted but wrong: {kind}, {where}"
            harmless[kind] += 1
    return refused, harmless, stricter


# (schedule, ranks): refused and wrong, accepted and right, refused though right.
COUNTS: dict[tuple[str, int], tuple[int, int, int]] = {
    ("ring reduce_scatter", 1): (5, 0, 0),
    ("ring reduce_scatter", 2): (66, 10, 6),
    ("ring reduce_scatter", 3): (276, 21, 18),
    ("ring reduce_scatter", 4): (740, 32, 40),
    ("ring reduce_scatter", 5): (1585, 45, 75),
    ("ring reduce_scatter", 6): (2964, 60, 126),
    ("ring allgather", 1): (0, 0, 0),
    ("ring allgather", 2): (48, 0, 10),
    ("ring allgather", 3): (204, 6, 33),
    ("ring allgather", 4): (560, 20, 72),
    ("ring allgather", 5): (1230, 45, 130),
    ("ring allgather", 6): (2352, 84, 210),
    ("ring allreduce", 1): (5, 0, 0),
    ("ring allreduce", 2): (144, 12, 18),
    ("ring allreduce", 3): (735, 33, 51),
    ("ring allreduce", 4): (2272, 60, 112),
    ("ring allreduce", 5): (5440, 100, 205),
    ("ring allreduce", 6): (11118, 156, 336),
    ("ring allreduce, offset 1", 1): (5, 0, 0),
    ("ring allreduce, offset 1", 2): (144, 12, 18),
    ("ring allreduce, offset 1", 3): (735, 33, 51),
    ("ring allreduce, offset 1", 4): (2272, 60, 112),
    ("direct reduce_scatter", 1): (5, 0, 0),
    ("direct reduce_scatter", 2): (54, 2, 8),
    ("direct reduce_scatter", 3): (192, 9, 24),
    ("direct reduce_scatter", 4): (468, 28, 48),
    ("direct reduce_scatter", 5): (930, 65, 80),
    ("direct reduce_scatter", 6): (1626, 126, 120),
    ("direct reduce_scatter, rank order", 1): (5, 0, 0),
    ("direct reduce_scatter, rank order", 2): (54, 2, 8),
    ("direct reduce_scatter, rank order", 3): (191, 10, 24),
    ("direct reduce_scatter, rank order", 4): (464, 32, 48),
    ("direct reduce_scatter, rank order", 5): (921, 74, 80),
    ("direct reduce_scatter, rank order", 6): (1610, 142, 120),
    ("direct allgather", 1): (1, 2, 0),
    ("direct allgather", 2): (48, 0, 10),
    ("direct allgather", 3): (177, 6, 30),
    ("direct allgather", 4): (432, 32, 60),
    ("direct allgather", 5): (855, 90, 100),
    ("direct allgather", 6): (1488, 192, 150),
    ("direct allreduce", 1): (6, 4, 0),
    ("direct allreduce", 2): (116, 2, 20),
    ("direct allreduce", 3): (405, 15, 60),
    ("direct allreduce", 4): (968, 60, 120),
    ("direct allreduce", 5): (1895, 155, 200),
    ("direct allreduce", 6): (3276, 318, 300),
    ("direct allreduce, rank order", 1): (6, 4, 0),
    ("direct allreduce, rank order", 2): (116, 2, 20),
    ("direct allreduce, rank order", 3): (404, 16, 60),
    ("direct allreduce, rank order", 4): (964, 64, 120),
    ("direct allreduce, rank order", 5): (1886, 164, 200),
    ("direct allreduce, rank order", 6): (3260, 334, 300),
    ("chain broadcast", 1): (12, 17, 0),
    ("chain broadcast", 2): (144, 25, 18),
    ("chain broadcast", 3): (304, 29, 36),
    ("chain broadcast", 4): (484, 37, 54),
    ("chain broadcast, last root", 1): (6, 10, 0),
    ("chain broadcast, last root", 2): (71, 16, 11),
    ("chain broadcast, last root", 3): (156, 18, 22),
    ("chain broadcast, last root", 4): (254, 23, 33),
    ("star broadcast", 1): (2, 2, 0),
    ("star broadcast", 2): (50, 0, 10),
    ("star broadcast", 3): (116, 3, 20),
    ("star broadcast", 4): (202, 10, 30),
    ("tree broadcast", 1): (0, 0, 0),
    ("tree broadcast", 2): (23, 0, 5),
    ("tree broadcast", 3): (53, 4, 10),
    ("tree broadcast", 4): (93, 7, 15),
    ("tree broadcast, last root", 1): (0, 0, 0),
    ("tree broadcast, last root", 2): (50, 0, 10),
    ("tree broadcast, last root", 3): (116, 5, 20),
    ("tree broadcast, last root", 4): (199, 11, 30),
    ("chain reduce", 1): (10, 0, 0),
    ("chain reduce", 2): (66, 5, 4),
    ("chain reduce", 3): (145, 7, 6),
    ("chain reduce", 4): (240, 9, 8),
    ("star reduce, rank order", 1): (5, 0, 0),
    ("star reduce, rank order", 2): (56, 2, 8),
    ("star reduce, rank order", 3): (217, 11, 24),
    ("star reduce, rank order", 4): (584, 28, 48),
    ("star reduce, ring order", 1): (5, 0, 0),
    ("star reduce, ring order", 2): (56, 2, 8),
    ("star reduce, ring order", 3): (219, 9, 24),
    ("star reduce, ring order", 4): (590, 22, 48),
    ("tree reduce", 1): (5, 0, 0),
    ("tree reduce", 2): (30, 4, 2),
    ("tree reduce", 3): (65, 10, 4),
    ("tree reduce", 4): (110, 13, 5),
    ("chain allreduce", 1): (17, 0, 0),
    ("chain allreduce", 2): (229, 7, 26),
    ("chain allreduce", 3): (542, 13, 46),
    ("chain allreduce", 4): (912, 22, 66),
    ("star allreduce", 1): (12, 5, 0),
    ("star allreduce", 2): (120, 2, 20),
    ("star allreduce", 3): (265, 8, 40),
    ("star allreduce", 4): (454, 18, 60),
    ("tree allreduce", 1): (5, 0, 0),
    ("tree allreduce", 2): (64, 4, 10),
    ("tree allreduce", 3): (152, 15, 24),
    ("tree allreduce", 4): (265, 19, 32),
    ("doubling allreduce", 1): (5, 0, 0),
    ("doubling allreduce", 2): (62, 6, 2),
    ("doubling allreduce", 4): (352, 16, 4),
    ("halving reduce_scatter", 1): (5, 0, 0),
    ("halving reduce_scatter", 2): (64, 12, 6),
    ("halving reduce_scatter", 4): (572, 76, 40),
    ("doubling allgather", 1): (0, 0, 0),
    ("doubling allgather", 2): (48, 0, 10),
    ("doubling allgather", 4): (472, 24, 68),
    ("halving-doubling allreduce", 1): (5, 0, 0),
    ("halving-doubling allreduce", 2): (142, 14, 18),
    ("halving-doubling allreduce", 4): (1496, 132, 120),
    ("hierarchical allreduce, nodes of 2", 2): (158, 38, 26),
    ("hierarchical allreduce, nodes of 2", 4): (566, 52, 70),
    ("hierarchical allreduce, nodes of 3", 3): (501, 105, 78),
}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, marks=[pytest.mark.slow] if size > 5 else [])
        for name, size in COUNTS
    ],
)
def test_every_mutation_is_refused_or_right(name, size):
    refused, harmless, stricter = judge(name, size)
    assert (refused, harmless.total(), stricter.total()) == COUNTS[name, size]


@pytest.mark.slow
def test_each_exception_is_explained():
    harmless: Counter[str] = Counter()
    stricter: Counter[str] = Counter()
    for name, size in COUNTS:
        _, harmless_here, stricter_here = judge(name, size)
        harmless += harmless_here
        stricter += stricter_here
    assert harmless == {kind: count for kind, (count, _) in HARMLESS.items()}
    assert stricter == {rule: count for rule, (count, _) in STRICTER.items()}


def test_no_case_is_left_out():
    assert list(COUNTS) == CASES


@pytest.mark.parametrize("seed", range(6))
def test_mutants_of_accepted_mutants_are_refused_or_right(seed):
    """Further away from the schedules we know: a walk from accepted mutant to accepted mutant."""
    choose = random.Random(seed)
    accepted = 0
    for _ in range(20):
        name, size = choose.choice([case for case in CASES if 2 <= case[1] <= 4])
        schedule = schedule_of(name, size)
        promise = promise_of(schedule)
        for _ in range(3):
            nearby = list(mutants(schedule))
            for kind, where, programs in choose.sample(nearby, min(50, len(nearby))):
                mutant = rebuild(schedule, programs)
                try:
                    verify(mutant)
                except ScheduleError:
                    continue
                assert is_right(promise, programs), f"{name}, {size}: {kind}, {where}"
                accepted += 1
                schedule = mutant
    assert accepted > 50


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_accepted_mutants_are_right_in_every_order(name, size):
    """For few ranks not some orders of progress but all of them."""
    schedule = BUILT[name](size)
    promise = promise_of(schedule)
    assert count_orders(promise, programs_of(schedule))
    for kind, where, programs in mutants(schedule):
        try:
            verify(rebuild(schedule, programs))
        except ScheduleError:
            continue
        assert count_orders(promise, programs), f"{kind}, {where}"
