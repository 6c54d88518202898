"""Is there an NVIDIA GPU, and which CUDA does its driver speak?  Asked of the driver itself: python lab/cards.py

Prints the name of CuPy's extra for it, ``cuda12x`` or ``cuda13x``; or says why no GPU can be used, with status 1.
``nvidia-smi`` tells the same in words that change from version to version, and some containers lack it.

Rules: needs the standard library only, since the Makefile asks before there is an environment; no context is made on a
device, so nothing of its memory is taken.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

OLDEST = 12  # of the CUDA versions that CuPy still has wheels for
NEWEST = 13  # a newer driver runs what was built for an older CUDA
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


class Driver(NamedTuple):
    """What the driver said.

    Attributes:
        problem: why no GPU can be used; empty if one can.
        cuda: the version of CUDA it speaks, as ``(12, 8)``; ``(0, 0)`` if there is no driver.
        cards: how many GPUs it sees, after ``CUDA_VISIBLE_DEVICES``.
    """

    problem: str
    cuda: tuple[int, int] = (0, 0)
    cards: int = 0

    @property
    def extra(self) -> str:
        """The extra of setup.cfg that has CuPy for it.

        >>> [Driver("", (major, 1), 1).extra for major in (12, 13, 14)]
        ['cuda12x', 'cuda13x', 'cuda13x']
        """
        return f"cuda{min(self.cuda[0], NEWEST)}x"


def ask(library: Any = None) -> Driver:
    """Ask the driver.

    Args:
        library: the driver's, loaded with ctypes; None loads it.
    """
    if library is None:
        try:
            library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            return Driver(f"no NVIDIA driver here ({error})")
    number = ctypes.c_int(0)
    status = library.cuDriverGetVersion(ctypes.byref(number))
    if status != 0:
        return Driver(f"the NVIDIA driver does not answer (error {status})")
    cuda = (number.value // 1000, number.value % 1000 // 10)
    if status := library.cuInit(0):
        what = "sees no GPU" if status == NO_DEVICE else "does not start"
        return Driver(f"the NVIDIA driver {what} (error {status})", cuda)
    library.cuDeviceGetCount(ctypes.byref(number))
    if number.value == 0:
        return Driver("the NVIDIA driver sees no GPU", cuda)
    if cuda[0] < OLDEST:
        problem = (
            f"the NVIDIA driver speaks CUDA {cuda[0]}.{cuda[1]}, CuPy needs {OLDEST}"
        )
        return Driver(problem, cuda, number.value)
    return Driver("", cuda, number.value)


def main() -> int:
    """Print the extra, or the problem."""
    driver = ask()
    print(driver.problem or driver.extra, file=sys.stderr if driver.problem else None)
    return 1 if driver.problem else 0


if __name__ == "__main__":
    sys.exit(main())
