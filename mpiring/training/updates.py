"""The updates of a server's parameters: each is taken whole, or, if anything goes wrong in it, not at all.

An update writes into the parameters' own memory, puts arrays in their place or returns them.  What it leaves is
taken when it is through: all is read, and seen to fit, before the first parameter is written, for what it gives may
be a view of any other.  An update that fails after it has written some is undone: before each the parameters are
copied, but those that nobody can write in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..wire.reduce.arithmetic import Array
from .flat import Flat, named, replace

Update = Callable[[dict[str, Array], dict[str, Array]], "Mapping[str, Any] | None"]


class Updates:
    """The updates of one server.

    Args:
        update: the user's function.
        params: what it updates.
    """

    def __init__(self, update: Update, params: list[Flat]) -> None:
        self._update = update
        self._params = params
        self._kept = [
            (flat, flat.another()) for flat in params if not flat.shows_copies
        ]

    def apply(self, grads: list[Flat]) -> None:
        """Update the parameters once.

        Raises:
            TypeError, ValueError: naming the parameter, if it gets what it cannot hold.
            Exception: what the user's function raised.
        """
        for flat, kept in self._kept:
            kept.take_from(flat)
        try:
            new = self._changes(grads)
            try:
                replace(self._params, new)
            except (TypeError, ValueError) as error:
                again = TypeError if isinstance(error, TypeError) else ValueError
                raise again(f"update: {error}") from None
        except BaseException:
            for flat, kept in self._kept:
                flat.take_from(kept)
            raise

    def _changes(self, grads: list[Flat]) -> dict[str, Any]:
        """What the user's function puts in the place of parameters."""
        current = named(self._params)
        given = dict(current)
        returned = self._update(given, named(grads))
        if not (returned is None or isinstance(returned, Mapping)):
            raise TypeError(
                f"update: returned a {type(returned).__name__}, expected a mapping of named arrays, or None"
            )
        copies = {
            i.name for f in self._params if f.shows_copies for i in f.layout.signatures
        }
        new = {
            name: value
            for name, value in {**given, **(returned or {})}.items()
            if name in copies or value is not current.get(name)
        }
        for name, value in new.items():
            if name not in current:
                raise ValueError(
                    f"update: gave {name!r}, which is no parameter; known: {sorted(current)}"
                )
            if value is None:
                shape = tuple(current[name].shape)
                raise ValueError(
                    f"update: gave None for {name}, expected shape {shape}"
                )
        return new
