"""Ranks on several hosts: combined inside a host, messages between hosts, in the same order as everywhere.

The ranks of one host read each other's inputs where they lie, and store results to each other; between hosts
segments travel.  Each host holds consecutive ranks, as many as it likes.

What a rank brings
    In an ordinary schedule a rank brings its own input to a segment.  Here one rank of a host brings the inputs of
    several, *consecutive members of the chain*, and folds them one after another onto what has come: the bits are
    those of a ring in which each of them had its turn.  :class:`HostSchedule` says who brings what.

Following one segment, in the ring's order
    Its chain is ``x[s+1], x[s+2], ..., x[s]``, and hosts hold consecutive ranks, so that it visits each host once,
    but for the home's: if ``s`` is not the last rank there, the chain begins on that host with ``s + 1`` and comes
    back for the others.  Six ranks on hosts of three and three, segment 1:

    >>> [(visit.rank, visit.inputs) for visit in visits((3, 3), "ring", 1)]
    [(2, (2,)), (4, (3, 4, 5)), (1, (0, 1))]

    That is H or H - 1 messages for H hosts, where the ring of all K ranks has K - 1, and no more of them between
    hosts.  Then the result goes around the hosts, to one rank of each, its *keeper*, who stores it to all.

Who does it
    On its home's host the home; on another the rank whose place among the host's is the segment's number, modulo
    their count; the beginning of a chain that comes back is for its first rank, which is no keeper of it.  So each
    rank has as much to do as the others of its host.

In place
    An output may be the input of the same rank, and is written by other ranks of the host.  Nobody needs to look
    whether it is still read: a result has all inputs in it, so each of them was read before, and who holds the
    result has heard so by a chain of messages.  What a rank writes before there is a result, and what it lets a
    message fill, lies in its own output, in segments it keeps, of which it alone reads its own input; all else in
    scratch.  :func:`verify_hosts` checks what this needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple, NoReturn

from ..errors import ScheduleError
from .schedules import Action, Form, Receive, Schedule, Send, Step, combination
from .verify import Proof, verify

Hosts = tuple[int, ...]  # how many ranks each host has


class Visit(NamedTuple):
    """A segment on a host: ``rank`` folds the ``inputs`` of these ranks, in order, onto what has come."""

    rank: int
    inputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class HostSchedule(Schedule):
    """A schedule whose ranks bring inputs of others, and store results to others, of their host.

    Args:
        hosts: how many ranks each host has.
        reads: the ranks whose inputs a rank brings to a segment, in order; none if it is no part of its chain.
    """

    hosts: Hosts = ()
    reads: Callable[[int, int], tuple[int, ...]] | None = None

    @property
    def fuses(self) -> bool:
        """Whether a rank may bring inputs of others."""
        return True

    def inputs(self, rank: int, segment: int) -> tuple[int, ...]:
        """The ranks whose inputs ``rank`` brings to a segment."""
        assert self.reads is not None
        return self.reads(rank, segment)

    def results(self, rank: int) -> Sequence[int]:
        """The segments whose result ``rank`` has to hold: of an all-reduce those that it stores to all of its host."""
        if self.collective != "allreduce":
            return super().results(rank)
        host = host_of(self.hosts, rank)
        segments = range(self.segments)
        return [s for s in segments if keeper(self.hosts, s, host) == rank]

    def _promise(self) -> tuple[object, ...]:
        return (*super()._promise(), self.hosts)


def ranks_of_hosts(hosts: Hosts) -> list[range]:
    """The ranks of each host.

    >>> ranks_of_hosts((2, 3))
    [range(0, 2), range(2, 5)]
    """
    return [range(stop - count, stop) for count, stop in zip(hosts, accumulate(hosts))]


@lru_cache(maxsize=4096)
def host_of(hosts: Hosts, rank: int) -> int:
    """The host that a rank is on."""
    stops = accumulate(hosts)
    return next(host for host, stop in enumerate(stops) if rank < stop)


@lru_cache(maxsize=4096)
def keeper(hosts: Hosts, segment: int, host: int) -> int:
    """The rank of a host that keeps a segment's result there, and stores it to all.

    >>> [keeper((2, 3), segment, 1) for segment in range(5)]
    [2, 3, 2, 3, 4]
    """
    ranks = ranks_of_hosts(hosts)[host]
    return segment if segment in ranks else ranks[segment % len(ranks)]


@lru_cache(maxsize=4096)
def visits(hosts: Hosts, order: str, segment: int) -> tuple[Visit, ...]:
    """How a segment is combined: host after host, in the order of its chain.

    Args:
        hosts: how many ranks each has, 1 or more.
        order: ``"ring"`` or ``"rank"``.
        segment: its number, which is its home's.
    """
    chain = combination(order, segment, sum(hosts))
    parts = [
        (host, tuple(ranks)) for host, ranks in groupby(chain, partial(host_of, hosts))
    ]
    comes_back = len(parts) > len(hosts)
    return tuple(
        Visit(
            ranks[0] if number == 0 and comes_back else keeper(hosts, segment, host),
            ranks,
        )
        for number, (host, ranks) in enumerate(parts)
    )


def hosts_reduce_scatter(hosts: Hosts, order: str = "ring") -> HostSchedule:
    """Each segment along its chain to its home: at most ``len(hosts)`` exchanges.

    >>> for step in hosts_reduce_scatter((2, 2)).steps(0):
    ...     print([s.segment for s in step.sends], [r.segment for r in step.receives], step.finishes)
    [] [2] ()
    [2] [0] (0,)

    Args:
        hosts: how many ranks each has, 1 or more.
        order: the order of combination, ``"ring"`` or ``"rank"``.
    """
    return _schedule("reduce_scatter", hosts, order)


def hosts_allreduce(hosts: Hosts, order: str = "ring") -> HostSchedule:
    """Each segment along its chain, then its result to a rank of every host: at most ``2 len(hosts) - 1`` exchanges.

    >>> verify_hosts(hosts_allreduce((2, 2)), count=400).sent      # the ring of all four: 600 each
    (200, 300, 200, 300)

    Args:
        hosts: how many ranks each has, 1 or more.
        order: the order of combination, ``"ring"`` or ``"rank"``.
    """
    return _schedule("allreduce", hosts, order)


def verify_hosts(schedule: HostSchedule, count: int | None = None) -> Proof:
    """Prove a schedule between hosts: what :func:`~mpiring.plan.verify.verify` does, and what shared memory asks for.

    * a rank reads the inputs of its own host's ranks only, and of each segment every input is read by one rank, once;
    * on each host every result of an all-reduce has one keeper, who stores it to all;
    * who keeps a result reads its own input of it, so that nobody else does.

    Raises:
        ScheduleError, DeadlockError: as ``verify`` does.
    """
    if sum(schedule.hosts) != schedule.size or min(schedule.hosts) < 1:
        raise ScheduleError(
            f"{schedule.algorithm} {schedule.collective}: hosts of {schedule.hosts} ranks for {schedule.size} ranks"
        )
    for host, ranks in enumerate(ranks_of_hosts(schedule.hosts)):
        kept = sorted(s for rank in ranks for s in schedule.results(rank))
        if schedule.collective == "allreduce" and kept != [*range(schedule.segments)]:
            raise ScheduleError(
                f"{schedule.algorithm} {schedule.collective}: the ranks of host {host} keep the results {kept}, "
                "which is not each of them once"
            )
        _check_reads(schedule, ranks)
    return verify(schedule, count)


def _check_reads(schedule: HostSchedule, ranks: range) -> None:
    """Check who reads what on one host: all that is there, once, and nobody what another may write over."""
    stores = schedule.collective == "allreduce"
    kept = {rank: set(schedule.results(rank) if stores else ()) for rank in ranks}
    for segment in range(schedule.segments):
        readers: dict[int, int] = {}  # of each input
        for rank in ranks:
            read = schedule.inputs(rank, segment)
            for other in read:
                if other not in ranks:
                    _refuse(schedule, rank, segment, other, "which is on another host")
                if readers.setdefault(other, rank) != rank or read.count(other) > 1:
                    _refuse(schedule, rank, segment, other, "which is read already")
        for other, rank in readers.items():
            if segment in kept[other] and rank != other:
                why = "who keeps the result and may write over it"
                _refuse(schedule, rank, segment, other, why)


def _refuse(
    schedule: HostSchedule, rank: int, segment: int, other: int, why: str
) -> NoReturn:
    raise ScheduleError(
        f"{schedule.algorithm} {schedule.collective}: rank {rank} reads, of segment {segment}, the input of rank "
        f"{other}, {why}",
        rank=rank,
        segment=segment,
    )


class _Move(NamedTuple):
    """A message; those of one ``time`` are one exchange."""

    time: int
    source: int
    dest: int
    form: Form
    action: Action


def _schedule(collective: str, hosts: Hosts, order: str) -> HostSchedule:
    def reads(rank: int, segment: int) -> tuple[int, ...]:
        found = (v.inputs for v in visits(hosts, order, segment) if v.rank == rank)
        return next(found, ())

    return HostSchedule(
        collective,
        "hierarchical",
        sum(hosts),
        lambda rank: _steps(collective, hosts, order, rank),
        order,
        hosts=hosts,
        reads=reads,
    )


def _steps(collective: str, hosts: Hosts, order: str, rank: int) -> Iterator[Step]:
    """The steps of one rank: of all segments what it sends and receives at a time."""
    last_turn = len(hosts) - 1  # when every chain ends
    sends: dict[int, list[Send]] = {}
    receives: dict[int, list[Receive]] = {}
    finishes: list[int] = []
    for segment in range(sum(hosts)):
        for time, source, dest, form, action in _moves(
            collective, hosts, order, segment
        ):
            if source == rank:
                sends.setdefault(time, []).append(Send(dest, segment, form))
            elif dest == rank:
                receive = Receive(source, segment, action, form)
                receives.setdefault(time, []).append(receive)
        if visits(hosts, order, segment)[-1].rank == rank:
            finishes.append(segment)
    for time in range(2 * len(hosts)):
        step = Step(
            tuple(sends.get(time, ())),
            tuple(receives.get(time, ())),
            tuple(finishes) if time == last_turn else (),
        )
        if step.is_exchange or step.finishes:
            yield step


def _moves(collective: str, hosts: Hosts, order: str, segment: int) -> Iterator[_Move]:
    """The messages of one segment: along its chain, and then around the hosts or to its home."""
    chain = visits(hosts, order, segment)
    begin = len(hosts) - len(chain) + 1  # all chains end at one time
    is_one = len(chain[0].inputs) == 1
    for number, (one, other) in enumerate(pairwise(chain)):
        as_it_is = is_one and number == 0  # an input travels no wider than it is
        form = Form.CONTRIBUTION if as_it_is else Form.PARTIAL
        yield _Move(begin + number, one.rank, other.rank, form, Action.REDUCE)
    holder = chain[-1].rank
    path = [holder, segment] if holder != segment else [holder]
    if collective == "allreduce":
        first = host_of(hosts, holder)
        order_of_hosts = [(first + i) % len(hosts) for i in range(len(hosts))]
        path = [keeper(hosts, segment, host) for host in order_of_hosts]
    for number, (source, dest) in enumerate(pairwise(path)):
        time = len(hosts) + number
        yield _Move(time, source, dest, Form.RESULT, Action.STORE)
