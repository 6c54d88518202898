"""Averaging gradients: named arrays in, their average over the ranks out.

Rules:

* gradients pair by *name* (:mod:`mpiring.training.nests`), never by the order they are listed in;
* a gradient that is None on some ranks counts as zeros there; None on all ranks stays None;
* gradients of one dtype travel together, in *buckets*: flat buffers of about ``bucket_bytes``, because a
  ring pays for each call.  Which gradients share a bucket follows from names, sizes and dtypes alone, so it
  is the same on every rank and in every run;
* what ranks mean differently (a name on one rank only, two shapes) is an error on every rank, before any
  gradient moves; and so is a container that cannot be made again around new arrays, which is tried before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from ..errors import RingError, harmless
from ..wire.arrays import NUMPY, kinds_here, libraries_here, needed_for
from ..wire.arrays.host import are_fillable
from ..wire.arrays.operands import checked_output, operand
from ..wire.collectives.reductions import known
from ..wire.opening.calls import as_text
from ..wire.reduce.arithmetic import check_op
from ..wire.settings.arguments import whole_number
from ..wire.transport import mpi
from .agreement import everyone_says
from .flat import Flat, Layout, Signature, groups, signature
from .nests import in_order, leaves, outline, rebuilt, shown

if TYPE_CHECKING:
    from ..ring import Ring


def average_gradients(
    grads: Any,
    ring: Ring,
    *,
    op: Any = "avg",
    order: str = "ring",
    bucket_bytes: int | None = 25 << 20,
    out: Any = None,
) -> Any:
    """The gradients' average over the ranks of a ring: collective.

    Args:
        grads: a list, tuple or dict of arrays, numbers and None, or a nest of those, or of types derived from
            them.  Names (the values of str or int keys, and indices) must be the same on all ranks, in any order.
        ring: where to average.
        op: ``"avg"``, or another operation of :meth:`mpiring.Ring.allreduce`.
        order: ``"ring"``, or ``"rank"`` for bits that do not depend on the buckets.
        bucket_bytes: gradients are joined up to this many bytes; larger means fewer calls, smaller means
            less memory (buckets are copies).  None joins all of a dtype.
        out: ``out=grads`` works in place: the averages are written to the arrays of ``grads``.  None: new arrays.

    Returns:
        the same nest, with this rank's keys and types of containers, of new arrays, or of those of ``grads`` in place;
        None where no rank has a gradient, and a new array where only others have one.

    Raises:
        TypeError, ValueError: on every rank, naming the gradient and the ranks.
    """
    with ring.composed("average_gradients"):
        return _averaged(grads, ring, op, order, bucket_bytes, out)


class _Look:
    """What this rank has found out about its gradients, which later calls with gradients like these need not.

    Attributes:
        texts: their names, in an order that follows from them alone.
        places: where each is among the nest's gradients.
        signatures: of each.
        said: all that has to agree, for the other ranks.
        failure: what is wrong here, None if nothing is.
        buckets: what travels together, and the places of that; once all ranks have said the same.
    """

    def __init__(
        self, grads: Any, ring: Ring, op: Any, order: Any, most: Any, out: Any
    ) -> None:
        self.failure: Exception | None = None
        self.texts: list[str] = []
        self.places: list[int] = []
        self.signatures: list[Signature] = []
        self.size: int | None = None
        self.buckets: list[_Bucket] | None = None
        settings = ""
        try:
            if ring.members > 1:
                raise RingError(
                    f"works on rings of one member a process, this one has {ring.members}"
                )
            if most is not None:
                self.size = whole_number("bucket_bytes", most, 1)
            known("order", order, ("ring", "rank"))
            check_op(op, "float64")  # whether there is one of that name
            settings = f"op={op} order={as_text(order)} bucket_bytes={self.size}"
            if not (out is None or out is grads):
                raise ValueError(
                    f"out is another {type(out).__name__}; pass out=grads to work in place, or none"
                )
            by_name = leaves(grads)
            rebuilt(grads, iter(by_name.values()))
            place = {name: number for number, name in enumerate(by_name)}
            on: dict[str, tuple[str, str]] = {}
            for name in in_order(by_name):
                self.texts.append(shown(name))
                self.places.append(place[name])
                found = _signature(self.texts[-1], by_name[name], op, on)
                self.signatures.append(found)
                if out is not None and by_name[name] is not None:
                    _check_fillable(self.texts[-1], by_name[name])
        except Exception as error:
            self.failure = error
        # Who has none of a gradient makes zeros of the kind that the others have.
        has_none = any(item.dtype is None for item in self.signatures)
        kinds = [*kinds_here(), *libraries_here()] if has_none else []
        self.said = json.dumps([settings, self.signatures, kinds])

    def cut(self, signatures: list[Signature]) -> list[_Bucket]:
        """The buckets of gradients that all ranks know."""
        places = dict(zip(self.texts, self.places))
        return [
            _Bucket(Layout(bucket), [places[item.name] for item in bucket])
            for bucket in _cut(signatures, self.size)
        ]


class _Bucket(NamedTuple):
    """Gradients that travel together; the places of each among the nest's."""

    layout: Layout
    places: list[int]


# What each ring has averaged, by how it looked.
_seen: WeakKeyDictionary[Ring, dict[Any, _Look]] = WeakKeyDictionary()
_MOST = 16  # of a ring


def _averaged(
    grads: Any, ring: Ring, op: Any, order: str, bucket_bytes: int | None, out: Any
) -> Any:
    op = mpi.op_name(op)
    arrays: list[Any] = []
    seen = _seen.setdefault(ring, {})
    look, key = None, None
    try:
        found = outline(grads, arrays)
        if found is not None and (out is None or out is grads and are_fillable(arrays)):
            # One is kept for arguments that are alike in type and value.
            key = found, op, order, type(bucket_bytes), bucket_bytes
            look = seen.get(key)
    except Exception:  # looking anew finds what is wrong, for all ranks to hear of
        key = None
    if look is None:
        look = _Look(grads, ring, op, order, bucket_bytes, out)
        arrays = [] if look.failure else [*leaves(grads).values()]
    if ring.exchange("average_gradients", look.said, look.failure):
        look.buckets = buckets = look.buckets or look.cut(look.signatures)
        if key is not None and key not in seen:
            if len(seen) >= _MOST:
                seen.clear()
            seen[key] = look
    else:
        buckets = look.cut(_merge(everyone_says(ring, look.said)))
    averaged = _average(arrays, buckets, ring, op, order, out is not None)
    return rebuilt(grads, iter(averaged))


def _signature(
    name: str, leaf: Any, op: Any, places: dict[str, tuple[str, str]]
) -> Signature:
    found = signature(f"gradient {name}", leaf, places)._replace(name=name)
    if found.dtype is not None:
        try:
            check_op(op, found.dtype)
        except TypeError as error:
            raise TypeError(f"gradient {name}: {error}") from None
    return found


def _check_fillable(name: str, leaf: Any) -> None:
    if not hasattr(leaf, "shape"):
        raise TypeError(
            f"gradient {name} is a {type(leaf).__name__}, which out=grads cannot fill; pass an array"
        )
    try:
        checked_output(operand(leaf), leaf)
    except (TypeError, ValueError) as error:
        text = f"gradient {name} cannot be filled, as out=grads asks for: {error}"
        raise type(error)(text) from None


# ---- what the ranks have --------------------------------------------------------------------------


def _merge(texts: list[str]) -> list[Signature]:
    """The gradients that any rank has; raises, alike on every rank, where the ranks differ."""
    merged: dict[str, Signature] = {}
    owner: dict[str, int] = {}
    settings, entries, kinds = zip(*(json.loads(text) for text in texts))
    for rank, theirs in enumerate(settings):
        if theirs != settings[0]:
            raise harmless(
                ValueError(
                    f"average_gradients: rank {rank} passed {theirs}, rank 0 passed {settings[0]}; "
                    "pass the same on every rank"
                )
            )
    names = [{entry[0] for entry in of_rank} for of_rank in entries]
    for rank, of_rank in enumerate(names):
        for one, other, a, b in (
            (names[0], of_rank, 0, rank),
            (of_rank, names[0], rank, 0),
        ):
            if one - other:
                raise harmless(
                    ValueError(
                        f"average_gradients: rank {a} has a gradient named {min(one - other)}, rank {b} "
                        "has none; pass the same names on every rank, with None where there is no gradient"
                    )
                )
    for rank, of_rank in enumerate(entries):
        for name, dtype, shape, kind in of_rank:
            new = Signature(name, dtype, tuple(shape), kind)
            old = merged.get(name)
            if old is None or old.dtype is None:
                merged[name] = new
                owner[name] = rank
            elif dtype is not None and new != old:
                raise harmless(
                    ValueError(
                        f"average_gradients: gradient {name}: rank {rank} has a {new}, "
                        f"rank {owner[name]} a {old}; it must be the same on every rank"
                    )
                )
    for rank, of_rank in enumerate(entries):
        for name, dtype, _, _ in of_rank:
            found = merged[name]
            if dtype is None and found.kind and found.kind not in kinds[rank]:
                raise harmless(
                    TypeError(
                        f"average_gradients: gradient {name}: rank {owner[name]} has a {found}, rank {rank} None, and "
                        f"it has not imported {needed_for(found.kind) or found.kind}; import it there"
                    )
                )
    return list(merged.values())


# ---- buckets --------------------------------------------------------------------------------------


def _average(
    arrays: list[Any],
    buckets: list[_Bucket],
    ring: Ring,
    op: Any,
    order: str,
    in_place: bool,
) -> list[Any]:
    """The averages of a nest's gradients, in the order in which it holds them."""
    averaged: list[Any] = [None] * len(arrays)
    started = []
    for layout, places in buckets:
        brought = [arrays[place] for place in places]
        one = next((array for array in brought if array is not None), None)
        flat = Flat(layout, None if one is None else operand(one).kind)
        flat.fill_in_order(brought)
        whole, is_only = flat.whole, len(buckets) == 1
        work = ring.allreduce(whole, op, out=whole, order=order, async_op=not is_only)
        started.append((None if is_only else work, flat, places))
    for work, flat, places in started:
        if work is not None:
            work.wait()
        brought = [arrays[place] for place in places]
        for place, array in zip(
            places, flat.copy_to(brought) if in_place else flat.arrays
        ):
            averaged[place] = array
    return averaged


def _cut(
    signatures: list[Signature], bucket_bytes: int | None
) -> Iterator[list[Signature]]:
    """Gradients that travel together: of one dtype and kind, in order of their names."""
    for group in groups(signatures):
        itemsize = NUMPY.itemsize(str(group[0].dtype))
        bucket: list[Signature] = []
        nbytes = 0
        for item in group:
            more = item.elements * itemsize
            if bucket and bucket_bytes is not None and nbytes + more > bucket_bytes:
                yield bucket
                bucket, nbytes = [], 0
            bucket.append(item)
            nbytes += more
        yield bucket
