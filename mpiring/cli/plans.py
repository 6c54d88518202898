"""What ``show`` and ``verify`` have in common: which schedule is meant, and how its traffic reads.

A schedule is named by its collective, or it is one of the user's own: ``FILE.py:FUNCTION``, where
``FUNCTION(size)`` returns a ``Schedule`` for that many ranks.
"""

from __future__ import annotations

import argparse
import runpy
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from mpiring.cli import UsageError
from mpiring.plan import (
    ALGORITHMS,
    COLLECTIVES,
    Model,
    Proof,
    Schedule,
    algorithms,
    bus_factor,
    closed_form,
    price,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    schedule,
)

# The schedules that have a choice of ownership offset.
RINGS: dict[str, Callable[[int, int], Schedule]] = {
    "allreduce": ring_allreduce,
    "reduce_scatter": ring_reduce_scatter,
    "allgather": ring_allgather,
}
ROOTED = ("broadcast", "reduce")

OPTIONS = ("algorithm", "order", "offset", "root", "segments")


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which schedule is meant, the number of ranks apart."""
    parser.add_argument(
        "what",
        metavar="COLLECTIVE",
        help=f"{', '.join(COLLECTIVES)}; or FILE.py:FUNCTION, a schedule of your own:"
        " FUNCTION(size) returns it",
    )
    parser.add_argument(
        "--algorithm",
        choices=ALGORITHMS,
        help="ring: to the right neighbour at each step (the default); direct: straight to where it"
        " belongs; of a broadcast, naive: the whole buffer along the ring, or pipelined: in segments"
        " (its default)",
    )
    parser.add_argument(
        "--order",
        choices=("ring", "rank"),
        help="combine x[s+1] op ... op x[s] (the default), or x[0] op x[1] op ...; the latter needs"
        " --algorithm direct",
    )
    parser.add_argument(
        "--offset",
        type=int,
        choices=(0, 1),
        help="rank r ends the reduce-scatter with segment r + offset: 0 is ours (the default), 1"
        " the lecture's; ring only",
    )
    parser.add_argument(
        "--root",
        type=int,
        metavar="R",
        help="of a broadcast or reduce (default: 0)",
    )
    parser.add_argument(
        "--segments",
        type=int,
        metavar="S",
        help="pieces of a broadcast or reduce (default: 1; 8 if pipelined)",
    )


def parse_ranks(text: str) -> range:
    """``"4"`` or ``"2-32"``, both ends included, as a range.

    >>> list(parse_ranks("4")), list(parse_ranks("2-5"))
    ([4], [2, 3, 4, 5])
    """
    first, dash, last = text.partition("-")
    low, high = int(first), int(last if dash else first)
    if not 1 <= low <= high:
        raise ValueError
    return range(low, high + 1)


def as_ranks(text: str) -> range:
    """:func:`parse_ranks` for argparse, with its own words for what is wrong."""
    try:
        return parse_ranks(text)
    except ValueError:
        expected = (
            "expected a number of ranks, 1 or more, such as 4, or a range such as 2-32"
        )
        raise argparse.ArgumentTypeError(f"{text!r}: {expected}") from None


def make_schedule(args: argparse.Namespace, size: int) -> Schedule:
    """The schedule that the command line means, for ``size`` ranks.

    Raises:
        UsageError: for a name that does not exist, or options that do not go together.
    """
    given = [name for name in OPTIONS if getattr(args, name) is not None]
    if ":" in args.what:
        if given:
            raise UsageError(
                f"{args.what} is what it is: leave out "
                + ", ".join(f"--{name}" for name in OPTIONS)
            )
        return own_schedule(args.what, size)
    if args.what not in COLLECTIVES:
        known = ", ".join(COLLECTIVES)
        raise UsageError(
            f"unknown collective {args.what!r}; known: {known}; or FILE.py:FUNCTION"
        )
    known_here, algorithm = algorithms(args.what), algorithm_of(args)
    if algorithm not in known_here:
        raise UsageError(
            f"--algorithm {algorithm}: {args.what} has {', '.join(known_here)}"
        )
    _check_options(args, algorithm, size)
    if args.what in RINGS and algorithm == "ring":
        return RINGS[args.what](size, args.offset or 0)
    return schedule(
        args.what,
        size,
        algorithm=algorithm,
        order=args.order or "ring",
        root=args.root,
        segments=args.segments or 0,
    )


def algorithm_of(args: argparse.Namespace) -> str:
    """The algorithm that the command line means for a collective of the catalog."""
    default = "pipelined" if args.what == "broadcast" else "ring"
    return str(args.algorithm or default)


def steps_of(args: argparse.Namespace, made: Schedule) -> int:
    """Exchanges one after the other until the last rank is done: those of a chain's ranks overlap in part.

    A formula knows it for the catalog's schedules; one of the user's own is priced, an exchange for 1.
    """
    if ":" in args.what:
        return int(price(made, model=Model(alpha=1, beta=0)).seconds)
    return closed_form(
        args.what, algorithm_of(args), made.size, 0, segments=made.segments
    ).exchanges


def _check_options(args: argparse.Namespace, algorithm: str, size: int) -> None:
    """Refuse options that the schedule has no use for, and numbers that make no sense."""
    if algorithm == "ring" and args.order == "rank":
        raise UsageError(
            "--order rank needs --algorithm direct: a ring adds in ring order"
        )
    if args.offset is not None and (args.what not in RINGS or algorithm != "ring"):
        raise UsageError(
            f"--offset is the ring's: {algorithm} {args.what} has no such choice"
        )
    if args.what not in ROOTED:
        for name in ("root", "segments"):
            if getattr(args, name) is not None:
                raise UsageError(
                    f"--{name} is for {' and '.join(ROOTED)}: {args.what} has no such choice"
                )
    if args.root is not None and not 0 <= args.root < size:
        raise UsageError(f"--root {args.root}: expected 0 to {size - 1}")
    if args.segments is not None and args.segments < 1:
        raise UsageError(f"--segments {args.segments}: expected 1 or more")
    if algorithm == "naive" and args.segments not in (None, 1):
        raise UsageError(
            "--segments: a naive broadcast has one; try --algorithm pipelined"
        )


def own_schedule(what: str, size: int) -> Schedule:
    """The schedule that ``FILE.py:FUNCTION`` returns; the file is run for it."""
    path, _, name = what.rpartition(":")
    try:
        function: Any = runpy.run_path(path).get(name)
        if function is None:
            raise UsageError(f"{path} has no function {name!r}")
        made = function(size)
    except UsageError:
        raise
    except Exception as error:  # the user's code may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = (
            f" (line {last.lineno} of {last.filename})" if last.filename == path else ""
        )
        raise UsageError(f"{what}: {type(error).__name__}: {error}{place}") from error
    if not isinstance(made, Schedule) or made.size != size:
        got = (
            f"a schedule for {made.size}" if isinstance(made, Schedule) else f"{made!r}"
        )
        raise UsageError(
            f"{what}: {name}({size}) must return a Schedule for {size} ranks, got {got}"
        )
    return made


def order_text(proof: Proof) -> str:
    """In which order results are combined; ``""`` for a collective that only moves data.

    >>> from mpiring.plan import verify
    >>> order_text(verify(ring_allreduce(3)))
    'segment 0: (x1 op x2) op x0; in each next segment every rank one further'
    """
    orders = proof.orders
    if not any(orders):
        return ""
    first = f"segment 0: {shorten(proof.order_text(0))}"
    if len(orders) == 1:
        return first
    if len(set(orders)) == 1:
        return f"every segment: {shorten(proof.order_text(0))}"
    size = proof.schedule.size
    turned = [shift(orders[0], segment, size) for segment in range(len(orders))]
    if turned == list(orders):
        return f"{first}; in each next segment every rank one further"
    return "; ".join(
        f"segment {segment}: {shorten(proof.order_text(segment))}"
        for segment in range(len(orders))
    )


def shift(order: Sequence[int | str], by: int, size: int) -> tuple[int | str, ...]:
    """An order of combination with every rank ``by`` further on; brackets stay."""
    return tuple(
        (token + by) % size if isinstance(token, int) else token for token in order
    )


def shorten(formula: str, most: int = 5) -> str:
    """A long fold with its middle left out.

    >>> shorten("((((((x1 op x2) op x3) op x4) op x5) op x6) op x7) op x0")
    '((x1 op x2) op x3) op ... op x0'
    """
    terms = formula.split(" op ")
    nested = any("(" in term for term in terms[1:])
    if len(terms) <= most or nested:
        return formula
    head = f"(({terms[0].lstrip('(')} op {terms[1]} op {terms[2]}"
    return f"{head} op ... op {terms[-1]}"


def traffic_text(proof: Proof) -> str:
    """What a rank moves of a buffer of N bytes, against the least possible.

    >>> from mpiring.plan import direct_allreduce, verify
    >>> traffic_text(verify(direct_allreduce(4)))
    'each rank sends and receives 1.5 N bytes, the least possible'
    """
    least = bus_factor(proof.schedule.collective, proof.schedule.size)
    sent, received = share(proof.sent, proof), share(proof.received, proof)
    same = len(set(proof.sent)) == len(set(proof.received)) == 1
    who = "each rank" if same else "the busiest rank"
    if sent == received:
        moved = f"{who} sends and receives {sent:.4g} N bytes"
    else:
        moved = f"{who} sends {sent:.4g} N bytes and receives {received:.4g} N"
    if max(sent, received) <= least * (1 + 1e-12):
        return f"{moved}, the least possible"
    return f"{moved}; the least possible is {least:.4g} N"


def share(elements: Sequence[int], proof: Proof) -> float:
    """The most that a rank moves, as a multiple of the buffer."""
    return max(elements) / proof.count if proof.count else 0.0
