"""What is said of a contest: every figure, what was chosen and by how much, or how far the others are from it."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest

from mpiring.cli.tune import choice, contests, page, words
from mpiring.cli.tune.contests import Load, Outcome
from mpiring.wire.settings.tuning import DEFAULTS, NETWORK, NODE, WHOLE

LOADS = [Load("allreduce", 1 << 20), Load("allreduce", 1000)]


def told(outcome):
    return list(page.contest(outcome))


@pytest.mark.parametrize("module", [choice, contests, words])
def test_doctests(module):
    found = doctest.testmod(module)
    assert found.attempted > 0 and found.failed == 0


def test_lengths():
    default, other = [[2e-3] * 3, [1e-3] * 3], [[1e-3] * 3, [5e-4] * 3]
    times = {4096: other, WHOLE: default}
    hopeless = {8192: (LOADS[1], 7.25)}
    lines = told(Outcome("chunk_bytes", WHOLE, 4096, LOADS, times, hopeless=hopeless))
    assert lines == [
        "# chunk_bytes: chunks of a segment, in the ring's all-reduce",
        "#         allreduce 1 MiB  allreduce 1000 B     gain  faster in",
        "   4 KiB           1000.0             500.0    2.00x       100%",
        "   whole           2000.0            1000.0  default",
        "#   8 KiB: no further; allreduce 1000 B took 7.2 times as long as the fastest",
        "#   chosen: 4 KiB, 2.00x as fast as the default, whole",
        "#",
    ]
    kept = told(Outcome("chunk_bytes", 4096, 4096, LOADS, times))
    assert (
        kept[-2] == "#   kept: 4 KiB, the default; of the others whole is 0.50x as fast"
    )
    alone = told(Outcome("window", 3, 3, LOADS, {3: default}))
    assert alone[-2] == "#   kept: 3, the default"


def test_limits():
    up_to, above = [[1e-3] * 3, [1e-3] * 3], [[5e-4] * 3, [3e-3] * 3]
    sizes = [load.nbytes for load in LOADS]
    times = choice.by_limit(sizes, up_to, above)
    chosen = choice.choose(times, 0)
    ways = {"direct": up_to, "ring": above}
    lines = told(Outcome("direct_bytes", 0, chosen, LOADS, times, ways))
    assert lines[1:] == [
        "#                    direct    ring  ratio",
        "    allreduce 1 MiB  1000.0   500.0  0.50x",
        "   allreduce 1000 B  1000.0  3000.0  3.00x",
        "#   chosen: 1000 B, 3.00x as fast as the default, 0 B",
        "#",
    ]


def test_nothing_was_measured():
    _, line, _ = told(Outcome("window", 3, 3, note="segments move as a whole"))
    assert line == "#   default: segments move as a whole"
    assert told(Outcome("small_bytes", 0, 0))[1] == "#   default: nothing to measure"


def test_all_settings_in_a_line():
    tuning = replace(DEFAULTS[NODE], window=1)
    assert words.settings_text(tuning) == (
        "chunk_bytes whole, piece_bytes 512 KiB, window 1, direct_bytes 64 KiB, small_bytes 2 KiB, staged_bytes 4 MiB"
    )
    assert "chunk_bytes 16 KiB" in words.settings_text(DEFAULTS[NETWORK])
