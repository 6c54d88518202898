"""Schedules that are not ours, written out as a user of ``ring.run`` would: each a few readable lines.

Between them they use all that a step can do: folds from the left, the right and both sides, brackets, contributions
that travel as they are and widened, partials and contributions that are stored, results that pass through a rank that
does not keep them, more segments than ranks, and fewer.
"""

from __future__ import annotations

from functools import partial

from mpiring.plan import Action, Form, Receive, Send, Step, from_steps, schedule

STORE, REDUCE, AFTER = Action.STORE, Action.REDUCE, Action.REDUCE_AFTER
OWN, PARTIAL, RESULT = Form.CONTRIBUTION, Form.PARTIAL, Form.RESULT


def nothing_yet(size: int) -> list[list[Step]]:
    return [[] for _ in range(size)]


def chain(size, segments=3):
    """Sums travel up the ranks, results travel down; order "rank"."""
    steps = nothing_yet(size)
    for s in range(segments):
        for r in range(1, size):
            steps[r - 1].append(Step((Send(r, s),)))
            steps[r].append(Step((), (Receive(r - 1, s),)))
        steps[-1].append(Step(finishes=(s,)))
        for r in range(size - 1, 0, -1):
            steps[r].append(Step((Send(r - 1, s, RESULT),)))
            steps[r - 1].append(Step((), (Receive(r, s, STORE, RESULT),)))
    return from_steps("allreduce", steps, order="rank", segments=segments)


def star_reduce(size, root, segments=2):
    """Everybody sends to the root at once; order "ring" of a reduce."""
    steps = nothing_yet(size)
    others = [(root + i) % size for i in range(1, size)]
    for s in range(segments):
        receives = tuple(Receive(peer, s, REDUCE, OWN) for peer in others)
        steps[root].append(Step((), receives, (s,)))
        for peer in others:
            steps[peer].append(Step((Send(root, s, OWN),)))
    return from_steps(
        "reduce",
        steps,
        order="ring" if size > 1 else None,
        root=root,
        segments=segments,
    )


def tree(size):
    """A binomial tree to rank 0 and back; brackets."""
    steps = nothing_yet(size)
    back = []
    gap = 1
    while gap < size:
        for r in range(0, size - gap, 2 * gap):
            steps[r + gap].append(Step((Send(r, 0),)))
            steps[r].append(Step((), (Receive(r + gap, 0, AFTER),)))
            back.append((r, r + gap))
        gap *= 2
    steps[0].append(Step(finishes=(0,)))
    for parent, child in reversed(back):
        steps[parent].append(Step((Send(child, 0, RESULT),)))
        steps[child].append(Step((), (Receive(parent, 0, STORE, RESULT),)))
    return from_steps("allreduce", steps, segments=1)


def recursive_doubling(size, segments=2):
    """Pairs, pairs of pairs, ...: everybody sends and reduces the same segments, in brackets."""
    steps = nothing_yet(size)
    everything = range(segments)
    for r in range(size):
        gap = 1
        while gap < size:
            peer = r ^ gap
            action = REDUCE if peer < r else AFTER
            steps[r].append(
                Step(
                    tuple(Send(peer, s) for s in everything),
                    tuple(Receive(peer, s, action) for s in everything),
                    tuple(everything) if 2 * gap == size else (),
                )
            )
            gap *= 2
        if size == 1:
            steps[r].append(Step(finishes=tuple(everything)))
    return from_steps("allreduce", steps, segments=segments)


def hierarchical(size, group=2):
    """Groups reduce to their first rank, those exchange everything, and hand the result on."""
    steps = nothing_yet(size)
    leaders = range(0, size, group)
    for leader in leaders:
        members = range(leader + 1, min(leader + group, size))
        steps[leader].append(
            Step((), tuple(Receive(m, 0, AFTER, OWN) for m in members))
        )
        for member in members:
            steps[member].append(Step((Send(leader, 0, OWN),)))
    for leader in leaders:
        others = [peer for peer in leaders if peer != leader]
        # A leader that is alone has nothing but its contribution; it travels as a partial all the same.
        steps[leader].append(
            Step(
                tuple(Send(peer, 0) for peer in others),
                tuple(Receive(p, 0, REDUCE if p < leader else AFTER) for p in others),
                (0,),
            )
        )
        for member in range(leader + 1, min(leader + group, size)):
            steps[leader].append(Step((Send(member, 0, RESULT),)))
            steps[member].append(Step((), (Receive(leader, 0, STORE, RESULT),)))
    return from_steps("allreduce", steps, segments=1)


def server_reduce_scatter(size):
    """Rank 0 adds everything up, finishes it and deals it out, of which it keeps one segment."""
    steps = nothing_yet(size)
    for s in range(size):
        receives = tuple(Receive(r, s, AFTER, OWN) for r in range(1, size))
        steps[0].append(Step((), receives))
        for r in range(1, size):
            steps[r].append(Step((Send(0, s, OWN),)))
    steps[0].append(Step(finishes=tuple(range(size))))
    steps[0].append(Step(tuple(Send(r, r, RESULT) for r in range(1, size))))
    for r in range(1, size):
        steps[r].append(Step((), (Receive(0, r, STORE, RESULT),)))
    return from_steps("reduce_scatter", steps, order="rank")


def passing_through(size, segments=3):
    """A reduce to rank 0 that the last rank finishes; its result comes back through all the others."""
    steps = nothing_yet(size)
    for s in range(segments):
        for r in range(1, size):
            steps[r - 1].append(Step((Send(r, s),)))
            steps[r].append(Step((), (Receive(r - 1, s),)))
        steps[-1].append(Step(finishes=(s,)))
    for r in range(size):
        for s in range(-1, segments):  # hand on what came, take what comes next
            sends = ((Send(r - 1, s, RESULT),) if s >= 0 else ()) if r > 0 else ()
            comes = r < size - 1 and s + 1 < segments
            receives = (Receive(r + 1, s + 1, STORE, RESULT),) if comes else ()
            if sends or receives:
                steps[r].append(Step(sends, receives))
    return from_steps("reduce", steps, root=0, order="rank", segments=segments)


def dropped(size, segments=2):
    """A reduce to rank 0, which sends the result to everybody; the others have no use for it."""
    steps = nothing_yet(size)
    for s in range(segments):
        others = range(1, size)
        receives = tuple(Receive(peer, s, AFTER, OWN) for peer in others)
        steps[0].append(Step((), receives, (s,)))
        steps[0].append(Step(tuple(Send(peer, s, RESULT) for peer in others)))
        for peer in others:
            steps[peer].append(Step((Send(0, s, OWN),)))
            steps[peer].append(Step((), (Receive(0, s, STORE, RESULT),)))
    return from_steps("reduce", steps, root=0, order="rank", segments=segments)


def stored_partials(size):
    """A sum goes to rank 0 and, with its contribution in it, back to where it came from; and so on."""
    steps = nothing_yet(size)
    for r in range(1, size):
        # Rank r brings its contribution to rank 0, which holds the sum so far and gives it to r + 1.
        steps[r].append(Step((Send(0, 0, OWN),)))
        steps[0].append(Step((), (Receive(r, 0, AFTER, OWN),)))
        steps[0].append(Step((Send(r, 0),)))
        steps[r].append(Step((), (Receive(0, 0, STORE),)))
    last = size - 1
    steps[last].append(Step(finishes=(0,)))
    for r in range(size - 1):
        steps[last].append(Step((Send(r, 0, RESULT),)))
        steps[r].append(Step((), (Receive(last, 0, STORE, RESULT),)))
    return from_steps("allreduce", steps, order="rank", segments=1)


def stored_contributions(size):
    """A reduce to rank 0: rank 1 sends its own contribution, then those of others, which it stores."""
    steps = nothing_yet(size)
    if size > 1:
        steps[1].append(Step((Send(0, 0),)))
        steps[0].append(Step((), (Receive(1, 0, AFTER),)))
    for r in range(2, size):
        steps[r].append(Step((Send(1, 0, OWN),)))
        steps[1].append(Step((), (Receive(r, 0, STORE, OWN),)))
        steps[1].append(Step((Send(0, 0),)))
        steps[0].append(Step((), (Receive(1, 0, AFTER),)))
    steps[0].append(Step(finishes=(0,)))
    return from_steps("reduce", steps, root=0, order="rank", segments=1)


def both_forms(size):
    """Everybody sends its contribution to everybody, to odd ranks as a partial, to even ones as it is."""
    steps = []
    for r in range(size):
        others = [peer for peer in range(size) if peer != r]
        sends = tuple(Send(p, 0, PARTIAL if p % 2 else OWN) for p in others)
        receives = tuple(
            Receive(p, 0, REDUCE if p < r else AFTER, PARTIAL if r % 2 else OWN)
            for p in others
        )
        steps.append([Step(sends, receives, (0,))])
    return from_steps("allreduce", steps, order="rank", segments=1)


def pipelined_broadcast(size, root, segments=4):
    """Along the ring from the root, segment by segment."""
    steps = nothing_yet(size)
    for i in range(1, size):
        source, dest = (root + i - 1) % size, (root + i) % size
        for s in range(segments):
            steps[source].append(Step((Send(dest, s, RESULT),)))
            steps[dest].append(Step((), (Receive(source, s, STORE, RESULT),)))
    return from_steps("broadcast", steps, root=root, segments=segments)


HAND_MADE = {
    "chain": chain,
    "chain of one segment": partial(chain, segments=1),
    "star": lambda size: star_reduce(size, size // 2),
    "tree": tree,
    "hierarchical": hierarchical,
    "groups of three": partial(hierarchical, group=3),
    "server": server_reduce_scatter,
    "passing through": passing_through,
    "dropped": dropped,
    "stored partials": stored_partials,
    "stored contributions": stored_contributions,
    "both forms": both_forms,
    "broadcast": lambda size: pipelined_broadcast(size, size - 1),
    "recursive doubling": lambda size: recursive_doubling(1 << size.bit_length() - 1),
}

OURS = {
    f"{algorithm} {collective}, order {order}": partial(
        schedule, collective, algorithm=algorithm, order=order
    )
    for collective in ("allreduce", "reduce_scatter", "allgather")
    for algorithm, order in (("ring", "ring"), ("direct", "ring"), ("direct", "rank"))
}

ALL = {**OURS, **HAND_MADE}
