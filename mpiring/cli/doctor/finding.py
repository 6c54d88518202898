"""What the doctor says about one thing, and how a list of that is printed.

Rules: a finding says what was found, how that is known, and, unless all is well, what to do.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis.

    Attributes:
        name: what was looked at, a word or two.
        status: ``"ok"``, ``"note"`` (works, but you want to know) or ``"problem"`` (a job will not
            do what you think).
        found: the fact.
        how: where the fact comes from, so that a reader can check it.
        advice: what to do; may be empty only where the status is ``"ok"``.  A line of it that is to be typed
            begins with ``export``.
    """

    name: str
    status: str
    found: str
    how: str
    advice: str = ""

    def __post_init__(self) -> None:
        if self.status not in (OK, NOTE, PROBLEM):
            raise ValueError(f"{self.name}: no such status: {self.status!r}")
        if not self.found or not self.how:
            raise ValueError(f"{self.name}: a finding says what was found and how")
        if self.status != OK and not self.advice:
            raise ValueError(f"{self.name}: a {self.status} says what to do about it")


def as_ranges(numbers: Iterable[int]) -> str:
    """Numbers in short.

    >>> as_ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    ordered = sorted(set(numbers))
    starts = [n for n in ordered if n - 1 not in ordered]
    stops = [n for n in ordered if n + 1 not in ordered]
    pairs = zip(starts, stops, strict=True)
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in pairs)


def name_ranks(ranks: Iterable[int]) -> str:
    """Ranks by number.

    >>> name_ranks([3]), name_ranks([0, 1, 2])
    ('rank 3', 'ranks 0-2')
    """
    text = as_ranges(ranks)
    return f"rank {text}" if text.isdigit() else f"ranks {text}"


def count(number: int, noun: str) -> str:
    """A number and its noun.

    >>> count(1, "rank"), count(3, "rank")
    ('1 rank', '3 ranks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def as_text(findings: Sequence[Finding], width: int = 88) -> str:
    """The findings as a page: status and name in the margin, then fact, reason, advice."""
    margin = max(len(finding.name) for finding in findings) + 10
    lines = []
    for finding in findings:
        head = f"{finding.status:<9}{finding.name}"
        parts = [("", finding.found), ("how: ", finding.how), ("do:  ", finding.advice)]
        for label, text in parts:
            for paragraph in text.splitlines():
                indent = f"{head:<{margin}}" + label
                blank = " " * len(indent)
                head, label = "", " " * len(label)
                if paragraph.startswith("export "):  # to be copied
                    lines.append(indent + paragraph)
                    continue
                lines += textwrap.wrap(
                    paragraph,
                    max(width, margin + 40),
                    initial_indent=indent,
                    subsequent_indent=blank,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
    return "\n".join([*lines, "", verdict(findings)])


def verdict(findings: Sequence[Finding]) -> str:
    """The last line: how many problems and notes there were."""
    problems = [f.name for f in findings if f.status == PROBLEM]
    notes = [f.name for f in findings if f.status == NOTE]
    text = count(len(problems), "problem")
    text += f" ({', '.join(problems)})" if problems else ""
    text += f", {count(len(notes), 'note')}"
    text += f" ({', '.join(notes)})" if notes else ""
    return text
