"""Times against the length of chunks and pieces: a panel for each, a line for each task, the default at 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from mpiring.cli import UsageError
from mpiring.cli.quantities import size_text
from mpiring.wire.settings.tuning import WHOLE

from .contests import Outcome
from .page import TITLES
from .words import value_text

PANEL = (6.4, 4.4)  # inches


def write_plot(outcomes: Sequence[Outcome], title: str, path: Path) -> None:
    """Draw the contests of lengths into a file.

    Raises:
        UsageError: if the file cannot be written.
    """
    try:
        figure_of(outcomes, title).savefig(path, dpi=110)
    except (OSError, ValueError) as error:  # an ending that is unknown
        raise UsageError(f"--plot: {error}") from error


def figure_of(outcomes: Sequence[Outcome], title: str) -> Any:
    """The whole stands at the right end, as if it were twice the longest length."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [
        each for each in outcomes if each.setting in ("chunk_bytes", "piece_bytes")
    ]
    figure = Figure(figsize=(PANEL[0] * len(shown), PANEL[1]), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    for axes, outcome in zip(figure.subplots(1, len(shown), squeeze=False).flat, shown):
        draw(axes, outcome)
    return figure


def draw(axes: Any, outcome: Outcome) -> None:
    """One panel; the default and what was chosen are marked."""
    values = sorted(outcome.times)
    longest = max((value for value in values if value != WHOLE), default=1)
    places = {value: 2 * longest if value == WHOLE else value for value in values}
    for number, load in enumerate(outcome.loads):
        middle = [median(outcome.times[value][number]) for value in values]
        usual = middle[values.index(outcome.default)]
        label = f"{load.collective} {size_text(load.nbytes)}"
        ratios = [seconds / usual for seconds in middle]
        axes.plot([places[value] for value in values], ratios, marker="o", label=label)
    axes.axvline(places[outcome.default], color="black", linestyle=":", label="default")
    if outcome.chosen != outcome.default:
        axes.axvline(places[outcome.chosen], color="tab:green", label="chosen")
    axes.set_xscale("log", base=2)
    names = [value_text(outcome.setting, value) for value in values]
    axes.set_xticks(list(places.values()), names, fontsize=7, rotation=45)
    axes.minorticks_off()
    axes.set(
        title=TITLES[outcome.setting], xlabel="length", ylabel="time, in the default's"
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
