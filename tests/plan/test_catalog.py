"""The schedules by name: each is there, is the one meant, is proven, and unknown names list the known."""

from __future__ import annotations

import pytest

from mpiring.plan import (
    ALGORITHMS,
    COLLECTIVES,
    algorithms,
    chain_broadcast,
    chain_reduce,
    direct_allgather,
    direct_allreduce,
    direct_reduce_scatter,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    schedule,
    star_broadcast,
    star_reduce,
    verify,
)

NAMES = [(c, a) for c in COLLECTIVES for a in algorithms(c)]


def test_names():
    assert {c: algorithms(c) for c in COLLECTIVES} == {
        "allreduce": ("ring", "direct"),
        "reduce_scatter": ("ring", "direct"),
        "allgather": ("ring", "direct"),
        "broadcast": ("naive", "pipelined", "direct"),
        "reduce": ("ring", "direct"),
    }
    assert ALGORITHMS == ("ring", "direct", "naive", "pipelined")
    assert algorithms("gather") == ()


@pytest.mark.parametrize(
    ("collective", "algorithm", "made"),
    [
        ("allreduce", "ring", ring_allreduce(5)),
        ("allreduce", "direct", direct_allreduce(5)),
        ("allreduce", None, ring_allreduce(5)),
        ("reduce_scatter", "ring", ring_reduce_scatter(5)),
        ("reduce_scatter", "direct", direct_reduce_scatter(5)),
        ("reduce_scatter", None, ring_reduce_scatter(5)),
        ("allgather", "ring", ring_allgather(5)),
        ("allgather", "direct", direct_allgather(5)),
        ("allgather", None, ring_allgather(5)),
        ("broadcast", "naive", chain_broadcast(5)),
        ("broadcast", "pipelined", chain_broadcast(5, segments=8)),
        ("broadcast", "direct", star_broadcast(5)),
        ("broadcast", None, chain_broadcast(5, segments=8)),
        ("reduce", "ring", chain_reduce(5)),
        ("reduce", "direct", star_reduce(5)),
        ("reduce", None, chain_reduce(5)),
    ],
)
def test_what_is_meant(collective, algorithm, made):
    assert schedule(collective, 5, algorithm=algorithm) == made


@pytest.mark.parametrize("root", range(3))
@pytest.mark.parametrize("segments", [1, 2, 5])
def test_root_and_segments(root, segments):
    where = {"root": root, "segments": segments}
    cut = {
        ("broadcast", "pipelined"): chain_broadcast,
        ("broadcast", "direct"): star_broadcast,
        ("reduce", "ring"): chain_reduce,
        ("reduce", "direct"): star_reduce,
    }
    for (collective, algorithm), make in cut.items():
        made = schedule(collective, 3, algorithm=algorithm, **where)
        assert made == make(3, root, segments)
        assert (made.root, made.segments) == (root, segments)
    naive = schedule("broadcast", 3, algorithm="naive", **where)
    assert naive == chain_broadcast(3, root, 1)


def test_order():
    assert schedule(
        "reduce", 4, algorithm="direct", order="rank", root=2, segments=3
    ) == star_reduce(4, 2, 3, "rank")
    assert schedule(
        "allreduce", 4, algorithm="direct", order="rank"
    ) == direct_allreduce(4, "rank")
    # Where nothing is combined, the order is no matter.
    assert schedule("allgather", 4, order="rank") == ring_allgather(4)
    assert schedule("broadcast", 4, order="rank").order is None


@pytest.mark.parametrize(("collective", "algorithm"), NAMES)
def test_each_is_proven(collective, algorithm):
    for size in (1, 2, 3, 4, 5, 8):
        made = schedule(collective, size, algorithm=algorithm)
        assert made.collective == collective and made.size == size
        assert made.root == (0 if collective in ("broadcast", "reduce") else None)
        verify(made)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (
            "unknown collective 'gather'; known: allreduce, reduce_scatter, allgather, broadcast, reduce",
            {"collective": "gather"},
        ),
        (
            "unknown allreduce algorithm 'tree'; known: ring, direct",
            {"collective": "allreduce", "algorithm": "tree"},
        ),
        (
            "unknown broadcast algorithm 'ring'; known: naive, pipelined, direct",
            {"collective": "broadcast", "algorithm": "ring"},
        ),
        (
            "unknown reduce algorithm 'pipelined'; known: ring, direct",
            {"collective": "reduce", "algorithm": "pipelined"},
        ),
        (
            "unknown order 'left'; known: ring, rank",
            {"collective": "broadcast", "order": "left"},
        ),
        (
            "algorithm='ring' cannot combine with order='rank'",
            {"collective": "reduce", "order": "rank"},
        ),
        ("Schedule: root 4 of 4 ranks", {"collective": "reduce", "root": 4}),
        ("Schedule: root -1 of 4 ranks", {"collective": "broadcast", "root": -1}),
        (
            "broadcast of 4 ranks cannot have -2 segments",
            {"collective": "broadcast", "segments": -2},
        ),
    ],
)
def test_refused(words, options):
    with pytest.raises(ValueError, match=words):
        schedule(options.pop("collective"), 4, **options)
