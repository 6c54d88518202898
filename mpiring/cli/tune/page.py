"""What was measured and what was chosen, as text: the lines of each contest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from mpiring.cli.quantities import size_text

from .choice import LEAST_GAIN, LEAST_SHARE, Verdict, judge
from .contests import Load, Outcome
from .words import value_text

TITLES = {
    "chunk_bytes": "chunks of a segment, in the ring's all-reduce",
    "window": "chunks on their way at a time, in the ring's all-reduce",
    "piece_bytes": "pieces of an array, down a chain",
    "direct_bytes": "up to which size the direct schedule is taken",
    "small_bytes": "up to which size arrays ride in the opening exchange",
    "staged_bytes": "up to which size arrays go through stages, longer ones by the peers' memory",
    "all": "all together against the defaults",
}


def rule() -> Iterator[str]:
    """How a value is chosen, in words."""
    yield "times in us, of the slowest rank, medians; gain: times as fast as the default, the median over the rounds"
    yield (
        f"another value is taken if its gain is {LEAST_GAIN:.2f} or more and it is faster in "
        f"{LEAST_SHARE:.0%} of the rounds; else the default stays"
    )


def contest(outcome: Outcome) -> Iterator[str]:
    """What came out for one setting."""
    yield f"# {outcome.setting}: {TITLES[outcome.setting]}"
    if outcome.note or not outcome.loads:
        yield f"#   default: {outcome.note or 'nothing to measure'}"
    elif outcome.ways:
        yield from _aligned(_limits(outcome))
        yield f"#   {_choice(outcome)}"
    else:
        yield from _aligned(_lengths(outcome))
        for value, (load, ratio) in sorted(outcome.hopeless.items()):
            name = value_text(outcome.setting, value)
            yield f"#   {name}: no further; {_load_text(load)} took {ratio:.1f} times as long as the fastest"
        yield f"#   {_choice(outcome)}"
    yield "#"


def _lengths(outcome: Outcome) -> Iterator[list[str]]:
    """A line for each candidate, with a column for each task."""
    yield ["", *map(_load_text, outcome.loads), "gain", "faster in"]
    for value, verdict in judge(outcome.times, outcome.default).items():
        name = ["default", "chosen"][value] if outcome.setting == "all" else None
        row = [name or value_text(outcome.setting, value)]
        row += [_microseconds(task) for task in outcome.times[value]]
        yield row + _verdict_text(verdict, value == outcome.default)


def _limits(outcome: Outcome) -> Iterator[list[str]]:
    """A line for each task, with a column for each way."""
    first, second = outcome.ways.values()
    yield ["", *outcome.ways, "ratio"]
    for load, one, other in zip(outcome.loads, first, second):
        ratio = median(b / a for a, b in zip(one, other))
        yield [
            _load_text(load),
            _microseconds(one),
            _microseconds(other),
            f"{ratio:.2f}x",
        ]


def _choice(outcome: Outcome) -> str:
    """The choice, and by how much it is better, or how far the others are from being it."""
    verdicts = judge(outcome.times, outcome.default)
    if outcome.setting == "all":
        gain = f"{verdicts[1].gain:.2f}x as fast"
        return f"taken: {gain}" if outcome.chosen else f"not taken: {gain} together"
    chosen = value_text(outcome.setting, outcome.chosen)
    if outcome.chosen != outcome.default:
        found = verdicts[outcome.chosen]
        default = value_text(outcome.setting, outcome.default)
        return f"chosen: {chosen}, {found.gain:.2f}x as fast as the default, {default}"
    others = {value: v for value, v in verdicts.items() if value != outcome.default}
    if not others:
        return f"kept: {chosen}, the default"
    best = max(others, key=lambda value: others[value].gain)
    words = f"{value_text(outcome.setting, best)} is {others[best].gain:.2f}x as fast"
    return f"kept: {chosen}, the default; of the others {words}"


def _verdict_text(verdict: Verdict, is_default: bool) -> list[str]:
    if is_default:
        return ["default", ""]
    return [f"{verdict.gain:.2f}x", f"{verdict.share:.0%}"]


def _load_text(load: Load) -> str:
    return f"{load.collective} {size_text(load.nbytes)}"


def _microseconds(seconds: Sequence[float]) -> str:
    return f"{median(seconds) * 1e6:.1f}"


def _aligned(rows: Iterator[list[str]]) -> Iterator[str]:
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table)]
    for number, row in enumerate(table):
        cells = (cell.rjust(width) for cell, width in zip(row, widths))
        yield f"{' ' if number else '#'}  {'  '.join(cells)}".rstrip()
