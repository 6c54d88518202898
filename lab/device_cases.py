"""What lab/device.py measures: one all-reduce in several ways, and the copies that bound them.

Rules: a case is prepared outside the time, called inside it, and counted wrong outside it.  Every number is an
integer that all the dtypes hold exactly, and so is every sum, so a right result has the right bits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import mpiring
from mpiring.cli.bench.inputs import as_dtype

Array = Any

# Integers up to these are exact.
EXACT = {"float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}

D2D, D2H, H2D = (
    "copy, device to device",
    "copy, device to pinned host",
    "copy, pinned host to device",
)
STAGED, DIRECT = "mpiring, device memory, staged", "mpiring, device memory, direct"
HOST = "mpiring, host memory"
MPI_THROUGH_HOST = "MPI_Allreduce of copies on the host"
NCCL = "NCCL"


class Case(NamedTuple):
    """One way to move a buffer.

    Attributes:
        name: of the way.
        in_place: whether input and output are one buffer.
        prepare: makes the buffers what they have to be before a call.
        call: what is timed; all its work has been asked for when it returns.
        wrong: how many elements of the result are wrong.
    """

    name: str
    in_place: bool
    prepare: Callable[[], object]
    call: Callable[[], object]
    wrong: Callable[[], int]


class Ways(NamedTuple):
    """What there is to move buffers with; None or empty for what this machine has not, with the reason.

    Attributes:
        staged, direct: rings; ``direct`` is None where the MPI does not take device memory.
        nccl: the module and a communicator, or None.
        missing: what is not measured -> why.
    """

    staged: mpiring.Ring
    direct: mpiring.Ring | None
    nccl: tuple[Any, Any] | None
    missing: dict[str, str]


class Buffers:
    """What a rank brings, on the device and on the host, and what has to come out."""

    def __init__(self, cupy: Any, comm: MPI.Intracomm, dtype: str, nbytes: int) -> None:
        self.cupy, self.comm, self.dtype = cupy, comm, dtype
        whole = as_dtype(dtype)
        self.count = nbytes // whole.itemsize
        self.nbytes = self.count * whole.itemsize
        size = comm.size
        pattern = np.arange(min(1021, max(1, EXACT[dtype] // size - size)))
        brought = (pattern + comm.rank).astype(whole)
        total = (pattern * size + size * (size - 1) // 2).astype(whole)
        self.host_mine, self.host_total = (
            np.resize(values, self.count) for values in (brought, total)
        )
        self.mine, self.total = map(cupy.asarray, (self.host_mine, self.host_total))
        self.out = cupy.empty(self.count, whole)
        self.host_out = np.empty_like(self.host_mine)
        self.sent, self.got = (self._pinned() for _ in range(2))
        self.sent[...] = self.host_mine

    def _pinned(self) -> Array:
        memory = self.cupy.cuda.alloc_pinned_memory(max(1, self.nbytes))
        return np.frombuffer(memory, self.host_mine.dtype, self.count)

    def synchronize(self) -> None:
        """Wait for the current stream."""
        self.cupy.cuda.get_current_stream().synchronize()


def different(found: Array, expected: Array) -> int:
    """How many elements differ in any bit."""
    bits = f"u{found.dtype.itemsize}"
    return int((found.view(bits) != expected.view(bits)).sum())


def cases(b: Buffers, ways: Ways) -> Iterator[Case]:
    """Every way there is for these buffers."""
    yield from copies(b)
    for name, ring in ((STAGED, ways.staged), (DIRECT, ways.direct)):
        if ring is not None:
            yield from reductions(name, b.mine, b.out, b.total, ring.allreduce)
    yield from reductions(
        HOST, b.host_mine, b.host_out, b.host_total, ways.staged.allreduce
    )
    if b.dtype == "float32":
        yield from reductions(
            MPI_THROUGH_HOST, b.mine, b.out, b.total, through_the_host(b)
        )
    if ways.nccl is not None:
        yield from reductions(NCCL, b.mine, b.out, b.total, with_nccl(b, *ways.nccl))


def reductions(
    name: str, mine: Array, out: Array, total: Array, allreduce: Callable[..., object]
) -> Iterator[Case]:
    """``allreduce(x, out=out)`` out of place and in place."""

    def clear() -> None:
        out.fill(0)

    def copy() -> None:
        out[...] = mine

    def wrong() -> int:
        return different(out, total)

    yield Case(name, False, clear, lambda: allreduce(mine, out=out), wrong)
    yield Case(name, True, copy, lambda: allreduce(out, out=out), wrong)


def copies(b: Buffers) -> Iterator[Case]:
    """What bounds an all-reduce: each byte is read and written at least once."""

    def stream() -> Any:
        return b.cupy.cuda.get_current_stream()

    def clear() -> None:
        b.out.fill(0)
        b.got.fill(0)

    def wrong() -> int:
        return different(b.out, b.mine)

    yield Case(
        D2D,
        False,
        clear,
        lambda: b.out.data.copy_from_device_async(b.mine.data, b.nbytes, stream()),
        wrong,
    )
    yield Case(
        D2H,
        False,
        clear,
        lambda: b.mine.data.copy_to_host_async(b.got.ctypes.data, b.nbytes, stream()),
        lambda: different(b.got, b.host_mine),
    )
    yield Case(
        H2D,
        False,
        clear,
        lambda: b.out.data.copy_from_host_async(b.sent.ctypes.data, b.nbytes, stream()),
        wrong,
    )


def through_the_host(b: Buffers) -> Callable[..., object]:
    """The MPI's own all-reduce, of pinned copies: what one does without mpiring."""
    taken, summed = b._pinned(), b._pinned()

    def allreduce(x: Array, out: Array) -> None:
        stream = b.cupy.cuda.get_current_stream()
        x.data.copy_to_host_async(taken.ctypes.data, b.nbytes, stream)
        stream.synchronize()
        b.comm.Allreduce(taken, summed)
        out.data.copy_from_host_async(summed.ctypes.data, b.nbytes, stream)

    return allreduce


def with_nccl(b: Buffers, nccl: Any, communicator: Any) -> Callable[..., object]:
    """NCCL's all-reduce, on the current stream."""
    kind = getattr(nccl, f"NCCL_{b.dtype.upper()}")

    def allreduce(x: Array, out: Array) -> None:
        stream = b.cupy.cuda.get_current_stream()
        communicator.allReduce(
            x.data.ptr, out.data.ptr, b.count, kind, nccl.NCCL_SUM, stream.ptr
        )

    return allreduce


def find_nccl(comm: MPI.Intracomm, cards: int) -> tuple[tuple[Any, Any] | None, str]:
    """NCCL with a communicator of all ranks, or why there is none."""
    if cards < comm.size:
        problem = f"it refuses ranks that share a GPU, and {comm.size} ranks share {cards} here"
        return None, problem
    try:
        nccl = importlib.import_module("cupy.cuda.nccl")
        found = bool(nccl.available)
    except ImportError:
        found = False
    if not all(comm.allgather(found)):
        problem = "CuPy finds none here (pip install nvidia-nccl-cu12, or -cu13)"
        return None, problem
    unique = comm.bcast(nccl.get_unique_id() if comm.rank == 0 else None)
    return (nccl, nccl.NcclCommunicator(comm.size, unique, comm.rank)), ""
