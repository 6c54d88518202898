"""Broadcast and reduce: the schedules with a root.

The chain
    A broadcast sends the buffer along the ring from the root to its left neighbour, the last in the chain; a
    reduce sends partial sums along the ring to the root, from its right neighbour, the first.  Cut in ``S``
    segments, a rank passes on one while it receives the next.  Of ``N`` bytes on links of ``B`` bytes a
    second and with ``K`` ranks, that takes ``K + S - 2`` turns of ``N / (S B)`` seconds:

    * ``S = 1`` is the lecture's *naive* broadcast, ``(K - 1) N / B``;
    * with ``S`` much larger than ``K`` it comes to ``N / B``: the *pipelined* one.

The star
    The root talks to every rank itself, so its link carries ``(K - 1) N`` bytes: the lecture's parameter
    server.  One turn, good for small messages.

Source: the lecture, sections 2.2 and 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from .schedules import Action, Form, Receive, Schedule, Send, Step, neighbours


def chain_broadcast(size: int, root: int = 0, segments: int = 1) -> Schedule:
    """The root's buffer to every rank, along the ring, ``segments`` pieces one behind the other.

    >>> for step in chain_broadcast(3, segments=2).steps(1):
    ...     print([r.segment for r in step.receives], [s.segment for s in step.sends])
    [0] []
    [1] [0]
    [] [1]
    """

    def steps(rank: int) -> Iterator[Step]:
        left, right = neighbours(rank, size)
        place = (rank - root) % size
        # Turns between receiving a segment and passing it on.
        behind = 1 if 0 < place < size - 1 else 0
        for i in range(segments + behind):
            yield Step(
                (
                    _sends(right, i - behind, segments, Form.RESULT)
                    if place < size - 1
                    else ()
                ),
                (
                    _receives(left, i, segments, Action.STORE, Form.RESULT)
                    if place
                    else ()
                ),
            )

    return Schedule("broadcast", "chain", size, steps, None, 0, root, segments)


def chain_reduce(size: int, root: int = 0, segments: int = 1) -> Schedule:
    """The ranks' buffers combined on the root, along the ring: ``root + 1, root + 2, ..., root``.

    >>> for step in chain_reduce(3, segments=2).steps(2):
    ...     print([r.segment for r in step.receives], [s.segment for s in step.sends])
    [0] []
    [1] [0]
    [] [1]
    """

    def steps(rank: int) -> Iterator[Step]:
        left, right = neighbours(rank, size)
        place = (rank - root - 1) % size
        is_root = rank == root
        behind = 1 if place and not is_root else 0
        for i in range(segments + behind):
            yield Step(
                () if is_root else _sends(right, i - behind, segments, Form.PARTIAL),
                (
                    _receives(left, i, segments, Action.REDUCE, Form.PARTIAL)
                    if place
                    else ()
                ),
                (i,) if is_root else (),
            )

    return Schedule("reduce", "chain", size, steps, "ring", 0, root, segments)


def star_broadcast(size: int, root: int = 0, segments: int = 1) -> Schedule:
    """The root's buffer to every rank, straight from the root."""

    def steps(rank: int) -> Iterator[Step]:
        others = [(root + i) % size for i in range(1, size)]
        for i in range(segments):
            if rank == root:
                yield Step(tuple(Send(peer, i, Form.RESULT) for peer in others))
            else:
                yield Step((), (Receive(root, i, Action.STORE, Form.RESULT),))

    return Schedule("broadcast", "star", size, steps, None, 0, root, segments)


def star_reduce(
    size: int, root: int = 0, segments: int = 1, order: str = "ring"
) -> Schedule:
    """The ranks' buffers straight to the root, which combines them.

    The root needs room for ``size - 1`` segments.

    Args:
        order: ``"ring"`` for ``root + 1, root + 2, ..., root``, or ``"rank"`` for ``0, 1, ...``.
    """

    def steps(rank: int) -> Iterator[Step]:
        others = [(root + i) % size for i in range(1, size)]
        if order == "rank":
            others.sort()
        for i in range(segments):
            if rank != root:
                yield Step((Send(root, i, Form.CONTRIBUTION),))
                continue
            yield Step(
                (),
                tuple(
                    Receive(
                        peer,
                        i,
                        (
                            Action.REDUCE_AFTER
                            if order == "rank" and peer > root
                            else Action.REDUCE
                        ),
                        Form.CONTRIBUTION,
                    )
                    for peer in others
                ),
                (i,),
            )

    return Schedule("reduce", "star", size, steps, order, 0, root, segments)


def _sends(peer: int, segment: int, segments: int, form: Form) -> tuple[Send, ...]:
    return (Send(peer, segment, form),) if 0 <= segment < segments else ()


def _receives(
    peer: int, segment: int, segments: int, action: Action, form: Form
) -> tuple[Receive, ...]:
    return (Receive(peer, segment, action, form),) if segment < segments else ()
