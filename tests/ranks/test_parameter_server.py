"""The parameter server: what reaches the server, what comes back, and how it ends."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from mpiring import ParameterServer, Ring, RingTimeout

from ranks.reference import outcome, same_bits
from ranks.test_cases import raised_everywhere
from ranks.test_promise_6_no_silent_hang import meet, timed_out

MODES = pytest.mark.parametrize("mode", ["sync", "async"])
several = pytest.mark.ranks(2, 3, 4, 5, 8)


def subtract(params: dict[str, Any], grads: dict[str, Any]) -> None:
    """Gradient descent with a rate of 1, in place."""
    for name, grad in grads.items():
        params[name] -= grad


def push_nothing_and_be_done(server: ParameterServer) -> None:
    server.push({})
    server.done()


def check_works(comm, ring) -> None:
    assert ring.allreduce(8**comm.rank) == int("1" * comm.size, base=8)


@pytest.mark.ranks(4)
@MODES
def test_b22(comm, ring, mode):
    check_works(comm, ring)
    params = {"w": np.zeros(300000), "v": np.zeros(7)}
    server = ParameterServer(ring, params, subtract, mode=mode)
    if comm.rank == 0:
        final = server.serve()
        assert (final["w"] == -100).all() and (final["v"] == -200).all()
        assert final["w"].shape == (300000,) and final["v"].shape == (7,)
    else:
        for turn in range(50 if comm.rank < 3 else 0):
            server.push({"w": np.full(300000, 1.0), "v": np.full(7, 2.0)})
            if turn % (2 * comm.rank) == 0:
                pulled = server.pull()
                assert (pulled["v"] == 2 * pulled["w"][0]).all()
                assert (pulled["w"] == pulled["w"][0]).all()
                assert -100 <= pulled["w"][0] <= -(turn + 1)
        server.done()
    check_works(comm, ring)


@several
@MODES
def test_workers_that_stop_at_different_times(comm, ring, mode):
    """Worker r pushes its digit r times, pulls at a rate of its own, and is done; the root is the last rank."""
    root = comm.size - 1
    server = ParameterServer(
        ring, {"n": np.zeros(3, int)}, subtract, root=root, mode=mode
    )
    if comm.rank == root:
        final = server.serve()["n"]
        assert final.tolist() == [-sum(r * 16**r for r in range(root))] * 3
        assert "every worker is done" in outcome(server.serve)[1]
    else:
        for turn in range(comm.rank):
            server.push({"n": np.full(3, 16**comm.rank)})
            for _ in range((turn * comm.rank) % 3):
                mine = -server.pull()["n"] // 16**comm.rank % 16
                assert mine.tolist() == [turn + 1] * 3  # my own pushes, all of them
        server.done()
        for call in (server.pull, lambda: server.push({}), server.done):
            assert outcome(call)[0] == "RingError"
    check_works(comm, ring)


@several
def test_a_synchronous_update_has_the_sum_of_all_workers(comm, ring):
    """One update a step, zeros for who is done; and all workers pull the same bits."""
    seen = []

    def update(params, grads):
        seen.append(grads["n"].tolist())
        params["n"] += grads["n"]

    server = ParameterServer(ring, {"n": np.zeros(2, int)}, update)
    pulled = []
    if comm.rank == 0:
        server.serve()
    else:
        for _ in range(comm.rank):
            server.push({"n": np.full(2, 8**comm.rank)})
            pulled.append(server.pull()["n"][0])
        server.done()
    sums = [
        sum(8**r for r in range(turn + 1, comm.size)) for turn in range(comm.size - 1)
    ]
    if comm.rank == 0:
        assert seen == [[total] * 2 for total in sums]
    else:
        assert pulled == np.cumsum(sums)[: comm.rank].tolist()


@pytest.mark.ranks(3, 4, 8)
def test_asynchronous_messages_never_mix(comm, ring):
    """Each push says who it is in each of its arrays, of several dtypes; each comes as one update."""
    shapes = {
        "a": ((40_000,), "i8"),
        "b": ((3,), "i8"),
        "c": ((), "f4"),
        "d": ((0, 2), "f8"),
    }
    params = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
    updates: list[int] = []

    def update(params, grads):
        who = set(np.concatenate([g.ravel().astype(int) for g in grads.values()]))
        assert len(who) == 1, who
        updates.append(who.pop())
        for name in params:
            params[name][...] += grads[name]

    server = ParameterServer(ring, params, update, mode="async")
    if comm.rank == 0:
        final = server.serve()
        order = {r: [n for n in updates if n // 100 == r] for r in range(1, comm.size)}
        for (
            rank,
            numbers,
        ) in order.items():  # none lost, none twice, each worker's in order
            assert numbers == [100 * rank + turn for turn in range(20)]
        assert len(updates) == 20 * (comm.size - 1)
        assert (final["a"] == sum(updates)).all() and (final["b"] == sum(updates)).all()
        assert final["d"].shape == (0, 2)
    else:
        for turn in range(20):
            number = 100 * comm.rank + turn
            grads = {n: np.full_like(params[n], number) for n in params}
            server.push(grads)
            if turn % 4 == comm.rank % 4:
                snapshot = (
                    server.pull()
                )  # taken between two updates: never one array without the other
                assert set(snapshot["a"]) == set(snapshot["b"]), "seen apart"
        server.done()
    check_works(comm, ring)


@pytest.mark.ranks(2, 3)
@MODES
@pytest.mark.parametrize("how", ["in place", "puts", "returns", "returns some"])
def test_how_an_update_may_say_what_is_new(comm, ring, mode, how):
    def update(params, grads):
        if how == "in place":
            params["w"] += grads["w"]
            params["v"][...] = 2 * params["w"][0]
            return None
        new = {"w": params["w"] + grads["w"], "v": [0, 0]}
        new["v"] = np.full(2, 2 * new["w"][0], "f4")
        if how == "puts":
            params.update(new)
            return None
        if how == "returns some":
            params["v"][...] = new.pop("v")
        return new

    server = ParameterServer(
        ring, {"v": np.zeros(2, "f4"), "w": np.zeros(3)}, update, mode=mode
    )
    if comm.rank == 0:
        final = server.serve()
        same_bits(final["w"], np.full(3, 4.0 * (comm.size - 1)))
        same_bits(final["v"], np.full(2, 8.0 * (comm.size - 1), "f4"))
    else:
        for _ in range(4):
            server.push({"w": np.ones(3), "v": None})
        server.push({})
        server.push({"w": None})
        server.done()


@several
@MODES
@pytest.mark.parametrize("fault", ["raises", "shape", "None", "name"])
def test_an_update_that_fails_ends_it_everywhere(comm, ring, mode, fault):
    def update(params, grads):
        if fault == "raises":
            raise LookupError("boom-17")
        return {"w": {"w": np.ones(4)}, "N": {"w": None}, "n": {"extra": 1}}[
            {"shape": "w", "None": "N", "name": "n"}[fault]
        ]

    kind, words = {
        "raises": ("LookupError", "boom-17"),
        "shape": ("ValueError", "update: gave shape (4,) for w, expected shape (3,)"),
        "None": ("ValueError", "update: gave None for w, expected shape (3,)"),
        "name": ("ValueError", "update: gave 'extra', which is no parameter"),
    }[fault]
    server = ParameterServer(ring, {"w": np.zeros(3)}, update, mode=mode)
    if comm.rank == 0:
        found, text = outcome(server.serve)
        assert (found, words in text) == (kind, True), text
        assert server.params["w"].tolist() == [0, 0, 0]
    else:
        if comm.rank == 1:
            server.push({"w": np.ones(3)})
            found, text = outcome(server.pull)
            assert (
                "done" in outcome(server.done)[1]
            )  # as a `finally` would: no wait for a server that is gone
        else:
            found, text = outcome(lambda: push_nothing_and_be_done(server))
        assert found == "RingError" and f"{kind}: " in text and words in text, text
        assert "the update raised on rank 0" in text
    check_works(comm, ring)


@several
@MODES
def test_a_wrong_push_raises_here_alone(comm, ring, mode):
    params = {"w": np.zeros(3), "v": np.zeros((), "f4")}
    server = ParameterServer(ring, params, subtract, mode=mode)
    if comm.rank == 0:
        assert server.serve()["w"].tolist() == [1 - comm.size] * 3
        for call in (server.pull, server.done, lambda: server.push({})):
            kind, text = outcome(call)
            assert kind == "RingError" and "rank 0 is the server" in text
    else:
        wrong: list[Any] = [
            ({"x": np.ones(3)}, "ValueError", "no parameter is named 'x'"),
            (
                {"w": np.ones(4)},
                "ValueError",
                "push: w is a numpy float64[4], the parameter is",
            ),
            ({"v": np.float64(1)}, "ValueError", "push: v is a numpy float64[]"),
            ({"w": [1, 2, 3]}, "TypeError", "w: a builtins.list"),
        ]
        for grads, kind, words in wrong:
            found, text = outcome(lambda: server.push(grads))
            assert found == kind and words in text, text
        assert outcome(server.serve)[0] == "RingError"
        server.push({"w": np.ones(6)[::2]})
        server.done()
    check_works(comm, ring)


@several
def test_what_the_ranks_must_mean_alike(comm, ring):
    last = comm.rank == comm.size - 1
    good = {"w": np.zeros(3), "v": np.zeros(2, "f4")}

    def make(params=good, update=subtract, **how):
        return lambda: ParameterServer(ring, params, update, **how)

    different: list[Any] = [
        (
            make({**good, "w": np.zeros(4)} if last else good),
            "parameter w",
            "float64[4]",
            "float64[3]",
        ),
        (
            make({**good, "v": np.zeros(2)} if last else good),
            "parameter v",
            "float64[2]",
            "float32[2]",
        ),
        (
            make({**good, "extra": 1.0} if last else good),
            "extra",
            "rank 0 none of that name",
        ),
        (
            make({"w": good["w"]} if last else good),
            "parameter v",
            "has none of that name",
        ),
        (make(mode="async" if last else "sync"), "mode async", "mode sync"),
        (make(root=1 if last else 0), "root 1", "root 0"),
    ]
    for call, *words in different:
        raised_everywhere(
            comm, ring, call, "ValueError", *words, f"rank {comm.size - 1}"
        )
    wrong: list[Any] = [
        (make(mode="both"), "ValueError", "'both'"),
        (make(root=comm.size), "ValueError", f"got {comm.size}"),
        (make({"w": None}), "TypeError", "parameter w is None"),
        (make({"w": np.ones(3, "?")}), "TypeError", "parameter w: op 'sum' of bool"),
        (make({1: np.ones(3)}), "TypeError", "must be str, got 1"),
        (make([np.ones(3)]), "TypeError", "a list, expected a mapping"),
        (make(update=None), "TypeError", "update is a NoneType"),
    ]
    for call, kind, *words in wrong:
        raised_everywhere(comm, ring, call, kind, *words)


@pytest.mark.ranks(2, 3)
def test_the_root_s_values_count_and_are_copied(comm, ring):
    mine = {"w": np.full(3, 5.0 + comm.rank)}
    update = subtract if comm.rank == 0 else None
    server = ParameterServer(ring, mine, update)
    if comm.rank == 0:
        mine["w"][:] = -1
        server.serve()
        assert mine["w"].tolist() == [-1] * 3
    else:
        first = server.pull()
        assert first["w"].tolist() == [5] * 3
        first["w"][:] = 99
        assert server.pull()["w"].tolist() == [5] * 3 and mine["w"][0] == 5 + comm.rank
        server.done()
    assert server.params["w"].tolist() == [5] * 3


@pytest.mark.ranks(2, 3)
@MODES
def test_no_parameters_and_no_work(comm, ring, mode):
    for params in ({}, {"w": np.zeros((0, 3))}):
        server = ParameterServer(ring, params, subtract, mode=mode)
        if comm.rank == 0:
            assert list(server.serve()) == list(params)
        else:
            assert list(server.pull()) == list(params)
            server.push(params)
            server.done()


def test_alone_there_is_no_server(comm):
    from mpi4py import MPI

    with Ring(MPI.COMM_SELF) as alone:
        kind, text = outcome(lambda: ParameterServer(alone, {"w": 1.0}, subtract))
    assert kind == "ValueError" and "a ring of 2 or more" in text


# ---- deadlines ------------------------------------------------------------------------------------


@pytest.mark.ranks(2, 3)
@MODES
def test_a_worker_that_leaves_is_named(comm, mode):
    """It says neither what it wants nor that it is done; the server, and who waits for it, time out."""
    ring = Ring(comm, timeout=0.3)
    server = ParameterServer(ring, {"w": np.zeros(3)}, subtract, mode=mode)
    gone = comm.size - 1
    if comm.rank == 0:
        error, _ = timed_out(server.serve)
        assert gone in error.silent and isinstance(error, RingTimeout)
        assert f"rank {gone}" in str(error)
        if mode == "async":
            assert str(error).startswith("serve: rank 0 waited 0.3 s")
    elif comm.rank != gone:
        if mode == "async":
            server.push({"w": np.ones(3)})
            server.done()
        else:
            timed_out(lambda: server.push({"w": np.ones(3)}))
    meet(comm)
    ring.close()


@pytest.mark.ranks(2, 3)
def test_a_server_that_does_not_serve(comm):
    ring = Ring(comm, timeout=0.3)
    server = ParameterServer(ring, {"w": np.zeros(3)}, subtract, mode="async")
    if comm.rank:
        error, _ = timed_out(server.pull)
        assert 0 in error.silent
        assert "waiting to receive from rank 0" in str(error)
    meet(comm)
    ring.close()


@pytest.mark.ranks(2, 3)
def test_an_asynchronous_server_lives_longer_than_the_timeout(comm):
    """The deadline counts from the last word of a worker: three seconds of work under one of two."""
    ring = Ring(comm, timeout=2.0)
    server = ParameterServer(ring, {"n": np.zeros(1, int)}, subtract, mode="async")
    began = time.monotonic()
    if comm.rank == 0:
        server.serve()
        assert time.monotonic() - began > 2.5  # the ranks do not begin at one moment
    else:
        while time.monotonic() - began < 3:
            server.push({"n": np.ones(1, int)})
            server.pull()
        server.done()
    check_works(comm, ring)
    ring.close()
