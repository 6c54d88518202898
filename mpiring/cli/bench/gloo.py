"""PyTorch's gloo as a peer: its collectives on the same NumPy buffers, through ``torch.distributed``.

Rules: torch is imported only when gloo is asked for.  The processes find each other by a port of rank 0's, and talk
over the loopback device, so this is for ranks of one host.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from mpiring.wire.settings.packages import install

from .inputs import Array
from .peers import divided
from .task import ROOT, Buffers, Call, Task

if TYPE_CHECKING:
    from mpi4py import MPI

HERE = "127.0.0.1"
LIMIT = timedelta(seconds=300)
DTYPES = ("uint8", "int8", "int32", "int64", "bfloat16", "float16", "float32", "float64")  # fmt: skip
OPS = {"sum": "SUM", "avg": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


def start(comm: MPI.Intracomm) -> tuple[Gloo | None, str]:
    """Gloo on all ranks, or None and the reason; collective."""
    if not all(comm.allgather(importlib.util.find_spec("torch") is not None)):
        return None, f"torch is not installed ({install('torch')})"
    from mpi4py import MPI

    if len(set(comm.allgather(MPI.Get_processor_name()))) > 1:
        return None, "it is measured on one host only"
    import torch
    import torch.distributed

    dist: Any = torch.distributed
    if not dist.is_available() or not dist.is_gloo_available():
        return None, "this torch has no gloo"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // comm.size))
    # Rank 0's store takes a port that is free; the others need its number.
    store = dist.TCPStore(HERE, 0, is_master=True) if comm.rank == 0 else None
    port = comm.bcast(store and store.port)
    store = store or dist.TCPStore(HERE, port, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=LIMIT
    )
    return Gloo(torch, comm, store), ""


class Gloo:
    """Its collectives, in place where they only work in place."""

    name = "gloo"

    def __init__(self, torch: Any, comm: MPI.Intracomm, store: Any) -> None:
        self.torch, self.dist = torch, torch.distributed
        self.comm, self.store = comm, store

    def close(self) -> None:
        """End it; collective."""
        self.comm.Barrier()
        self.dist.destroy_process_group()
        self.comm.Barrier()  # rank 0's store is there for all until here

    def cannot(self, task: Task) -> str:
        """Why it cannot do the task; empty if it can."""
        if task.dtype not in DTYPES:
            return f"it has no {task.dtype}"
        if task.op == "avg" and not task.dtype.endswith(
            ("float16", "float32", "float64")
        ):
            return "it averages floats only"  # fmt: skip
        if task.collective == "reduce_scatter":
            return "it has no reduce_scatter of segments"
        if task.collective == "allgather" and task.count % task.size:
            return "it gathers segments of one length only"
        return ""

    def tensor(self, array: Array) -> Any:
        """The same memory as a tensor."""
        if array.dtype.name == "bfloat16":
            whole = self.torch.from_numpy(array.view(np.int16))
            return whole.view(self.torch.bfloat16)
        return self.torch.from_numpy(array)

    def prepare(self, buffers: Buffers, in_place: bool) -> Call:
        """The call to be timed."""
        task = buffers.task
        form: Callable[[Buffers, bool], Call] = {
            "allreduce": self._allreduce,
            "reduce": self._reduce,
            "broadcast": self._broadcast,
            "allgather": self._allgather,
        }[task.collective]
        call = form(buffers, in_place)
        is_result = task.collective != "reduce" or task.is_root
        return divided(call, buffers.got, task) if is_result else call

    def _op(self, task: Task) -> Any:
        return getattr(self.dist.ReduceOp, OPS[str(task.op)])

    def _allreduce(self, buffers: Buffers, in_place: bool) -> Call:
        given, got = self.tensor(buffers.given), self.tensor(buffers.got)
        op = self._op(buffers.task)

        def call() -> Array:
            if not in_place:
                got.copy_(given)
            self.dist.all_reduce(got, op)
            return buffers.got

        return call

    def _reduce(self, buffers: Buffers, in_place: bool) -> Call:
        given, got = self.tensor(buffers.given), self.tensor(buffers.got)
        op = self._op(buffers.task)

        def call() -> Array:
            if not in_place:
                got.copy_(given)
            self.dist.reduce(got, ROOT, op)
            return buffers.got

        return call

    def _broadcast(self, buffers: Buffers, in_place: bool) -> Call:
        task = buffers.task

        def call() -> Array:
            whole = buffers.got
            if not in_place:
                whole = buffers.given if task.is_root else np.empty_like(buffers.given)
            self.dist.broadcast(self.tensor(whole), ROOT)
            return whole

        return call

    def _allgather(self, buffers: Buffers, in_place: bool) -> Call:
        source = self.tensor(buffers.source(in_place))
        parts = [self.tensor(buffers.got[s.slice]) for s in buffers.task.segments]

        def call() -> Array:
            self.dist.all_gather(parts, source)
            return buffers.got

        return call
