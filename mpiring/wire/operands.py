"""Inputs and outputs of a collective: the user's arrays as flat buffers, and back (promise 1)."""

from __future__ import annotations

from typing import Any, NamedTuple

from .arithmetic import Array
from .arrays import Kind, kind_of


class Operand(NamedTuple):
    """An input or output as the collectives see it."""

    kind: Kind
    array: Array
    dtype: str

    @property
    def description(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.array.shape))}]"


class Target:
    """Where a result goes: memory of ours, the user's ``out``, or both when ``out`` is strided."""

    def __init__(
        self, kind: Kind, result: Array, flat: Array, write_back: bool
    ) -> None:
        self._kind = kind
        self._result = result
        self.flat = flat
        self._write_back = write_back

    def done(self) -> Array:
        if self._write_back:
            self._kind.write_back(self.flat, self._result)
        return self._result


def operand(x: Any) -> Operand:
    kind = kind_of(x)
    array = kind.as_array(x)
    return Operand(kind, array, kind.dtype_name(array))


def checked_output(source: Operand, out: Any) -> Array:
    if (
        kind_of(out) is not source.kind
        or not hasattr(out, "shape")
        or not hasattr(out, "strides")
    ):
        raise TypeError(
            f"out is a {type(out).__name__}, expected a {source.kind.name} array like x"
        )
    if source.kind.dtype_name(out) != source.dtype:
        raise ValueError(
            f"out has dtype {out.dtype}, x has {source.array.dtype}; they must match"
        )
    if not source.kind.is_writeable(out):
        raise ValueError(
            "out is read-only or its elements share memory; pass a writeable array"
        )
    return source.kind.as_array(out)


def output(source: Operand, out: Any, shape: tuple[int, ...]) -> Target:
    kind = source.kind
    if out is None:
        result = kind.empty(shape, source.dtype)
        return Target(kind, result, result.reshape(-1), False)
    array = checked_output(source, out)
    if tuple(array.shape) != tuple(shape):
        raise ValueError(f"out has shape {tuple(array.shape)}, expected {tuple(shape)}")
    if kind.is_flat(array):
        return Target(kind, out, array.reshape(-1), False)
    return Target(kind, out, kind.empty(array.size, source.dtype), True)


def flat_input(source: Operand, target: Target, part: slice | None = None) -> Array:
    """The flat input; a copy if it overlaps the output in any way but the one that is in place."""
    kind = source.kind
    flat = kind.flat(source.array)
    in_place = kind.same_memory(flat if part is None else flat[part], target.flat)
    if not in_place and kind.overlaps(flat, target.flat):
        return kind.copied(flat)
    return flat
