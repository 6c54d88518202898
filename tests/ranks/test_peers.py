"""Ordinary arrays of processes of one node, by each other's memory or through stages: bits, ways, what can go wrong.

More is tried in one process (tests/wire/test_peers.py); promises 4 and others have this path among theirs.
"""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiring import Ring
from mpiring.wire.node import cross_memory, peers, staged
from mpiring.wire.opening.calls import at_address
from mpiring.wire.ring import session

from ranks.reaching import (
    Moved,
    need_reach,
    reaching,
    short_lengths,
    staging,
    why_not,
)
from ranks.reference import (
    DTYPES,
    balanced,
    dtype_of,
    fold,
    ops_of,
    outcome,
    random_array,
    reduced,
    same_bits,
    same_on_all_ranks,
)
from ranks.test_promise_6_no_silent_hang import is_over, meet, text_without_rank_0


@pytest.fixture
def moved(comm, monkeypatch):
    need_reach(comm)
    return Moved(monkeypatch)


@pytest.fixture
def near(comm):
    """A ring for arrays of any length."""
    ring = reaching(comm)
    yield ring
    ring.close()


def staging_in_blocks(comm):
    return staging(comm, short_lengths(comm.size))


@pytest.fixture(params=[reaching, staging, staging_in_blocks])
def either(comm, request):
    """The same, one with stages, and one whose stages are short."""
    ring = request.param(comm)
    yield ring
    ring.close()


# ---- the bits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_collective_gives_the_bits_of_the_written_order(
    comm, either, monkeypatch, dtype
):
    """With blocks of 4 KiB, so that segments are several blocks and a piece."""
    monkeypatch.setattr(peers, "block_bytes", lambda size: 4096)
    size, rank = comm.size, comm.rank
    count = 20_001
    inputs = [random_array(dtype, count, r, 11) for r in range(size)]
    results = []
    y = np.empty_like(inputs[rank])
    mine = balanced(count, size)[rank]
    ops = ops_of(dtype) if size < 5 else ops_of(dtype)[-1:]
    for op in ops:
        for order in ("ring", "rank"):
            how = {"op": op, "order": order}
            total = reduced(inputs, op, order)
            x = inputs[rank].copy()
            results.append((either.allreduce(x, out=y, **how).copy(), total))
            results.append((either.allreduce(x, **how), total))
            results.append((either.reduce_scatter(x, **how), total[mine]))
            results.append((x.copy(), inputs[rank]))
            results.append((either.allreduce(x, out=x, **how), total))
            root = size - 1
            chain = inputs if order == "rank" else [*inputs[root + 1 :], *inputs]
            for place in ("new", "apart", "in place"):
                x = inputs[rank].copy()
                out = {"new": None, "apart": y, "in place": x}[place]
                found = either.reduce(x, root=root, out=out, **how)
                if rank == root:
                    results.append((found.copy(), fold(chain[:size], op)))
    x = inputs[rank][: 100 * rank]  # nothing of rank 0
    parts = [i[: 100 * r] for r, i in enumerate(inputs)]
    results.append((either.allgather(x), np.concatenate(parts)))
    root = size // 2
    x = either.broadcast(inputs[rank].copy(), root=root)
    results.append((x, inputs[root]))
    x = either.broadcast(inputs[rank] if rank == root else None, root=root)
    results.append((x, inputs[root]))
    for number, (found, wanted) in enumerate(results):
        same_bits(found, wanted, number)
    same_on_all_ranks(comm, [results[0][0]])


@pytest.mark.ranks(2, 3, 4)
def test_each_byte_moves_once_there_and_once_back(comm, near, moved):
    """What a rank reads and writes, to the byte: this path is taken, and moves no more than a ring."""
    size, rank = comm.size, comm.rank
    count = 10 * size + 1
    x = np.full(count, 8.0**rank)
    near.allreduce(x)
    moved.take()  # the trial as well
    lengths = [part.stop - part.start for part in balanced(count, size)]
    mine, nbytes = 8 * lengths[rank], 8 * count
    others = size - 1
    near.allreduce(x, out=x.copy())
    found = [moved.take()]
    near.reduce_scatter(x)
    found.append(moved.take())
    near.reduce(x, root=1)
    found.append(moved.take())
    near.allgather(x[: lengths[rank]])
    found.append(moved.take())
    near.broadcast(x, root=1)
    found.append(moved.take())
    for algorithm in ("ring", "direct"):
        near.allreduce(x, algorithm=algorithm)
    found.append(moved.take())
    assert found == [
        (others * mine, others * mine),
        (others * mine, 0),
        (others * mine, 0 if rank == 1 else mine),
        (nbytes - mine, 0),
        (0 if rank == 1 else nbytes, 0),
        (0, 0),
    ]


@pytest.mark.ranks(2, 3, 4)
def test_from_how_many_bytes_on(comm, ring, moved, monkeypatch):
    """In a ring as it is: in the opening exchange, through stages (one-shot and not), by the peers' memory."""
    taken: list[int] = []
    honest = staged.run

    def counted(steps, *how):
        taken.append(len(steps) if steps[0].taken else 0)
        return honest(steps, *how)

    monkeypatch.setattr(staged, "run", counted)
    (member,) = ring._session.members
    shortest, lengths = member.small_bytes + 8, member.ways.stages.lengths
    ways = []
    for nbytes in (
        shortest - 8,
        shortest,
        lengths.one_shot,
        lengths.one_shot + 8,
        lengths.longest,
        lengths.longest + 8,
    ):
        x = np.full(nbytes // 8, 8**comm.rank)
        total = ring.allreduce(x)
        assert (total == int("1" * comm.size, 8)).all()
        ways.append((taken[-1:], any(moved.take())))
        taken.clear()
    blocks = -(-lengths.longest // (lengths.block // 8 // comm.size * 8 * comm.size))
    assert ways == [
        ([], False),
        ([0], False),
        ([0], False),
        ([1], False),
        ([blocks], False),
        ([], True),
    ]


@pytest.mark.ranks(2, 3, 4)
def test_stages_are_used_again(comm, monkeypatch):
    """Arrays of other lengths and dtypes, one after another: nobody takes what is for another call."""
    results = []
    with staging(comm) as ring:
        for turn, (count, dtype) in enumerate(
            [(1000, "f4"), (40, "i8"), (2000, "f2"), (7, "c16"), (0, "f4"), (900, "f4")]
            * 3
        ):
            x = random_array(dtype_of(dtype).name, count, comm.rank, turn)
            inputs = [
                random_array(dtype_of(dtype).name, count, r, turn)
                for r in range(comm.size)
            ]
            results.append((ring.allreduce(x, out=x), reduced(inputs)))
            part = ring.reduce_scatter(inputs[comm.rank])
            results.append(
                (part, reduced(inputs)[balanced(count, comm.size)[comm.rank]])
            )
        assert len(ring._session.members[0].ways.stages._plans) == 6
    for found, wanted in results:
        same_bits(found, wanted)


@pytest.mark.ranks(2, 3)
def test_without_memory_for_stages_it_goes_another_way(comm, moved, monkeypatch):
    """One rank gets none; all go by the peers' memory then, and do not ask again."""
    asked: list[int] = []

    def full(descriptor, offset, length):
        asked.append(length)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(os, "posix_fallocate", full)
    with Ring(comm) as ring:
        x = np.full(20_000, 8**comm.rank)
        for _ in range(2):
            assert (ring.allreduce(x) == int("1" * comm.size, 8)).all()
            assert any(moved.take())
        why = ring._session.members[0].ways.stages.why_not
    assert f"rank {comm.size - 1}" in why and "node-shared memory" in why
    assert len(asked) == (comm.rank == comm.size - 1)


@settings(max_examples=25)
@given(data=st.data())
def test_any_arrays(comm, agreed, data):
    """Ordinary, strided, of ring.empty, at another place on each rank."""
    size, rank = comm.size, comm.rank
    count = data.draw(st.integers(0, 50), "count")
    kinds = ["x", "new", "ordinary", "strided", "shared", "unaligned"]
    chosen = [
        (data.draw(st.sampled_from(kinds[1:])), data.draw(st.sampled_from(kinds)))
        for _ in range(size)
    ]
    order = data.draw(st.sampled_from(["ring", "rank"]), "order")
    make = data.draw(st.sampled_from([reaching, staging]), "ring")
    inputs = [random_array("float32", count, r, 12) for r in range(size)]

    def made(kind):
        return {
            "ordinary": np.zeros(count, "f4"),
            "new": np.zeros(count, "f4"),
            "strided": np.zeros((count, 3), "f4")[:, 1],
            "unaligned": np.zeros(4 * count + 1, "u1")[1:].view("f4"),
            "shared": shared[rank : rank + count],
        }[kind]

    with make(comm) as ring:
        shared = ring.empty(100)
        kind, kind_of_out = chosen[rank]
        x = made(kind)
        x[...] = inputs[rank]
        out = x if kind_of_out in ("x", kind) else made(kind_of_out)
        result = ring.allreduce(x, out=out, order=order)
    with agreed():
        assert result is out
        same_bits(np.ascontiguousarray(result), reduced(inputs, "sum", order))


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("make", [reaching, staging])
def test_members(comm, make):
    """Some of the peers are this process itself."""
    with make(comm, members=3) as ring:
        inputs = [random_array("float16", (2, 50), r) for r in range(ring.size)]
        xs = [inputs[ring.rank + member].copy() for member in range(3)]
        results = ring.allreduce(xs, "avg", out=xs)
    for x, result in zip(xs, results):
        assert x is result
        same_bits(x, reduced(inputs, "avg"))


def test_asynchronous_calls(comm, either):
    xs = [np.full(1000, 8**comm.rank * n) for n in range(1, 6)]
    work = [either.allreduce(x, out=x, async_op=True) for x in xs]
    for n, w in enumerate(work, 1):
        assert (w.wait() == n * int("1" * comm.size, base=8)).all()


@pytest.mark.ranks(2, 3)
def test_to_start_a_call_does_not_wait_for_the_others(comm, either):
    """The first call too, in which the ranks try what they may do: rank 1 comes when rank 0 has sent it something."""
    x = np.full(1000, 8**comm.rank)
    if comm.rank == 1:
        comm.recv(source=0)
    work = either.allreduce(x, async_op=True)
    if comm.rank == 0:
        comm.send("now", 1)
    assert (work.wait() == int("1" * comm.size, base=8)).all()


# ---- where it is not possible, or not wanted --------------------------------------------------------


def totals(ring, comm):
    """What collectives give, one after another: all that does not depend on the way they go."""
    x = np.full(1001, 8**comm.rank)
    part = ring.reduce_scatter(x)
    found = [ring.allreduce(x), part, ring.allgather(part), ring.broadcast(x.copy())]
    found.append(ring.reduce(x, root=comm.size - 1))
    return [None if y is None else set(y.tolist()) for y in found]


def expected(comm):
    all_of_them = {int("1" * comm.size, base=8)}
    of_root = all_of_them if comm.rank == comm.size - 1 else None
    return [all_of_them] * 3 + [{1}, of_root]


@pytest.mark.ranks(2, 3, 4)
def test_if_one_rank_is_refused_all_send_messages(comm, near, moved, monkeypatch):
    """Also in the call that has found it out; later ones do not offer their memory any more."""
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(cross_memory, "try_all", lambda *_: "not on my watch")
    found = totals(near, comm)
    moved.take()
    again = totals(near, comm)
    assert found == again == expected(comm)
    assert moved.take() == (0, 0) and why_not(near) == "not on my watch"


@pytest.mark.ranks(2, 3, 4)
def test_if_one_rank_makes_no_offer_all_send_messages(comm, near, moved, monkeypatch):
    """As one whose array is on a device."""
    if comm.rank == 0:
        member = near._session.members[0]
        monkeypatch.setattr(member.ways, "offer", lambda *_: None)
    assert totals(near, comm) == expected(comm)
    assert moved.take() == (0, 0)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("where", [0, 1])
def test_the_environment_of_rank_0_counts(comm, moved, monkeypatch, where):
    if comm.rank == where:
        monkeypatch.setenv(cross_memory.VARIABLE, "0")
    with reaching(comm) as ring:
        assert totals(ring, comm) == expected(comm)
    assert any(moved.take()) == (where == 1)


@pytest.mark.ranks(2, 3)
def test_several_hosts_send_messages(comm, moved, monkeypatch):
    monkeypatch.setattr(session, "_host", lambda: bytes([comm.rank % 2]) * 8)
    with reaching(comm) as ring:
        assert totals(ring, comm) == expected(comm)
    assert moved.take() == (0, 0)


@pytest.mark.ranks(2, 3)
def test_two_hosts_of_one_name_send_messages(comm, moved, monkeypatch):
    """The pid that a rank says is another process's here: this one is found not to be the right one."""
    if comm.rank == 0:
        monkeypatch.setattr(os, "getpid", lambda: os.getppid())
    with reaching(comm) as ring:
        assert totals(ring, comm) == expected(comm)
        assert "rank 0" in why_not(ring)


def test_without_the_check(comm, moved):
    with reaching(comm, check=False) as ring:
        assert totals(ring, comm) == expected(comm)
    assert any(moved.take()) == (comm.size > 1)


# ---- what goes wrong on the way ---------------------------------------------------------------------


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("timeout", [0.1, None])
def test_a_rank_that_is_lost_on_the_way_is_named(comm, monkeypatch, timeout):
    """One rank stops between the opening and the closing exchange, as if it had been killed."""
    need_reach(comm)
    ring = reaching(comm, timeout=1)
    x = np.ones(30)
    ring.allreduce(x)

    def call():
        ring.allreduce(x, out=x, timeout=timeout)

    if comm.rank == 0:
        monkeypatch.setattr(peers, "allreduce", lambda *_: meet(comm))
    text = text_without_rank_0(comm, ring, call)
    assert comm.rank == 0 or "closing exchange" in text, text


@pytest.mark.ranks(2, 3)
def test_memory_that_is_gone_is_an_error_and_no_crash(comm, monkeypatch):
    """Rank 0 gives a wrong address, as if it had given its array back: who reads there says so."""
    need_reach(comm)
    ring = reaching(comm, timeout=5)
    x = np.ones(30)
    ring.allreduce(x)
    if comm.rank == 0:
        member = ring._session.members[0]

        def offers(call, kind, x, out=None):
            call.addresses = (at_address(8),) * 2

        monkeypatch.setattr(member.ways, "offer", offers)
    x = np.ones(60)[::2]  # is offered anew each time
    kind, text = outcome(lambda: ring.allreduce(x, timeout=1 if comm.rank else 0.5))
    if comm.rank == 0:
        assert kind == "RingTimeout", text
    else:
        words = f"rank {comm.rank} cannot read the memory of rank 0 (process "
        assert kind == "RingError" and text.startswith(words), text
        assert "Bad address" in text
    is_over(ring)


# ---- memory ---------------------------------------------------------------------------------------


def test_scratch_is_at_most_8_mib(comm):
    """Whatever is called; and it does not grow with the arrays."""
    found = []
    with Ring(comm) as ring:
        for dtype in ("f4", "f2", "c16"):
            x = np.ones((9 << 20) // np.dtype(dtype).itemsize, dtype)
            for _ in range(3):
                ring.allreduce(x, out=x, op="prod")
                ring.reduce(x, op="prod")
                ring.allgather(ring.reduce_scatter(x, op="prod"))
                ring.broadcast(x)
                found.append(ring._session.members[0].scratch.nbytes)
        segment = -(-(9 << 20) // comm.size)
    assert max(found) <= max(segment, 8 << 20)
    assert comm.size == 1 or why_not(ring) or max(found) <= 8 << 20
