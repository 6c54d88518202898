"""The measuring: for each setting its candidates, on the same tasks, each choice on top of those before it.

There are two kinds of contest.  A *length* (of chunks, of pieces, a window) is tried by rings that differ in it.  A
*limit* says up to which size one way is taken and above it another one: both ways are measured at each size, and from
that it is known what any limit would take (:func:`mpiring.cli.tune.choice.by_limit`).

Rules: every contestant's first and last result is looked at; a candidate that is hopeless when it warms up
(``HOPELESS`` times as long as the fastest) is measured no further; all decisions depend on times that are the same on
every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from mpiring.cli.bench import ours
from mpiring.cli.bench.inputs import Numbers
from mpiring.cli.bench.measure import OURS, Case, Clock, case, measure
from mpiring.cli.bench.settings import sizes
from mpiring.cli.bench.task import Buffers, Task
from mpiring.wire.collectives import small
from mpiring.wire.settings.tuning import DEFAULTS, MOST_SMALL_BYTES, NODE, Tuning

from .choice import Times, by_limit, choose, stays
from .rings import Rings
from .settings import LEAST_BYTES, STEP, Settings

if TYPE_CHECKING:
    from mpi4py import MPI

DTYPE, OP = "float32", "sum"
HOPELESS = 2.5
LONGEST_CALL = 0.25  # seconds, after which no longer buffers are measured
MOST_RANKS_DIRECT = 8  # of a broadcast whose root talks to every rank


class Load(NamedTuple):
    """What a task is, apart from its contestants."""

    collective: str
    nbytes: int


class Way(NamedTuple):
    """How a contestant does a task."""

    tuning: Tuning
    algorithm: str


@dataclass
class Outcome:
    """What came out for one setting.

    Attributes:
        setting: its name.
        loads: the tasks.
        times: of each candidate.
        hopeless: instead, for each of those that were, the task at which they were and how many times as long as the
            fastest they took.
        default, chosen: of the candidates.
        ways: of a limit, the two ways and what they took, as ``times``; empty for a length.
        note: why nothing was measured.
    """

    setting: str
    default: int
    chosen: int
    loads: Sequence[Load] = ()
    times: Times = field(default_factory=dict)
    ways: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    hopeless: Mapping[int, tuple[Load, float]] = field(default_factory=dict)
    note: str = ""


class Contests:
    """The contests of a run, on one rank.

    Args:
        comm: the job's ranks.
        rings: over them.
        settings: what is tried, and how long.

    Attributes:
        advance: called with the number of tasks that were done.
        tuning: what is chosen so far.
        wrong: elements of results that were wrong, on all ranks.
        long_sizes: of the buffers on which lengths are tried, in bytes.
    """

    def __init__(self, comm: MPI.Intracomm, rings: Rings, settings: Settings) -> None:
        self._comm, self._rings, self._settings = comm, rings, settings
        self._clock = Clock(comm)
        self.advance: Callable[[int], object] = lambda tasks: None
        self.tuning = self.default = DEFAULTS[rings.wire]
        self.wrong = 0
        self._numbers = {op: Numbers(op, DTYPE, comm.size) for op in (OP, None)}
        self.long_sizes = self._find_long_sizes()

    @property
    def tasks(self) -> int:
        """How many tasks there will be, if nothing is left out."""
        few = len(self._direct_loads()) + len(self._small_loads())
        few += len(self._staged_loads())
        return 4 * len(self.long_sizes) + few + len(self._common_loads())

    # ---- lengths ------------------------------------------------------------------------------------

    def chunks(self) -> Outcome:
        """Of segments: how long chunks are."""
        lengths = self._lengths(self._longest_segment)
        return self._length("chunk_bytes", lengths, [("allreduce", "ring")])

    def window(self) -> Outcome:
        """Of chunks: how many are on their way."""
        if self.tuning.chunk_bytes >= self._longest_segment:
            self.advance(len(self.long_sizes))
            default = self.default.window
            return Outcome("window", default, default, note="segments move as a whole")
        return self._length("window", self._settings.windows, [("allreduce", "ring")])

    def pieces(self) -> Outcome:
        """Of what goes down a chain: how long pieces are."""
        lengths = self._lengths(self.long_sizes[-1])
        chains = [("broadcast", "pipelined"), ("reduce", "ring")]
        return self._length("piece_bytes", lengths, chains)

    def _length(
        self, setting: str, values: Sequence[int], chains: Sequence[tuple[str, str]]
    ) -> Outcome:
        default = int(getattr(self.default, setting))
        left = {*values, default}
        loads: list[Load] = []
        found: list[dict[int, list[float]]] = []
        hopeless: dict[int, tuple[Load, float]] = {}
        for collective, algorithm in chains:
            for nbytes in self.long_sizes:
                load = Load(collective, nbytes)
                cases = self._cases(
                    load,
                    {
                        value: Way(replace(self.tuning, **{setting: value}), algorithm)
                        for value in sorted(left)
                    },
                )
                for value, ratio in self._warmed_up(cases).items():
                    if ratio > HOPELESS and value != default:
                        hopeless[value] = load, ratio
                        left.remove(value)
                        del cases[value]
                loads.append(load)
                found.append(self._measured(cases))
        times = {value: [each[value] for each in found] for value in sorted(left)}
        chosen = choose(times, default)
        self.tuning = replace(self.tuning, **{setting: chosen})
        self._rings.forget()
        return Outcome(setting, default, chosen, loads, times, hopeless=hopeless)

    @property
    def _longest_segment(self) -> int:
        return -(-self.long_sizes[-1] // self._comm.size)

    def _lengths(self, longest: int) -> list[int]:
        """Those of the lengths that cut, and the whole."""
        *parts, whole = self._settings.lengths
        return [length for length in parts if length < longest] + [whole]

    # ---- limits -------------------------------------------------------------------------------------

    def direct(self) -> Outcome:
        """Up to which size the direct schedule is taken."""
        ways = {
            "allreduce": {"direct": Way(self.tuning, "direct"), "ring": Way(self.tuning, "ring")},
            "broadcast": {"direct": Way(self.tuning, "direct"), "chain": Way(self.tuning, "pipelined")},
        }  # fmt: skip
        return self._limit("direct_bytes", self._direct_loads(), ways)

    def small(self) -> Outcome:
        """Up to which size arrays ride in the opening exchange."""
        riding = replace(self.tuning, small_bytes=MOST_SMALL_BYTES)
        others = replace(self.tuning, small_bytes=0)
        ways = {
            "allreduce": {"riding": Way(riding, "auto"), "not": Way(others, "auto")}
        }
        return self._limit("small_bytes", self._small_loads(), ways)

    def staged(self) -> Outcome:
        """Up to which size arrays go through stages."""
        loads, default = self._staged_loads(), self.default.staged_bytes
        if not loads:
            why = "ranks of several hosts have none"
            return Outcome("staged_bytes", default, default, note=why)
        most = loads[-1].nbytes
        staged = Way(replace(self.tuning, staged_bytes=most), "auto")
        reached = Way(replace(self.tuning, staged_bytes=0), "auto")
        ways = {"allreduce": {"stages": staged, "peers": reached}}
        return self._limit("staged_bytes", loads, ways)

    def _direct_loads(self) -> list[Load]:
        sizes, most = self._settings.direct_sizes, self.long_sizes[-1]
        tried = limits(sizes, self.default.direct_bytes, most)
        is_few = self._comm.size <= MOST_RANKS_DIRECT
        collectives = ("allreduce", "broadcast") if is_few else ("allreduce",)
        return [Load(each, nbytes) for each in collectives for nbytes in tried]

    def _small_loads(self) -> list[Load]:
        most = small.most_bytes(MOST_SMALL_BYTES, self._comm.size)
        tried = limits(self._settings.small_sizes, self.default.small_bytes, most)
        return [Load("allreduce", nbytes) for nbytes in tried]

    def _staged_loads(self) -> list[Load]:
        if self._rings.wire != NODE:
            return []
        most = self.long_sizes[-1]
        tried = limits(self._settings.staged_sizes, self.default.staged_bytes, most)
        return [Load("allreduce", nbytes) for nbytes in tried]

    def _limit(
        self,
        setting: str,
        loads: Sequence[Load],
        ways: Mapping[str, Mapping[str, Way]],
    ) -> Outcome:
        default = int(getattr(self.default, setting))
        tried = sorted({load.nbytes for load in loads})
        # What the default is, as far as it was measured.
        as_default = max((each for each in tried if each <= default), default=0)
        up_to: list[list[float]] = []
        above: list[list[float]] = []
        for load in loads:
            both = ways[load.collective]
            found = self._measured(self._cases(load, dict(enumerate(both.values()))))
            up_to.append(found[0])
            above.append(found[1])
        times = by_limit([load.nbytes for load in loads], up_to, above)
        chosen = choose(times, as_default)
        if chosen != as_default:
            self.tuning = replace(self.tuning, **{setting: chosen})
        self._rings.forget()
        names = [" or ".join(dict.fromkeys(pair)) for pair in zip(*ways.values())]
        measured = dict(zip(names, (up_to, above)))
        return Outcome(setting, as_default, chosen, loads, times, measured)

    # ---- all together -------------------------------------------------------------------------------

    def together(self) -> Outcome | None:
        """What is chosen against the defaults, as a user calls; None if there is no difference."""
        if self.tuning == self.default:
            return None
        loads = self._common_loads()
        ways = {0: Way(self.default, "auto"), 1: Way(self.tuning, "auto")}
        found = [self._measured(self._cases(load, ways)) for load in loads]
        times = {which: [each[which] for each in found] for which in ways}
        chosen = stays(times, 0, 1)
        if not chosen:
            self.tuning = self.default
        return Outcome("all", 0, int(chosen), loads, times)

    def _common_loads(self) -> list[Load]:
        reductions = (1 << 10, 16 << 10, *self.long_sizes)
        loads = [Load("allreduce", nbytes) for nbytes in reductions]
        return [*loads, Load("broadcast", self.long_sizes[-1])]

    # ---- measuring ----------------------------------------------------------------------------------

    def _cases(self, load: Load, ways: Mapping[int, Way]) -> dict[int, Case]:
        """The contestants for a task, on the same buffers."""
        buffers = self._buffers(load)
        return {
            key: case(
                OURS,
                str(key),
                buffers,
                True,
                ours.prepare(self._rings.ring(way.tuning), way.algorithm),
            )
            for key, way in ways.items()
        }

    def _warmed_up(self, cases: Mapping[int, Case]) -> dict[int, float]:
        """How many times as long as the fastest each takes, in the better of two calls."""
        took: dict[int, float] = {}
        for _ in range(2):
            for key, each in cases.items():
                each.buffers.again(True)
                seconds = self._clock.elapsed(each.call)
                took[key] = min(seconds, took.get(key, seconds))
        least = min(took.values())
        return {key: seconds / least for key, seconds in took.items()}

    def _measured(self, cases: Mapping[int, Case]) -> dict[int, list[float]]:
        """The seconds of each contestant in each round."""
        kept, settings = list(cases.values()), self._settings
        rows = measure(self._clock, kept, settings.rounds, settings.seconds)
        self.wrong += sum(row.wrong or 0 for row in rows)
        self.advance(1)
        return {key: row.seconds for key, row in zip(cases, rows)}

    def _find_long_sizes(self) -> list[int]:
        """The longest sizes whose calls are short enough to be made many times."""
        ring = self._rings.ring(self.default)
        found: list[int] = []
        for nbytes in sizes(LEAST_BYTES, self._settings.most_bytes, STEP):
            buffers = self._buffers(Load("allreduce", nbytes))
            buffers.ready(True)
            call = ours.prepare(ring, "ring")(buffers, True)
            self._clock.elapsed(call)
            if found and self._clock.elapsed(call) > LONGEST_CALL:
                break
            found.append(nbytes)
        return found[-self._settings.long_sizes :]

    def _buffers(self, load: Load) -> Buffers:
        op = None if load.collective == "broadcast" else OP
        rank, size = self._comm.rank, self._comm.size
        numbers = self._numbers[op]
        return Buffers.ordinary(
            Task(load.collective, DTYPE, op, load.nbytes, rank, size, numbers)
        )


def limits(tried: Sequence[int], default: int, most: int) -> list[int]:
    """The sizes at which the ways of a limit are measured: the default is among them, if it can be.

    >>> limits([4, 64], 16, 100), limits([4, 64], 16, 15)
    ([4, 16, 64], [4])
    """
    return sorted(nbytes for nbytes in {*tried, default} if nbytes <= most)
