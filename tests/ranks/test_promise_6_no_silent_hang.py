"""Promise 6, no silent hang: a deadline ends every wait, and says who is not there.

A rank that is *absent* waits outside every ring, in ``meet``.  No test sleeps to be on time: what one rank
must see before another goes on is told by messages.
"""

from __future__ import annotations

import gc
import re
import time
import weakref
from typing import Any

import numpy as np
import pytest

from mpiring import Ring, RingError, RingTimeout
from mpiring.wire.execute import memory
from mpiring.wire.reduce import arithmetic

from ranks.reference import outcome

TIMEOUT = 0.1
# After the deadline the ranks tell each other where they are, for a second; cores may be few.
SECONDS = 5.0

ONES = np.ones(3)


def meet(comm) -> None:
    """Wait for every rank, without a ring and without taking a core from those who work."""
    arrival = comm.Ibarrier()
    while not arrival.Test():
        time.sleep(0.001)


def timed_out(call) -> tuple[RingTimeout, float]:
    began = time.monotonic()
    with pytest.raises(RingTimeout) as caught:
        call()
    return caught.value, time.monotonic() - began


def is_over(ring: Ring) -> None:
    """Every later call on a broken ring raises at once, and closing it is local."""
    began = time.monotonic()
    calls = [
        lambda: ring.allreduce(ONES),
        lambda: ring.reduce_scatter(ONES),
        lambda: ring.allgather(ONES),
        lambda: ring.allreduce(ONES, async_op=True),
        ring.barrier,
    ]
    told = [outcome(call) for call in calls]
    assert "broken" in repr(ring)
    ring.close()
    ring.close()
    told.append(outcome(lambda: ring.allreduce(ONES)))
    assert [kind for kind, _ in told] == ["RingError"] * len(told)
    assert all("broken" in text and "make a new one" in text for _, text in told[:-1])
    assert "closed" in told[-1][1]
    assert time.monotonic() - began < 0.2


def text_without_rank_0(comm, ring: Ring, call) -> str:
    """What a call raises in the middle of which rank 0 stops until all have met, as if it had been killed.

    Nothing on rank 0 itself.
    """
    if comm.rank == 0:
        kind, text = outcome(call)
        assert kind in ("", "RingTimeout"), text
        return ""
    error, _ = timed_out(call)
    meet(comm)
    assert error.silent == (0,), error
    is_over(ring)
    return str(error)


COLLECTIVES = {
    "allreduce": lambda ring, **how: ring.allreduce(ONES, **how),
    "reduce_scatter": lambda ring, **how: ring.reduce_scatter(ONES, **how),
    "allgather": lambda ring, **how: ring.allgather(ONES, **how),
    "barrier": lambda ring, **how: ring.barrier(**how),
}


@pytest.mark.ranks(2, 3, 4, 5)
def test_one_absent_rank_is_named_by_all_others(comm):
    found: list[tuple[int, str, Any]] = []
    for absent in range(comm.size):
        name = list(COLLECTIVES)[absent % len(COLLECTIVES)]
        ring = Ring(comm)
        ring.allreduce(ONES)
        if comm.rank != absent:
            call = COLLECTIVES[name]
            found.append((absent, name, timed_out(lambda: call(ring, timeout=TIMEOUT))))
            is_over(ring)
        meet(comm)
        ring.close()
        with Ring(
            comm
        ) as new:  # on the same communicator, for those who broke and the other
            assert new.allreduce(8**comm.rank) == int("1" * comm.size, base=8)
    for absent, name, (error, seconds) in found:
        text = str(error)
        assert error.silent == (absent,), text
        assert text.startswith(f"{name}: rank {comm.rank} waited {TIMEOUT:g} s"), text
        assert f"in no call of this ring: rank {absent}" in text
        assert (
            "call 2 on this ring" in text
        ), text  # the first one went well; a ring counts too
        assert isinstance(error, RingError) and isinstance(error, TimeoutError)
        assert TIMEOUT <= seconds < TIMEOUT + SECONDS


@pytest.mark.ranks(3, 4, 5)
def test_several_absent_ranks_are_named(comm):
    absent = (0, comm.size - 1)
    ring = Ring(comm, timeout=TIMEOUT)  # the ring's own timeout
    if comm.rank not in absent:
        error, _ = timed_out(lambda: ring.allreduce(ONES))
        assert error.silent == absent
        assert f"in no call of this ring: rank {absent[0]}, {absent[1]}" in str(error)
    meet(comm)


@pytest.mark.ranks(2, 3, 5)
def test_a_rank_that_comes_late_to_a_broken_ring_gets_out_too(comm):
    ring = Ring(comm)

    def call():  # not one that rides in the opening exchange: that may be there already
        return ring.allreduce(ONES, algorithm="ring", timeout=TIMEOUT)

    late = comm.size - 1
    if comm.rank != late:
        timed_out(call)
    meet(comm)
    if comm.rank == late:
        error, seconds = timed_out(call)
        assert seconds < TIMEOUT + SECONDS
        assert isinstance(error, RingTimeout)
    meet(comm)
    with Ring(comm) as new:
        assert new.allreduce(8**comm.rank) == int("1" * comm.size, base=8)


@pytest.mark.ranks(2, 3, 5)
def test_waiting_for_a_work_may_end_without_the_operation(comm, ring):
    late = 0
    if comm.rank != late:
        work = ring.allreduce(np.full(3, 8**comm.rank), async_op=True)
        error, _ = timed_out(lambda: work.wait(timeout=0.05))
        assert "the operation goes on" in str(error) and "allreduce" in str(error)
        assert not work.test()
        kind, text = outcome(work.result)
        assert kind == "RingError" and "not done" in text
        again, _ = timed_out(lambda: work.wait(timeout=0))
        assert "the operation goes on" in str(again)
    meet(comm)
    if comm.rank == late:
        work = ring.allreduce(np.full(3, 8**comm.rank), async_op=True)
    result = work.wait(timeout=30)
    assert work.test() and work.result() is result is work.wait(timeout=0)
    after = ring.allreduce(ONES)
    assert result.tolist() == [int("1" * comm.size, base=8)] * 3
    assert after.tolist() == [comm.size] * 3


@pytest.mark.ranks(2, 3)
def test_the_deadline_of_an_asynchronous_call(comm):
    ring = Ring(comm)
    if comm.rank > 0:
        work = ring.allreduce(ONES, async_op=True, timeout=TIMEOUT)
        behind = ring.allgather(ONES, async_op=True)  # has no deadline of its own
        error, _ = timed_out(behind.wait)
        assert error.silent == (0,)
        assert str(error).startswith("allreduce: ")
        for late in (work, behind):
            assert outcome(late.wait)[0] == outcome(late.test)[0] == "RingError"
        is_over(ring)
    meet(comm)


def test_no_time_at_all(comm):
    """With timeout=0 a call is done at once or not at all; it never hangs."""
    ring = Ring(comm)
    kind, _ = outcome(lambda: ring.allreduce(ONES, timeout=0))
    meet(comm)
    assert kind in ("", "RingTimeout") if comm.size > 1 else kind == ""
    with Ring(comm) as new:
        assert new.allreduce(1) == comm.size


@pytest.mark.ranks(2, 3)
def test_time_that_never_ends(comm, ring):
    for timeout in (None, float("inf"), 1e9, 30):
        assert ring.allreduce(1, timeout=timeout) == comm.size


@pytest.mark.ranks(3)
def test_who_waits_in_another_call_is_named_with_it(comm):
    """Rank 2 opens a call and goes away.  Rank 1 needs no more of it and goes on to the next call.

    One element of three ranks: its home is rank 0, who needs the others'; they need nothing.
    """
    ring = Ring(comm)
    x = np.array([1.0])
    if comm.rank == 2:
        opened = ring.reduce_scatter(x, algorithm="direct", async_op=True)
    meet(comm)
    if comm.rank == 1:
        mine = ring.reduce_scatter(x, algorithm="direct", async_op=True)
    meet(comm)
    if comm.rank == 2:
        assert not opened.test()  # hears of rank 1, passes it on, and waits for rank 0
    meet(comm)
    if comm.rank == 0:
        error, _ = timed_out(
            lambda: ring.reduce_scatter(x, algorithm="direct", timeout=TIMEOUT)
        )
        text = str(error)
        assert error.silent == (2,), text
        assert "in no call of this ring: rank 2" in text
        assert re.search(r"in another call: rank 1, barrier \(call 2 ", text), text
        # And where it was itself: in which step, waiting for whom.
        assert re.search(r"reduce_scatter \(call 1 .*step 0, segment 0, ", text), text
        assert "waiting to receive from rank 2" in text
    if comm.rank == 1:
        error, _ = timed_out(lambda: ring.barrier(timeout=TIMEOUT))
        assert mine.result().size == 0
        text = str(error)
        assert error.silent == (2,), text
        assert re.search(
            r"in another call: rank 0, reduce_scatter \(call 1 ", text
        ), text
    meet(comm)


@pytest.mark.ranks(3)
def test_ranks_that_wait_for_the_same_are_told_as_such(comm):
    ring = Ring(comm)
    if comm.rank > 0:
        error, _ = timed_out(lambda: ring.barrier(timeout=TIMEOUT))
        other = 3 - comm.rank
        assert error.silent == (0,)
        assert re.search(rf"given up too: rank {other}, barrier \(call 1 ", str(error))
    meet(comm)


@pytest.mark.ranks(3)
def test_a_rank_with_a_longer_timeout_answers_those_that_have_none_left(comm):
    """Rank 1 waits for long; rank 2 gives up soon, and hears that rank 1 is there."""
    ring = Ring(comm)
    if comm.rank == 2:
        error, _ = timed_out(lambda: ring.barrier(timeout=TIMEOUT))
        assert error.silent == (0,), str(error)
        assert "waiting too: rank 1" in str(error)
    if comm.rank == 1:
        error, _ = timed_out(lambda: ring.barrier(timeout=TIMEOUT + 60))
        assert error.silent == (0,), str(error)
        assert "waited in vain for rank 2" in str(error)
        assert "given up too: rank 2" in str(error)
    meet(comm)


@pytest.mark.ranks(2, 3)
def test_an_interrupted_call_breaks_the_ring(comm, monkeypatch):
    """Ctrl-C in the middle of the arithmetic: the call cannot go on, so the ring says so."""
    ring = Ring(comm)

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if comm.rank == 0:
            patch.setattr(arithmetic, "combine", interrupt)
            with pytest.raises(KeyboardInterrupt):
                ring.allreduce(np.ones(8), algorithm="ring")
        else:
            error, _ = timed_out(
                lambda: ring.allreduce(np.ones(8), algorithm="ring", timeout=TIMEOUT)
            )
            assert "rank 0" in str(error)
    meet(comm)
    is_over(ring)
    with Ring(comm) as new:
        assert new.allreduce(1) == comm.size


@pytest.mark.ranks(2, 3)
def test_an_interrupted_call_keeps_what_mpi_may_still_write_to(comm, monkeypatch):
    """Its receives are posted: without their memory the next thing that MPI does is a crash."""
    ring = Ring(comm)
    x = np.ones(300_000, "f2")  # adds up in scratch

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if comm.rank == 0:
            patch.setattr(memory.Memory, "outgoing", interrupt)
            with pytest.raises(KeyboardInterrupt):
                ring.allreduce(x, algorithm="ring")
            scratch = ring._session.members[0].scratch
            blocks = list(map(weakref.ref, scratch._blocks.values()))
            del ring, scratch
            gc.collect()
            assert [block() is None for block in blocks] == [False]
        else:
            timed_out(lambda: ring.allreduce(x, algorithm="ring", timeout=TIMEOUT))
    meet(comm)


@pytest.mark.ranks(2, 3)
def test_an_interrupt_between_two_tests_leaves_the_operation(comm, ring, monkeypatch):
    """Ctrl-C while waiting: the operation is whole, and goes on when somebody waits again."""
    if comm.rank > 0:
        work = ring.allreduce(8**comm.rank, async_op=True)
        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", lambda seconds: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                work.wait()
    meet(comm)
    if comm.rank == 0:
        work = ring.allreduce(8**comm.rank, async_op=True)
    assert work.wait() == int("1" * comm.size, base=8)


@pytest.mark.ranks(2, 3)
def test_making_a_ring_that_a_rank_does_not_make(comm):
    """The parent is a communicator of its own: after this it serves no more rings."""
    parent = comm.Dup()
    if comm.rank > 0:
        error, seconds = timed_out(lambda: Ring(parent, timeout=TIMEOUT))
        assert "Ring" in str(error) and seconds < TIMEOUT + SECONDS
        kind, text = outcome(lambda: Ring(parent))
        assert kind == "RingError" and "another communicator" in text
    meet(comm)
    with Ring(comm) as ring:
        assert ring.allreduce(1) == comm.size


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("is_under_way", [False, True])
def test_an_exception_inside_with_does_not_communicate(comm, is_under_way):
    began = time.monotonic()
    if comm.rank == 0:
        with pytest.raises(ZeroDivisionError):
            with Ring(comm) as ring:
                if is_under_way:
                    ring.allreduce(1, async_op=True)  # nobody else makes this call
                raise ZeroDivisionError
        assert time.monotonic() - began < SECONDS
        assert outcome(ring.barrier)[0] == "RingError"
        meet(comm)
    else:
        ring = Ring(comm)
        meet(comm)
        kind, text = outcome(lambda: ring.barrier(timeout=TIMEOUT))
        if (
            is_under_way and comm.rank == 1
        ):  # hears of that call, the next rank does not
            assert kind == "ValueError" and "rank 0 called allreduce" in text, text
        else:
            assert kind == "RingTimeout" and "in no call of this ring: rank 0" in text
    meet(comm)
    with Ring(comm) as new:
        assert new.allreduce(1) == comm.size


@pytest.mark.ranks(2, 3, 4)
def test_who_comes_late_to_a_healthy_operation_does_not_break_it(comm):
    """The deadline passes while nobody polls: the first wait goes on for a moment before it gives up."""
    with Ring(comm, timeout=60) as ring:
        works = [
            ring.allreduce(np.full(3, 8**comm.rank), async_op=True, timeout=0)
            for _ in range(3)
        ]
        fingerprint = sum(8**rank for rank in range(comm.size))
        assert [work.wait().tolist() for work in works] == [[fingerprint] * 3] * 3
        assert ring.allreduce(1) == comm.size
