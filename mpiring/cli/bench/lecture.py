"""The lecture's two loops, in plain mpi4py: what one writes after *LLM Systems 14*, section 3.1.2.

The C of the lecture, line by line: ``MPI_Irecv``, ``MPI_Send``, ``MPI_Wait`` and an addition in the first loop,
``MPI_Sendrecv`` in the second; nothing is checked, nothing overlaps.  Two things differ: rank r ends with segment r
(the lecture's with r + 1), so that the loops are a reduce_scatter and an allgather of their own, and the buffer for
what arrives is not allocated anew in each call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpiring.plan import Segments

from .inputs import Array
from .task import Buffers, Call, Task

if TYPE_CHECKING:
    from mpi4py import MPI

UFUNCS = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


class Loops:
    """The loops, for buffers cut in one way.

    Args:
        comm: the ranks.
        segments: of the buffer.
        dtype: of its elements.
        op: None for the second loop alone.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        segments: Segments,
        dtype: np.dtype[Any],
        op: str | None,
    ) -> None:
        self.comm, self.segments, self.op = comm, segments, op
        self.buffer = np.zeros(segments.longest if op else 0, dtype)

    def reduce_scatter(self, output: Array) -> None:
        """The first loop: rank r's segment of ``output`` becomes the result, the others something in between."""
        assert self.op is not None
        comm, rank, size = self.comm, self.comm.rank, self.comm.size
        reduce, right, left = UFUNCS[self.op], (rank + 1) % size, (rank - 1) % size
        for i in range(size - 1):
            segment_send = output[self.segments[(rank - i - 1) % size].slice]
            segment_update = output[self.segments[(rank - i - 2) % size].slice]
            buffer = self.buffer[: segment_update.size]
            request = comm.Irecv(buffer.view(np.uint8), left)
            comm.Send(segment_send.view(np.uint8), right)
            request.Wait()
            reduce(segment_update, buffer, out=segment_update)

    def allgather(self, output: Array) -> None:
        """The second loop: from its own segment every rank gets to the whole of ``output``."""
        comm, rank, size = self.comm, self.comm.rank, self.comm.size
        right, left = (rank + 1) % size, (rank - 1) % size
        for i in range(size - 1):
            segment_send = output[self.segments[(rank - i) % size].slice]
            segment_recv = output[self.segments[(rank - i - 1) % size].slice]
            comm.Sendrecv(
                segment_send.view(np.uint8),
                right,
                recvbuf=segment_recv.view(np.uint8),
                source=left,
            )


@dataclass
class Lecture:
    """The loops as a peer."""

    comm: MPI.Intracomm
    name: str = "lecture's loops"

    def cannot(self, task: Task) -> str:
        """Why they cannot do the task; empty if they can."""
        known = ("allreduce", "reduce_scatter", "allgather")
        return "" if task.collective in known else f"it has no {task.collective}"

    def prepare(self, buffers: Buffers, in_place: bool) -> Call:
        """The call to be timed."""
        task, got, mine = buffers.task, buffers.got, buffers.task.mine
        loops = Loops(self.comm, task.segments, task.numbers.dtype, task.op)
        target = got[mine] if task.collective == "reduce_scatter" else got
        # As in the lecture, the input is copied to the output first.
        part = mine if task.collective == "allgather" else slice(None)
        to, given = got[part], buffers.given[part]

        def call() -> Array:
            if not in_place:
                np.copyto(to, given)
            if task.op is not None:
                loops.reduce_scatter(got)
                if task.op == "avg":
                    np.divide(got[mine], task.size, out=got[mine])
            if task.collective != "reduce_scatter":
                loops.allgather(got)
            return target

        return call
