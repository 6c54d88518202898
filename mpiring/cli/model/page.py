"""The answer of ``mpiring model`` in words: three tables and the sizes at which the winner changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpiring.cli.quantities import bytes_text, seconds_text, speed_text
from mpiring.plan import Fit, winner

from .question import DTYPES, SIZES, Question

CLOSE = 0.2  # relative error of a fit's points up to which they go without a mark
MOST_POINTS = 12  # of a fit, in its table

OVERLAP = (
    "(By this model the ring is never faster than direct: latencies of messages at once overlap, links do not\n"
    "contend.  The ring sends one message at a time and needs room for one segment.)"
)


def page(question: Question) -> str:
    """All that is printed."""
    parts = [_heading(question)]
    if question.fitted is not None:
        parts.append(_fit(question.fitted))
    parts += [_schedules(question), _where(question), _sizes(question)]
    return "\n\n".join(parts)


def _heading(question: Question) -> str:
    itemsize = DTYPES[question.dtype][0]
    model = question.model
    ranks = "1 rank" if question.size == 1 else f"{question.size:,} ranks"
    bandwidth = speed_text(1 / model.beta) if model.beta else "unlimited"
    gamma = speed_text(1 / model.gamma) if model.gamma else "in no time"
    return (
        f"{question.collective} of {bytes_text(question.nbytes)}"
        f" ({question.nbytes // itemsize:,} {question.dtype}) on {ranks}\n"
        f"alpha {seconds_text(model.alpha)}, bandwidth {bandwidth}, reducing {gamma}"
    )


def _fit(fitted: Fit) -> str:
    """The measured points against the line through them, and which of them it misses."""
    shown = sorted(zip(fitted.points, fitted.errors))
    missed = sum(abs(error) > CLOSE for _, error in shown)
    rows = [["measured", "seconds", "fitted", "error", ""]]
    rows += [
        [
            bytes_text(nbytes),
            seconds_text(seconds),
            seconds_text(seconds * (1 + error)),
            f"{error:+.1%}",
            f"more than {CLOSE:.0%}" if abs(error) > CLOSE else "",
        ]
        for (nbytes, seconds), error in _spread(shown, MOST_POINTS)
    ]
    rest = len(shown) - (len(rows) - 1)
    more = f"; {rest} not shown" if rest else ""
    verdict = f"all within {fitted.worst:.1%}"
    if missed:
        verdict = (
            f"{missed} of them off by more than {CLOSE:.0%}, up to {fitted.worst:.1%}"
        )
    note = ""
    if not fitted.model.alpha:
        note = (
            "\nalpha comes out as 0: with messages of a few bytes among the points it would be measured;\n"
            "without it latency counts for nothing, and a pipeline is best in single elements"
        )
    return f"{_columns(rows)}\n{len(shown)} points, {verdict}{more}{note}"


def _spread(items: Sequence, most: int) -> Sequence:  # type: ignore[type-arg]
    """At most so many of the items, the first and the last among them."""
    if len(items) <= most:
        return items
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def _schedules(question: Question) -> str:
    answer = question.answer()
    rows = [
        [
            "schedule",
            "segments",
            "steps",
            "at once",
            "bytes",
            "predicted",
            "to bound",
            "",
        ]
    ]
    for item in answer["schedules"]:
        rows.append(
            [
                item["algorithm"],
                f"{item['segments']:,}" if _has_segments(question, item) else "",
                f"{item['steps']:,}",
                f"{item['at_once']:,}",
                bytes_text(item["bytes"]),
                seconds_text(item["seconds"]),
                "" if item["ratio"] is None else f"{item['ratio']:.4g}",
                "wins" if item["wins"] else "",
            ]
        )
    bound = answer["bound"]
    rows.append(
        [
            "bound",
            "",
            "",
            "",
            bytes_text(bound["bytes"]),
            seconds_text(bound["seconds"]),
            "",
            "",
        ]
    )
    if not any(row[1] for row in rows[1:]):
        rows = [[row[0], *row[2:]] for row in rows]
    note = "bytes: through the busiest rank's link, one way; at once: its messages in one step"
    if question.servers():
        note += "\nserver: the lecture's parameter server, a reduce and then a broadcast, for comparison"
    return f"{_columns(rows)}\n{note}"


def _has_segments(question: Question, item: Mapping[str, Any]) -> bool:
    """Whether the schedule could have any number of them, not one for each rank."""
    rooted = question.collective in ("broadcast", "reduce")
    return rooted or item["algorithm"] not in question.among


def _where(question: Question) -> str:
    """Who wins where."""
    if question.size == 1:
        return "one rank has nothing to send"
    found = question.crossings()
    first = found[0][1]
    if len(found) == 1:
        text = f"{first} wins at every size"
        if question.among == (first,):
            text = f"{first} is the only one looked at"
    else:
        text = f"{first} wins up to " + "; ".join(
            f"{bytes_text(nbytes)}, then {algorithm}" for nbytes, algorithm in found[1:]
        )
    if {"ring", "direct"} <= set(question.among) and question.collective in (
        "allreduce",
        "reduce_scatter",
        "allgather",
    ):
        text = f"{text}\n{OVERLAP}"
    return text


def _sizes(question: Question) -> str:
    rows = [["bytes", *question.among, "bound", "wins"]]
    for nbytes in SIZES:
        found = question.choices(nbytes)
        rows.append(
            [
                bytes_text(nbytes),
                *(seconds_text(choice.form.seconds) for choice in found),
                seconds_text(question.bound(nbytes)),
                winner(found).algorithm,
            ]
        )
    return _columns(rows)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines: the first column and words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    numeric = [
        False,
        *(any(c[:1].isdigit() for c in column) for column in list(zip(*rows))[1:]),
    ]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric)
        ).rstrip()
        for row in rows
    )
