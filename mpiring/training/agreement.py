"""Do all ranks mean the same named arrays?  What gradients and a parameter server ask before anything moves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import RingError
from ..plan.segments import Segments
from ..wire.reduce.arithmetic import check_op
from ..wire.settings.arguments import whole_number
from .flat import Signature, signature
from .nests import plain_text

if TYPE_CHECKING:
    from ..ring import Ring


def everyone_says(ring: Ring, said: str) -> list[str]:
    """The texts of all ranks: collective."""
    import numpy as np

    data = np.frombuffer(said.encode(), np.uint8)
    lengths = ring.allgather(np.array([data.size], np.int64))
    joined = ring.allgather(data)
    return [
        joined[part.slice].tobytes().decode()
        for part in Segments.of_lengths(list(map(int, lengths)))
    ]


def check_server(ring: Ring, params: Any, update: Any, root: Any, mode: Any) -> int:
    """The root; raises unless a parameter server can be made of these arguments on this rank."""
    if ring.members > 1:
        raise RingError(
            f"works on rings of one member a process, this one has {ring.members}"
        )
    if ring.size < 2:
        raise ValueError(
            "a parameter server needs a ring of 2 or more: a server and workers"
        )
    if mode not in ("sync", "async"):
        raise ValueError(f"unknown mode {mode!r}; known: 'sync', 'async'")
    rank = whole_number("root", root, 0, ring.size - 1)
    if ring.rank == rank and not callable(update):
        raise TypeError(
            f"update is a {type(update).__name__}, expected a function of params and grads"
        )
    if not isinstance(params, Mapping):
        raise TypeError(
            f"params is a {type(params).__name__}, expected a mapping of named arrays"
        )
    return rank


def by_name(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters by the values of their names, in the order of these."""
    found: dict[str, Any] = {}
    for name, array in params.items():
        if not isinstance(name, str):
            raise TypeError(f"the names of parameters must be str, got {name!r}")
        if plain_text(name) in found:
            raise ValueError(f"two parameters are named {plain_text(name)!r}")
        found[plain_text(name)] = array
    return dict(sorted(found.items()))


def parameter(name: str, array: Any, places: dict[str, tuple[str, str]]) -> Signature:
    """The signature of a parameter, as :func:`~mpiring.training.flat.signature` takes and gives it.

    Raises:
        TypeError, ValueError: naming it, if it is no array, its gradients do not add up, or it is on another device.
    """
    if array is None:
        raise TypeError(f"parameter {name} is None; every parameter must be an array")
    found = signature(f"parameter {name}", array, places)._replace(name=name)
    try:
        check_op("sum", str(found.dtype))
    except TypeError as error:
        raise TypeError(f"parameter {name}: {error}") from None
    return found


def difference(texts: list[str]) -> ValueError:
    """The error that says what two ranks mean differently, alike on every rank."""
    everyone = [json.loads(text) for text in texts]
    rank, theirs = next((r, t) for r, t in enumerate(everyone) if t != everyone[0])
    for what in ("root", "mode"):
        if theirs[what] != everyone[0][what]:
            return ValueError(
                f"ParameterServer: rank {rank} passed {what} {theirs[what]}, rank 0 passed "
                f"{what} {everyone[0][what]}; pass the same on every rank"
            )
    first, other = (
        {item[0]: str(Signature(*item)) for item in said["params"]}
        for said in (everyone[0], theirs)
    )
    name = min(n for n in {*first, *other} if first.get(n) != other.get(n))
    return ValueError(
        f"ParameterServer: parameter {name}: rank {rank} has {_a(other.get(name))}, rank 0 "
        f"{_a(first.get(name))}; it must be the same on every rank"
    )


def _a(signature: str | None) -> str:
    return "none of that name" if signature is None else f"a {signature}"
