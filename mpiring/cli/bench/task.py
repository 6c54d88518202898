"""One line of the benchmark: a collective on a buffer of one size, in place or out of place.

Rules: sizes and counts are those of the whole buffer: what a rank puts into a reduce_scatter, what it gets from an
allgather.  Segments are :class:`mpiring.plan.Segments`, for every contestant alike.

====================  =============================  ==================================
collective            out of place                   in place
====================  =============================  ==================================
allreduce             given -> got                   got -> got
reduce_scatter        given -> my segment of got     got -> my segment of it
allgather             my segment of given -> got     my segment of got -> got
broadcast             the root's given -> new array  got, which the root has filled
reduce                given -> the root's got        got -> the root's got
====================  =============================  ==================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mpiring.plan import Segments

from . import inputs
from .inputs import Array, Numbers
from .settings import REDUCING, ROOTED

ROOT = 0

# Makes a call once; gives the result, or None where this rank gets none.
Call = Callable[[], Any]


@dataclass(frozen=True)
class Task:
    """What is to be done, on one rank.

    Attributes:
        collective, dtype, op: op is None where nothing is reduced.
        nbytes: of the whole buffer, in whole elements.
        rank, size: MPI's.
        numbers: what the ranks bring.
    """

    collective: str
    dtype: str
    op: str | None
    nbytes: int
    rank: int
    size: int
    numbers: Numbers

    @property
    def count(self) -> int:
        """Elements of the whole buffer."""
        return self.nbytes // int(self.numbers.dtype.itemsize)

    @property
    def root(self) -> int | None:
        """The root, if the collective has one."""
        return ROOT if self.collective in ROOTED else None

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.rank == self.root

    @cached_property
    def segments(self) -> Segments:
        """How the buffer is cut for the ranks."""
        return Segments(self.count, self.size)

    @property
    def mine(self) -> slice:
        """This rank's segment."""
        return self.segments[self.rank].slice

    def start(self, array: Array, *, is_result_too: bool = False) -> None:
        """Write what this rank brings into a whole buffer.

        Args:
            is_result_too: whatever of it is not input is made wrong.
        """
        mine, brought = self.mine, self.numbers.brought[self.rank]
        if self.collective == "allgather":
            if is_result_too:
                self._each(array, inputs.spoil)
            inputs.fill(array[mine], brought, mine.start)
        elif self.collective == "broadcast" and not self.is_root:
            if is_result_too:
                self._each(array, inputs.spoil)
        else:
            inputs.fill(array, brought)

    def spoil(self, array: Array) -> None:
        """Make a whole buffer wrong, before a result is written into it."""
        self._each(array, inputs.spoil)

    def wrong(self, result: Array | None) -> int:
        """How many elements of this rank's result are wrong; all, if it is not there or of the wrong length."""
        if self.collective == "reduce" and not self.is_root:
            return 0
        expected = self.count
        if self.collective == "reduce_scatter":
            expected = self.segments[self.rank].length
        if result is None or result.shape != (expected,):
            return expected
        if self.collective == "reduce_scatter":
            return inputs.wrong(result, self.numbers.result, self.mine.start)
        return self._each(result, inputs.wrong)

    def _each(self, array: Array, do: Callable[[Array, Array, int], int | None]) -> int:
        """Apply to each piece of a whole result with the pattern it has to have; the sum of what comes back."""
        if self.collective == "allgather":
            return sum(
                do(array[segment.slice], brought, segment.start) or 0
                for segment, brought in zip(self.segments, self.numbers.brought)
            )
        if self.collective == "broadcast":
            return do(array, self.numbers.brought[ROOT], 0) or 0
        return do(array, self.numbers.result, 0) or 0


@dataclass(frozen=True)
class Buffers:
    """A rank's two whole buffers, and which part of them is input and output."""

    task: Task
    given: Array
    got: Array

    @classmethod
    def ordinary(cls, task: Task) -> Buffers:
        """In ordinary memory, touched."""
        new = [np.zeros(task.count, task.numbers.dtype) for _ in range(2)]
        return cls(task, *new)

    def ready(self, in_place: bool) -> None:
        """Make them what they have to be before a call whose result is looked at."""
        if in_place:
            self.task.start(self.got, is_result_too=True)
        else:
            self.task.start(self.given)
            self.task.spoil(self.got)

    def again(self, in_place: bool) -> None:
        """Before calls that are timed: what was reduced in place is input again."""
        if in_place and self.task.collective in REDUCING:
            self.task.start(self.got)

    def source(self, in_place: bool) -> Array:
        """What goes in; for a broadcast the whole buffer, on every rank."""
        whole = self.got if in_place else self.given
        return whole[self.task.mine] if self.task.collective == "allgather" else whole

    @property
    def target(self) -> Array:
        """Where the result goes; for a reduce on every rank."""
        is_part = self.task.collective == "reduce_scatter"
        return self.got[self.task.mine] if is_part else self.got
