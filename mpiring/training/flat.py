"""Named arrays as a few flat buffers: what a bucket of gradients and a server's parameters have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

from ..plan.segments import Segments
from ..wire.arithmetic import Array
from ..wire.arrays import NUMPY, Kind, kind_named, kind_of
from ..wire.device_transport import Carriage
from ..wire.transport import Request


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


def signature(
    name: str, array: Any, places: dict[str, tuple[str, str]] | None = None
) -> Signature:
    """The signature of an array, a number or None.

    Args:
        name: for messages too.
        array: what it is of.
        places: where the arrays before it are that would share a buffer, by kind; it joins them.

    Raises:
        TypeError: naming it, if no collective takes it.
        ValueError: naming it and another, if they are on different devices.
    """
    if array is None:
        return Signature(name, None, (), "")
    try:
        kind = kind_of(array)
        array = kind.as_array(array)
        if places is not None and kind.is_device:
            here = kind.device_of(array)
            place, other = places.setdefault(kind.name, (here, name))
            if here != place:
                raise ValueError(
                    f"{name} is on {here}, {other} on {place}; what travels together must be on one device: "
                    "make a call for each"
                )
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
    """One flat buffer, and a part of it for each named array.

    Args:
        signatures: of one dtype and kind.
        kind: bound to one of the arrays, so that the buffer is on its device; None where there is none.

    Attributes:
        signatures: the same.
        whole: the buffer as an array that a ring's collectives take, in place.
        shows_copies: whether its views are copies, so that a change of one does not change the buffer.
    """

    def __init__(self, signatures: list[Signature], kind: Kind | None = None) -> None:
        self.signatures = signatures
        self._kind = kind_named(signatures[0].kind) if kind is None else kind
        parts = Segments.of_lengths([item.elements for item in signatures])
        theirs, buffer = self._kind.new(parts.count, signatures[0].dtype)
        self.whole: Array = buffer if theirs is None else theirs
        self.shows_copies = theirs is None
        self._buffer: Array = buffer
        # A part as the user sees it, unless a new array is made each time, and as we do.
        self._parts: dict[str, tuple[Any, Array]] = {
            item.name: (
                None if theirs is None else theirs[part.slice].reshape(item.shape),
                buffer[part.slice].reshape(item.shape),
            )
            for item, part in zip(signatures, parts)
        }

    @property
    def views(self) -> dict[str, Any]:
        """The named arrays: views of the buffer, or copies if their kind has none."""
        kind = self._kind.bound(self._buffer)
        views: dict[str, Any] = {}
        for name, (theirs, part) in self._parts.items():
            if theirs is None:
                source = part
                _, part = kind.new(part.shape, kind.dtype_name(part))
                kind.copy(source, part)
            views[name] = kind.finished(theirs, part)
        return views

    def fill(self, arrays: Mapping[str, Any]) -> None:
        """Copy the arrays in; what is None or not there becomes zeros."""
        self.update({name: arrays.get(name) for name in self._parts})

    def update(self, arrays: Mapping[str, Any]) -> None:
        """Copy the arrays in that are there; None becomes zeros, and a number goes everywhere."""
        values = {n: self._values(arrays[n]) for n in self._parts if n in arrays}
        kind = self._kind.bound(self._buffer)
        for name, (_, value) in values.items():
            kind.copy(value, self._parts[name][1])
        self._hand_back(kind)
        for name, (theirs, value) in values.items():
            if (
                theirs is not None
            ):  # its memory is its library's again when it has been read
                theirs.finished(arrays[name], value)

    def another(self) -> Flat:
        """Another one for the same arrays, with nothing in it; in the order of the stream that is current now."""
        return Flat(self.signatures, self._kind.bound(self._buffer))

    def copied(self) -> Flat:
        """Another one that holds the same."""
        copy = self.another()
        kind = self._kind.bound(copy._buffer)
        kind.copy(self._buffer, copy._buffer)
        copy._hand_back(kind)
        return copy

    def _values(self, given: Any) -> tuple[Kind | None, Any]:
        """What to copy from, an array or a number for every element; and its kind if that has a stream of its own."""
        if given is None:
            return None, 0
        if isinstance(given, (bool, int, float, complex)):
            return None, given
        kind = NUMPY if isinstance(given, (list, tuple)) else kind_of(given)
        array = kind.as_array(given)
        if kind.is_device and self._kind.is_device:
            here, there = kind.device_of(array), kind.device_of(self._buffer)
            if here != there:
                raise ValueError(f"an array on {here}, expected one on {there}")
        if kind.name != self._kind.name or kind.names_streams:
            return kind.bound(array), array  # waits for what its library has to do
        return None, array

    def _hand_back(self, kind: Kind) -> None:
        """The buffer has been written: what the user does next comes after."""
        if self.whole is not self._buffer:
            kind.written(self.whole)
        kind.finished(self.whole, self._buffer)

    def post(self, carriage: Carriage, is_send: bool, peer: int, tag: int) -> Request:
        """Start to send or receive the buffer."""
        kind = self._kind.bound(self._buffer)
        stages = carriage.stages(kind, self._buffer)
        if stages:
            carriage.reserve(kind, 1)
        transport = carriage.transport(kind, stages, someone_stages=True)
        post = transport.isend if is_send else transport.irecv
        return post(kind.message(self._buffer), peer, tag)
