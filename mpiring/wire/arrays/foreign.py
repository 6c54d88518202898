"""Another library's memory on a GPU, seen by CuPy: its arrays, and its streams.

A view is made of an address, a shape and strides: unlike a conversion by CuPy it never waits for a stream, and it
takes every dtype.
"""

from __future__ import annotations

import importlib
from math import prod
from typing import Any

from ..reduce.arithmetic import Array
from ..settings.packages import CUPY, install


def cupy_to_see(what: str, version: str = "") -> Any:
    """CuPy, imported now: whoever has an array in a GPU's memory has started CUDA.

    Args:
        what: the array, for the message.
        version: of CUDA, as far as its library says.

    Raises:
        TypeError: saying how to get CuPy.
    """
    try:
        return importlib.import_module("cupy")
    except ImportError:
        major = version.partition(".")[0]
        wanted = [CUPY[major]] if major in CUPY else CUPY.values()
        advice = " or ".join(map(install, wanted))
        raise TypeError(f"{what} is reduced by CuPy: {advice}") from None


def view(
    cupy: Any,
    pointer: int,
    shape: tuple[int, ...],
    dtype: Any,
    strides: tuple[int, ...] | None,
    owner: object,
    device: int,
) -> Array:
    """Another library's memory as a CuPy array; no work is queued for it, and nothing waits.

    Args:
        cupy: the module.
        pointer: address of the first element.
        shape, dtype: of the array.
        strides: in bytes; None for C order.
        owner: keeps the memory alive.
        device: its number; -1: where the pointer says.
    """
    if 0 in shape:
        with cupy.cuda.Device(None if device < 0 else device):
            return cupy.empty(shape, dtype)
    if strides is None:
        nbytes = prod(shape) * dtype.itemsize
        low = 0
    else:
        reach = [(n - 1) * stride for n, stride in zip(shape, strides)]
        low = sum(r for r in reach if r < 0)
        nbytes = sum(map(abs, reach)) + dtype.itemsize
    memory = cupy.cuda.UnownedMemory(pointer + low, nbytes, owner, device)
    first = cupy.cuda.MemoryPointer(memory, -low)
    return cupy.ndarray(shape, dtype, first, strides)


class _Handle:
    """A stream of another library, in the words of the CUDA stream protocol."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._number


def stream_at(cupy: Any, handle: int) -> Any:
    """CuPy's stream for a handle of CUDA's; 0 and 1 are the legacy default stream, 2 is the thread's own."""
    streams = cupy.cuda
    if handle in (0, 1):
        return streams.Stream.null
    if handle == 2:
        return streams.Stream.ptds
    if hasattr(streams.Stream, "from_external"):
        return streams.Stream.from_external(_Handle(handle))
    return streams.ExternalStream(handle)
