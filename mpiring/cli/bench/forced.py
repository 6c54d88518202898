"""The ring of Open MPI as a peer: a communicator on which its all-reduce is that ring, whatever it would choose itself.

Theory: which algorithm Open MPI takes is said by variables of its component ``tuned``.  They are usually set for a
whole job, from outside; but a communicator reads them when it is made, and MPI's tool interface (``MPI_T``, chapter 15
of the standard) may write them before.  So they are written, a communicator is made, and they are put back: it alone
has the ring.  mpi4py has no ``MPI_T``, so the library is asked through ctypes.

MPICH and Intel MPI are left out: of them no such way is known here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mpiring.wire.gpu_aware.loaded import Library, find_library

from .peers import Mpi
from .task import Task

if TYPE_CHECKING:
    from mpi4py import MPI

RING = 4  # in the list of coll_tuned_allreduce_algorithm
# What has to be so while the communicator is made: the component counts, before all others, and listens.
VARIABLES = (
    ("coll_tuned_priority", ctypes.c_int, 100),
    ("coll_tuned_use_dynamic_rules", ctypes.c_bool, True),
    ("coll_tuned_allreduce_algorithm", ctypes.c_int, RING),
)


class Forced(Mpi):
    """The MPI's ring."""

    @property
    def name(self) -> str:
        """Which it is."""
        return f"{self.mpi}, its ring"

    def cannot(self, task: Task) -> str:
        """Why it cannot do the task; empty if it can."""
        if task.collective != "allreduce":
            return "it is an all-reduce"
        return super().cannot(task)


def start(comm: MPI.Intracomm) -> tuple[Forced | None, str]:
    """The peer, or None and the reason; collective."""
    library = find_library()
    if library.family != "Open MPI" or not library.paths:
        return (
            None,
            "only of Open MPI a way is known to have it on one communicator alone",
        )
    tool = load(library)
    known = tool is not None and all(find(tool, name) for name, _, _ in VARIABLES)
    if not all(comm.allgather(known)):
        return None, f"this {library.name} has not the variables that choose it"
    with written(tool):
        ring = comm.Dup()
    return Forced(ring, library.family), ""


def load(library: Library) -> Any:
    """The library with its tool interface started; None if it has none."""
    loaded = ctypes.CDLL(library.paths[0])
    level = ctypes.c_int()
    if not hasattr(loaded, "MPI_T_init_thread"):
        return None
    failed = loaded.MPI_T_init_thread(0, ctypes.byref(level))
    return None if failed else loaded


def find(tool: Any, name: str) -> ctypes.c_void_p | None:
    """A handle of a variable that is bound to no object."""
    index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    if tool.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)):
        return None
    failed = tool.MPI_T_cvar_handle_alloc(
        index, None, ctypes.byref(handle), ctypes.byref(count)
    )
    return None if failed or count.value != 1 else handle


@contextmanager
def written(tool: Any) -> Iterator[None]:
    """With the variables as they have to be; afterwards they are as before."""
    before = []
    for name, kind, value in VARIABLES:
        handle, now, wanted = find(tool, name), kind(), kind(value)
        tool.MPI_T_cvar_read(handle, ctypes.byref(now))
        tool.MPI_T_cvar_write(handle, ctypes.byref(wanted))
        before.append((handle, now))
    try:
        yield
    finally:
        for handle, now in before:
            tool.MPI_T_cvar_write(handle, ctypes.byref(now))
