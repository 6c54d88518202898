"""The lab's table: as text, and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

WITHIN = 0.2  # of the prediction

Row = dict[str, Any]


def judged(row: Row) -> Row:
    """The row with its median and how that compares.

    >>> row = judged({"seconds": [3.0, 1.0, 2.5], "bound": 2.0, "predicted": 2.4})
    >>> row["median"], row["to_bound"], round(row["to_prediction"], 2), row["within"]
    (2.5, 1.25, 1.04, True)
    >>> judged({"seconds": [3.0], "bound": 2.0, "predicted": 2.4})["within"]
    False
    """
    median = statistics.median(row["seconds"])
    predicted = row["predicted"]
    ratio = None if predicted is None else median / predicted
    return {
        **row,
        "median": median,
        "to_bound": median / row["bound"],
        "to_prediction": ratio,
        "within": None if ratio is None else abs(ratio - 1) <= WITHIN,
    }


# ---- text -----------------------------------------------------------------------------------------

HEAD = (
    "case", "link", "K", "MB", "S", "formula", "bound s", "model s", "measured s", "min - max",
    "/bound", "/model", "within 20 %", "busiest link MB out, in",
)  # fmt: skip


def text(machine: Row, links: list[Row], rows: list[Row]) -> str:
    """All of it, for a terminal.  Markdown reads it as a table, too."""
    return "\n".join([*about(machine, links), "", *table(rows), "", *verdict(rows)])


def about(machine: Row, links: list[Row]) -> Iterator[str]:
    """The machine and its network."""
    load = machine["load_at_start"][0]
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"TCP {machine['congestion_control']}, Open MPI {machine['openmpi']}; load {load:.1f} at the start"
    )
    for link in links:
        update = link["update"]
        transfer = update["nbytes"] / link["payload_rate"]
        yield (
            f"{link['rate']}: B = {link['payload_rate'] / 1e6:.2f} MB/s of payload, a plain TCP stream gets "
            f"{link['stream'] / 1e6:.2f}; fitted alpha {link['alpha'] * 1e6:.0f} us, "
            f"1/beta {1e-6 / link['beta']:.2f} MB/s, 1/gamma {1e-9 / link['gamma']:.1f} GB/s"
        )
        yield (
            f"{link['rate']}: updating {update['nbytes'] / 1e6:.0f} MB of parameters takes "
            f"{update['seconds'] * 1e3:.1f} ms, moving them once {transfer * 1e3:.0f} ms: "
            f"{transfer / update['seconds']:.0f} times as long"
        )


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The rows, as wide as they need."""
    return aligned([HEAD, *map(_cells, rows)])


def aligned(lines: list[tuple[str, ...]]) -> Iterator[str]:
    """A table of cells, the first line of which is its head; Markdown reads it as one.

    >>> print(*aligned([("ranks", "s"), ("2", "0.125")]), sep="\\n")
    | ranks | s     |
    |-------|-------|
    | 2     | 0.125 |
    """
    widths = [max(map(len, column)) for column in zip(*lines)]
    for place, line in enumerate(lines):
        shown = (cell.ljust(width) for cell, width in zip(line, widths))
        yield "| " + " | ".join(shown) + " |"
        if place == 0:
            yield "|" + "|".join("-" * (width + 2) for width in widths) + "|"


def _cells(row: Row) -> tuple[str, ...]:
    predicted, ratio = row["predicted"], row["to_prediction"]
    verdict = {None: "no model", True: "yes", False: "NO"}[row["within"]]
    return (
        f"{row['case']} {row['setting']}".rstrip(),
        row["rate"],
        str(row["ranks"]),
        f"{row['nbytes'] / 1e6:g}",
        str(row["segments"]) if "S" in row["formula"] else "-",
        row["formula"],
        f"{row['bound']:.3f}",
        "-" if predicted is None else f"{predicted:.3f}",
        f"{row['median']:.3f}",
        f"{min(row['seconds']):.3f} - {max(row['seconds']):.3f}",
        f"{row['to_bound']:.2f}",
        "-" if ratio is None else f"{ratio:.2f}",
        verdict,
        f"{row['sent'] / 1e6:.1f}, {row['received'] / 1e6:.1f}",
    )


def verdict(rows: Iterable[Row]) -> Iterator[str]:
    """How many predictions hold, case by case."""
    by_case: dict[str, list[Row]] = {}
    for row in rows:
        if row["within"] is not None:
            by_case.setdefault(row["case"], []).append(row)
    held = sum(row["within"] for each in by_case.values() for row in each)
    count = sum(map(len, by_case.values()))
    yield f"The model is within 20 % in {held} of {count} measurements:"
    for case, each in by_case.items():
        ratios = [row["to_prediction"] for row in each]
        kept = sum(row["within"] for row in each)
        yield (
            f"  {case:24} {kept:2} of {len(each):2}, measured / model "
            f"{min(ratios):.2f} to {max(ratios):.2f}"
        )


# ---- picture ----------------------------------------------------------------------------------------

CHAIN = "(K+S-2)N/(SB)"
GROWTH = {
    "server, star": ("tab:red", "parameter server, star: 2(K-1)N/B"),
    "broadcast, naive": ("tab:orange", "naive broadcast: (K-1)N/B"),
    "all-reduce, MPI_Allreduce": ("tab:gray", "MPI_Allreduce (bound as the ring's)"),
    "server, chain": ("tab:purple", "parameter server, chain: 2(K+S-2)N/(SB)"),
    "all-reduce, ring": ("tab:blue", "ring all-reduce: 2(K-1)/K N/B"),
}


def draw(path: Path, machine: Row, links: list[Row], rows: list[Row]) -> None:
    """Four views as PNG: pieces, hosts, single messages, and how good the model is."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 10), layout="constrained")
    (top_left, top_right), (low_left, low_right) = figure.subplots(2, 2)
    figure.suptitle(
        "The lecture's formulas (lines) and the network (points: median, bars: least and most)\n"
        f"hosts as network namespaces, Open MPI {machine['openmpi']} over TCP, {machine['date']}",
        fontsize=12,
    )
    _draw_pieces(top_left, rows)
    _draw_growth(top_right, rows)
    _draw_messages(low_left, links)
    _draw_model(low_right, rows)
    figure.savefig(path, format="png", dpi=110)


def _points(axes: Any, xs: list[float], rows: list[Row], **style: Any) -> None:
    middles = [row["median"] for row in rows]
    low = [row["median"] - min(row["seconds"]) for row in rows]
    high = [max(row["seconds"]) - row["median"] for row in rows]
    axes.errorbar(xs, middles, yerr=[low, high], fmt="o", capsize=3, **style)


def _draw_pieces(axes: Any, rows: list[Row]) -> None:
    swept = [row for row in rows if row["case"] == "broadcast, pipelined"]
    series: dict[tuple[str, int, int], list[Row]] = {}
    for row in swept:
        key = (row["rate"], row["ranks"], row["nbytes"])
        series.setdefault(key, []).append(row)
    colours = iter(("tab:blue", "tab:green", "tab:olive"))
    for (rate, size, nbytes), each in series.items():
        if len(each) < 3:
            continue
        each.sort(key=lambda row: row["segments"])
        xs = [row["segments"] for row in each]
        colour = next(colours)
        label = f"{size} hosts, {nbytes / 1e6:g} MB, {rate}"
        first = colour == "tab:blue"
        bounds = [row["bound"] for row in each]
        priced = [row["predicted"] for row in each]
        axes.plot(xs, bounds, color=colour, label=CHAIN if first else None)
        axes.plot(xs, priced, ":", color=colour, label="model" if first else None)
        _points(axes, xs, each, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(
        title="Pipelined broadcast: how many pieces",
        xlabel="pieces S (1 is the naive broadcast)",
        ylabel="time (s)",
    )
    _finish(axes)


def _draw_growth(axes: Any, rows: list[Row]) -> None:
    from matplotlib.ticker import MaxNLocator

    rate, nbytes = rows[0]["rate"], rows[0]["nbytes"]
    for case, (colour, label) in GROWTH.items():
        each = [
            row
            for row in rows
            if (row["case"], row["rate"], row["nbytes"]) == (case, rate, nbytes)
            and not row["setting"]
        ]
        each.sort(key=lambda row: row["ranks"])
        xs = [row["ranks"] for row in each]
        if case != "all-reduce, MPI_Allreduce":
            axes.plot(xs, [row["bound"] for row in each], color=colour, alpha=0.7)
        _points(axes, xs, each, color=colour, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(
        title=f"Growth with the hosts, {nbytes / 1e6:g} MB, {rate}",
        xlabel="hosts K",
        ylabel="time (s)",
    )
    _finish(axes)


def _draw_messages(axes: Any, links: list[Row]) -> None:
    for link, colour in zip(links, ("tab:blue", "tab:green")):
        xs, ys = zip(*link["points"])
        alpha, beta = link["alpha"], link["beta"]
        fitted = f"{alpha * 1e6:.0f} us + bytes / {1e-6 / beta:.2f} MB/s"
        axes.plot(xs, [alpha + n * beta for n in xs], color=colour, label=fitted)
        axes.plot(xs, ys, "o", color=colour, label=f"measured, {link['rate']}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1024:g} KiB")
    axes.tick_params(axis="x", labelsize=8)
    axes.set(
        title="Single messages, one after the other: the fit of alpha and beta",
        xlabel="bytes of a message",
        ylabel="time (s)",
    )
    _finish(axes)


def _draw_model(axes: Any, rows: list[Row]) -> None:
    modelled = [row for row in rows if row["within"] is not None]
    cases = list(dict.fromkeys(row["case"] for row in modelled))
    axes.axvspan(
        1 - WITHIN, 1 + WITHIN, color="tab:green", alpha=0.15, label="within 20 %"
    )
    axes.axvline(1, color="tab:green")
    for within, colour in ((True, "tab:green"), (False, "tab:red")):
        each = [row for row in modelled if row["within"] is within]
        axes.plot(
            [row["to_prediction"] for row in each],
            [cases.index(row["case"]) for row in each],
            "o",
            color=colour,
            alpha=0.6,
        )
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    axes.set(title="How good the model is", xlabel="measured time / model's time")
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.set_ylim(
        bottom=None if axes.get_yscale() == "log" or axes.yaxis_inverted() else 0
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
