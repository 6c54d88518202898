"""Small all-reduces of NumPy arrays that the ring has seen before: the same call, with little Python around it.

An all-reduce of a few bytes takes MPI a microsecond, and Python easily forty: to look at the arguments, to choose a
path, to write down what was asked for.  All that depends on dtype, shape, op, order and algorithm alone, so it is
done when a ring meets them for the first time, and kept.  What is left of a call is the opening exchange, in which
the arrays ride (:mod:`mpiring.wire.small`), and one pass over what has come.

Rules:

* the messages are those of the ordinary call: another rank may make that, or any other one;
* whatever is not usual is the ordinary call's: an array of another kind, memory that is not flat, an ``out`` that
  overlaps, a failure, a rank that cannot bring its bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import small
from .arithmetic import Array
from .arrays import NUMPY
from .arrays.host import is_plain
from .calls import Call
from .collectives import Collectives
from .execute import Position
from .operands import operand
from .rehearsed import Rehearsed
from .transport import Program

_MOST = 256  # calls that are kept


class Repeated:
    """The small all-reduces that one rank has made.

    Args:
        member: makes the ordinary calls.
    """

    def __init__(self, member: Collectives) -> None:
        self._member = member
        self._seen: dict[Any, _Seen] = {}

    def allreduce(
        self, x: Any, op: Any, out: Any, order: Any, algorithm: Any, position: Position
    ) -> Program[Array] | None:
        """The program of :meth:`Collectives.allreduce`, if the call is of the usual kind; else None."""
        if algorithm != "auto" or not is_plain(x, out):
            return None
        try:
            key = (x.dtype, x.shape, op, order)
            seen = self._seen.get(key)
        except TypeError:  # an argument without a hash is a wrong one
            return None
        if seen is None:
            if not self._may_learn(x):
                return None
            seen = _Seen(self._member, x, op, order)
            if len(self._seen) >= _MOST:
                self._seen.clear()
            self._seen[key] = seen
        return seen.program(x, out, position) if seen.is_usual else None

    def _may_learn(self, x: Array) -> bool:
        return bool(x.nbytes <= self._member.small_bytes and x.dtype.isnative)


class _Seen:
    """What depends on dtype, shape, op and order alone.

    Attributes:
        is_usual: whether such a call can be made with little around it.
    """

    def __init__(self, member: Collectives, x: Array, op: Any, order: Any) -> None:
        self._member = member
        self._op, self._order = op, order
        self._shape, self._dtype = x.shape, x.dtype
        self.is_usual = False
        call = Call("allreduce")
        with call.local():
            source = operand(x)
            member.path(call, source, op, order, "auto")
            rank, size = member.transport.rank, member.transport.size
            combine = small.combination_of(op, order, source.dtype, x.size, size)
            if combine is not None:
                self._opening = Rehearsed(
                    member.opening, rank, call.text(), _NO_FACTS, x.nbytes
                )
                self._xs = [np.frombuffer(said, x.dtype) for said in self._opening.said]
                self._mine = self._xs[rank].reshape(x.shape)
                self._combine = combine
                self.is_usual = True
        call.failure = None  # its traceback would hold this call, and with it the ring

    def program(
        self, x: Array, out: Array | None, position: Position
    ) -> Program[Array]:
        """The collective, as :meth:`Collectives.allreduce` does it."""
        # Taken before anybody is told that this rank takes part.
        result = NUMPY.empty(self._shape, self._dtype) if out is None else out
        self._mine[...] = x
        heard = yield from self._opening.exchange()
        if heard is None:
            self._combine(self._xs, result.reshape(-1))
            return result
        result = yield from self._member.allreduce(
            x, self._op, out, self._order, "auto", position, heard
        )
        return result


# A payload that says nothing of memory: see mpiring.wire.calls.with_facts.
_NO_FACTS = b"\0"
