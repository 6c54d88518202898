"""Time against size, both in logarithms: a line for each schedule, and the bound that none goes below."""

from __future__ import annotations

from pathlib import Path

from mpiring.cli import UsageError
from mpiring.cli.quantities import bytes_text, seconds_text, speed_text

from .question import DTYPES, Question

FROM, TO, POINTS = 2, 10, 40  # decades of bytes; points in each


def write_plot(question: Question, path: Path) -> None:
    """Draw the answer into a file.

    Raises:
        UsageError: if matplotlib is missing, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "--plot needs matplotlib, which is not installed: pip install matplotlib"
        ) from error
    itemsize = DTYPES[question.dtype][0]
    sizes = sorted(
        {
            int(10 ** (FROM + step / POINTS)) // itemsize * itemsize
            for step in range((TO - FROM) * POINTS + 1)
        }
    )
    times = [question.choices(nbytes) for nbytes in sizes]
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    styles = ("-", "--", "-.")
    for place, name in enumerate(question.among):
        seconds = [found[place].form.seconds for found in times]
        axes.plot(sizes, seconds, styles[place % len(styles)], label=name, linewidth=2)
    bound = [question.bound(nbytes) for nbytes in sizes]
    axes.plot(sizes, bound, color="black", linestyle=":", label="lower bound")
    for nbytes, _ in question.crossings()[1:]:
        if sizes[0] <= nbytes <= sizes[-1]:
            axes.axvline(nbytes, color="gray", linewidth=0.8)
            axes.annotate(
                bytes_text(nbytes),
                (nbytes, 0),
                xycoords=("data", "axes fraction"),
                xytext=(4, 6),
                textcoords="offset points",
                color="gray",
            )
    model = question.model
    bandwidth = speed_text(1 / model.beta) if model.beta else "unlimited"
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="buffer, bytes",
        ylabel="predicted time, seconds",
        title=f"{question.collective} on {question.size:,} ranks:"
        f" alpha {seconds_text(model.alpha)}, bandwidth {bandwidth}",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=120)
    except (
        OSError,
        ValueError,
    ) as error:  # a folder that is not there; an ending unknown
        raise UsageError(f"--plot: {error}") from error
