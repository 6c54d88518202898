"""An independent check of what a schedule does: concrete numbers, moved one message at a time.

It shares nothing with ``mpiring.plan.symbolic`` but the types of a step, and it works as an executor
does, in place: a message is copied from the sender's buffer into the receiver's at some moment while
both are in their steps, and *which* message is copied next is the adversary's choice.  So a step that
stores into a segment it also sends gives one answer in one order and another in the next.

A rank's cell of a segment is ``(fingerprint, bits, narrow)``:

* ``fingerprint`` is the sum of ``8**r``, once as it is and once, far to the left, times the segment:
  read in octal it shows who is in it, how often, and of which segment.  Finishing multiplies it by 7 and
  rounding by 11, so it also shows how often that was done;
* ``bits`` go through an operation that neither commutes nor associates, as rounded sums do not: equal
  bits mean the same order of combination;
* ``narrow`` says whether the value survives 16 bits.  A partial is wide (float32).  Who sends a wide
  value as anything but a partial rounds it, and its bits are not those expected.

A message has two widths, not three forms: taking a contribution for a result moves the right bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from mpiring.plan import Action, Form, Step

Cell = tuple[int, int, bool]
Programs = Sequence[Sequence[Step]]

_MODULUS = (1 << 61) - 1


class Wrong(Exception):
    """The schedule did not do what its collective promises."""


def combine(left: Cell, right: Cell) -> Cell:
    """The reduction: order and brackets show in the bits, and partials are wide."""
    bits = (left[1] * 31 + right[1] * 1_000_003 + 17) % _MODULUS
    return left[0] + right[0], bits, False


def finish(value: Cell) -> Cell:
    """Division and rounding: twice is not the same as once."""
    return value[0] * 7, (value[1] * 7 + 5) % _MODULUS, True


def narrowed(value: Cell) -> Cell:
    """What arrives of a value that was sent in 16 bits."""
    return value if value[2] else (value[0] * 11, value[1] ^ 0x5A5A, True)


def fingerprint(ranks: Iterable[int], segment: int) -> int:
    # 1 << 3 * n is 8**n.
    return sum(1 << 3 * rank for rank in ranks) * (1 + (segment << 3 * 40))


def contribution(rank: int, segment: int) -> Cell:
    return fingerprint([rank], segment), (rank + 2) * 1_000_000_007 + segment, True


def garbage(rank: int, segment: int) -> Cell:
    """What memory holds that nobody has written to."""
    return -(10**30) - 100 * rank - segment, 999 + 100 * rank + segment, True


class Promise:
    """What a collective starts from and must end with, as plain numbers."""

    def __init__(
        self,
        collective: str,
        size: int,
        segments: int,
        order: str | None = None,
        offset: int = 0,
        root: int | None = None,
    ) -> None:
        self.collective, self.size, self.segments = collective, size, segments
        self.order, self.offset, self.root = order, offset, root
        ranks, places = range(size), range(segments)
        moves = collective in ("allgather", "broadcast")
        self.start: list[list[Cell]] = [
            [
                contribution(r, s) if self._brings(r, s) else garbage(r, s)
                for s in places
            ]
            for r in ranks
        ]
        self.checked = [(r, s) for r in ranks for s in places if self._wants(r, s)]
        self.wanted: list[Cell | None] = []
        for s in places:
            if moves:
                source = (s - offset) % size if root is None else root
                self.wanted.append(contribution(source, s))
            elif order is None:
                self.wanted.append(None)
            else:
                home = (s - offset) % size if root is None else root
                first = home + 1 if order == "ring" else 0
                chain = [contribution((first + i) % size, s) for i in ranks]
                total = chain[0]
                for value in chain[1:]:
                    total = combine(total, value)
                self.wanted.append(finish(total))

    def _brings(self, rank: int, segment: int) -> bool:
        if self.collective == "allgather":
            return (rank + self.offset) % self.size == segment
        return self.collective != "broadcast" or rank == self.root

    def _wants(self, rank: int, segment: int) -> bool:
        if self.collective == "reduce_scatter":
            return (rank + self.offset) % self.size == segment
        return self.collective != "reduce" or rank == self.root

    def check(self, memory: Sequence[Sequence[Cell]]) -> None:
        """Compare the end with the promise.  Without a stated order all ranks must agree on the bits."""
        found = list(self.wanted)
        for rank, segment in self.checked:
            value = memory[rank][segment]
            expected = found[segment]
            if expected is None:
                if value[0] != 7 * fingerprint(range(self.size), segment):
                    raise Wrong(f"rank {rank} segment {segment}: {oct(value[0])}")
                found[segment] = value
            elif value[:2] != expected[:2]:
                raise Wrong(
                    f"rank {rank} segment {segment}: {oct(value[0])}, not {oct(expected[0])}, "
                    "or in another order"
                )


def promise_of(schedule) -> Promise:
    return Promise(
        schedule.collective,
        schedule.size,
        schedule.segments,
        schedule.order,
        schedule.offset,
        schedule.root,
    )


class Simulation:
    """One run: who is in which step, what is posted, what can be copied next."""

    def __init__(self, promise: Promise, programs: Programs, eager: bool) -> None:
        self.size, self.segments = promise.size, promise.segments
        self.programs, self.eager = programs, eager
        self.memory = [list(row) for row in promise.start]
        self.place = [-1] * self.size
        self.open = [
            0
        ] * self.size  # transfers of the present step that are not through
        self.inbox: list[list[Cell | None]] = [[] for _ in range(self.size)]
        # (source, dest) -> what is posted and has not met its other half
        self.sends: dict[tuple[int, int], list[tuple[int, bool, Cell | None]]] = {}
        self.receives: dict[tuple[int, int], list[tuple[int, bool, bool, int]]] = {}
        # Copies that may be made now: source, dest, segment sent, segment received, wide, store,
        # place in the inbox, the value if it left early.
        self.ready: list[tuple[int, int, int, int, bool, bool, int, Cell | None]] = []
        for rank in range(self.size):
            self.go_on(rank)

    def go_on(self, rank: int) -> None:
        """Post steps of a rank until one has something to wait for."""
        program, size, segments = self.programs[rank], self.size, self.segments
        while True:
            if self.place[rank] >= 0:
                self.end_step(rank, program[self.place[rank]])
            self.place[rank] += 1
            if self.place[rank] == len(program):
                return
            sends, receives, _ = program[self.place[rank]]
            self.inbox[rank] = [None] * len(receives)
            self.open[rank] = len(receives) + (0 if self.eager else len(sends))
            for index, (peer, segment, action, form) in enumerate(receives):
                if not (0 <= peer < size and 0 <= segment < segments):
                    raise Wrong("no such rank or segment")
                item = (segment, form is Form.PARTIAL, action is Action.STORE, index)
                self.receives.setdefault((peer, rank), []).append(item)
                self.meet(peer, rank)
            for peer, segment, form in sends:
                if not (0 <= peer < size and 0 <= segment < segments):
                    raise Wrong("no such rank or segment")
                wide = form is Form.PARTIAL
                value = self.read(rank, segment, wide) if self.eager else None
                self.sends.setdefault((rank, peer), []).append((segment, wide, value))
                self.meet(rank, peer)
            if self.open[rank]:
                return

    def read(self, rank: int, segment: int, wide: bool) -> Cell:
        value = self.memory[rank][segment]
        return value if wide else narrowed(value)

    def meet(self, source: int, dest: int) -> None:
        """Pair the first send with the first receive: messages do not overtake."""
        sends = self.sends.get((source, dest))
        receives = self.receives.get((source, dest))
        if not sends or not receives:
            return
        sent, wide, value = sends.pop(0)
        segment, expected, store, index = receives.pop(0)
        if wide is not expected:
            raise Wrong("the message has another width than its receive")
        self.ready.append((source, dest, sent, segment, wide, store, index, value))

    def copy(self, choice: int) -> None:
        """Let one message through."""
        source, dest, sent, segment, wide, store, index, value = self.ready.pop(choice)
        if value is None:
            value = self.read(source, sent, wide)
            self.open[source] -= 1
        self.open[dest] -= 1
        if store:
            self.memory[dest][segment] = value
        else:
            self.inbox[dest][index] = value
        if not self.open[dest]:
            self.go_on(dest)
        if not self.eager and source != dest and not self.open[source]:
            self.go_on(source)

    def end_step(self, rank: int, step: Step) -> None:
        """Combine what came to be reduced, each segment from the left; then finish."""
        if not step.finishes and all(value is None for value in self.inbox[rank]):
            return
        memory = self.memory[rank]
        arrived: dict[int, tuple[list[Cell], list[Cell]]] = {}
        for receive, value in zip(step.receives, self.inbox[rank]):
            if value is not None:
                sides = arrived.setdefault(receive.segment, ([], []))
                sides[receive.action is Action.REDUCE_AFTER].append(value)
        for segment, (before, after) in arrived.items():
            operands = [*before, memory[segment], *after]
            total = operands[0]
            for operand in operands[1:]:
                total = combine(total, operand)
            memory[segment] = total
        for segment in step.finishes:
            if not 0 <= segment < self.segments:
                raise Wrong("no such segment")
            memory[segment] = finish(memory[segment])

    def check_ended(self) -> None:
        for rank, program in enumerate(self.programs):
            if self.place[rank] < len(program):
                raise Wrong(f"rank {rank} waits in its step {self.place[rank]}")


def _first(count: int) -> int:
    return 0


def _last(count: int) -> int:
    return count - 1


def simulate(promise: Promise, programs: Programs, choose, eager: bool = False):
    """Run once; ``choose(n)`` picks which of n possible messages goes through next.

    Raises:
        Wrong: for a deadlock, a wrong width or a result that is not as promised.
    """
    run = Simulation(promise, programs, eager)
    while run.ready:
        run.copy(choose(len(run.ready)))
    run.check_ended()
    promise.check(run.memory)


def orders(seeds: Iterable[int]) -> Iterator[tuple]:
    """Progress orders: first come first served, last come first served, eager, and random ones."""
    yield _first, False
    yield _last, False
    yield _first, True
    for seed in seeds:
        yield random.Random(seed).randrange, False


def is_right(
    promise: Promise, programs: Programs, seeds: Iterable[int] = (1, 2)
) -> bool:
    """Whether the programs keep the promise under all of these orders."""
    try:
        for choose, eager in orders(seeds):
            simulate(promise, programs, choose, eager)
    except Wrong:
        return False
    return True


def is_right_in_every_order(promise: Promise, programs: Programs) -> bool:
    """The same for *all* orders of a rendezvous run: for tiny cases."""
    return count_orders(promise, programs) > 0


def count_orders(promise: Promise, programs: Programs, limit: int = 20_000) -> int:
    """How many different situations all orders lead through; 0 if one of them ends wrong."""
    seen: set[tuple] = set()
    todo: list[tuple[int, ...]] = [()]
    while todo:
        path = todo.pop()
        try:
            run = Simulation(promise, programs, eager=False)
            for choice in path:
                run.copy(choice)
            key = (
                tuple(run.place),
                tuple(sorted(run.ready)),
                str(run.memory),
                str(run.inbox),
            )
            if key in seen:
                continue
            seen.add(key)
            assert len(seen) <= limit, "not a tiny case"
            if not run.ready:
                run.check_ended()
                promise.check(run.memory)
        except Wrong:
            return 0
        todo += [(*path, choice) for choice in range(len(run.ready))]
    return len(seen)
