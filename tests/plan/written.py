"""Schedules written as a user would write them, of kinds the package does not contain.

Each takes the number of ranks and gives a schedule; :data:`WRITTEN` lists them with the sizes they exist
for.  They show that a chain, a star, a tree and a hierarchy are the same kind of thing as the ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from mpiring.plan import Action, Form, Receive, Schedule, Send, Step, from_steps

STORE, REDUCE, AFTER = Action.STORE, Action.REDUCE, Action.REDUCE_AFTER
CONTRIBUTION, PARTIAL, RESULT = Form.CONTRIBUTION, Form.PARTIAL, Form.RESULT


def send(peer: int, segments: Iterable[int], form: Form = PARTIAL) -> Step:
    return Step(sends=tuple(Send(peer, s, form) for s in segments))


def receive(
    peer: int, segments: Iterable[int], action: Action = REDUCE, form: Form = PARTIAL
) -> Step:
    return Step(receives=tuple(Receive(peer, s, action, form) for s in segments))


def get(peer: int, segments: Iterable[int]) -> Step:
    return receive(peer, segments, STORE, RESULT)


# ---- broadcast ------------------------------------------------------------------------------------


def chain_broadcast(size: int, root: int = 0, segments: int = 3) -> Schedule:
    """The pipeline: while segment s + 1 comes in from the left, s goes out to the right."""
    steps = []
    for rank in range(size):
        place = (rank - root) % size
        left, right = (rank - 1) % size, (rank + 1) % size
        program = []
        for s in range(segments + 1):
            comes = s < segments and place > 0
            goes = s > 0 and place < size - 1
            program.append(
                Step(
                    (Send(right, s - 1, RESULT),) if goes else (),
                    (Receive(left, s, STORE, RESULT),) if comes else (),
                )
            )
        steps.append(program)
    return from_steps(
        "broadcast", steps, algorithm="chain", root=root, segments=segments
    )


def star_broadcast(size: int, root: int = 0, segments: int = 2) -> Schedule:
    everything = range(segments)
    steps = [[get(root, everything)] for _ in range(size)]
    others = [rank for rank in range(size) if rank != root]
    steps[root] = [Step(tuple(Send(r, s, RESULT) for r in others for s in everything))]
    return from_steps(
        "broadcast", steps, algorithm="star", root=root, segments=segments
    )


def tree_down(size: int, root: int, everything: Iterable[int]) -> list[list[Step]]:
    """Binomial tree: in each round all who have it tell one more."""
    steps: list[list[Step]] = [[] for _ in range(size)]
    reach = 1
    while reach < size:
        for place in range(min(reach, size - reach)):
            a, b = (root + place) % size, (root + place + reach) % size
            steps[a].append(send(b, everything, RESULT))
            steps[b].append(get(a, everything))
        reach *= 2
    return steps


def tree_broadcast(size: int, root: int = 0, segments: int = 1) -> Schedule:
    steps = tree_down(size, root, range(segments))
    return from_steps(
        "broadcast", steps, algorithm="tree", root=root, segments=segments
    )


# ---- reduce ---------------------------------------------------------------------------------------


def chain_reduce(size: int, root: int = 0, segments: int = 2) -> Schedule:
    """From root + 1 around the ring to the root: ring order."""
    everything = range(segments)
    steps = []
    for rank in range(size):
        place = (rank - root - 1) % size
        program = []
        if place > 0:
            program.append(receive((rank - 1) % size, everything))
        if place < size - 1:
            program.append(send((rank + 1) % size, everything))
        else:
            program.append(Step(finishes=tuple(everything)))
        steps.append(program)
    return from_steps(
        "reduce", steps, algorithm="chain", order="ring", root=root, segments=segments
    )


def star_reduce(size: int, root: int = 0, order: str = "rank") -> Schedule:
    """Everyone sends all of it to the root, which combines in the order asked for."""
    steps = [[send(root, range(size), CONTRIBUTION)] for _ in range(size)]
    if order == "rank":
        sources = [r for r in range(size) if r != root]
    else:
        sources = [(root + i) % size for i in range(1, size)]
    receives = tuple(
        Receive(
            r,
            s,
            AFTER if order == "rank" and r > root else REDUCE,
            CONTRIBUTION,
        )
        for r in sources
        for s in range(size)
    )
    steps[root] = [Step((), receives, tuple(range(size)))]
    return from_steps("reduce", steps, algorithm="star", order=order, root=root)


def tree_up(size: int, root: int, everything: Iterable[int]) -> list[list[Step]]:
    """Binomial tree: at each distance, half of those left send to the other half."""
    steps: list[list[Step]] = [[] for _ in range(size)]
    distance = 1
    while distance < size:
        for place in range(0, size - distance, 2 * distance):
            a, b = (root + place) % size, (root + place + distance) % size
            steps[a].append(receive(b, everything, AFTER))
            steps[b].append(send(a, everything))
        distance *= 2
    steps[root].append(Step(finishes=tuple(everything)))
    return steps


def tree_reduce(size: int, root: int = 0, segments: int = 1) -> Schedule:
    steps = tree_up(size, root, range(segments))
    return from_steps("reduce", steps, algorithm="tree", root=root, segments=segments)


# ---- all-reduce -----------------------------------------------------------------------------------


def chain_allreduce(size: int, segments: int = 3) -> Schedule:
    """Up the ranks to the last one, and back: rank order, any number of segments."""
    everything, last = range(segments), size - 1
    steps = []
    for rank in range(size):
        program = []
        if rank > 0:
            program.append(receive(rank - 1, everything))
        if rank < last:
            program += [send(rank + 1, everything), get(rank + 1, everything)]
        else:
            program.append(Step(finishes=tuple(everything)))
        if rank > 0:
            program.append(send(rank - 1, everything, RESULT))
        steps.append(program)
    return from_steps(
        "allreduce", steps, algorithm="chain", order="rank", segments=segments
    )


def star_allreduce(size: int, segments: int = 2) -> Schedule:
    """A parameter server's exchange: all to rank 0, the result to all."""
    everything, others = range(segments), range(1, size)
    steps = [
        [send(0, everything, CONTRIBUTION), get(0, everything)] for _ in range(size)
    ]
    steps[0] = [
        Step(
            (),
            tuple(
                Receive(r, s, AFTER, CONTRIBUTION) for r in others for s in everything
            ),
            tuple(everything),
        ),
        Step(tuple(Send(r, s, RESULT) for r in others for s in everything)),
    ]
    return from_steps(
        "allreduce", steps, algorithm="star", order="rank", segments=segments
    )


def tree_allreduce(size: int, segments: int = 1) -> Schedule:
    up, down = tree_up(size, 0, range(segments)), tree_down(size, 0, range(segments))
    steps = [chain(*pair) for pair in zip(up, down)]
    return from_steps("allreduce", steps, algorithm="tree", segments=segments)


def doubling_allreduce(size: int, segments: int = 1) -> Schedule:
    """Recursive doubling: swap everything with the partner at distance 1, 2, 4, ..."""
    everything = range(segments)
    steps: list[list[Step]] = [[] for _ in range(size)]
    distance = 1
    while distance < size:
        for rank in range(size):
            peer = rank ^ distance
            action = REDUCE if peer < rank else AFTER
            steps[rank].append(
                Step(
                    tuple(Send(peer, s) for s in everything),
                    tuple(Receive(peer, s, action) for s in everything),
                )
            )
        distance *= 2
    for program in steps:
        program.append(Step(finishes=tuple(everything)))
    return from_steps("allreduce", steps, algorithm="doubling", segments=segments)


def halving(size: int) -> list[list[Step]]:
    """Recursive halving: keep the half of the segments in which the own one lies."""
    steps = []
    for rank in range(size):
        program, kept, distance = [], list(range(size)), size // 2
        while distance:
            peer = rank ^ distance
            action = REDUCE if peer < rank else AFTER
            given = [s for s in kept if s & distance != rank & distance]
            kept = [s for s in kept if s & distance == rank & distance]
            program.append(
                Step(
                    tuple(Send(peer, s) for s in given),
                    tuple(Receive(peer, s, action) for s in kept),
                )
            )
            distance //= 2
        program.append(Step(finishes=(rank,)))
        steps.append(program)
    return steps


def halving_reduce_scatter(size: int) -> Schedule:
    return from_steps("reduce_scatter", halving(size), algorithm="halving")


def doubling(size: int) -> list[list[Step]]:
    """Recursive doubling of what is gathered."""
    steps = []
    for rank in range(size):
        program, have, distance = [], [rank], 1
        while distance < size:
            peer = rank ^ distance
            coming = [s ^ distance for s in have]
            program.append(
                Step(
                    tuple(Send(peer, s, RESULT) for s in have),
                    tuple(Receive(peer, s, STORE, RESULT) for s in coming),
                )
            )
            have += coming
            distance *= 2
        steps.append(program)
    return steps


def doubling_allgather(size: int) -> Schedule:
    return from_steps("allgather", doubling(size), algorithm="doubling")


def halving_doubling_allreduce(size: int) -> Schedule:
    """Rabenseifner's: recursive halving, then recursive doubling."""
    steps = [chain(*pair) for pair in zip(halving(size), doubling(size))]
    return from_steps("allreduce", steps, algorithm="halving-doubling")


def hierarchical_allreduce(nodes: int, local: int) -> Schedule:
    """Reduce-scatter in each node, across the nodes by segment, all-gather in each node.

    There are as many segments as ranks in a node; rank ``node * local + i`` looks after segment i.
    """
    steps = []
    for rank in range(nodes * local):
        node, mine = divmod(rank, local)
        mates = [(node * local + i, i) for i in range(local) if i != mine]
        program = [
            Step(
                tuple(Send(mate, i, CONTRIBUTION) for mate, i in mates),
                tuple(
                    Receive(mate, mine, REDUCE if i < mine else AFTER, CONTRIBUTION)
                    for mate, i in mates
                ),
            )
        ]
        if node == 0:
            peers = [n * local + mine for n in range(1, nodes)]
            program += [
                Step((), tuple(Receive(p, mine, AFTER) for p in peers), (mine,)),
                Step(tuple(Send(p, mine, RESULT) for p in peers)),
            ]
        else:
            program += [send(mine, [mine]), get(mine, [mine])]
        program.append(
            Step(
                tuple(Send(mate, mine, RESULT) for mate, _ in mates),
                tuple(Receive(mate, i, STORE, RESULT) for mate, i in mates),
            )
        )
        steps.append(program)
    return from_steps("allreduce", steps, algorithm="hierarchical", segments=local)


ANY, POWERS = range(1, 8), (1, 2, 4, 8)
WRITTEN: dict[str, tuple[Callable[[int], Schedule], Iterable[int]]] = {
    "chain broadcast": (chain_broadcast, ANY),
    "chain broadcast, last root": (
        lambda size: chain_broadcast(size, size - 1, 2),
        ANY,
    ),
    "star broadcast": (star_broadcast, ANY),
    "tree broadcast": (tree_broadcast, ANY),
    "tree broadcast, last root": (lambda size: tree_broadcast(size, size - 1, 2), ANY),
    "chain reduce": (chain_reduce, ANY),
    "star reduce, rank order": (lambda size: star_reduce(size, size // 2), ANY),
    "star reduce, ring order": (lambda size: star_reduce(size, size // 2, "ring"), ANY),
    "tree reduce": (tree_reduce, ANY),
    "chain allreduce": (chain_allreduce, ANY),
    "star allreduce": (star_allreduce, ANY),
    "tree allreduce": (tree_allreduce, ANY),
    "doubling allreduce": (doubling_allreduce, POWERS),
    "halving reduce_scatter": (halving_reduce_scatter, POWERS),
    "doubling allgather": (doubling_allgather, POWERS),
    "halving-doubling allreduce": (halving_doubling_allreduce, POWERS),
    "hierarchical allreduce, nodes of 2": (
        lambda size: hierarchical_allreduce(size // 2, 2),
        (2, 4, 6, 8),
    ),
    "hierarchical allreduce, nodes of 3": (
        lambda size: hierarchical_allreduce(size // 3, 3),
        (3, 6),
    ),
}
CASES = [(name, size) for name, (_, sizes) in WRITTEN.items() for size in sizes]


def written(name: str, size: int) -> Schedule:
    return WRITTEN[name][0](size)
