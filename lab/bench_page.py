"""The generated part of docs/performance.md: tables and plots, from the figures of ``lab/bench.py``.

Rules: all is read off the figures; the same figures give the same text.  Tables are of calls in place (a memory copy
has but one form); the JSON has those out of place, and every single time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpiring.cli.bench import record
from mpiring.cli.bench.settings import PEER_NAMES
from mpiring.cli.bench.table import ratio_text
from mpiring.cli.quantities import size_text
from mpiring.plan import bus_factor

from expected import payload_rate
from report import aligned

BEGIN = "<!-- what follows is written by make bench -->"
END = "<!-- up to here -->"
NOTHING = "No figures yet: `make bench` writes them here."

Row = Mapping[str, Any]


def replaced(page: str, runs: Sequence[Row]) -> str:
    """The page with its generated part made anew.

    Raises:
        ValueError: if the page has not the two marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no part between {BEGIN!r} and {END!r}")
    text = "\n".join(lines(runs)) if runs else NOTHING
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def lines(runs: Sequence[Row]) -> Iterator[str]:
    """A section for each run."""
    for place, found in enumerate(runs):
        if place:
            yield ""
        yield from section(found)


def section(found: Row) -> Iterator[str]:
    """One run: where it was, its tables and its plot."""
    yield f"### {title(found)}"
    yield ""
    command, *about = record.page(found)
    yield f"`{command}`"
    yield ""
    yield from (f"- {line}" for line in about)
    yield f"- load {found['load_at_end'][0]:.1f} at the end; settings: {settings(found)}"
    for who, why in found["left_out"].items():
        yield f"- not measured: {who}: {why}"
    for each in found["slices"]:
        yield (
            f"- slices for {each['dtype']}, tried on {size_text(each['nbytes'])}: "
            f"{size_text(each['chosen'])} are the fastest"
        )
    for kind, rows in kinds(found):
        yield ""
        yield f"{' '.join(filter(None, kind))}, in place, microseconds: least / median / most"
        yield ""
        yield from aligned([*table(found, rows)])
    yield ""
    yield f"![busbw against size: {title(found)}](performance/{found['name']}.png)"


def title(found: Row) -> str:
    """What a run is about."""
    where = f"{found['ranks']} ranks"
    if found["link"]:
        where = f"{found['ranks']} hosts with links of {rate_text(found['link'])}"
        if most := found.get("packet_bytes"):
            where += f", which take {size_text(most)} at a time"
    memory = ", `Ring.empty`" if found["memory"] == "shared" else ""
    collectives = dict.fromkeys(row["collective"] for row in found["rows"])
    dtypes = dict.fromkeys(row["dtype"] for row in found["rows"])
    return f"{found['mpi']}, {where}: {', '.join(collectives)} of {', '.join(dtypes)}{memory}"


def rate_text(link: str) -> str:
    """tc's rate in words.

    >>> rate_text("100mbit")
    '100 Mbit/s'
    """
    return f"{bits(link) / 1e6:g} Mbit/s"


def bits(link: str) -> float:
    """tc's rate in bits a second."""
    found = re.fullmatch(r"(\d+)mbit", link)
    if found is None:
        raise ValueError(f"link {link!r}: expected a rate such as 100mbit")
    return int(found[1]) * 1e6


def settings(found: Row) -> str:
    """The variables that were set."""
    return ", ".join(f"`{k}={v}`" for k, v in found["settings"].items()) or "none"


def kinds(found: Row) -> Iterator[tuple[tuple[str, str, str | None], list[Row]]]:
    """The rows in place, by kind of task."""
    grouped: dict[tuple[str, str, str | None], list[Row]] = {}
    for row in found["rows"]:
        if row["in_place"] or row["who"] == "copy":
            kind = (row["collective"], row["dtype"], row["op"])
            grouped.setdefault(kind, []).append(row)
    yield from grouped.items()


def table(found: Row, rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """A line for each size: mpiring's figures, then everybody else's with their ratio to mpiring's."""
    names = {row["who"]: row["name"] for row in rows}
    others = [who for who in PEER_NAMES if who in names]
    head = ["size", "mpiring", "busbw GB/s", "#wrong"]
    if found["link"]:
        head.append("of the bound")
    yield (*head, *(names[who] for who in others))
    for nbytes in dict.fromkeys(row["nbytes"] for row in rows):
        by_who = {row["who"]: row for row in rows if row["nbytes"] == nbytes}
        ours = by_who["mpiring"]
        cells = [size_text(nbytes), times(ours)]
        cells += [f"{ours['busbw'] / 1e9:.3g}", str(ours["wrong"])]
        if found["link"]:
            cells.append(f"{ours['median'] / bound(found, ours):.2f}")
        for who in others:
            row = by_who.get(who)
            cells.append("-" if row is None else beside(found, row))
        yield tuple(cells)


def beside(found: Row, row: Row) -> str:
    """A peer's times, and how they compare."""
    wanted = {key: row[key] for key in ("who", "collective", "dtype", "op", "nbytes")}
    wanted["in_place"] = True
    ratio = next(
        each["ratio"]
        for each in found["ratios"]
        if all(each[key] == value for key, value in wanted.items())
    )
    text = f"{times(row)} ({ratio_text(ratio)})"
    if found["link"] and row["who"] != "copy":
        text += f", {row['median'] / bound(found, row):.2f} of the bound"
    return text + (f", {row['wrong']} wrong" if row["wrong"] else "")


def times(row: Row) -> str:
    """Least, median and most, in microseconds.

    >>> times({"min": 1e-6, "median": 2.25e-6, "max": 1e-3})
    '1.0 / 2.2 / 1000.0'
    """
    return " / ".join(f"{row[key] * 1e6:.1f}" for key in ("min", "median", "max"))


def bound(found: Row, row: Row) -> float:
    """Seconds below which no algorithm can be on these links."""
    factor = bus_factor(row["collective"], found["ranks"])
    return float(factor * row["nbytes"] / payload_rate(bits(found["link"])))
