"""Inputs and outputs of a collective: the user's arrays as flat buffers, and back (promise 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...plan.segments import Cut
from ..reduce.arithmetic import Array
from . import Kind, kind_of


class Operand(NamedTuple):
    """An input or output as the collectives see it."""

    kind: Kind
    array: Array
    dtype: str

    @property
    def description(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.array.shape))}]"

    def meets(self, other: Operand) -> bool:
        """Whether both have elements in common, whatever kinds they are of."""
        if self.kind.is_device != other.kind.is_device:
            return False
        return self.kind.meets(self.array, other.array)


class Target:
    """Where a result goes.

    Args:
        kind: bound to the call.
        theirs: the user's array.
        array: the same as an array of the kind's engine.
        is_filled: whether it holds the result already, as a broadcast's root does.
        own: bound to the array itself, if that has a stream of its own.

    Attributes:
        flat: where the result is written: the array's memory, or memory of ours if it is strided.
    """

    def __init__(
        self,
        kind: Kind,
        theirs: Any,
        array: Array,
        is_filled: bool = False,
        own: Kind | None = None,
    ) -> None:
        self._kind = kind
        self._theirs = theirs
        self._array = array
        self._is_filled = is_filled
        self._own = own
        self._is_apart = not kind.is_flat(array) and not is_filled
        if is_filled:
            self.flat = kind.flat(array)
        elif self._is_apart:
            self.flat = kind.empty(array.size, kind.dtype_name(array))
        else:
            self.flat = array.reshape(-1)

    def places(self, cut: Cut) -> Callable[[int], Array]:
        """Where each segment's result goes, if the target has them all."""
        return lambda segment: self.flat[cut[segment].slice]

    def done(self) -> Any:
        """The user's array, when all work on ``flat`` has been asked for."""
        if self._is_apart:
            self._kind.copy(self.flat.reshape(self._array.shape), self._array)
        if self._theirs is not None and not self._is_filled:
            self._kind.written(self._theirs)
        if self._own is not None:
            self._own.finished(self._theirs, self._array)
        return self._kind.finished(self._theirs, self._array)


def check_apart(
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    first: int,
    root: Any = None,
    fills_x: bool = False,
) -> None:
    """Raise if what one member of this process fills is part of what another one passed.

    Args:
        inputs, outputs: of the members, in order.
        first: the rank of the first.
        root: the only rank whose output counts; None: all do.
        fills_x: whether the inputs are filled.

    Raises:
        ValueError: naming both.
    """
    passed, names = [], []
    for name, arrays in (("x", inputs), ("out", outputs)):
        for rank, array in enumerate(arrays, first):
            if array is None or name == "out" and root not in (None, rank):
                continue
            try:
                source = operand(array)
            except (TypeError, ValueError):  # its own member says that better
                continue
            is_filled = name == "out" or fills_x and not source.kind.is_immutable(array)
            passed.append(Passed(source, is_filled, rank))
            names.append(f"{name} of rank {rank}")
    if (places := clash(passed)) is not None:
        one, other = (names[place] for place in places)
        raise ValueError(
            f"{one}, which is filled, shares memory with {other}, a member of the same process; pass each member "
            "memory of its own"
        )


class Passed(NamedTuple):
    """An array that was passed together with others.

    Attributes:
        source: the array.
        is_filled: whether it is written, and not only read.
        owner: who passed it; what one owner passes is its own affair.
    """

    source: Operand
    is_filled: bool
    owner: int


def clash(passed: Sequence[Passed]) -> tuple[int, int] | None:
    """The places of two arrays of different owners that have elements in common, of which the first is filled.

    Of several such pairs the first, None if there is none.
    """
    spans = [each.source.kind.span(each.source.array) for each in passed]
    found = []
    near: list[int] = []  # those that have begun before, and may go on
    for place in sorted(range(len(passed)), key=lambda place: spans[place]):
        start, stop = spans[place]
        near = [other for other in near if spans[other][1] > start]
        for other in near:
            both = sorted((place, other), key=lambda p: (not passed[p].is_filled, p))
            one, two = (passed[p] for p in both)
            is_between_two = one.is_filled and one.owner != two.owner
            if is_between_two and one.source.meets(two.source):
                found.append((both[0], both[1]))
        if stop > start:
            near.append(place)
    return min(found, default=None)


def nowhere(cut: Cut) -> Callable[[int], None]:
    """As :meth:`Target.places`, on a rank that keeps no result."""
    return lambda segment: None


def operand(x: Any) -> Operand:
    kind = kind_of(x)
    array = kind.as_array(x)
    dtype = kind.dtype_name(array)
    return Operand(kind.bound(array), array, dtype)


def packed(source: Operand) -> Operand:
    """The same elements in one flat piece of memory; a copy if they are not that already."""
    flat = source.kind.flat(source.array)
    return source._replace(array=flat.reshape(source.array.shape))


def checked_output(source: Operand, out: Any) -> Array:
    """The user's ``out`` as an array of the engine."""
    kind = kind_of(out)
    if kind.name != source.kind.name or not hasattr(out, "shape"):
        raise TypeError(
            f"out is a {type(out).__name__}, expected a {source.kind.name} array like x"
        )
    if kind.is_immutable(out):
        raise ValueError(
            f"out is a {type(out).__name__}, which cannot be filled; leave it out, and take what is returned"
        )
    array = kind.as_array(out)
    dtype = kind.dtype_name(array)
    if dtype != source.dtype:
        raise ValueError(
            f"out has dtype {dtype}, x has {source.dtype}; they must match"
        )
    if kind.device_of(array) != kind.device_of(source.array):
        raise ValueError(
            f"out is on {kind.device_of(array)}, x on {kind.device_of(source.array)}; "
            "pass an out on the device of x"
        )
    if not (kind.is_array(out) and kind.is_writeable(array)):
        raise ValueError(
            "out is read-only or its elements share memory; pass a writeable array"
        )
    return array


def output(source: Operand, out: Any, shape: tuple[int, ...]) -> Target:
    if out is None:
        return Target(source.kind, *source.kind.new(shape, source.dtype))
    array = checked_output(source, out)
    if tuple(array.shape) != tuple(shape):
        raise ValueError(f"out has shape {tuple(array.shape)}, expected {tuple(shape)}")
    kind = kind_of(out)
    own = kind.bound(array) if kind.names_streams else None
    return Target(source.kind, out, array, own=own)


def flat_input(source: Operand, target: Target, part: slice | None = None) -> Array:
    """The flat input; a copy if it overlaps the output in any way but the one that is in place."""
    kind = source.kind
    flat = kind.flat(source.array)
    in_place = kind.same_memory(flat if part is None else flat[part], target.flat)
    if not in_place and kind.overlaps(flat, target.flat):
        return kind.copied(flat)
    return flat
