"""The process that starts MPI for the doctor: what a rank knows, and what the ranks try together.

Rules: each step is announced before it is taken, so that the command knows where a process ended
that does not come back; no collective call before rank 0 has heard from every rank, so that a
silent rank is named and not waited for.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpiring.device import find_gpus
from mpiring.wire.gpu_aware import decision
from mpiring.wire.gpu_aware.decision import Found, decode, encode
from mpiring.wire.gpu_aware.evidence import find_facts
from mpiring.wire.gpu_aware.loaded import find_library
from mpiring.wire.node.cross_memory import (
    TOKEN_BYTES,
    Reach,
    is_known,
    let_peers_reach,
    try_all,
)
from mpiring.wire.node.unnamed import Backing

from . import machine

if TYPE_CHECKING:
    from mpi4py import MPI

TAG = 0  # this process sends nothing else


@dataclass(frozen=True)
class RankFacts:
    """What one rank knows of itself before it needs the others.

    Attributes:
        transport: what it would tell the others when a ring is made, or why it could not make one.
    """

    host: str
    pid: int
    library: str
    threads: int
    cores: machine.Cores
    shared_memory: machine.SharedMemory | None
    gpus: list[str]
    transport: Found | str


@dataclass(frozen=True)
class NodeFacts:
    """What one rank and the others of its node found out together.

    Attributes:
        group: the ranks of the node, of COMM_WORLD.
        file_seen: whether the file that the first of them made in shared memory is there.
        peer_reach: ``""`` if the others' memory could be read and written, else the error; None if
        not tried.
    """

    group: tuple[int, ...]
    file_seen: bool = True
    peer_reach: str | None = None


def run_child(send: Callable[[str, Any], None], timeout: float) -> None:
    """Start MPI, gather what the ranks know, and send each fact of ``Probe`` by its name."""
    deadline = time.monotonic() + timeout * 0.8
    send("stage", "importing mpi4py.MPI")
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    library = find_library()
    send("library", library)
    send("stage", "MPI_Init_thread")
    threads = MPI.Init_thread(MPI.THREAD_MULTIPLE)
    world = MPI.COMM_WORLD
    send("rank", world.rank)
    send("size", world.size)
    send("stage", "asking the library about CUDA")
    send("facts", find_facts())
    send("stage", "gathering the ranks' answers")
    facts = RankFacts(
        socket.gethostname(),
        os.getpid(),
        library.name,
        LEVELS.index(threads_name(MPI, threads)),
        machine.find_cores(),
        machine.find_shared_memory(),
        find_gpus(),
        find_transport(),
    )
    ranks = gather(world, facts, deadline)
    send("ranks", ranks)
    if world.rank == 0 and len(ranks) < world.size:
        send(
            "stage", "done"
        )  # and no MPI_Finalize, which would wait for the silent ones
        return
    send("stage", "MPI_Comm_split_type")
    node = world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank)
    send("stage", "trying shared memory")
    send("nodes", gather(world, look_around(node, world.rank), deadline))
    node.Free()
    send("stage", "MPI_Finalize")
    MPI.Finalize()
    send("stage", "done")


LEVELS = (
    "MPI_THREAD_SINGLE",
    "MPI_THREAD_FUNNELED",
    "MPI_THREAD_SERIALIZED",
    "MPI_THREAD_MULTIPLE",
)


def threads_name(mpi: Any, level: int) -> str:
    """The name of a thread level; its number differs between MPIs that share nothing else."""
    return next(
        name for name in LEVELS if getattr(mpi, name.removeprefix("MPI_")) == level
    )


def find_transport() -> Found | str:
    """How this rank would have device memory travel."""
    try:
        return decode(encode(decision.gather()))
    except ValueError as error:  # the variable has a wrong value
        return str(error)


def gather(world: MPI.Comm, mine: Any, deadline: float) -> dict[int, Any]:
    """Every rank's value on rank 0, of those that answered in time; empty elsewhere."""
    if world.rank != 0:
        request = world.isend(mine, 0, TAG)
        while not request.test()[0]:
            if time.monotonic() > deadline:
                raise TimeoutError("rank 0 takes no answer")
            time.sleep(0.001)
        return {}
    from mpi4py import MPI

    found = {0: mine}
    while len(found) < world.size and time.monotonic() < deadline:
        status = MPI.Status()
        if world.iprobe(MPI.ANY_SOURCE, TAG, status):
            found[status.Get_source()] = world.recv(None, status.Get_source(), TAG)
        else:
            time.sleep(0.001)
    return dict(sorted(found.items()))


def look_around(node: MPI.Comm, world_rank: int) -> NodeFacts:
    """What the ranks of a node can do with each other's memory."""
    group = tuple(node.allgather(world_rank))
    if len(group) < 2 or sys.platform != "linux":
        return NodeFacts(group)
    with shared_file(node) as seen:
        node.Barrier()
    return NodeFacts(group, seen, reach_peers(node))


@contextmanager
def shared_file(node: MPI.Comm) -> Iterator[bool]:
    """Let the first rank make a file in shared memory, as a ring does; yields whether this rank can open it."""
    backing = None
    if node.rank == 0:
        with suppress(MemoryError):  # reported by find_shared_memory
            backing = Backing.create()
    where = node.bcast(b"" if backing is None else backing.where)
    if node.rank > 0 and where:
        backing = Backing.attach(where)
    try:
        yield backing is not None
    finally:
        if backing is not None:
            backing.close()


def reach_peers(node: MPI.Comm) -> str:
    """Read and write the memory of every other rank, as a ring's ranks try it; ``""`` or the reason why not."""
    token = os.urandom(TOKEN_BYTES)
    box = ctypes.create_string_buffer(token, (1 + node.size) * TOKEN_BYTES)
    peers = node.allgather((os.getpid(), ctypes.addressof(box), token))
    fault = "this system has no process_vm_readv"
    for may_be_traced in (False, True):
        if may_be_traced:
            let_peers_reach()
            node.Barrier()
        if is_known():
            fault = try_all(Reach(), node.rank, peers)
        if not any(node.allgather(fault)):  # and the tokens live until all have tried
            break
    # The ranks in it are the node's, and not the job's.
    reason = fault.partition(": ")[2]
    return reason or (fault and "another process is in a rank's place")


def main(descriptor: int, timeout: float) -> int:
    """The child: all that it learns goes into the pipe as (fact, value)."""
    with open(descriptor, "wb") as pipe:

        def send(fact: str, value: Any) -> None:
            pickle.dump((fact, value), pipe)
            pipe.flush()

        try:
            run_child(send, timeout)
        except Exception as error:  # whatever it is, it is a fact about this MPI
            send("failure", f"{type(error).__name__}: {error}")
            return 1
    return 0
