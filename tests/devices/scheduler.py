"""What a device has been asked to do and has not done: operations, their order, and who chooses it.

Every operation (kernel, copy, event, wait) is a :class:`Node` that names the operations it comes after.  A stream is a
:class:`Line`: the last node of it, after which the next one comes.  All that CUDA promises about order is in these
arrows:

* what one line is given runs in that order;
* a wait for an event comes after what the event recorded, and the line's later operations come after the wait;
* an operation of the legacy null line comes after all earlier ones of the blocking lines of its device, and these
  lines' later operations come after it; non-blocking lines know nothing of the null line.

A node whose predecessors are done is *runnable*.  What is open, ``choose(n) -> 0 .. n-1`` decides:

* where the host waits (:meth:`Queue.finish`) nodes run until those waited for are done: which runnable node is next is
  a question whose first options are the needed ones;
* where the host asks (:meth:`Queue.poll`) nothing happens, or one needed node runs, or all of them: never nothing more
  than ``PATIENCE`` times in a row, so a loop that polls ends;
* where the host does anything else (:meth:`Queue.moment`) nothing happens, or one node runs, or all do: a device need
  not wait to be asked.  ``spontaneous=False`` leaves this out.

The option 0 is always the laziest, the last one the most eager.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from random import Random

import numpy as np

Choose = Callable[[int], int]  # n -> one of 0 .. n-1

PATIENCE = 2


def lazy(options: int) -> int:
    """Work is done when it is waited for, and no sooner."""
    return 0


def eager(options: int) -> int:
    """Work is done as soon as it is there; of several streams, the last one's first."""
    return options - 1


def seeded(seed: int) -> Choose:
    """Random answers, the same ones for the same seed, in moods: lazy, eager or mixed for a while each.

    Few programs go wrong in every mood.  The seed says which is the first: with an even one it is lazy, with 1, 5, 9...
    eager, with 3, 7, 11... mixed.
    """
    random = Random(seed)
    mood, left = seed % 4, 60

    def choose(options: int) -> int:
        nonlocal mood, left
        if not left:
            mood, left = random.randrange(4), random.randrange(5, 60)
        left -= 1
        if mood == 1:
            return options - 1
        return random.randrange(options) if mood == 3 else 0

    return choose


class Node:
    """One operation: what it does, what it comes after, what comes after it."""

    __slots__ = ("action", "name", "before", "after", "missing", "done")

    def __init__(self, action, name, before):
        self.action = action
        self.name = name
        self.before = before
        self.after = []
        self.missing = len(before)
        self.done = False

    def __repr__(self):
        return f"<{self.name}, {'done' if self.done else 'queued'}>"


class Queue:
    """All operations of a machine.

    Attributes:
        counts: how many operations of each name were queued, and how often the host waited and asked.
        history: the names of the operations done, in the order in which they were done.
    """

    def __init__(self, choose: Choose, spontaneous: bool = True) -> None:
        self.lock = threading.RLock()
        self.counts: Counter[str] = Counter()
        self.history: list[str] = []
        self._choose = choose
        self._spontaneous = spontaneous
        self._runnable: dict[Node, None] = {}  # in the order in which they became it
        self._idle = 0

    def choose(self, options: int) -> int:
        """An answer to an open question."""
        if options < 2:
            return 0
        answer = self._choose(options)
        assert 0 <= answer < options
        return answer

    def add(self, action: Callable[[], object] | None, name: str, after) -> Node:
        """Queue an operation, to be done after those in ``after``."""
        with self.lock:
            before = {node for node in after if node is not None and not node.done}
            node = Node(action, name, before)
            for other in before:
                other.after.append(node)
            if not before:
                self._runnable[node] = None
            self.counts[name] += 1
            return node

    def moment(self) -> None:
        """The host does something that the device has nothing to do with."""
        with self.lock:
            if self._spontaneous and self._runnable:
                how_much = self.choose(3)
                if how_much == 1:
                    self._run(self._pick(()))
                while how_much == 2 and self._runnable:
                    self._run(self._pick(()))

    def finish(self, nodes: Iterable[Node]) -> None:
        """The host waits for these."""
        with self.lock:
            targets = [node for node in nodes if node is not None and not node.done]
            needed = _with_all_before(targets)
            while not all(node.done for node in targets):
                self._run(self._pick(needed))

    def poll(self, nodes: Iterable[Node]) -> bool:
        """The host asks whether these are done."""
        with self.lock:
            targets = [node for node in nodes if node is not None and not node.done]
            if not targets:
                return True
            how_much = self.choose(3) if self._idle < PATIENCE else 1
            self._idle = 0 if how_much else self._idle + 1
            if how_much == 1:
                needed = _with_all_before(targets)
                while not self._run(self._pick(needed)) in needed:
                    pass
            elif how_much == 2:
                self.finish(targets)
            return all(node.done for node in targets)

    def _pick(self, needed) -> Node:
        options = sorted(self._runnable, key=lambda node: node not in needed)
        return options[self.choose(len(options))]

    def _run(self, node: Node) -> Node:
        del self._runnable[node]
        if node.action is not None:
            with np.errstate(all="ignore"):
                node.action()
        node.done = True
        self.history.append(node.name)
        for other in node.after:
            other.before.discard(node)
            other.missing -= 1
            if not other.missing:
                self._runnable[other] = None
        node.action, node.after = None, []
        return node


def _with_all_before(nodes) -> set[Node]:
    found: set[Node] = set()
    to_do = list(nodes)
    while to_do:
        node = to_do.pop()
        if node not in found:
            found.add(node)
            to_do.extend(node.before)
    return found


class Card:
    """The lines of one device."""

    def __init__(self, queue: Queue, number: int) -> None:
        self.queue = queue
        self.number = number
        self.null = Line(self, 0, blocking=True)
        self.blocking: list[Line] = []  # without the null line
        self.free: list[Line] = []

    def line(self, blocking: bool) -> Line:
        line = Line(self, next(_handles), blocking)
        with self.queue.lock:
            lines = self.blocking if blocking else self.free
            # What a dropped stream was given is still done, and still waited for by the null line.
            lines[:] = [old for old in lines if old.alive or not old.is_done]
            lines.append(line)
        return line

    @property
    def last(self) -> list[Node]:
        """What the whole device has to do before it is done."""
        lines = [self.null, *self.blocking, *self.free]
        return [line.tail for line in lines if line.tail is not None]


_handles = count(0x5EED0010, 16)  # never used twice, never that of another machine


class Line:
    """Operations one after the other: what a stream handle stands for."""

    def __init__(self, card: Card, ptr: int, blocking: bool) -> None:
        self.card = card
        self.ptr = ptr
        self.blocking = blocking
        self.alive = True
        self.tail: Node | None = None

    @property
    def is_null(self) -> bool:
        return self is self.card.null

    @property
    def is_done(self) -> bool:
        return self.tail is None or self.tail.done

    @property
    def last(self) -> list[Node]:
        """What has to be done before all that this line was given is done."""
        lines = [self, *self.card.blocking] if self.is_null else [self]
        return [line.tail for line in lines if line.tail is not None]

    def add(self, action: Callable[[], object] | None, name: str, *after: Node) -> Node:
        """Queue an operation on this line, to be done after those in ``after`` too."""
        queue = self.card.queue
        with queue.lock:
            before = [*self.last, *after]
            if self.blocking and self.card.null.tail is not None:
                before.append(self.card.null.tail)
            self.tail = queue.add(action, name, before)
            queue.moment()
            return self.tail
