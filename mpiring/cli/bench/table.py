"""The figures as text: nccl-tests' columns for mpiring, and the peers beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from mpiring.cli.quantities import size_text
from mpiring.plan import algbw, bus_factor

from .measure import OURS, Row, ratios
from .settings import PEER_NAMES


def head(collective: str, dtype: str, op: str | None) -> Iterator[str]:
    """What is above a table."""
    yield f"# {' '.join(filter(None, (collective, dtype, op)))}"
    yield f"#{'':52} {'out-of-place':^34} {'in-place':^34}".rstrip()
    for left, each in (
        (("size", "count", "type", "redop", "root"), ("time", "algbw", "busbw", "#wrong")),
        (("(B)", "(elements)", "", "", ""), ("(us)", "(GB/s)", "(GB/s)", "")),
    ):  # fmt: skip
        yield f"#{_line(left, each, each)[1:]}".rstrip()


def _line(left: Sequence[str], *figures: Sequence[str]) -> str:
    nbytes, count, dtype, op, root = left
    text = f" {nbytes:>11} {count:>11} {dtype:>10} {op:>6} {root:>4}  "
    for time, alg, bus, wrong in figures:
        text += f"{time:>10} {alg:>7} {bus:>7} {wrong:>6}   "
    return text


def figures(
    nbytes: int, seconds: Sequence[float], wrong: int | None, factor: float
) -> list[str]:
    """Microseconds, algbw, busbw and #wrong, of the median.

    >>> figures(10**6, [2e-3, 1e-3, 9e-3], 0, 1.5)
    ['2000.0', '0.50', '0.75', '0']
    >>> figures(10**6, [2e-3], None, 0.0)
    ['2000.0', '0.50', '-', '-']
    """
    middle = median(seconds)
    bandwidth = algbw(nbytes, middle) / 1e9
    return [
        f"{middle * 1e6:.1f}",
        f"{bandwidth:.2f}",
        f"{bandwidth * factor:.2f}" if factor else "-",
        "-" if wrong is None else str(wrong),
    ]


def line(out_of_place: Row, in_place: Row, size: int) -> str:
    """One line of nccl-tests' table; a root of -1 is none."""
    row = out_of_place
    root = -1 if row.root is None else row.root
    factor = bus_factor(row.collective, size)
    left = (str(row.nbytes), str(row.count), row.dtype, row.op or "none", str(root))
    both = (
        figures(each.nbytes, each.seconds, each.wrong, factor)
        for each in (out_of_place, in_place)
    )
    return _line(left, *both).rstrip()


def ours(rows: Sequence[Row]) -> tuple[Row, Row]:
    """mpiring's two rows of a task: out of place, in place."""
    first, second = (row for row in rows if row.who == OURS)
    return first, second


def ratio_text(ratio: float) -> str:
    """A ratio in two digits after the point, or as many as it takes to say something.

    >>> ratio_text(4.126), ratio_text(12.0), ratio_text(0.0123)
    ('4.13x', '12.00x', '0.012x')
    """
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.2g}x"


def beside(tasks: Sequence[Sequence[Row]]) -> Iterator[str]:
    """The peers of one kind of task, at all sizes: how long they take, and the ratio to mpiring's time.

    Args:
        tasks: for each size its rows.
    """
    found = {row.who: row.name for rows in tasks for row in rows}
    names = {who: found[who] for who in PEER_NAMES if who in found}
    if not names:
        return
    for in_place in (False, True):
        head = ["size", OURS, *names.values()]
        body = []
        for rows in tasks:
            ratio_to = ratios(rows)
            cells = [size_text(rows[0].nbytes)]
            cells.append(f"{median(ours(rows)[in_place].seconds) * 1e6:.1f}")
            for who in names:
                same = [
                    row
                    for row in rows
                    if row.who == who and row.in_place in (in_place, who != "copy" and in_place)
                ]  # fmt: skip
                ratio = ratio_to.get((who, in_place))
                if ratio is None or not same:
                    cells.append("-")
                    continue
                note = f", {same[0].wrong} wrong" if same[0].wrong else ""
                time = median(same[0].seconds) * 1e6
                cells.append(f"{time:.1f} ({ratio_text(ratio)}{note})")
            body.append(cells)
        yield f"# {'in place' if in_place else 'out of place'}: us (times mpiring's, the median of the rounds' ratios)"
        widths = [max(map(len, column)) for column in zip(head, *body)]
        for number, cells in enumerate([head, *body]):
            shown = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths))
            yield f"{' ' if number else '#'}{shown}"
        yield "#"
