"""The table of lab/device.py: for a terminal, and as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from mpiring.cli.bench import table

import device_cases
import report

Row = dict[str, Any]

HEAD = (
    "way", "dtype", "bytes",
    "out of place us", "algbw GB/s", "busbw GB/s", "#wrong",
    "in place us", "algbw GB/s", "busbw GB/s", "#wrong",
    "of a device copy",
)  # fmt: skip


def lines(machine: Row, rows: list[Row]) -> Iterator[str]:
    """All of it: for a terminal, and as Markdown."""
    shared = "a GPU each" if machine["cards"] >= machine["ranks"] else "sharing"
    yield (
        f"{machine['card']} x {machine['cards']}, {machine['ranks']} ranks {shared} on {machine['hosts']} "
        f"host{'s' * (machine['hosts'] > 1)}; driver {machine['driver']} (CUDA {machine['driver_cuda']}), "
        f"CUDA {machine['cuda']}, CuPy {machine['cupy']}, {machine['mpi']}, mpiring {machine['mpiring']}, "
        f"Python {machine['python']}; {machine['date']}"
    )
    yield ""
    yield f"`{machine['command']}`"
    yield ""
    yield f"Device memory travels {machine['transport']}: {machine['why']}."
    yield from (f"Not measured: {way}: {why}." for way, why in machine["missing"].items())  # fmt: skip
    yield ""
    yield from report.aligned([HEAD, *map(tuple, _table(rows, machine["ranks"]))])
    wrong = sum(row["wrong"] for row in rows)
    yield ""
    yield f"{wrong} elements were wrong." if wrong else "No element was wrong."


def _table(rows: list[Row], ranks: int) -> Iterator[list[str]]:
    """A line for each way, dtype and size: out of place and in place beside each other."""
    found: dict[tuple[str, str, int], dict[bool, Row]] = {}
    for row in rows:
        key = (row["way"], row["dtype"], row["nbytes"])
        found.setdefault(key, {})[row["in_place"]] = row
    for (way, dtype, nbytes), pair in found.items():
        is_copy = way.startswith("copy")
        factor = 0.0 if is_copy else 2 * (ranks - 1) / ranks
        cells = [way, dtype, str(nbytes)]
        for in_place in (False, True):
            cells += figures(pair.get(in_place), factor)
        copy = found[device_cases.D2D, dtype, nbytes][False]
        ratio = statistics.median(pair[False]["seconds"]) / statistics.median(
            copy["seconds"]
        )
        yield [*cells, f"{ratio:.1f}"]


def figures(row: Row | None, factor: float) -> list[str]:
    """Microseconds, algbw, busbw and #wrong.

    >>> figures({"seconds": [2e-3, 1e-3, 9e-3], "nbytes": 10**6, "wrong": 0}, 1.5)
    ['2000.0', '0.50', '0.75', '0']
    >>> figures(None, 1.5)
    ['-', '-', '-', '-']
    """
    if row is None:
        return ["-"] * 4
    return table.figures(row["nbytes"], row["seconds"], row["wrong"], factor)
