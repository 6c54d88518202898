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
from typing import TYPE_CHECKING, Any

from ..errors import RingError, harmless
from ..wire.arrays import NUMPY, kinds_here, libraries_here, needed_for
from ..wire.arrays.operands import operand
from ..wire.collectives.reductions import known
from ..wire.opening.calls import as_text
from ..wire.reduce.arithmetic import Array, check_op
from ..wire.settings.arguments import whole_number
from ..wire.transport import mpi
from .agreement import everyone_says
from .flat import Flat, Signature, groups, signature
from .nests import leaves, rebuilt, shown

if TYPE_CHECKING:
    from ..ring import Ring


def average_gradients(
    grads: Any,
    ring: Ring,
    *,
    op: Any = "avg",
    order: str = "ring",
    bucket_bytes: int | None = 25 << 20,
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

    Returns:
        the same nest, with this rank's keys and types of containers, of new arrays; None where no rank has a
        gradient.

    Raises:
        TypeError, ValueError: on every rank, naming the gradient and the ranks.
    """
    with ring.composed("average_gradients"):
        return _averaged(grads, ring, op, order, bucket_bytes)


def _averaged(
    grads: Any, ring: Ring, op: Any, order: str, bucket_bytes: int | None
) -> Any:
    failure: Exception | None = None
    op = mpi.op_name(op)
    size: int | None = None
    by_text: dict[str, Any] = {}
    signatures: list[Signature] = []
    places: dict[str, tuple[str, str]] = {}
    try:
        if ring.members > 1:
            raise RingError(
                f"works on rings of one member a process, this one has {ring.members}"
            )
        if bucket_bytes is not None:
            size = whole_number("bucket_bytes", bucket_bytes, 1)
        known("order", order, ("ring", "rank"))
        check_op(op, "float64")  # whether there is one of that name
        by_name = leaves(grads)
        rebuilt(grads, by_name)
        by_text = {shown(name): leaf for name, leaf in by_name.items()}
        for text, leaf in by_text.items():
            signatures.append(_signature(text, leaf, op, places))
    except Exception as error:
        failure = error
    settings = f"op={op} order={as_text(order)} bucket_bytes={size}"
    # Who has none of a gradient makes zeros of the kind that the others have.
    has_none = any(item.dtype is None for item in signatures)
    kinds = [*kinds_here(), *libraries_here()] if has_none else []
    said = json.dumps([settings, signatures, kinds])
    if not ring.exchange("average_gradients", said, failure):
        signatures = _merge(everyone_says(ring, said))
    averaged = _average(by_text, signatures, ring, op, order, size)
    return rebuilt(grads, {name: averaged.get(shown(name)) for name in by_name})


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
    leaves: dict[str, Any],
    signatures: list[Signature],
    ring: Ring,
    op: Any,
    order: str,
    bucket_bytes: int | None,
) -> dict[str, Array]:
    started = []
    for bucket in _buckets(signatures, bucket_bytes):
        brought = [leaves[item.name] for item in bucket]
        one = next((leaf for leaf in brought if leaf is not None), None)
        flat = Flat(bucket, None if one is None else operand(one).kind)
        flat.fill(leaves)
        work = ring.allreduce(
            flat.whole, op, out=flat.whole, order=order, async_op=True
        )
        started.append((work, flat))
    averaged: dict[str, Array] = {}
    for work, flat in started:
        work.wait()
        averaged.update(flat.views)
    return averaged


def _buckets(
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
