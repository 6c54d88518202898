"""Named arrays as a few flat buffers: what a bucket of gradients and a server's parameters have in common."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from ..plan.segments import Segments
from ..wire.arrays import NUMPY, Kind, kind_named, kind_of
from ..wire.arrays.operands import operand, output
from ..wire.reduce.arithmetic import Array
from ..wire.transport.device import Carriage
from ..wire.transport.protocol import Request


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


class Layout:
    """Where named arrays are in a flat buffer: one behind the other.

    Args:
        signatures: of one dtype and kind.
    """

    def __init__(self, signatures: list[Signature]) -> None:
        self.signatures = signatures
        self.names = [item.name for item in signatures]
        self.shapes = [item.shape for item in signatures]
        parts = Segments.of_lengths([item.elements for item in signatures])
        self.count = parts.count
        self.dtype, self.kind = str(signatures[0].dtype), signatures[0].kind
        self._cuts = [part.slice for part in parts]
        shapes = enumerate(self.shapes)
        self._shaped = [(place, shape) for place, shape in shapes if len(shape) != 1]

    def cut(self, buffer: Array) -> list[Array]:
        """The arrays as views of a buffer."""
        arrays = [buffer[part] for part in self._cuts]
        for place, shape in self._shaped:
            arrays[place] = arrays[place].reshape(shape)
        return arrays


class Flat:
    """One flat buffer, and a part of it for each named array.

    Args:
        layout: of the arrays.
        kind: bound to one of the arrays, so that the buffer is on its device; None where there is none.

    Attributes:
        layout: the same.
        whole: the buffer as an array that a ring's collectives take, in place.
        shows_copies: whether its views are copies, so that a change of one does not change the buffer.
    """

    def __init__(self, layout: Layout, kind: Kind | None = None) -> None:
        self.layout = layout
        self._kind = kind_named(layout.kind) if kind is None else kind
        theirs, buffer = self._kind.new(layout.count, layout.dtype)
        self.whole: Array = buffer if theirs is None else theirs
        self.shows_copies = theirs is None
        self._buffer: Array = buffer

    @cached_property
    def _parts(self) -> list[Array]:
        """The arrays as we see them."""
        return self.layout.cut(self._buffer)

    @cached_property
    def _theirs(self) -> list[Any]:
        """The arrays as the user sees them; None for those that are made anew each time."""
        if self.shows_copies:
            return [None] * len(self.layout.names)
        is_ours = self.whole is self._buffer
        return self._parts if is_ours else self.layout.cut(self.whole)

    @property
    def arrays(self) -> list[Any]:
        """The arrays in their order: views of the buffer, or copies if their kind has none."""
        kind = self._kind.bound(self._buffer)
        if kind is NUMPY:
            return self._theirs
        arrays = []
        for theirs, part in zip(self._theirs, self._parts):
            if theirs is None:
                source = part
                _, part = kind.new(part.shape, kind.dtype_name(part))
                kind.copy(source, part)
            arrays.append(kind.finished(theirs, part))
        return arrays

    @property
    def views(self) -> dict[str, Any]:
        """The same by name."""
        return dict(zip(self.layout.names, self.arrays))

    def fill(self, arrays: Mapping[str, Any]) -> None:
        """Copy the arrays in, none of them a view of this buffer; what is None or not there becomes zeros."""
        self.fill_in_order([arrays.get(name) for name in self.layout.names])

    def fill_in_order(self, arrays: Sequence[Any]) -> None:
        """The same of all arrays in their order."""
        have_shapes = [getattr(x, "shape", None) for x in arrays] == self.layout.shapes
        if not (have_shapes and self._kind.join(arrays, self._buffer)):
            self._write(self._taken(dict(zip(self.layout.names, arrays)), []))

    def copy_to(self, arrays: Sequence[Any]) -> list[Any]:
        """Copy the arrays to others, in their order, of the same shapes, dtype and kind.

        Returns:
            the others; for one that is None, a view or copy of ours.
        """
        copies = []
        for ours, given in zip(self.arrays, arrays):
            if given is not None and self._kind is NUMPY:
                NUMPY.copy(ours, NUMPY.as_array(given))
            elif given is not None:
                source = operand(ours)
                target = output(source, given, source.array.shape)
                source.kind.copy(source.array.reshape(-1), target.flat)
                target.done()
            copies.append(ours if given is None else given)
        return copies

    def take_from(self, other: Flat) -> None:
        """Copy all that another one for the same arrays holds."""
        kind = self._kind.bound(self._buffer)
        kind.copy(other._buffer, self._buffer)
        self._hand_back(kind)

    def another(self) -> Flat:
        """Another one for the same arrays, with nothing in it; in the order of the stream that is current now."""
        return Flat(self.layout, self._kind.bound(self._buffer))

    def copied(self) -> Flat:
        """Another one that holds the same."""
        copy = self.another()
        copy.take_from(self)
        return copy

    def _taken(self, arrays: Mapping[str, Any], flats: list[Flat]) -> _Taken:
        """What to copy from, once it is sure that it fits; a copy of what is part of one of ``flats``."""
        kind = self._kind.bound(self._buffer)
        sources = {
            item.name: self._source(item, arrays[item.name], kind, flats)
            for item in self.layout.signatures
            if item.name in arrays
        }
        return _Taken(kind, sources)

    def _source(
        self, item: Signature, given: Any, ours: Kind, flats: list[Flat]
    ) -> _Source:
        if given is None:
            return _Source(None, 0, None)
        try:
            if isinstance(given, (int, list, tuple)):
                kind, array = NUMPY, NUMPY.listed(given, str(item.dtype))
            else:
                kind = kind_of(given)
                array = kind.as_array(given)
            kind.dtype_name(array)
            self._check_place(kind, array)
        except (TypeError, ValueError, OverflowError) as error:
            what = f"{reprlib.repr(given)}, a {type(given).__name__},"
            again = TypeError if isinstance(error, TypeError) else ValueError
            raise again(f"gave {what} for {item.name}: {error}") from None
        if tuple(array.shape) != item.shape:
            raise ValueError(
                f"gave shape {tuple(array.shape)} for {item.name}, expected shape {item.shape}"
            )
        is_other = kind.name != self._kind.name or kind.names_streams
        # What is bound waits for what its library has to do.
        kind = kind.bound(array) if is_other else ours
        if wrong := kind.misfit(array, str(item.dtype)):
            raise ValueError(
                f"gave {wrong} for {item.name}, which is a {item} and cannot hold that: convert it"
            )
        if array.dtype.kind == "c" and not str(item.dtype).startswith("complex"):
            array = array.real
        if kind.is_device and not self._kind.is_device:
            return _Source(None, kind.on_host(array), None)
        if any(flat._may_share(kind, array) for flat in flats):
            array = kind.copied(array).reshape(item.shape)
        return _Source(given, array, kind if is_other else None)

    def _check_place(self, kind: Kind, array: Array) -> None:
        if kind.is_device and self._kind.is_device:
            here, there = kind.device_of(array), kind.device_of(self._buffer)
            if here != there:
                raise ValueError(f"an array on {here}, expected one on {there}")

    def _may_share(self, kind: Kind, array: Array) -> bool:
        """Whether an array may be a view of this buffer, or of some of it."""
        same_memory = kind.is_device == self._kind.is_device
        return same_memory and kind.overlaps(array, self._buffer)

    def _write(self, taken: _Taken) -> None:
        kind, sources = taken
        for name, part in zip(self.layout.names, self._parts):
            if name in sources:
                kind.copy(sources[name].array, part)
        self._hand_back(kind)
        for source in sources.values():
            if source.kind is not None:
                # Its memory is its library's again when it has been read.
                source.kind.finished(source.given, source.array)

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


class _Source(NamedTuple):
    """What to copy into a part: an array of an engine, or a number for every element.

    Attributes:
        given: the user's array.
        array: the same as an array of the engine, or a copy of it.
        kind: bound to it, if it has to hear when it has been read.
    """

    given: Any
    array: Array
    kind: Kind | None


class _Taken(NamedTuple):
    """What to copy into a buffer, by name, and the buffer's kind, bound before."""

    kind: Kind
    sources: dict[str, _Source]


def replace(flats: list[Flat], arrays: Mapping[str, Any]) -> None:
    """Put arrays, lists of numbers and numbers in the place of named arrays of several buffers.

    All are taken before the first is written: they may be views of the buffers, of any part and in any order.
    Each has to fit (:mod:`mpiring.wire.arrays.fit`); where one does not, nothing has been written.

    Raises:
        TypeError, ValueError: naming it and what was given, before anything is written.
    """
    taken = [flat._taken(arrays, flats) for flat in flats]
    for flat, mine in zip(flats, taken):
        flat._write(mine)


def named(flats: list[Flat]) -> dict[str, Array]:
    """The arrays of several buffers, as :attr:`Flat.views` has them."""
    return {name: view for flat in flats for name, view in flat.views.items()}
