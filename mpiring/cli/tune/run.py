"""A whole run: the contests one after the other, told as they go, and the profile that comes of them.

Rules: whatever can be wrong with the command line, with the profile that is there, and with the files to be written is
found by rank 0 before anything is measured, and told to all.  Nothing is written unless all results were right.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from mpiring.cli import BAD_NEWS, OK, UsageError
from mpiring.cli.bench import record
from mpiring.cli.bench.run import Say, progress
from mpiring.cli.quantities import size_text
from mpiring.wire.settings import profiles
from mpiring.wire.settings.profiles import Entry

from . import page
from .choice import judge
from .contests import Contests, Outcome
from .rings import Rings
from .settings import Settings, trouble, words_of
from .words import settings_text

if TYPE_CHECKING:
    from mpi4py import MPI


BUSY = 1.0  # load at the start


def tune(comm: MPI.Intracomm, settings: Settings) -> int:
    """Measure, choose and write; returns the exit code: 1 if a result was wrong.

    Raises:
        UsageError: on every rank.
    """
    is_first = comm.rank == 0
    if told := comm.bcast(trouble(settings) if is_first else ""):
        raise UsageError(told)
    about = record.about(comm) | {"load_at_start": record.load()}
    with Rings(comm, settings.timeout) as rings:
        contests = Contests(comm, rings, settings)
        with progress(is_first, contests.tasks, "task") as (say, advance):
            if not is_first:
                say = _silent
            contests.advance = advance
            for text in (
                *record.page(about),
                *doubts(about),
                *tried(contests),
                *page.rule(),
            ):
                say(f"# {text}")
            say("#")
            outcomes = everything(contests, say)
        entry = Entry(
            rings.mpi, rings.wire, comm.size, contests.tuning, facts(about, outcomes)
        )
    if contests.wrong:
        if is_first:
            print(
                f"# {contests.wrong} elements of results were wrong: nothing is written"
            )
        return BAD_NEWS
    if told := comm.bcast(conclude(settings, entry, outcomes) if is_first else ""):
        raise UsageError(told)
    return OK


def everything(contests: Contests, say: Say) -> list[Outcome]:
    """All contests, each on top of what was chosen before."""
    outcomes: list[Outcome] = []
    steps = (
        contests.chunks,
        contests.window,
        contests.pieces,
        contests.direct,
        contests.small,
        contests.staged,
        contests.together,
    )
    for step in steps:
        outcome = step()
        if outcome is not None:
            outcomes.append(outcome)
            for text in page.contest(outcome):
                say(text)
    return outcomes


def doubts(about: dict[str, Any]) -> list[str]:
    """Why the figures should not be trusted, if so."""
    load = about["load_at_start"][0]
    if load < BUSY:
        return []
    return [
        "the machine is busy, and that may be what decides: do it again when it is not"
    ]


def tried(contests: Contests) -> list[str]:
    """What the figures are of."""
    shown = ", ".join(map(size_text, contests.long_sizes))
    return [f"sums and broadcasts of float32, in place; lengths are tried on {shown}"]


def facts(about: dict[str, Any], outcomes: list[Outcome]) -> dict[str, Any]:
    """What the profile says of how its entry was measured."""
    found = {
        "date": about["date"],
        "host": about["machine"]["host"],
        "hosts": about["hosts"],
        "cpu": about["machine"]["cpu"],
        "mpiring": about["versions"]["mpiring"],
    }
    last = outcomes[-1]
    if last.setting == "all" and last.chosen:
        found["gain"] = round(judge(last.times, 0)[1].gain, 3)
    return found


def conclude(settings: Settings, entry: Entry, outcomes: list[Outcome]) -> str:
    """Write the profile and the plot, and say so; returns why that failed, empty if it did not."""
    print(f"# {entry}: {settings_text(entry.tuning)}")
    try:
        profiles.write_entry(settings.path, entry)
        print(f"# profile: {settings.path}")
        if settings.plot is not None:
            from .plot import write_plot

            write_plot(outcomes, str(entry), settings.plot)
            print(f"# plot: {settings.plot}")
    except (OSError, ValueError, UsageError) as error:
        return f"{settings.path}: {words_of(error)}"
    path, _ = profiles.find_path(os.environ)
    if path is None or path.absolute() != settings.path.absolute():
        print(f"# to be used: export {profiles.VARIABLE}={settings.path.absolute()}")
    else:
        print("# rings of as many ranks take it from now on")
    return ""


def _silent(text: str) -> None:
    """For the ranks that do not speak."""
