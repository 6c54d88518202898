"""Promise 8, order: operations give the results of running one after another, in call order."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiring import Ring

from ranks.reference import balanced, outcome, same_bits


def fingerprint(size: int) -> int:
    return int("1" * size, base=8)


def test_many_operations_waited_for_in_any_order(comm, ring):
    """Each rank waits in an order of its own."""
    count = 60 if comm.size < 8 else 20
    algorithms = ("ring", "direct", "mpi")
    work = [
        ring.allreduce(
            np.full(i, i * 8**comm.rank), algorithm=algorithms[i % 3], async_op=True
        )
        for i in range(count)
    ]
    order = list(range(count))
    random.Random(comm.rank).shuffle(order)
    results = {i: work[i].wait() for i in order}
    for i in range(count):
        same_bits(results[i], np.full(i, i * fingerprint(comm.size)), i)
        assert work[i].result() is results[i] is work[i].wait()


def test_some_are_never_waited_for(comm, ring):
    """A blocking call progresses what came before it, and close completes what is left."""
    outs = [np.zeros(5, int) for _ in range(6)]
    for out in outs[:4]:
        ring.allreduce(np.full(5, 8**comm.rank), out=out, async_op=True)
    assert ring.allreduce(1) == comm.size
    done = [out.tolist() for out in outs[:4]]
    for out in outs[4:]:
        ring.allreduce(np.full(5, 8**comm.rank), out=out, async_op=True)
    ring.close()
    assert (
        done + [out.tolist() for out in outs[4:]] == [[fingerprint(comm.size)] * 5] * 6
    )


def test_a_barrier_comes_after_all_before_it(comm, ring):
    work = [ring.allreduce(8**comm.rank, async_op=True) for _ in range(5)]
    ring.barrier()
    assert [w.result() for w in work] == [fingerprint(comm.size)] * 5
    assert all(w.test() for w in work)


@pytest.mark.parametrize("algorithm", ["auto", "ring", "direct", "mpi"])
def test_the_output_of_one_is_the_input_of_the_next(comm, ring, algorithm):
    """In place again and again, and through a strided view, before anyone waits."""
    x = np.ones(9, int)
    wide = np.zeros(18, int)
    for _ in range(4):
        ring.allreduce(x, out=x, algorithm=algorithm, async_op=True)
    ring.allreduce(x, out=wide[::2], algorithm=algorithm, async_op=True)
    last = ring.allreduce(wide[::-2][::-1], algorithm=algorithm, async_op=True)
    part = ring.reduce_scatter(wide[::2], algorithm=algorithm, async_op=True)
    assert last.wait().tolist() == [0] * 9  # the elements beside the view
    size = comm.size
    assert x.tolist() == [size**4] * 9
    assert wide[::2].tolist() == [size**5] * 9
    mine = balanced(9, size)[comm.rank]
    assert part.wait().tolist() == [size**6] * (mine.stop - mine.start)


def test_inputs_are_held_until_the_end(comm, ring):
    """The only reference to an input may go at once."""
    work = []
    for i in range(20):
        x = np.full(20_000, 8**comm.rank + i)
        work.append(
            ring.allreduce(x, algorithm=("ring", "direct")[i % 2], async_op=True)
        )
        work.append(ring.reduce_scatter(np.full(50, 8**comm.rank), async_op=True))
        work.append(ring.allgather(np.full(50, 8**comm.rank), async_op=True))
        del x
    gc.collect()
    noise = [
        np.full(20_000, -1) for _ in range(20)
    ]  # takes memory that was freed too soon
    for i in range(20):
        reduced, part, gathered = (w.wait() for w in work[3 * i : 3 * i + 3])
        same_bits(reduced, np.full(20_000, fingerprint(comm.size) + i * comm.size))
        assert set(part.tolist()) <= {fingerprint(comm.size)}
        same_bits(gathered, np.repeat([8**r for r in range(comm.size)], 50))
    assert len(noise) == 20


def test_errors_come_from_wait_on_every_rank_and_the_rest_goes_on(comm, ring):
    last = comm.size - 1
    work = []
    for i in range(12):
        op = "mean" if i % 3 == 1 and comm.rank == last else "sum"
        work.append(ring.allreduce(np.full(3, 8**comm.rank), op, async_op=True))
    blocking = ring.allreduce(1)
    assert blocking == comm.size  # the errors before it are not its own
    for i, each in reversed(list(enumerate(work))):
        assert each.test()
        if i % 3 == 1:
            kind, text = outcome(each.wait)
            assert (
                kind == "ValueError" and f"rank {last}: " in text and "'mean'" in text
            )
            assert outcome(each.wait) == outcome(each.result) == (kind, text)
        else:
            assert each.wait().tolist() == [fingerprint(comm.size)] * 3
    ring.close()


def test_closing_completes_operations_with_errors_too(comm, ring):
    bad = ring.allreduce(1, "mean", async_op=True)
    good = ring.allreduce(1, async_op=True)
    ring.close()
    assert good.result() == comm.size
    assert outcome(bad.result)[0] == "ValueError"
    kind, text = outcome(lambda: ring.allreduce(1))
    assert kind == "RingError" and "closed" in text
    assert "closed" in repr(ring)


@pytest.mark.ranks(2, 3)
def test_two_rings_at_once(comm, ring):
    """Operations of different rings do not order each other: each rank waits its own way."""
    with Ring(comm) as other:
        one = [ring.allreduce(8**comm.rank + i, async_op=True) for i in range(5)]
        two = [other.allreduce(-(8**comm.rank) - i, async_op=True) for i in range(5)]
        mine = [*one, *two] if comm.rank == 0 else [*two, *one]
        # Whoever waits drives one ring only; the other ranks' first ring is this one's second.
        while not all([work.test() for work in mine]):
            pass
    for i in range(5):
        assert one[i].result() == fingerprint(comm.size) + i * comm.size
        assert two[i].result() == -fingerprint(comm.size) - i * comm.size


@settings(max_examples=25)
@given(data=st.data())
def test_any_program_of_operations(comm, agreed, data):
    """Collectives on shared arrays, some awaited in between: the same as one after another."""
    size, rank = comm.size, comm.rank
    kinds = st.sampled_from(
        ["allreduce", "in place", "gather", "wrong", "wait", "close"]
    )
    steps = data.draw(st.lists(kinds, min_size=1, max_size=8))
    start = [np.arange(5) + 8**r for r in range(size)]
    x, model = start[rank].copy(), [a.copy() for a in start]
    pending = []
    ring = Ring(comm)
    for step in steps:
        total = sum(model)
        if step == "allreduce":
            pending.append((ring.allreduce(x, async_op=True), total))
        if step == "in place":
            pending.append((ring.allreduce(x, op="max", out=x, async_op=True), None))
            model = [np.max(model, axis=0)] * size
        if step == "gather":
            pending.append((ring.allgather(x, async_op=True), np.concatenate(model)))
        if step == "wrong":
            pending.append((ring.allreduce(x, "mean", async_op=True), "ValueError"))
        if step == "wait" and pending:
            pending[-1 if rank % 2 else 0][0].test()
        if step == "close":
            ring.close()
            ring = Ring(comm)
    ring.close()
    with agreed():
        same_bits(x, model[rank])
        for work, expected in pending:
            if isinstance(expected, str):
                assert outcome(work.wait)[0] == expected
            elif expected is not None:
                same_bits(work.wait(), expected)
