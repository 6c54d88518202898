"""What ``mpiring doctor --probe-device`` needs of CuPy, over the host's memory; it can go wrong on request.

The environment says how: ``PROBE_CUPY=crash`` ends rank 1 by a segmentation fault, ``hang`` lets it wait for ever,
``wrong`` hands rank 1's MPI the memory of something else, ``nothing`` has no device, ``raise`` fails in rank 1 alone,
``leave`` ends rank 1 as if all were well.  Each goes wrong when 64 KiB are sent.
"""

from __future__ import annotations

import os
import signal
import sys
import types

import numpy as np

__version__ = "17"
MODE = os.environ.get("PROBE_CUPY", "pass")
FATEFUL = 64 << 10
_sizes = [0]


def is_time(mode, nbytes):
    """Whether this is the moment to go wrong, in this process."""
    if MODE != mode or nbytes != FATEFUL:
        return False
    return sys.modules["mpi4py.MPI"].COMM_WORLD.rank == 1


class Array:
    """Bytes that tell where they are by the CUDA array interface only."""

    def __init__(self, memory):
        self.memory = memory
        self._place = memory.copy() if is_time("wrong", memory.nbytes) else memory

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self._place.shape,
            "typestr": self._place.dtype.str,
            "data": (self._place.__array_interface__["data"][0], False),
            "version": 3,
        }


def asarray(x):
    _sizes.append(x.nbytes)
    return Array(np.array(x))


def asnumpy(x):
    return x.memory.copy()


def get_device_count():
    return 0 if MODE == "nothing" else 1


def synchronize():
    if is_time("crash", _sizes[-1]):
        os.kill(os.getpid(), signal.SIGSEGV)
    if is_time("hang", _sizes[-1]):
        signal.pause()
    if is_time("raise", _sizes[-1]):
        raise RuntimeError("an illegal memory access was encountered")
    if is_time("leave", _sizes[-1]):
        os._exit(0)


cuda = types.SimpleNamespace(
    get_current_stream=lambda: types.SimpleNamespace(synchronize=synchronize),
    runtime=types.SimpleNamespace(getDeviceCount=get_device_count),
)
