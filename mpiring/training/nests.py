"""Nests of gradients: the names of their leaves, and the same nest again with other leaves.

A *name* is the keys and indices that lead to a leaf, by their values: text and integers, and nothing of what a key
looks like or is besides.  ``1``, ``True``, an ``IntEnum``'s member and ``np.int64(1)`` are one name, ``"1"`` another.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from ..wire.arrays.host import layouts

Name = tuple[int | str, ...]

_CONTAINERS = (dict, list, tuple)


def leaves(nest: Any) -> dict[Name, Any]:
    """What a nest of dicts, lists and tuples holds, by name, in the order in which it holds it.

    Raises:
        TypeError, ValueError: for a key that makes no name, or none of its own.
    """
    found: dict[Name, Any] = {}
    for name, leaf in _walk(nest, ()):
        if name in found:
            raise ValueError(
                f"two gradients are named {shown(name)}: a name is the value of a key, whatever the key's type"
            )
        found[name] = leaf
    return found


def in_order(names: Iterable[Name]) -> list[Name]:
    """The names in an order that follows from them alone."""
    return sorted(names, key=_order)


def rebuilt(nest: Any, values: Iterator[Any], name: Name = ()) -> Any:
    """The same nest, of the same containers with the same keys, around other values, given in the order of its own.

    Raises:
        TypeError: naming a container that cannot be made again.
    """
    if isinstance(nest, dict):
        items = {
            key: (
                rebuilt(value, values, (*name, _plain(key, name)))
                if isinstance(value, _CONTAINERS)
                else next(values)
            )
            for key, value in nest.items()
        }
        return items if type(nest) is dict else _again(nest, items, name)
    if isinstance(nest, _CONTAINERS):
        parts = [
            (
                rebuilt(value, values, (*name, i))
                if isinstance(value, _CONTAINERS)
                else next(values)
            )
            for i, value in enumerate(nest)
        ]
        if type(nest) is list:
            return parts
        return tuple(parts) if type(nest) is tuple else _again(nest, parts, name)
    return next(values)


def outline(nest: Any, found: list[Any]) -> Any:
    """What a nest of plain containers around NumPy arrays looks like, as a value; None for any other nest.

    Args:
        nest: of dicts, lists and tuples.
        found: its arrays join it, in the order in which it holds them.
    """
    kind = type(nest)
    keys: Any = None
    values: Collection[Any] = ()
    if kind is dict:
        keys, values = tuple(nest), nest.values()
        if not {*map(type, keys)} <= {str, int}:
            return None
    elif kind is list or kind is tuple:
        values = nest
    else:
        return None
    parts: Any = layouts(values)
    if parts is not None:
        found += values
        return kind, keys, parts
    parts = []
    for value in values:
        if type(value) in _CONTAINERS:
            part = outline(value, found)
        else:
            part = layouts([value])
            found.append(value)
        if part is None:
            return None
        parts.append(part)
    return kind, keys, tuple(parts)


def shown(name: Name) -> str:
    """A name as messages have it; different for each."""
    return "".join(f"[{key!r}]" for key in name)


def _walk(nest: Any, name: Name) -> Iterator[tuple[Name, Any]]:
    if isinstance(nest, dict):
        for key, value in nest.items():
            yield from _walk(value, (*name, _plain(key, name)))
    elif isinstance(nest, (list, tuple)):
        for index, value in enumerate(nest):
            yield from _walk(value, (*name, index))
    else:
        yield name, nest


def plain_text(key: str) -> str:
    """The value of a text of any type: what an Enum's member, or another heir of str, says of itself may differ."""
    return str.__str__(key)


def _plain(key: Any, name: Name) -> int | str:
    if isinstance(key, str):
        return plain_text(key)
    try:
        return operator.index(key)
    except TypeError:
        raise TypeError(
            f"gradient names must be str or int, got {key!r} in {shown(name) or 'the dict'}"
        ) from None


def _order(name: Name) -> list[tuple[bool, Any]]:
    return [(isinstance(key, str), key) for key in name]


# ---- containers of other types --------------------------------------------------------------------


def _again(nest: Any, items: Any, name: Name) -> Any:
    """A container like this one with other items: a dict for a dict, else a list."""
    try:
        new = _tuple(nest, items) if isinstance(nest, tuple) else _copy(nest, items)
        if type(new) is not type(nest):
            raise TypeError(f"what comes is a {type(new).__name__}")
        if list(map(id, _items(new))) != list(map(id, _items(items))):
            raise TypeError("it does not hold what is put in")
    except Exception as error:
        where = f" in {shown(name)}" if name else ""
        raise TypeError(
            f"a {type(nest).__name__}{where} cannot be made again around other values: {error}; "
            "pass a plain dict, list or tuple"
        ) from error
    return new


def _items(container: Any) -> Iterator[Any]:
    if isinstance(container, dict):
        for key, value in container.items():
            yield key
            yield value
    else:
        yield from container


def _copy(nest: Any, items: Any) -> Any:
    """As its type copies it: with its factory, its order, its attributes."""
    new = copy.copy(nest)
    if new is nest:
        raise TypeError("its copy is itself")
    for place, item in items.items() if isinstance(items, dict) else enumerate(items):
        new[place] = item
    return new


def _tuple(nest: Any, items: list[Any]) -> Any:
    """Past its ``__new__``, which may take other arguments than its items."""
    kind = type(nest)
    try:
        new = tuple.__new__(kind, items)
    except TypeError:  # one of a C library's, as time.struct_time
        return kind(items)
    if hasattr(nest, "__dict__"):
        vars(new).update(vars(nest))
    return new
