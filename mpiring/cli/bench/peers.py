"""Whom mpiring is measured against, in the same run: each makes the same result from the same buffers.

===========  ====================================================================================
``mpi``      the MPI's own collective, called once through mpi4py
``sliced``   the same all-reduce as many calls, in slices of the length that is fastest here
``ring``     the MPI's own ring (:mod:`~mpiring.cli.bench.forced`), if it is Open MPI
``lecture``  the lecture's loops (:mod:`~mpiring.cli.bench.lecture`)
``gloo``     PyTorch's collectives on CPUs, if torch is installed
``copy``     no collective: every rank copies the buffer once, all at the same time; the limit
===========  ====================================================================================

Rules: all get buffers in ordinary memory, contiguous and touched, and may prepare whatever they like before the time
counts.  Who cannot do a task is left out, with the reason; nobody is measured at half of it.  Who cannot average or
has no form out of place does what its user would do: divides afterwards, copies before.

NCCL is not here: it knows memory of GPUs only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mpiring.cli.quantities import size_text
from mpiring.plan.segments import pieces
from mpiring.wire.reduce.arithmetic import HALVES

from .inputs import Array
from .lecture import Lecture
from .task import ROOT, Buffers, Call, Task

if TYPE_CHECKING:
    from mpi4py import MPI


class Peer(Protocol):
    """Somebody who can do a task."""

    @property
    def name(self) -> str:
        """For people."""

    def cannot(self, task: Task) -> str:
        """Why it cannot do the task; empty if it can."""

    def prepare(self, buffers: Buffers, in_place: bool) -> Call:
        """The call to be timed."""


def divided(call: Call, result: Array, task: Task) -> Call:
    """The same call; an average is then divided by the number of ranks."""
    if task.op != "avg":
        return call
    divisor = task.numbers.dtype.type(task.size)

    def average() -> Any:
        total = call()
        np.divide(result, divisor, out=result)
        return total

    return average


@dataclass
class Mpi:
    """The MPI's own, in one call.

    Attributes:
        mpi: what it is called.
    """

    comm: MPI.Intracomm
    mpi: str

    @property
    def name(self) -> str:
        """One call."""
        return self.mpi

    def cannot(self, task: Task) -> str:
        if task.op is not None and (task.dtype in HALVES or task.dtype == "bool"):
            return f"MPI does not reduce {task.dtype}"
        return ""

    def prepare(self, buffers: Buffers, in_place: bool) -> Call:
        task, target = buffers.task, buffers.target
        call = getattr(self, f"_{task.collective}")(buffers, in_place)
        if task.collective == "reduce_scatter" and in_place:
            target = buffers.got[: target.size]  # where MPI puts it then
        if task.collective == "reduce" and not task.is_root:
            return call  # type: ignore[no-any-return]
        return divided(call, target, task)

    def op(self, task: Task) -> MPI.Op:
        """MPI's name for the op; of an average for its sum."""
        from mpi4py import MPI

        name = "sum" if task.op == "avg" else str(task.op)
        return getattr(MPI, name.upper())  # type: ignore[no-any-return]

    def _allreduce(self, buffers: Buffers, in_place: bool) -> Call:
        from mpi4py import MPI

        source: Any = MPI.IN_PLACE if in_place else buffers.given
        op, got = self.op(buffers.task), buffers.got

        def call() -> Array:
            self.comm.Allreduce(source, got, op)
            return got

        return call

    def _reduce_scatter(self, buffers: Buffers, in_place: bool) -> Call:
        from mpi4py import MPI

        task = buffers.task
        counts = [segment.length for segment in task.segments]
        op, target = self.op(task), buffers.target
        source: Any = buffers.given
        room = target
        if in_place:
            source, room, target = MPI.IN_PLACE, buffers.got, buffers.got[: target.size]

        def call() -> Array:
            self.comm.Reduce_scatter(source, room, counts, op)
            return target

        return call

    def _reduce(self, buffers: Buffers, in_place: bool) -> Call:
        from mpi4py import MPI

        task = buffers.task
        op, source, room = self.op(task), buffers.source(in_place), None
        if task.is_root:
            room = buffers.got
            source = MPI.IN_PLACE if in_place else source

        def call() -> Array | None:
            self.comm.Reduce(source, room, op, ROOT)
            return room

        return call

    def _allgather(self, buffers: Buffers, in_place: bool) -> Call:
        from mpi4py import MPI

        itemsize = buffers.task.numbers.dtype.itemsize
        lengths = [segment.length * itemsize for segment in buffers.task.segments]
        starts = [segment.start * itemsize for segment in buffers.task.segments]
        got = buffers.got
        source: Any = MPI.IN_PLACE if in_place else buffers.source(False).view(np.uint8)
        room = [got.view(np.uint8), lengths, starts, MPI.BYTE]

        def call() -> Array:
            self.comm.Allgatherv(source, room)
            return got

        return call

    def _broadcast(self, buffers: Buffers, in_place: bool) -> Call:
        task = buffers.task

        def fresh() -> Array:
            whole = buffers.given if task.is_root else np.empty_like(buffers.given)
            self.comm.Bcast(whole.view(np.uint8), ROOT)
            return whole

        def filled() -> Array:
            self.comm.Bcast(buffers.got.view(np.uint8), ROOT)
            return buffers.got

        return filled if in_place else fresh


@dataclass
class Sliced(Mpi):
    """The MPI's all-reduce in slices, which is faster where one call would leave the cache.

    Attributes:
        slice_bytes: how long they are; 0 as long as that is not known.
    """

    slice_bytes: int = 0

    @property
    def name(self) -> str:
        """With the length."""
        return f"{self.mpi}, {size_text(self.slice_bytes)} slices"

    def is_worth_a_try(self, task: Task) -> bool:
        """Whether a task of its kind could be cut."""
        return task.collective == "allreduce" and not super().cannot(task)

    def cannot(self, task: Task) -> str:
        if task.collective != "allreduce":
            return "only an all-reduce is cut"
        if why := super().cannot(task):
            return why
        if not 0 < self.slice_bytes < task.nbytes:
            return "a buffer of one slice is one call"
        return ""

    def _allreduce(self, buffers: Buffers, in_place: bool) -> Call:
        from mpi4py import MPI

        task, got = buffers.task, buffers.got
        cut = [
            piece.slice
            for piece in pieces(
                task.count, max(1, self.slice_bytes // task.numbers.dtype.itemsize)
            )
        ]
        pairs: list[tuple[Any, Array]] = [
            (MPI.IN_PLACE if in_place else buffers.given[part], got[part])
            for part in cut
        ]
        op = self.op(task)

        def call() -> Array:
            for source, room in pairs:
                self.comm.Allreduce(source, room, op)
            return got

        return call


@dataclass
class Copy:
    """The limit: every byte of the buffer is read and written once, by all ranks at the same time."""

    name: str = "memory copy"

    def cannot(self, task: Task) -> str:
        return ""

    def prepare(self, buffers: Buffers, in_place: bool) -> Call:
        return lambda: np.copyto(buffers.got, buffers.given)


Start = Callable[["MPI.Intracomm"], "tuple[Peer | None, str]"]


def find_peers(
    names: tuple[str, ...], comm: MPI.Intracomm, mpi: str, starts: Mapping[str, Start]
) -> tuple[dict[str, Peer], dict[str, str]]:
    """The peers of these names, and why one of them is not here; collective.

    Args:
        mpi: what the MPI is called.
        starts: for those that may be missing what gives them, or None and the reason; collective over ``comm``.
    """
    found: dict[str, Peer] = {}
    missing: dict[str, str] = {}
    for name in names:
        peer, why = (
            starts[name](comm) if name in starts else (_make(name, comm, mpi), "")
        )
        if peer is None:
            missing[name] = why
        else:
            found[name] = peer
    return found, missing


def _make(name: str, comm: MPI.Intracomm, mpi: str) -> Peer:
    match name:
        case "copy":
            return Copy()
        case "lecture":
            return Lecture(comm)
        case "sliced":
            return Sliced(comm, mpi)
    return Mpi(comm, mpi)


def able(peers: dict[str, Peer], task: Task) -> Iterator[tuple[str, Peer]]:
    """Those that can do a task."""
    yield from ((name, peer) for name, peer in peers.items() if not peer.cannot(task))
