"""All-reduces of NumPy arrays that the ring has seen before: the same call, with little Python around it.

An all-reduce of a few bytes takes MPI a microsecond, and Python easily forty: to look at the arguments, to choose a
path, to write down what was asked for.  All that depends on dtype, shape, op, order and algorithm alone, so it is
done when a ring meets them for the first time, and kept.  What is left of a call is the opening exchange, and

* of a small array (:mod:`mpiring.wire.collectives.small`), which rides in it, one pass over what has come;
* of an array of ``ring.empty`` (:mod:`mpiring.wire.node.fused`), one pass over all ranks' arrays, and the closing
  exchange;
* of another array of ranks on one node, what it takes through stages (:mod:`mpiring.wire.node.staged`) or the peers'
  memory (:mod:`mpiring.wire.node.peers`), once these are there.

Rules:

* the messages are those of the ordinary call: another rank may make that, or any other one;
* whatever is not usual is the ordinary call's: an array of another kind, memory that is not flat, an ``out`` that
  overlaps, a failure, ranks that bring different things, a processor that flushes denormal numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import NUMPY
from ..arrays.host import is_plain
from ..arrays.mapped import Place
from ..arrays.operands import operand
from ..node import fused, peers, staged
from ..node.shared import place_of
from ..node.stages import TURNS, turn_after
from ..opening.agree import Heard, Summary
from ..opening.calls import Call, at_address, facts_of, told
from ..opening.rehearsed import Rehearsed
from ..reduce import arithmetic
from ..reduce.arithmetic import Array
from ..transport.position import Position
from ..transport.protocol import Program
from . import small
from .reductions import Collectives

_MOST = 256  # calls that are kept


class Repeated:
    """The all-reduces that one rank has made.

    Args:
        member: makes the ordinary calls.
    """

    def __init__(self, member: Collectives) -> None:
        self._member = member
        self._is_alone = member.transport.size == 1
        self._seen: dict[Any, _Seen] = {}

    def allreduce(
        self, x: Any, op: Any, out: Any, order: Any, algorithm: Any, position: Position
    ) -> Program[Array] | None:
        """The program of :meth:`Collectives.allreduce`, if the call is of the usual kind; else None."""
        if not is_plain(x, out):
            return None
        member, ways = self._member, self._member.ways
        way: type[_Seen]
        place, nbytes = None, x.nbytes
        is_auto = isinstance(algorithm, str) and algorithm == "auto"
        if self._is_alone:
            way = _Alone
        elif is_auto and nbytes <= member.small_bytes:
            way = _Riding
        elif is_auto and ways.are_staged(nbytes):
            way = _Staged
        elif is_auto and nbytes >= ways.least_bytes:
            way = _Reaching
        else:
            way = _Shared
        if out is not None and x.base is not None and way not in _WITHOUT_PLACES:
            place = (
                None if is_auto and ways.are_one_shot(nbytes) else place_of(NUMPY, x)
            )
            if place is not None:
                way = _Shared
        if way is _Shared and place is None:
            return None
        try:
            key = (x.dtype, x.shape, op, order, algorithm, way)
            seen = self._seen.get(key)
        except Exception:  # an argument without a hash is a wrong one
            return None
        if seen is None:
            if arithmetic.flushes():  # what is said then is not kept
                return None
            if len(self._seen) >= _MOST:
                self._seen.clear()
            seen = self._seen[key] = way(member, x, op, order, algorithm)
        if not seen.is_usual:
            return None
        return seen.program(x, out, place, position)


class _Seen(ABC):
    """What depends on dtype, shape, op, order and algorithm alone.

    Attributes:
        is_usual: whether such a call can be made with little around it.
    """

    def __init__(
        self, member: Collectives, x: Array, op: Any, order: Any, algorithm: Any
    ) -> None:
        self._member = member
        self._op, self._order, self._algorithm = op, order, algorithm
        self._rank, self._size = member.transport.rank, member.transport.size
        self._shape, self._dtype, self._count = x.shape, x.dtype, x.size
        self.is_usual = False
        call = Call("allreduce")
        with call.local():
            source = operand(x)
            self._name = source.dtype
            member.path(call, source, op, order, algorithm)
            self._text = call.text()
            # What goes by memory needs a call that looks for some.
            way = type(self)
            is_free = call.is_free if way in _WITHOUT_PLACES else call.may_share
            is_alike = is_free and x.dtype.isnative
            self.is_usual = is_alike and self._learn(x)
        call.failure = None  # its traceback would hold this call, and with it the ring

    @abstractmethod
    def _learn(self, x: Array) -> bool:
        """Prepare for calls like this one; whether that is possible."""

    @abstractmethod
    def program(
        self, x: Array, out: Array | None, place: Place | None, position: Position
    ) -> Program[Array]:
        """The collective, as :meth:`Collectives.allreduce` does it."""

    def _telling(self, facts: bytes) -> Rehearsed:
        """The opening exchange in which all say such facts."""
        return self._rehearsed(facts[:1], len(facts) - 1)

    def _rehearsed(self, begin: bytes, length: int) -> Rehearsed:
        opening = self._member.opening
        return Rehearsed(opening, self._rank, self._text, begin, length)

    def _result(self, out: Array | None) -> Array | None:
        """The result's array, taken before anybody is told that this rank takes part.

        None if there is no memory: the ordinary call finds that out once more, and tells all ranks of it.
        """
        try:
            return NUMPY.empty(self._shape, self._dtype) if out is None else out
        except MemoryError:
            return None

    def _ordinary(
        self,
        x: Array,
        out: Array | None,
        position: Position,
        heard: Heard | None = None,
    ) -> Program[Array]:
        """The ordinary call; after the opening exchange, if that has been heard."""
        op, order, algorithm = self._op, self._order, self._algorithm
        return self._member.allreduce(x, op, out, order, algorithm, position, heard)


class _Riding(_Seen):
    """Small arrays, which ride in the opening exchange."""

    def _learn(self, x: Array) -> bool:
        combine = small.combination_of(
            self._op, self._order, self._name, self._count, self._size
        )
        if combine is None:
            return False
        self._combine = combine
        self._opening = self._rehearsed(told(), x.nbytes)
        self._xs = [np.frombuffer(said, x.dtype) for said in self._opening.said]
        self._mine = self._xs[self._rank].reshape(x.shape)
        return True

    def program(
        self, x: Array, out: Array | None, place: Place | None, position: Position
    ) -> Program[Array]:
        result = self._result(out)
        if result is None or arithmetic.flushes():
            return (yield from self._ordinary(x, out, position))
        self._mine[...] = x
        heard = yield from self._opening.exchange()
        if heard is None:
            flat = result if result.ndim == 1 else result.reshape(-1)
            self._combine(self._xs, flat)
            return result
        return (yield from self._ordinary(x, result, position, heard))


class _Alone(_Seen):
    """Arrays of a ring of one rank, which are the result, unless they are rounded to it."""

    def _learn(self, x: Array) -> bool:
        return arithmetic.accumulator(self._op, self._name) == self._name

    def program(
        self, x: Array, out: Array | None, place: Place | None, position: Position
    ) -> Program[Array]:
        result = self._result(out)
        if result is None or arithmetic.flushes():
            return (yield from self._ordinary(x, out, position))
        result[...] = x
        return result


# What needs to know nothing of the others' memory.
_WITHOUT_PLACES = (_Alone, _Riding)


class _Shared(_Seen):
    """Arrays of ``ring.empty``, with an ``out`` of it, too."""

    def _learn(self, x: Array) -> bool:
        self._fold: Callable[..., None] | None = None
        place = place_of(NUMPY, x)
        self._opening = self._telling(told(places=(place, place)))
        return True

    def program(
        self, x: Array, out: Array | None, place: Place | None, position: Position
    ) -> Program[Array]:
        assert out is not None
        there = place if out is x else place_of(NUMPY, out)
        facts, said = told(places=(place, there)), self._opening.said
        is_elsewhere = len(facts) != 1 + len(said[0])  # an out of other memory
        if is_elsewhere or arithmetic.flushes():
            return (yield from self._ordinary(x, out, position))
        said[self._rank][:] = facts[1:]
        heard = yield from self._opening.exchange()
        if heard is None:
            payloads = [facts[:1] + one for one in said]
            xs, outs = zip(*[facts_of(payload).places for payload in payloads])
            if fused.are_shared(xs, outs):
                position.phase = "node-shared allreduce"
                self._combine(xs, outs)
                yield from self._member.closing.exchange(position)
                return out
            heard = Summary((0, self._text)), payloads
        return (yield from self._ordinary(x, out, position, heard))

    def _combine(self, xs: fused.Places, outs: fused.Places) -> None:
        if self._fold is None:
            self._fold = fused.allreduce_of(
                self._rank, self._op, self._order, self._count, self._name, xs, outs
            )
        self._fold(xs, outs)


class _Staged(_Seen):
    """Ordinary arrays of ranks on one node that go through stages."""

    def _learn(self, x: Array) -> bool:
        self._opening = self._telling(told(brings=True))
        self._steps: list[list[staged.Step]] = []  # for each turn
        return True

    def program(
        self, x: Array, out: Array | None, place: Place | None, position: Position
    ) -> Program[Array]:
        member, closing = self._member, self._member.closing
        stages = member.ways.stages
        result = self._result(out) if stages.are_made else None
        if result is None or arithmetic.flushes():
            return (yield from self._ordinary(x, out, position))
        flat, target = x.reshape(-1), result.reshape(-1)
        if not self._steps:
            plan = stages.plan(self._rank, self._count, self._dtype)
            how = self._rank, self._op, self._order, flat, target
            self._steps = [staged.steps_of(plan, turn, *how) for turn in TURNS]
        steps = self._steps[turn_after(member.opening.count)]
        for part, room in steps[0].brought:
            room[...] = flat[part]
        heard = yield from self._opening.exchange()
        if heard is not None:
            return (yield from self._ordinary(x, result, position, heard))
        yield from staged.run(steps, NUMPY, flat, target, closing, position)
        return result


class _Reaching(_Seen):
    """Ordinary arrays of ranks on one node that go by the peers' memory."""

    def _learn(self, x: Array) -> bool:
        nowhere = at_address(0)
        self._opening = self._telling(told(addresses=(nowhere, nowhere)))
        return not self._member.ways.peer_memory.why_not

    def program(
        self, x: Array, out: Array | None, place: Place | None, position: Position
    ) -> Program[Array]:
        member, rank, ways = self._member, self._rank, self._member.ways
        result = self._result(out) if ways.peer_memory.has_tried else None
        if result is None or arithmetic.flushes():
            return (yield from self._ordinary(x, out, position))
        flat, target = x.reshape(-1), result.reshape(-1)
        rooms = ways.rooms(NUMPY, self._dtype)
        here, there = map(at_address, map(NUMPY.pointer, (x, result)))
        facts = told(addresses=(here, there))
        said = self._opening.said
        said[rank][:] = facts[1:]
        heard = yield from self._opening.exchange()
        if heard is not None:
            return (yield from self._ordinary(x, result, position, heard))
        position.phase = "allreduce in the peers' memory"
        addresses = [facts_of(facts[:1] + one).addresses for one in said]
        xs, outs = ([place for place in places if place] for places in zip(*addresses))
        memory, op, order = ways.peer_memory, self._op, self._order
        how = peers.Reduction(memory, rank, NUMPY, op, order, rooms)
        peers.allreduce(how, flat, target, xs, outs)
        yield from member.closing.exchange(position)
        return result
