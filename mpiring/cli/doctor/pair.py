"""Two processes that send each other device memory: the program of ``mpiring doctor --probe-device``.

Rules: a GPU is chosen before MPI starts, as in a ring's program; each step is announced before it is taken, so that a
crash or a hang has a place; a process that is late ends itself, whatever its MPI is doing.

What is announced is lines of ``MARK`` and JSON.  They go into a file in the directory that the doctor names, since a
launcher drops what a crash has left in its pipes; on a host where there is no such directory they go to standard
output, which is all that a launcher carries.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import socket
import sys
import tempfile
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mpiring.device import choose_device
from mpiring.wire.gpu_aware.loaded import find_library
from mpiring.wire.gpu_aware.probe_record import find_subject

if TYPE_CHECKING:
    from mpi4py import MPI

MARK = "mpiring-pair "

# Within a message's header, eager, rendezvous, and more than any buffer on the way.
SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20)
REPEATS = 3  # what an MPI remembers of a buffer is tried as well


class Announcer:
    """Says what this process is about to do."""

    def __init__(self, directory: str) -> None:
        self.rank: int | None = None
        self._descriptor = 1
        if os.path.isdir(directory):
            self._descriptor = tempfile.mkstemp(".txt", "process-", directory)[0]

    def say(self, **facts: Any) -> None:
        """Write one line, in one piece."""
        line = f"{MARK}{json.dumps({'rank': self.rank, **facts})}\n"
        os.write(self._descriptor, line.encode())

    def stage(self, words: str) -> None:
        """Announce a step."""
        self.say(stage=words)


def main(name: str, seconds: float, directory: str) -> int:
    """Run one of the two processes; 0 if all bytes came as they were sent.

    Args:
        name: the module that has the arrays.
        seconds: how long it may take.
        directory: where to announce things.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    announcer = Announcer(directory)
    try:
        return run_pair(name, announcer)
    except Exception as error:  # whatever it is, it is a fact about this MPI
        announcer.say(failure=f"{type(error).__name__}: {error}")
        end_job()
        return 1


def run_pair(name: str, announcer: Announcer) -> int:
    """Choose a device, start MPI, exchange, and say how it went."""
    announcer.stage("choosing a device")
    chosen = choose_device()
    announcer.stage(f"importing {name}")
    arrays = importlib.import_module(name)
    announcer.stage("starting CUDA")
    if not arrays.cuda.runtime.getDeviceCount():
        raise RuntimeError(f"{name} finds no device")
    announcer.stage("importing mpi4py.MPI, MPI_Init_thread")
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    announcer.rank = world.rank
    library = find_library()
    subject = find_subject(library, os.environ)
    announcer.say(
        library=library.name,
        host=socket.gethostname(),
        device=chosen,
        arrays=f"{name} {getattr(arrays, '__version__', '')}".strip(),
        subject=None if subject is None else asdict(subject),
    )
    if world.size != 2:
        raise RuntimeError(
            f"a job of {world.size}, not of 2: this launcher and {library.name} do not fit"
        )
    wrong = exchange(world, arrays, announcer)
    announcer.stage("comparing notes")
    faults = [fault for fault in world.allgather(wrong) if fault]
    announcer.stage("MPI_Finalize")
    MPI.Finalize()
    if faults:
        announcer.say(failure=faults[0])
        return 1
    announcer.say(passed=True)
    return 0


def exchange(world: MPI.Intracomm, arrays: Any, announcer: Announcer) -> str:
    """Send and receive each size at the same time; ``""`` or what came wrong first.

    It goes on after that: the other process may have seen nothing wrong, and waits for the next.
    """
    from mpi4py import MPI

    peer = 1 - world.rank
    fault = ""
    for nbytes in SIZES:
        announcer.stage(f"sending and receiving {describe(nbytes)}")
        for repeat in range(REPEATS):
            sent = arrays.asarray(pattern(world.rank, nbytes, repeat))
            got = arrays.asarray(pattern(2, nbytes, repeat))
            # Nothing is handed to MPI before the device has it.
            arrays.cuda.get_current_stream().synchronize()
            requests = [
                world.Irecv([got, nbytes, MPI.BYTE], peer),
                world.Isend([sent, nbytes, MPI.BYTE], peer),
            ]
            MPI.Request.Waitall(requests)
            for array, origin in ((got, peer), (sent, world.rank)):
                wrong = arrays.asnumpy(array) != pattern(origin, nbytes, repeat)
                if wrong.any() and not fault:
                    what = "received" if array is got else "sent, and that changed"
                    fault = (
                        f"rank {world.rank}: {int(wrong.sum())} of the {describe(nbytes)} {what}"
                        f" are wrong, byte {int(wrong.argmax())} first"
                    )
    return fault


def pattern(origin: int, nbytes: int, repeat: int) -> Any:
    """Bytes that differ by their place, their origin and the repetition."""
    import numpy as np

    # Knuth's multiplier: neighbours, and places a power of two apart, differ.
    places = np.arange(nbytes, dtype=np.uint32) + np.uint32(7 * origin + 31 * repeat)
    return (places * np.uint32(2654435761) >> np.uint32(24)).astype(np.uint8)


def describe(nbytes: int) -> str:
    """A size in words.

    >>> describe(8), describe(65536), describe(16 << 20)
    ('8 bytes', '64 KiB', '16 MiB')
    """
    if nbytes % (1 << 20) == 0:
        return f"{nbytes >> 20} MiB"
    return f"{nbytes >> 10} KiB" if nbytes % 1024 == 0 else f"{nbytes} bytes"


def end_job() -> None:
    """End the other process as well, if MPI is up: it may be waiting."""
    module = sys.modules.get("mpi4py.MPI")
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        module.COMM_WORLD.Abort(1)
