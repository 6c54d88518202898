"""Which GPU is this process's: its rank among those of its node, and the choice that follows from it.

Rules: CUDA is never started here, nor is MPI; no array library is imported.  A GPU is known by its device file.

Theory
    CUDA reads ``CUDA_VISIBLE_DEVICES`` once, when it starts in a process, so the choice has to come before that.  What
    starts it is the first array on a device, and also ``MPI_Init`` of an MPI that takes device memory: best choose
    before MPI starts as well.  Until then the rank within the node is known from the launcher, which tells each process
    by a variable.  What another launcher has left in the environment does not count, as far as that can be seen: in the
    ancestors of this process (:mod:`mpiring.wire.settings.launchers`), else, when MPI has started, in whose MPI it
    is.  It stays that number when MPI has started, though MPI may count otherwise: Open MPI 5 numbers the processes of
    a node by where it has placed them, and not by their ranks.

    ``/proc/driver/nvidia`` would tell of GPUs too, but in a container it shows the host's.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import RingError
from .wire.gpu_aware.loaded import VERSION_TEXTS, recognise
from .wire.settings.launchers import (
    FLUX,
    HYDRA,
    MVAPICH,
    OPEN_MPI,
    PALS,
    SRUN,
    can_start,
    find_ancestors,
    nearest,
)

if TYPE_CHECKING:
    from mpi4py import MPI

VISIBLE = "CUDA_VISIBLE_DEVICES"

# The variables that tell the rank within the node, and the launchers that set them.  Of those that belong to the
# launcher of this process the first that is set counts: under Slurm, PBS or LSF an mpirun starts its own processes,
# which see the variables of both.
LOCAL_RANKS = {
    "OMPI_COMM_WORLD_LOCAL_RANK": (OPEN_MPI,),
    "MV2_COMM_WORLD_LOCAL_RANK": (MVAPICH, HYDRA, SRUN),
    "MPI_LOCALRANKID": (HYDRA,),  # MPICH's and Intel MPI's
    "PALS_LOCAL_RANKID": (PALS,),
    "PMI_LOCAL_RANK": (PALS, SRUN),  # Cray's PMI
    "JSM_NAMESPACE_LOCAL_RANK": ("IBM's jsrun",),
    "FLUX_TASK_LOCAL_ID": (FLUX,),
    "SLURM_LOCALID": (SRUN,),
}
# A batch script has SLURM_LOCALID too, and hands it to whatever it starts; only in a step does it count.
SLURM_STEPS = ("SLURM_STEP_ID", "SLURM_STEPID")
# Variables that show a process to be one of several.
RANKS = ("PMI_RANK", "PMIX_RANK")

CUDA_NAMES = ("libcuda.so.1", "libcuda.so", "libcuda.dylib")
# Results of the driver while it has not been started: not initialised, and a stub of it.
NOT_STARTED = (3, 34)


def local_rank(comm: MPI.Intracomm | None = None) -> int:
    """This process's number among those of its node, from 0.

    Where the launcher says nothing, MPI is asked about all ranks of the job, if it has started; a process that was
    started alone is number 0.

    Args:
        comm: ``None``: among all of the job, as the launcher has numbered them; the same before and after MPI starts.
            A communicator: among its ranks, in their order; MPI is asked, so it has to be started and the call is
            collective over ``comm``.

    Raises:
        ValueError: ``comm`` is an inter-communicator or no communicator at all.
        RingError: MPI is not started and ``comm`` is given; or the process is one of several, and its launcher is none
            of those whose variables are known.
    """
    module = _started_mpi()
    launcher = nearest(find_ancestors())
    if comm is None:
        family = "" if module is None else _family(module)
        rank = find_local_rank(os.environ, launcher, family)
        if rank is not None:
            return rank
    if module is not None:
        return _ask_mpi(module, module.COMM_WORLD if comm is None else comm)
    if comm is not None:
        raise RingError(
            "local_rank: comm is given, but MPI is not started; leave comm out, or start MPI first"
        )
    known = [variable for variable in RANKS if variable in os.environ]
    if known:
        raise RingError(
            f"local_rank: a launcher has set {known[0]}={os.environ[known[0]]}, but none of"
            f" {', '.join(variables_of(launcher))}; start MPI first (from mpi4py import MPI), then it is asked"
        )
    return 0


def choose_device(comm: MPI.Intracomm | None = None) -> str | None:
    """Give this process one of the GPUs that it sees, its own one if there are enough; before CUDA starts.

    Sets ``CUDA_VISIBLE_DEVICES`` of this process to number :func:`local_rank`, modulo their number, of the GPUs listed
    there; where the variable is not set, of those whose device files this process may open.  The GPU is then device 0
    to CuPy, torch and JAX.  Call it first thing in a program: importing array libraries before is fine, using them
    is not.

    Args:
        comm: as :func:`local_rank` takes it.

    Returns:
        What was chosen, such as ``"2"`` or the UUID of a GPU or MIG instance; ``None`` if no GPU is visible, and then
        nothing was set.

    Raises:
        RingError: CUDA has started in this process already, so that a choice would come too late.
        ValueError, RingError: as :func:`local_rank`.
    """
    rank = local_rank(comm)
    devices = visible_devices(os.environ.get(VISIBLE), len(find_openable()))
    if not devices:
        return None
    chosen = devices[rank % len(devices)]
    if len(devices) > 1 and is_cuda_started():
        raise RingError(
            f"choose_device: local rank {rank} is to take GPU {chosen} of {', '.join(devices)}, but CUDA has started in"
            f" this process and reads {VISIBLE} no more; call choose_device before the first array on a GPU, and before"
            " MPI starts, as an MPI that takes device memory starts CUDA"
        )
    os.environ[VISIBLE] = chosen
    return chosen


def variables_of(launcher: str, family: str = "") -> list[str]:
    """Those of ``LOCAL_RANKS`` that this launcher sets, or, if it is not known (""), that launchers of that MPI do."""
    return [
        variable
        for variable, launchers in LOCAL_RANKS.items()
        if launcher in launchers
        or not launcher
        and any(can_start(each, family) for each in launchers)
    ]


def find_local_rank(
    environment: Mapping[str, str], launcher: str = "", family: str = ""
) -> int | None:
    """The rank within the node as the launcher says; None if it says nothing, or there is none.

    Args:
        environment: this process's.
        launcher: what started it, "" if that is not known.
        family: of the MPI that has started, "" if none has.
    """
    for variable in variables_of(launcher, family):
        value = environment.get(variable, "")
        in_step = any(step in environment for step in SLURM_STEPS)
        if value.isdecimal() and (variable != "SLURM_LOCALID" or in_step):
            return int(value)
    return None


def visible_devices(listed: str | None, count: int) -> list[str]:
    """The GPUs that CUDA will see, by the names that ``CUDA_VISIBLE_DEVICES`` takes.

    Args:
        listed: that variable; ``None`` if it is not set.
        count: how many GPUs there are; 0 if that is not known.

    >>> visible_devices("2,0", 4), visible_devices(None, 2), visible_devices("0,-1,1", 2), visible_devices("", 2)
    (['2', '0'], ['0', '1'], ['0'], [])
    """
    if listed is None:
        return [str(index) for index in range(count)]
    devices = []
    for name in listed.split(","):
        name = name.strip()
        if not re.fullmatch(r"[0-9]+|GPU-[\w-]+|MIG-[\w/-]+", name):
            break  # CUDA's rule: what is listed behind something invalid is not seen
        if name.isdecimal() and 0 < count <= int(name):
            break
        devices.append(name)
    return devices


def find_gpus(root: Path = Path("/")) -> list[str]:
    """Device files of GPUs: ``/dev/nvidia0`` and so on, ``/dev/kfd`` (AMD), ``/dev/dxg`` (WSL)."""
    if sys.platform != "linux":
        return []
    found = sorted(root.glob("dev/nvidia[0-9]*"))
    found += [path for path in (root / "dev/kfd", root / "dev/dxg") if path.exists()]
    return [str(path) for path in found]


def find_openable(root: Path = Path("/")) -> list[str]:
    """Device files of those of NVIDIA's GPUs that this process may open: a control group may forbid some."""
    nvidia = [path for path in find_gpus(root) if re.search(r"/nvidia\d+$", path)]
    return [path for path in nvidia if os.access(path, os.R_OK | os.W_OK)]


def is_cuda_started() -> bool:
    """Whether CUDA has started in this process; asked of the driver's library, if some other one has loaded it."""
    flag = getattr(os, "RTLD_NOLOAD", None)
    if flag is None:
        return False
    for name in CUDA_NAMES:
        try:
            driver = ctypes.CDLL(name, mode=flag | os.RTLD_LAZY)
            ask = driver.cuCtxGetCurrent  # no context is made by asking
        except (OSError, AttributeError):
            continue
        return ask(ctypes.byref(ctypes.c_void_p())) not in NOT_STARTED
    return False


def _started_mpi() -> Any:
    """The module ``mpi4py.MPI`` if it is here and MPI is up, else None; nothing is imported for it."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not module.Is_initialized() or module.Is_finalized():
        return None
    return module


def _family(module: Any) -> str:
    return recognise(module.Get_library_version(), VERSION_TEXTS)[0]


def _ask_mpi(module: Any, comm: Any) -> int:
    if not isinstance(comm, module.Intracomm) or comm == module.COMM_NULL:
        raise ValueError(
            f"local_rank: expected an intra-communicator of mpi4py, got {comm!r}"
        )
    node = comm.Split_type(module.COMM_TYPE_SHARED, key=comm.rank)
    rank: int = node.rank
    node.Free()
    return rank
