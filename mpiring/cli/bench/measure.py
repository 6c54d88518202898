"""The measuring: interleaved rounds, all contestants warmed up, the same decisions on every rank.

Rules

- A time is that of the slowest rank, from the moment it left a barrier; so it needs no common clock, and the root of a
  broadcast, which is through early, does not hide the others.  Short calls are made several in a row, behind one that
  is not timed, and a time is one of them; everybody makes as many, since the first ones take longer.
- A round measures every contestant once, in place and out of place, and starts with another one each time: what
  disturbs the machine for a while disturbs all.  Ratios are taken within a round.
- Every contestant's first and last result is looked at, on all ranks, outside the time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from mpiring.plan import algbw, bus_factor

from .peers import Peer, Sliced, able
from .settings import LEAST_ROUNDS
from .task import Buffers, Call, Task

if TYPE_CHECKING:
    from mpi4py import MPI

SAMPLE = 1e-3  # seconds that a sample of the fastest should last at least
LONGEST_SAMPLE = 20e-3  # and one of a slow contestant at most
MOST_CALLS = 50  # in a sample
SLICES = tuple(1 << power for power in range(16, 23))  # bytes: 64 KiB to 4 MiB
LONG = (
    64 << 20
)  # bytes of the buffer on which slices are tried, if there are such long ones
SLICE_ROUNDS = 5

OURS = "mpiring"


@dataclass
class Row:
    """The figures of one contestant for one task.

    Attributes:
        who, name: its key, and the same for people.
        collective, dtype, op, root, nbytes, count: the task.
        in_place: one buffer for input and output.
        calls: in a row, of which a time is one.
        seconds: of each round.
        wrong: elements that differed from the exact result, in two looks on all ranks; None if there is no result.
    """

    who: str
    name: str
    collective: str
    dtype: str
    op: str | None
    root: int | None
    nbytes: int
    count: int
    in_place: bool
    calls: int = 1
    seconds: list[float] = field(default_factory=list)
    wrong: int | None = 0

    def as_json(self, size: int) -> dict[str, Any]:
        """Everything, with what follows from it."""
        bandwidth = algbw(self.nbytes, median(self.seconds))
        return {
            **vars(self),
            "min": min(self.seconds),
            "median": median(self.seconds),
            "max": max(self.seconds),
            "algbw": bandwidth,
            "busbw": bandwidth * bus_factor(self.collective, size),
        }


@dataclass
class Case:
    """A contestant, ready to go."""

    row: Row
    buffers: Buffers
    call: Call


class Clock:
    """Times that are the same on every rank."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        from mpi4py import MPI

        self.comm, self._max = comm, MPI.MAX
        self._mine, self._slowest = np.zeros(1), np.zeros(1)

    def elapsed(self, call: Call, calls: int = 1) -> float:
        """Seconds that the slowest rank needs for a call, of several in a row."""
        self.comm.Barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        self._mine[0] = time.perf_counter() - start
        self.comm.Allreduce(self._mine, self._slowest, self._max)
        return float(self._slowest[0]) / calls


def measure(
    clock: Clock,
    cases: Sequence[Case],
    rounds: int,
    seconds: float,
) -> list[Row]:
    """Warm up, look at the results, measure in rounds, and look again; fills the rows.

    Args:
        rounds: at most so many.
        seconds: after which there are no more rounds, but at least three.
    """
    took = []
    for case in cases:
        look(clock, case)
        took.append(min(clock.elapsed(case.call) for _ in range(2)))
    fastest = min(
        [each for each, case in zip(took, cases) if case.row.wrong is not None],
        default=min(took),
    )
    for each, case in zip(took, cases):
        case.row.calls = how_many(fastest, each)
    begun = time.perf_counter()
    with undisturbed():
        for number in range(rounds):
            first = number % len(cases)
            for case in (*cases[first:], *cases[:first]):
                case.buffers.again(case.row.in_place)
                if case.row.calls > 1:
                    case.call()
                found = clock.elapsed(case.call, case.row.calls)
                case.row.seconds.append(found)
            is_over = time.perf_counter() - begun >= seconds
            if clock.comm.bcast(is_over) and number + 1 >= LEAST_ROUNDS:
                break
    for case in cases:
        look(clock, case)
    return [case.row for case in cases]


def look(clock: Clock, case: Case) -> None:
    """Make one call, and count what is wrong with its result on any rank."""
    case.buffers.ready(case.row.in_place)
    result = case.call()
    if case.row.wrong is not None:
        case.row.wrong += clock.comm.allreduce(case.buffers.task.wrong(result))


def how_many(fastest: float, own: float) -> int:
    """Calls in a row of a sample: such that it is long enough to be timed with the fastest of all.

    Args:
        fastest, own: seconds of a call, of the fastest contestant and of this one.

    >>> how_many(2e-3, 2e-3), how_many(100e-6, 1e-3), how_many(100e-6, 10e-3), how_many(1e-9, 1e-6)
    (1, 10, 2, 50)
    """
    calls = min(MOST_CALLS, round(SAMPLE / max(fastest, 1e-9)))
    return max(1, min(calls, int(LONGEST_SAMPLE / max(own, 1e-9))))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without the garbage collector, and without words on numbers that have grown out of their dtype.

    Calls in place that follow each other reduce what the one before has left.
    """
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        if was_on:
            gc.enable()


def cases_of(
    task: Task,
    ours: Callable[[Buffers, bool], Call],
    mine: Buffers,
    peers: dict[str, Peer],
    theirs: Buffers,
) -> list[Case]:
    """Everybody who can do a task, mpiring first, out of place and in place.

    Args:
        ours: prepares mpiring's call, from the buffers ``mine``.
        theirs: the peers' buffers; may be the same.
    """
    found = [case(OURS, OURS, mine, in_place, ours) for in_place in (False, True)]
    for who, peer in able(peers, task):
        for in_place in (False,) if who == "copy" else (False, True):
            found.append(case(who, peer.name, theirs, in_place, peer.prepare))
    return found


def case(
    who: str,
    name: str,
    buffers: Buffers,
    in_place: bool,
    prepare: Callable[[Buffers, bool], Call],
) -> Case:
    """One contestant."""
    task = buffers.task
    row = Row(
        who,
        name,
        task.collective,
        task.dtype,
        task.op,
        task.root,
        task.nbytes,
        task.count,
        in_place,
        wrong=None if who == "copy" else 0,
    )
    return Case(row, buffers, prepare(buffers, in_place))


def find_slice(clock: Clock, sliced: Sliced, task: Task) -> dict[int, float]:
    """Choose the MPI's best slices, by trying a few lengths on one long buffer; the medians in seconds."""
    buffers = Buffers.ordinary(task)
    buffers.ready(True)
    tried: dict[int, tuple[Call, list[float]]] = {}
    for length in SLICES:
        if length < task.nbytes:
            sliced.slice_bytes = length
            tried[length] = (sliced.prepare(buffers, True), [])
    sliced.slice_bytes = 0
    with undisturbed():
        for _ in range(1 + SLICE_ROUNDS):  # the first warms up
            for call, found in tried.values():
                buffers.again(True)
                found.append(clock.elapsed(call))
    medians = {length: median(found[1:]) for length, (_, found) in tried.items()}
    if medians:
        sliced.slice_bytes = min(medians, key=medians.__getitem__)
    return medians


def ratios(rows: Sequence[Row]) -> dict[tuple[str, bool], float]:
    """How long the others take, measured in mpiring's time: the median over the rounds of the ratio in each.

    The memory copy is compared with both of mpiring's forms.

    Args:
        rows: of one task.
    """
    ours = {row.in_place: row.seconds for row in rows if row.who == OURS}
    found: dict[tuple[str, bool], float] = {}
    for row in rows:
        places = (False, True) if row.who == "copy" else (row.in_place,)
        for place in places if row.who != OURS else ():
            pairs = zip(row.seconds, ours[place])
            found[row.who, place] = median(theirs / mine for theirs, mine in pairs)
    return found
