"""A whole run: every kind of task at every size, told as it goes, kept as JSON and drawn.

Rules: whatever can be wrong with the command line is found by all ranks alike, or by rank 0, which tells the others;
so all of them end, with the same status, and none waits.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import mpiring
from mpiring.cli import BAD_NEWS, OK, UsageError
from mpiring.cli.quantities import size_text
from mpiring.cli.tune.words import settings_text
from mpiring.wire.gpu_aware.loaded import find_library
from mpiring.wire.settings.files import try_to_write
from mpiring.wire.settings.tuning import DEFAULTS

from . import forced, gloo, ours, record, table
from .inputs import Numbers, as_dtype
from .measure import LONG, OURS, Clock, Row, cases_of, find_slice, measure, ratios
from .peers import Peer, Sliced, find_peers
from .settings import Settings, whole
from .task import Buffers, Task

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
Say = Callable[[str], object]


def bench(comm: MPI.Intracomm, settings: Settings) -> int:
    """Measure, and return the exit code: 1 if a result of mpiring's was wrong.

    Raises:
        UsageError: on every rank.
    """
    is_first = comm.rank == 0
    told = comm.bcast(_writable(settings) if is_first else "")
    if told:
        raise UsageError(told)
    about = record.about(comm) | {"load_at_start": record.load()}
    starts = {"gloo": gloo.start, "ring": forced.start}
    family = find_library().family
    peers, left_out = find_peers(settings.peers, comm, family, starts)
    total = len(settings.kinds) * len(settings.sizes)
    try:
        with (
            mpiring.Ring(comm) as ring,
            progress(is_first, total, "size") as (say, advance),
        ):
            if ring.tuning != DEFAULTS[ring.wire]:
                about["profile"] = settings_text(ring.tuning)
            if is_first:
                _open(say, about, left_out)
            run = Run(comm, ring, settings, peers, say if is_first else _silent)
            rows = run.everything(advance)
    finally:
        if isinstance(peers.get("gloo"), gloo.Gloo) and sys.exc_info()[0] is None:
            peers["gloo"].close()  # type: ignore[attr-defined]
    wrong = sum(row.wrong or 0 for row in rows if row.who == OURS)
    if not is_first:
        return BAD_NEWS if wrong else OK
    found = about | {
        "load_at_end": record.load(),
        "left_out": left_out,
        "memory": settings.memory,
        "algorithm": settings.algorithm,
        "order": settings.order,
        "slices": run.slices,
        "rows": [row.as_json(comm.size) for row in rows],
        "ratios": run.ratios,
    }
    print(f"# #wrong: {wrong or 'none'}; load {found['load_at_end'][0]:.1f} at the end")
    if settings.json is not None:
        settings.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"# figures: {settings.json}")
    if settings.plot is not None:
        from .plot import write_plot

        write_plot(found, settings.plot)
        print(f"# plot: {settings.plot}")
    return BAD_NEWS if wrong else OK


class Run:
    """The tasks of a run, one after the other, on one rank.

    Attributes:
        slices: for each kind of task the lengths of slices that were tried on the MPI, and what they took.
        ratios: for each task how long the peers took, in mpiring's time.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        ring: mpiring.Ring,
        settings: Settings,
        peers: dict[str, Peer],
        say: Say,
    ) -> None:
        self.comm, self.ring, self.settings = comm, ring, settings
        self.peers, self.say = peers, say
        self.clock = Clock(comm)
        self.slices: list[dict[str, Any]] = []
        self.ratios: list[dict[str, Any]] = []

    def everything(self, advance: Callable[[int], object]) -> list[Row]:
        """All rows."""
        rows: list[Row] = []
        for collective, dtype, op in self.settings.kinds:
            numbers = alike(lambda: Numbers(op, dtype, self.comm.size))
            self._try(collective, dtype, op, numbers)
            self._choose_slice(collective, dtype, op, numbers)
            for text in table.head(collective, dtype, op):
                self.say(text)
            tasks: list[list[Row]] = []
            for nbytes in self._sizes(dtype):
                task = self._task(collective, dtype, op, nbytes, numbers)
                tasks.append(self._measured(task))
                self.say(table.line(*table.ours(tasks[-1]), self.comm.size))
                advance(1)
            self.say("#")
            for text in table.beside(tasks):
                self.say(text)
            rows += (row for each in tasks for row in each)
        return rows

    def _sizes(self, dtype: str) -> list[int]:
        itemsize = as_dtype(dtype).itemsize
        cut = (whole(nbytes, itemsize) for nbytes in self.settings.sizes)
        return list(dict.fromkeys(cut))

    def _task(
        self,
        collective: str,
        dtype: str,
        op: str | None,
        nbytes: int,
        numbers: Numbers,
    ) -> Task:
        size, rank = self.comm.size, self.comm.rank
        return Task(collective, dtype, op, nbytes, rank, size, numbers)

    def _try(
        self, collective: str, dtype: str, op: str | None, numbers: Numbers
    ) -> None:
        """What mpiring refuses (an algorithm it does not know), it refuses on every rank, and best at once."""
        least = self._sizes(dtype)[0]
        task = self._task(collective, dtype, op, least, numbers)
        buffers = ours.buffers(self.ring, task, self.settings.memory)
        buffers.ready(False)
        settings = self.settings
        prepare = ours.prepare(self.ring, settings.algorithm, settings.order)
        alike(prepare(buffers, False))

    def _measured(self, task: Task) -> list[Row]:
        settings = self.settings
        mine = ours.buffers(self.ring, task, settings.memory)
        theirs = Buffers.ordinary(task) if settings.memory == "shared" else mine
        prepare = ours.prepare(self.ring, settings.algorithm, settings.order)
        cases = cases_of(task, prepare, mine, self.peers, theirs)
        rows = measure(self.clock, cases, settings.rounds, settings.seconds)
        for (who, in_place), ratio in ratios(rows).items():
            kind = {"collective": task.collective, "dtype": task.dtype, "op": task.op}
            place = {"nbytes": task.nbytes, "in_place": in_place}
            self.ratios.append({**kind, **place, "who": who, "ratio": ratio})
        return rows

    def _choose_slice(
        self, collective: str, dtype: str, op: str | None, numbers: Numbers
    ) -> None:
        sliced = self.peers.get("sliced")
        if not isinstance(sliced, Sliced):
            return
        sliced.slice_bytes = 0
        longest = min(self._sizes(dtype)[-1], LONG)
        task = self._task(collective, dtype, op, longest, numbers)
        if not sliced.is_worth_a_try(task):
            return
        medians = find_slice(self.clock, sliced, task)
        if not medians:
            return
        tried = ", ".join(
            f"{size_text(length)} {seconds * 1e6:.0f} us"
            for length, seconds in medians.items()
        )
        self.say(f"# slices of {size_text(longest)} for {sliced.mpi}: {tried}")
        self.slices.append(
            {"dtype": dtype, "op": op, "nbytes": longest}
            | {"seconds": medians, "chosen": sliced.slice_bytes}
        )


def alike(do: Callable[[], T]) -> T:
    """Do what succeeds or fails alike on every rank; such a failure is the command line's fault."""
    try:
        return do()
    except (TypeError, ValueError, ImportError) as error:
        raise UsageError(str(error)) from error


def _writable(settings: Settings) -> str:
    """Why a file of the settings cannot be written; empty if all can."""
    for option, path in (("--json", settings.json), ("--plot", settings.plot)):
        if path is not None:
            try:
                try_to_write(path)
            except OSError as error:
                return f"{option}: {error}"
    return ""


def _open(say: Say, about: dict[str, Any], left_out: dict[str, str]) -> None:
    for text in record.page(about):
        say(f"# {text}")
    for who, why in left_out.items():
        say(f"# not measured: {who}: {why}")
    say("#")


def _silent(text: str) -> None:
    """For the ranks that do not speak."""


@contextmanager
def progress(
    is_first: bool, total: int, unit: str
) -> Iterator[tuple[Say, Callable[[int], object]]]:
    """How to print a line, and what to call after steps: with tqdm and a terminal, a bar stays below the lines.

    Args:
        is_first: whether this rank is the one that speaks.
        total: number of steps.
        unit: what a step is called.
    """
    bar: Any = None
    if is_first and sys.stderr.isatty():
        try:
            from tqdm import tqdm

            bar = tqdm(total=total, unit=unit, leave=False)
        except ImportError:
            pass
    with bar if bar is not None else nullcontext():
        if bar is None:
            yield lambda text: print(text, flush=True), lambda steps: None
        else:
            yield lambda text: bar.write(text, file=sys.stdout), bar.update
