"""busbw against size, both in logarithms: a panel for each kind of task, a line for each contestant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpiring.cli import UsageError
from mpiring.cli.quantities import size_text

STYLES: dict[str, dict[str, Any]] = {
    "mpiring": {"color": "tab:blue", "linewidth": 2.4, "marker": "o", "zorder": 5},
    "mpi": {"color": "tab:red", "marker": "s"},
    "sliced": {"color": "tab:orange", "marker": "D"},
    "ring": {"color": "tab:brown", "marker": "x"},
    "lecture": {"color": "tab:green", "marker": "^"},
    "gloo": {"color": "tab:purple", "marker": "v"},
    "copy": {"color": "black", "linestyle": "--"},
}
COLUMNS = 2
PANEL = (6.4, 4.4)  # inches


def write_plot(found: Mapping[str, Any], path: Path) -> None:
    """Draw a run, as its JSON has it, into a file.

    Raises:
        UsageError: if the file cannot be written.
    """
    try:
        figure_of(found).savefig(path, dpi=110)
    except (OSError, ValueError) as error:  # an ending that is unknown
        raise UsageError(f"--plot: {error}") from error


def figure_of(found: Mapping[str, Any]) -> Any:
    """A run in place; a memory copy is drawn as if a collective of that size had taken as long."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: dict[tuple[str, str, str | None], list[Mapping[str, Any]]] = {}
    for row in found["rows"]:
        kind = (row["collective"], row["dtype"], row["op"])
        panels.setdefault(kind, []).append(row)
    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(
        figsize=(PANEL[0] * columns, PANEL[1] * lines + 0.6), layout="constrained"
    )
    FigureCanvasAgg(figure)
    host = found["machine"]
    figure.suptitle(
        f"{found['mpi']}, {found['ranks']} ranks on {found['hosts']} host{'s' * (found['hosts'] > 1)}, "
        f"{host['cores']} cores, {found['date'][:10]}\nmedian in place, shaded from the least to the most",
        fontsize=10,
    )
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in grid[len(panels) :]:
        axes.remove()
    for axes, (kind, rows) in zip(grid, panels.items()):
        draw(axes, kind, rows)
    return figure


def draw(
    axes: Any,
    kind: tuple[str, str, str | None],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """One panel."""
    series: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["in_place"] or row["who"] == "copy":
            series.setdefault(row["who"], []).append(row)
    for who, each in series.items():
        xs = [row["nbytes"] for row in each]
        # The least time is the highest bandwidth.
        middle, most, least = (
            [row["busbw"] * row["median"] / row[key] / 1e9 for row in each]
            for key in ("median", "min", "max")
        )
        style = {"markersize": 4, "linewidth": 1.5, **STYLES[who]}
        axes.plot(xs, middle, label=each[0]["name"], **style)
        axes.fill_between(
            xs, least, most, color=style["color"], alpha=0.12, linewidth=0
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({row["nbytes"] for row in rows})
    shown = ticks[:: -(-len(ticks) // 8)]
    axes.set_xticks(shown, [size_text(nbytes) for nbytes in shown], fontsize=8)
    axes.xaxis.set_minor_locator(_nowhere())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    collective, dtype, op = kind
    axes.set(
        title=" ".join(filter(None, (collective, dtype, op))),
        xlabel="buffer",
        ylabel="busbw, GB/s",
    )
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)


def _nowhere() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()
