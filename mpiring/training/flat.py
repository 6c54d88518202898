"""Named arrays as a few flat buffers: what a bucket of gradients and a server's parameters have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

from ..plan.segments import Segments
from ..wire.arithmetic import Array
from ..wire.arrays import kind_named, kind_of


class Signature(NamedTuple):
    """What must agree about a named array; ``dtype`` is None where a rank has none."""

    name: str
    dtype: str | None
    shape: tuple[int, ...]
    kind: str

    @property
    def elements(self) -> int:
        """How many there are."""
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{self.kind} {self.dtype}[{','.join(map(str, self.shape))}]"


def signature(name: str, array: Any) -> Signature:
    """The signature of an array, a number or None.

    Raises:
        TypeError: naming it, if no collective takes it.
    """
    if array is None:
        return Signature(name, None, (), "")
    try:
        kind = kind_of(array)
        array = kind.as_array(array)
        return Signature(name, kind.dtype_name(array), tuple(array.shape), kind.name)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def groups(signatures: Iterable[Signature]) -> list[list[Signature]]:
    """The arrays that may share a buffer: of one dtype and kind, in their order."""
    found: dict[tuple[str, str], list[Signature]] = {}
    for item in signatures:
        if item.dtype is not None:
            found.setdefault((item.dtype, item.kind), []).append(item)
    return list(found.values())


class Flat:
    """One flat buffer, and a view of it for each named array.

    Args:
        signatures: of one dtype and kind.
    """

    def __init__(self, signatures: list[Signature]) -> None:
        self.signatures = signatures
        self._kind = kind_named(signatures[0].kind)
        parts = Segments.of_lengths([item.elements for item in signatures])
        self.buffer: Array = self._kind.empty(parts.count, signatures[0].dtype)
        self.views: dict[str, Array] = {
            item.name: self.buffer[part.slice].reshape(item.shape)
            for item, part in zip(signatures, parts)
        }

    def fill(self, arrays: Mapping[str, Any]) -> None:
        """Copy the arrays in; what is None or not there becomes zeros."""
        for name, view in self.views.items():
            array = arrays.get(name)
            view[...] = 0 if array is None else self._kind.as_array(array)

    def message(self) -> Array:
        """The buffer as bytes that a transport takes."""
        return self._kind.message(self.buffer)
