"""Arrays of libraries that mpiring does not know by name, by what they say of themselves.

* In host memory: DLPack (``__dlpack__``), seen by NumPy.  What NumPy may not write, or gets a copy of, is taken as
  immutable.
* In a GPU's memory: the CUDA array interface, as Numba's, or DLPack; seen by CuPy.

A result is made by NumPy or CuPy and given to the array's library, ``library.from_dlpack``: the library is the module
that ``__array_namespace__()`` gives, or else the package of the array's type.  Numba has a function of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..reduce.arithmetic import Array
from . import foreign
from .cupy import CupyKind
from .host import Kind

# DLDeviceType, from dlpack.h.
_ON_THE_HOST = (1, 3)  # kDLCPU, kDLCUDAHost
_ON_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged

_NUMBA = "numba"
_CUDA = " CUDA"  # ends the name of a library's kind on a GPU

Make = Callable[[Any], Any]  # an array of the library, from one of the engine


class DlpackKind(Kind):
    """Arrays in host memory; one for each array.

    Args:
        library: its name.
        make: None if it has no ``from_dlpack``.
    """

    def __init__(self, library: str, make: Make | None) -> None:
        self.name = library
        self._make = make

    def is_array(self, x: object) -> bool:
        return not self.is_immutable(x)

    def is_immutable(self, x: object) -> bool:
        one, other = self.as_array(x), self.as_array(x)
        return not (one.flags.writeable and self.same_memory(one, other))

    def as_array(self, x: Any) -> Array:
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError) as error:
            raise TypeError(
                f"NumPy cannot see the memory of a {_type_name(x)} by DLPack: {error}"
            ) from None

    def new(self, shape: int | tuple[int, ...], dtype: Any) -> tuple[Any, Array]:
        _need(self.name, self._make)
        return None, self.empty(shape, dtype)

    def finished(self, theirs: Any, array: Array) -> Any:
        if theirs is not None or self._make is None:
            return theirs
        return self._make(array)


class OtherCudaKind(CupyKind):
    """Arrays in a GPU's memory of any library; one for each array.

    Args:
        cupy: the module.
        library: the kind's name.
        make: None if the library cannot be given an array.
        interface: the CUDA array interface of the array, if it has one.
    """

    def __init__(
        self,
        cupy: Any,
        library: str,
        make: Make | None,
        interface: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(cupy)
        self.name = library
        self._make = make
        self._interface = interface
        self._is_read_only = interface is not None and interface["data"][1]
        named = None if interface is None else interface.get("stream")
        self.names_streams = named is not None

    def is_array(self, x: object) -> bool:
        return not self._is_read_only

    def is_immutable(self, x: object) -> bool:
        return self._is_read_only

    def as_array(self, x: Any) -> Array:
        seen = self._interface
        if seen is None:
            return self.cupy.from_dlpack(x)
        return foreign.view(
            self.cupy,
            seen["data"][0],
            tuple(seen["shape"]),
            np.dtype(seen["typestr"]),
            seen.get("strides"),
            x,
            -1,
        )

    def current_stream(self) -> Any:
        if not self.names_streams:  # its library says nothing, or DLPack has seen to it
            return CupyKind.current_stream(self)
        assert self._interface is not None
        return foreign.stream_at(self.cupy, self._interface["stream"])

    def new(self, shape: int | tuple[int, ...], dtype: Any) -> tuple[Any, Array]:
        _need(self.name, self._make)
        return None, super().new(shape, dtype)[1]

    def finished(self, theirs: Any, array: Array) -> Any:
        self._leave()
        if theirs is None and self._make is not None:
            # Numba's array remembers the stream that is current now.
            with self._device, self._theirs:
                theirs = self._make(array)
        return theirs


def other_kind(x: Any) -> Kind | None:
    """The kind of an array that says itself where it is; None if it says nothing.

    Raises:
        TypeError: for memory that neither NumPy nor CuPy sees, and where there is no CuPy for a GPU's.
    """
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is None and not hasattr(x, "__dlpack_device__"):
        return None
    device, _ = (2, 0) if interface is not None else x.__dlpack_device__()
    library = _library_of(x)
    if device in _ON_THE_HOST:
        return DlpackKind(library, _maker(library))
    if device not in _ON_CUDA:
        raise TypeError(
            f"a {_type_name(x)} on a device of DLPack's type {int(device)}; "
            "what works is host memory and CUDA: copy it there"
        )
    cupy = foreign.cupy_to_see(f"a {_type_name(x)} on CUDA")
    name = library if library == _NUMBA else library + _CUDA
    return OtherCudaKind(cupy, name, _maker(library), interface)


def other_named(name: str) -> Kind | None:
    """The kind of that name; None if this process has not imported its library, and CuPy for a GPU's."""
    library = name.removesuffix(_CUDA)
    make = _maker(library)
    if make is None:
        return None
    if name == _NUMBA or name.endswith(_CUDA):
        cupy = sys.modules.get("cupy")
        return None if cupy is None else OtherCudaKind(cupy, name, make)
    return DlpackKind(name, make)


def libraries_here() -> list[str]:
    """The libraries in this process that could make arrays of a kind of this module."""
    modules = list(sys.modules.items())
    return [
        n for n, m in modules if "." not in n and "from_dlpack" in vars(m or object)
    ]


def _library_of(x: Any) -> str:
    """The name of the module that makes arrays like ``x``."""
    if hasattr(x, "__array_namespace__"):
        return str(x.__array_namespace__().__name__)
    return type(x).__module__.partition(".")[0]


def _maker(library: str) -> Make | None:
    """What a library makes its arrays with, if this process has imported it."""
    if library == _NUMBA:
        numba_cuda = sys.modules.get("numba.cuda")
        if numba_cuda is None:
            return None
        # Without sync: the stream has been made to wait already.
        return lambda array: numba_cuda.as_cuda_array(array, sync=False)
    return getattr(sys.modules.get(library), "from_dlpack", None)


def _need(library: str, make: Make | None) -> None:
    if make is None:
        raise TypeError(
            f"{library} has no from_dlpack, so that no result can be made an array of it: "
            "pass out, or a NumPy or CuPy view of x"
        )


def _type_name(x: object) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"
