"""What the CUDA driver says of an address; it is asked through the library that the process has loaded."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

# Numbers of CUpointer_attribute, from cuda.h.
_IS_MANAGED = 8
_IS_LEGACY_CUDA_IPC_CAPABLE = 10


def is_plain(pointer: int) -> bool:
    """Whether device memory may go to another process or a network card by its address.

    Managed memory may live on the host, and memory of a stream-ordered pool or one that is mapped piece by
    piece cannot be opened by another process (``cuIpcGetMemHandle``).

    Args:
        pointer: an address in device memory.

    Returns:
        False also if the driver does not answer.
    """
    return _ask(_IS_LEGACY_CUDA_IPC_CAPABLE, pointer) and not _ask(_IS_MANAGED, pointer)


def _ask(attribute: int, pointer: int) -> bool:
    answer = ctypes.c_int(0)
    status = driver().cuPointerGetAttribute(
        ctypes.byref(answer), attribute, ctypes.c_void_p(pointer)
    )
    return status == 0 and bool(answer.value)


@lru_cache(maxsize=1)
def driver() -> Any:
    """The driver's library: loaded already, since an array lives on the device."""
    return ctypes.CDLL("libcuda.so.1")
