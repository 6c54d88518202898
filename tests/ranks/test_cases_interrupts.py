"""B36, B44, B48, B49, B53, B54: exceptions, forks and threads in the middle of calls, and waits in another order.

An exception that is not the ranks' common one may come up in any line: a signal handler raises it, or Ctrl-C.  The law:
whatever is interrupted, and wherever, a rank gets the right result or an error; never a sum of one rank's first call
with another's second.  Call i brings ``i * 10**rank``, so that such a sum shows in its digits.
"""

from __future__ import annotations

import _thread
import gc
import inspect
import itertools
import os
import random
import signal
import sys
import threading
import time

import numpy as np
import pytest

import mpiring
import mpiring.ring
from mpiring import Ring, RingError, RingTimeout, average_gradients
from mpiring.errors import is_harmless

from ranks.reference import outcome
from ranks.test_promise_6_no_silent_hang import meet

PACKAGE = os.path.dirname(mpiring.__file__)
# Where a call has not begun yet: an exception in the first lines is one before the call.
AROUND = {"call", "group", "__init__", "__enter__", "begin_group", "__exit__"}
TIMEOUT = 0.15


class Alarm(Exception):
    """What a signal handler raises."""


class Lines:
    """Runs a call and counts the lines of mpiring that it executes; in one of them an exception comes up."""

    def __init__(self, error: type[BaseException], at: int = 0) -> None:
        self.count = 0
        self._error, self._at = error, at

    def run(self, call):
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _trace(self, frame, event, arg):
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_name in AROUND:
            return self._trace if event == "call" else None
        if event == "line":
            self.count += 1
            if self.count == self._at:
                raise self._error("alarm")
        return self._trace


def full(i: int, rank: int, count: int) -> np.ndarray:
    return np.full(count, i * 10.0**rank)


def by_group(ring: Ring, i: int) -> np.ndarray:
    """What the left neighbour brings, and this rank, by messages."""
    x = full(i, ring.rank, 1000)
    theirs = np.zeros(1000)
    with ring.group():
        ring.send(x, (ring.rank + 1) % ring.size)
        ring.recv(theirs, (ring.rank - 1) % ring.size)
    return x + theirs


def gathered(ring: Ring, i: int) -> np.ndarray:
    parts = ring.allgather(full(i, ring.rank, 1000)).reshape(ring.size, -1)
    return parts.sum(axis=0)


def broadcast(ring: Ring, i: int) -> np.ndarray:
    first = full(i, 0, 1000) if ring.rank == 0 else None
    return ring.broadcast(first) * 11


def reduced(ring: Ring, i: int) -> np.ndarray:
    return ring.allgather(ring.reduce_scatter(full(i, ring.rank, 1000)))


def averaged(ring: Ring, i: int) -> np.ndarray:
    x = full(i, ring.rank, 500)
    return average_gradients([x, x[:7]], ring, op="sum")[0]


CALLS = {
    "riding": lambda ring, i: ring.allreduce(full(i, ring.rank, 3)),
    "staged": lambda ring, i: ring.allreduce(full(i, ring.rank, 1000)),
    "peers": lambda ring, i: ring.allreduce(full(i, ring.rank, 600_000)),
    "ring": lambda ring, i: ring.allreduce(full(i, ring.rank, 1000), algorithm="ring"),
    "mpi": lambda ring, i: ring.allreduce(full(i, ring.rank, 1000), algorithm="mpi"),
    "work": lambda ring, i: ring.allreduce(
        full(i, ring.rank, 1000), async_op=True
    ).wait(),
    "reduce-scatter and allgather": reduced,
    "allgather": gathered,
    "broadcast": broadcast,
    "group": by_group,
    "gradients": averaged,
}


def impatient(comm) -> Ring:
    """A ring whose calls, but not its making, have little time."""
    ring = Ring(comm)
    ring._session.timeout = TIMEOUT
    return ring


def trial(comm, name: str, is_warm: bool, error: type[BaseException], at: int) -> None:
    """Three calls, the first of which is interrupted on rank 0 in its ``at``-th line."""
    ring = impatient(comm)
    call = CALLS[name]
    got = []
    if is_warm:
        for _ in range(2):
            call(ring, 9)
    for i in (1, 2, 3):
        try:
            if i == 1 and comm.rank == 0:
                result = Lines(error, at).run(lambda: call(ring, 1))
            else:
                result = call(ring, i)
            got.append((i, result))
        except (Alarm, KeyboardInterrupt, RingError):
            pass
        gc.collect(0)
    noise = [np.full(1000, -1.0) for _ in range(50)]  # takes memory that was freed
    meet(comm)
    wrong = [(i, x[:3]) for i, x in got if not (x == 11 * i).all()]
    del noise
    assert not wrong, (name, is_warm, at, wrong)


def lines_of(comm, name: str, is_warm: bool) -> int:
    """How many lines of mpiring a call takes on rank 0."""
    with Ring(comm) as ring:
        if is_warm:
            for _ in range(2):
                CALLS[name](ring, 9)
        lines = Lines(Alarm)
        lines.run(lambda: CALLS[name](ring, 1))
    return comm.bcast(lines.count)


def sweep(comm, name: str, trials: int) -> None:
    for is_warm in (False, True):
        count = lines_of(comm, name, is_warm)
        assert count > 20
        chosen = random.Random(f"{name} {is_warm}").sample(
            range(1, count), min(trials, count - 1)
        )
        for number, at in enumerate(chosen):
            error = KeyboardInterrupt if number % 3 == 2 else Alarm
            trial(comm, name, is_warm, error, at)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["riding", "staged", "ring", "group"])
def test_b36_an_exception_in_any_line(comm, name):
    sweep(comm, name, trials=2)


@pytest.mark.slow
@pytest.mark.ranks(2)
@pytest.mark.limit(400)
@pytest.mark.parametrize("name", list(CALLS))
def test_b36_an_exception_in_many_lines_of_every_call(comm, name):
    sweep(comm, name, trials=8)


def test_b36_a_wrong_sum_would_be_seen(comm):
    """One that mixes calls is none of the sums that may come."""
    assert full(1, 0, 1) + full(2, 1, 1) not in [11.0 * i for i in range(10)]


# One that comes up in a finaliser stays there: Python prints it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.ranks(2)
def test_b36_an_alarm_inside_a_call(comm):
    """The case as it was met, with a real signal."""
    trials = 12
    got = []
    for number in range(trials):
        ring = impatient(comm)
        guard = ring._session.operations.guard

        def handler(signum, frame, guard=guard):
            if guard.is_inside:  # else the call has not begun, or has ended
                raise Alarm("alarm")

        old = signal.signal(signal.SIGALRM, handler)
        try:
            for i in (1, 2, 3):
                try:
                    if i == 1 and comm.rank == 0:
                        signal.setitimer(signal.ITIMER_REAL, 1e-4 * (1 + number % 5))
                    got.append((i, ring.allreduce(full(i, comm.rank, 1000))))
                except (Alarm, RingError):
                    pass
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.signal(signal.SIGALRM, old)
        meet(comm)
    assert [(i, x[0]) for i, x in got if not (x == 11 * i).all()] == []


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "line", ["check(name)", "is_inside = is_inside", "is_inside = False"]
)
def test_b36_an_exception_at_the_edge_of_a_call(comm, monkeypatch, line):
    """Right before and right after what the call does: it breaks the ring all the same, and the others hear of it."""
    monkeypatch.setattr("mpiring.wire.ring.status.GRACE_SECONDS", 0.05)
    call = Ring.allreduce.__code__
    source, first = inspect.getsourcelines(mpiring.ring._call)
    numbers = [first + n for n, text in enumerate(source) if line in text]
    at = next(n for n in numbers if n > call.co_firstlineno + 4)
    ring = Ring(comm)
    got = []

    def trace(frame, event, arg):
        if frame.f_code is not call:
            return None
        if event == "line" and frame.f_lineno == at:
            raise Alarm("alarm")
        return trace

    if comm.rank == 0:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with pytest.raises(Alarm):
                ring.allreduce(full(1, 0, 3))
        finally:
            sys.settrace(before)
    for i in (1, 2, 3)[comm.rank == 0 :]:
        kind, text = outcome(lambda: got.append((i, ring.allreduce(full(i, 1, 3)))))
        assert kind in ("", "RingError"), text
    meet(comm)
    assert "broken" in repr(ring)
    assert comm.rank == 1 and len(got) <= 1 or not got


@pytest.mark.ranks(2)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_b36_a_storm_of_alarms(comm, monkeypatch):
    """A timer that goes on: what follows from the first alarm is interrupted by the next ones."""
    monkeypatch.setattr("mpiring.wire.ring.status.GRACE_SECONDS", 0.05)
    stuck = []
    for number in range(6):
        ring = Ring(comm)
        guard = ring._session.operations.guard
        period = 6e-5 * (1 + number)

        def handler(signum, frame, guard=guard):
            # Only in mpiring's own lines: pytest has some that must not fail.
            if guard.is_inside and frame.f_code.co_filename.startswith(PACKAGE):
                raise Alarm("alarm")

        old = signal.signal(signal.SIGALRM, handler)
        name = ("staged", "group", "work")[number % 3]
        alarms: list[BaseException] = []
        for i in (1, 2, 3):
            try:
                if i == 1 and comm.rank == 0:
                    signal.setitimer(signal.ITIMER_REAL, 3 * period, period)
                assert (CALLS[name](ring, i) == 11 * i).all()
            except Alarm as alarm:
                alarms += [alarm]
            except RingError:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        meet(comm)
        # It has come to an end, although nobody has a timeout.  A call that was interrupted has broken its ring, but
        # for an alarm before anything was sent: all ranks are told of that, while the next one may already come.  A
        # wait for a work may have left the work whole.
        came = (error for alarm in alarms for error in (alarm, alarm.__context__))
        was_told = any(error and is_harmless(error) for error in came)
        is_whole = "broken" not in repr(ring) and name != "work" and not was_told
        stuck.append(guard.is_inside or bool(alarms) and is_whole)
    assert not any(stuck), stuck


@pytest.mark.ranks(3)
@pytest.mark.parametrize("error", [Alarm, KeyboardInterrupt])
def test_b36_a_call_that_waits_is_interrupted_and_made_again(comm, error):
    """Rank 1 is alone in the call when it is interrupted; it makes the call again, and the others come to theirs."""
    ring = Ring(comm)
    got: list[float] = []
    told: list[str] = []

    def call(i):
        try:
            x = i * 10.0**comm.rank
            got.append(float(ring.allreduce(x, timeout=TIMEOUT)))
        except RingError as refused:
            told.append(str(refused))

    if comm.rank == 1:

        def handler(signum, frame):
            raise error("alarm")

        old = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(error):
                ring.allreduce(7 * 10.0)
        finally:
            signal.signal(signal.SIGALRM, old)
        call(1)
        assert len(told) == 1 and "cut off" in told[0] and "alarm" in told[0]
    meet(comm)
    if comm.rank != 1:
        call(1)
        call(2)
        assert told and "rank 1" in told[0] and "alarm" in told[0], told
    # Of the first call rank 1's part may have been under way; of the second one it has none.
    assert got in ([], [171.0])
    with Ring(comm) as new:
        assert new.allreduce(8**comm.rank) == 0o111


@pytest.mark.ranks(2, 3)
def test_b36_the_others_hear_of_it_without_a_timeout(comm, monkeypatch):
    monkeypatch.setattr("mpiring.wire.ring.status.GRACE_SECONDS", 0.05)
    ring = Ring(comm)
    if comm.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            Lines(KeyboardInterrupt, 30).run(
                lambda: ring.allreduce(np.ones(9), algorithm="ring")
            )
        kind, text = outcome(ring.barrier)
        assert kind == "RingError" and "cut off" in text
    else:
        kind, text = outcome(lambda: ring.allreduce(np.ones(9), algorithm="ring"))
        assert kind == "RingError" and "waited in vain for rank 0" in text, text
        assert "gone (KeyboardInterrupt: alarm)" in text, text
    meet(comm)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("way", ["recv", "group"])
def test_b36_who_waits_for_a_message_hears_of_it_without_a_timeout(
    comm, monkeypatch, way
):
    monkeypatch.setattr("mpiring.wire.ring.status.GRACE_SECONDS", 0.05)
    ring = Ring(comm)
    if comm.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            Lines(KeyboardInterrupt, 30).run(lambda: ring.send(np.ones(9), 1))
    elif comm.rank == 1 and way == "recv":
        kind, text = outcome(lambda: ring.recv(np.ones(9), 0))
        assert kind == "RingError" and "waited in vain for rank 0" in text, text
    elif way == "group":  # the messages of the others arrive
        theirs = [np.zeros(5), np.zeros(5)]
        other = 3 - comm.rank if comm.size == 3 else 1

        def call():
            with ring.group():
                ring.send(np.full(5, 8.0**comm.rank), other)
                ring.recv(theirs[0], other)
                ring.recv(theirs[1], 0)

        kind, text = outcome(call)
        assert kind == "RingError" and "waited in vain for rank 0" in text, text
        assert (theirs[0] == 8.0**other).all()
    meet(comm)


@pytest.mark.ranks(2, 3)
def test_b36_an_error_of_the_arguments_leaves_the_ring(comm, ring):
    """What all ranks raise alike, or Python does before the call begins, is none of these."""
    for wrong in (
        lambda: ring.allreduce(1, colour="red"),
        lambda: ring.allreduce(),
        lambda: ring.allreduce("text"),
        lambda: ring.broadcast(None),
        lambda: ring.send(1, dest=99),
        lambda: ring.send(1, dest=0, timeout=-1),
        lambda: average_gradients([1.0], ring, op="mean"),
    ):
        kind, _ = outcome(wrong)
        assert kind in ("TypeError", "ValueError")
        assert ring.allreduce(8**comm.rank) == int("1" * comm.size, base=8)


@pytest.mark.ranks(2, 3)
def test_b36_a_call_from_inside_a_call(comm, ring):
    """A signal handler that uses the ring is refused; the call that it interrupts goes on."""
    told = []

    def handler(signum, frame):
        told.append(outcome(lambda: ring.allreduce(100.0)))

    work = None
    if comm.rank == 0:
        old = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        result = ring.allreduce(8.0**comm.rank)
        signal.signal(signal.SIGALRM, old)
        assert len(told) == 1 and told[0][0] == "RingError"
        assert "has not ended" in told[0][1]
    else:
        patience = time.monotonic() + 0.1  # rank 0 is inside its call meanwhile
        while time.monotonic() < patience:
            pass
        result = ring.allreduce(8.0**comm.rank)
    assert work is None
    assert result == int("1" * comm.size, base=8)
    assert ring.allreduce(1) == comm.size


@pytest.mark.ranks(1, 2)
def test_b36_rings_that_broke_cost_later_ones_nothing(comm, monkeypatch):
    """Their communicators never come back; nobody looks for them with the garbage collector at each new ring."""
    parent = comm.Dup()
    for _ in range(40):
        with pytest.raises(Alarm):
            Lines(Alarm, 3).run(Ring(parent).barrier)
    meet(comm)
    looked = []
    monkeypatch.setattr(gc, "collect", lambda *_: looked.append(1))
    with Ring(parent) as ring:
        total = ring.allreduce(8**comm.rank)
    assert total == int("1" * comm.size, base=8) and not looked


# ---- B44, B53: waits ------------------------------------------------------------------------------


@pytest.mark.ranks(3)
@pytest.mark.parametrize("count", [1, 5000, 400_000])
def test_b44_two_rings_in_two_orders(comm, count):
    x = np.ones(count)
    with Ring(comm, timeout=20) as a, Ring(comm, timeout=20) as b:
        for name in ("allreduce", "allgather", "reduce_scatter"):
            works = [getattr(ring, name)(x, async_op=True) for ring in (a, b)]
            order = (1, 0) if comm.rank == 1 else (0, 1)
            results = {place: works[place].wait() for place in order}
            for result in results.values():
                assert (result == (1.0 if name == "allgather" else 3.0)).all()


@pytest.mark.ranks(3)
def test_b44_whatever_waits_drives_the_other_rings(comm):
    """Rank 1 waits for the work, the others first for something else: a collective, a new ring, the end of one."""
    others = {
        "a blocking call": lambda ring: ring.allreduce(2.0),
        "messages": lambda ring: by_group(ring, 1),
        "making a ring": lambda ring: Ring(comm).close(),
        "the end": lambda ring: ring.close(),
    }
    x = np.ones(5000)
    for wait in others.values():
        a, b = Ring(comm, timeout=20), Ring(comm, timeout=20)
        work = a.allreduce(x, async_op=True)
        if comm.rank == 1:
            assert (work.wait() == 3.0).all()
        b.allreduce(1.0, async_op=True)
        wait(b)
        assert (work.wait() == 3.0).all()
        a.close()
        b.close()


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    "then", ["barrier", "collective", "close", "end", "wait", "test"]
)
def test_b53_nobody_is_late(comm, monkeypatch, then):
    """The deadline of a call counts from when its rank waits for it: 30 s of computing are no waiting."""
    ring = Ring(comm, timeout=10)
    work = ring.allreduce(np.full(300_000, 8.0**comm.rank), async_op=True)
    if then == "test":
        work.test()
    now, absent = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now() + absent[0])
    absent[0] = 30.0
    told = []
    if then == "barrier":
        told.append(outcome(ring.barrier))
    if then == "collective":
        told.append(outcome(lambda: ring.allgather(1)))
    if then == "close":
        told.append(outcome(ring.close))
    if then == "end":
        told.append(outcome(lambda: ring.__exit__(None, None, None)))
    if then == "test":
        for _ in range(3):  # looks now and then, and computes in between
            told.append(outcome(work.test))
            absent[0] += 30.0
    told.append(outcome(work.wait))
    assert {kind for kind, _ in told} == {""}, told
    assert (work.result() == int("1" * comm.size, base=8)).all()


@pytest.mark.ranks(2, 3)
def test_b53_a_rank_that_is_stopped_inside_a_call_is_not_late(comm, ring, monkeypatch):
    """As by a signal handler that takes its time, or a debugger."""
    now, looks = time.monotonic, itertools.count()

    def clock():
        look = next(looks)
        if look == 20:
            comm.send(None, 0)
        return now() + (30.0 if look > 12 else 0.0)

    if comm.rank == 0:  # comes when the others have looked at it
        for other in range(1, comm.size):
            comm.recv(source=other)
    else:
        monkeypatch.setattr(time, "monotonic", clock)
    result = ring.allreduce(8**comm.rank, timeout=10)
    meet(comm)
    assert result == int("1" * comm.size, base=8)


@pytest.mark.ranks(2)
def test_b53_who_only_looks_gives_up_too(comm, monkeypatch):
    """``test`` in a loop is waiting: absences count for a tenth of the timeout each, so that it ends."""
    ring = Ring(comm, timeout=10)
    looks = 0
    if comm.rank > 0:
        work = ring.allreduce(1, async_op=True)
        now, absent = time.monotonic, [0.0]
        monkeypatch.setattr(time, "monotonic", lambda: now() + absent[0])
        with pytest.raises(RingTimeout) as caught:
            while looks < 100:
                work.test()
                absent[0] += 5.0
                looks += 1
        assert 9 <= looks <= 12 and caught.value.silent == (0,)
    meet(comm)


# ---- B54: what the late ones hear -----------------------------------------------------------------


@pytest.mark.ranks(2, 3)
def test_b54_who_comes_late_hears_who_has_given_up(comm):
    ring = Ring(comm, timeout=TIMEOUT)
    x = np.ones(9)
    last = comm.size - 1
    if comm.rank != last:
        with pytest.raises(RingTimeout) as caught:
            ring.allreduce(x, algorithm="ring")
        assert caught.value.silent == (last,)
    meet(comm)
    if comm.rank == last:
        with pytest.raises(RingTimeout) as caught:
            ring.allreduce(x, algorithm="ring")
        text = str(caught.value)
        assert "waiting too" not in text and "given up" in text, text
        assert all(f"rank {rank}, allreduce (call 1" in text for rank in range(last))
        assert caught.value.silent == ()
    meet(comm)


@pytest.mark.ranks(3)
def test_b54_who_looks_now_and_then_is_not_silent(comm):
    """A rank that drives its work by ``test`` answers those that have given up."""
    ring = Ring(comm)
    if comm.rank == 0:
        with pytest.raises(RingTimeout) as caught:
            ring.allreduce(np.ones(9), timeout=TIMEOUT)
        assert caught.value.silent == (2,)
        assert "waiting too: rank 1, allreduce (call 1 " in str(caught.value)
    if comm.rank == 1:
        work = ring.allreduce(np.ones(9), async_op=True, timeout=60)
        kind = ""
        while not kind:
            kind, text = outcome(work.test)
        assert kind == "RingTimeout" and "waited in vain for rank 0" in text
    meet(comm)


# ---- B48: forks ---------------------------------------------------------------------------------------


def in_a_child(child) -> int:
    """The status of a child process that runs a function: how many of the things that it says are not true."""
    pid = os.fork()
    if not pid:
        status = 99
        try:
            status = sum(not true for true in child())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("whose", ["everybody's", "one rank's"])
def test_b48_a_forked_child(comm, ring, whose):
    counts = (1, 1000, 1 << 21)
    arrays = [np.full(count, 8.0**comm.rank) for count in counts]
    outs = [ring.allreduce(x) for x in arrays]
    work = ring.allreduce(1.0, async_op=True)

    def refused(call):
        kind, text = outcome(call)
        return kind == "RingError" and "fork" in text

    def child():
        for x, out in zip(arrays, outs):
            yield refused(lambda: ring.allreduce(x, out=out))
            yield refused(lambda: ring.broadcast(x))
            yield refused(lambda: ring.allreduce(x, async_op=True))
        yield refused(ring.barrier)
        for call in (work.wait, work.test):  # what is done already has its result
            yield refused(call) or outcome(call) == ("", "")
        yield refused(lambda: ring.send(1, 0))
        yield refused(lambda: by_group(ring, 1))
        yield refused(lambda: ring.empty(3))
        yield refused(lambda: average_gradients([1.0], ring))
        yield refused(lambda: Ring(comm))
        yield outcome(ring.close)[0] == ""

    status = in_a_child(child) if whose == "everybody's" or comm.rank == 0 else 0
    assert status == 0
    for out in outs:
        assert (out == int("1" * comm.size, base=8)).all()
    assert work.wait() == comm.size
    for x in arrays:
        assert (ring.allreduce(x) == int("1" * comm.size, base=8)).all()


# ---- B49: threads -------------------------------------------------------------------------------------


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("count", [1000, 300_000])
def test_b49_two_threads_on_one_ring(comm, ring, count):
    x = np.full(count, 8.0**comm.rank)
    told: list[list[tuple[str, str]]] = [[], []]
    results: list[np.ndarray] = []
    both = threading.Barrier(2)

    def calls(mine):
        both.wait()
        for _ in range(100 if count < 10_000 else 20):
            kind = outcome(lambda: results.append(ring.allreduce(x)))
            mine.append(kind)
        both.wait()

    threads = [threading.Thread(target=calls, args=(mine,)) for mine in told]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    meet(comm)
    one, other = sorted([{kind for kind, _ in mine} for mine in told], key=str)
    assert (one, other) == ({""}, {"RingError"}), (one, other)
    refused = next(text for mine in told for kind, text in mine if kind)
    assert "a ring for each thread" in refused
    assert all((r == int("1" * comm.size, base=8)).all() for r in results)
    assert ring.allreduce(1) == comm.size  # they have ended: this thread may call


@pytest.mark.ranks(2, 3)
def test_b49_threads_that_python_has_not_started(comm, ring):
    """A thread of another library's is not known to ``threading``; it is one all the same."""
    told: list[list[str]] = [[], []]
    ended = [_thread.allocate_lock() for _ in told]

    def calls(mine, lock):
        for _ in range(50):
            mine.append(outcome(lambda: ring.allreduce(8**comm.rank))[0])
        lock.release()

    for mine, lock in zip(told, ended):
        lock.acquire()
        _thread.start_new_thread(calls, (mine, lock))
    for lock in ended:
        lock.acquire()
    meet(comm)
    assert sorted(map(set, told), key=str) == [{""}, {"RingError"}]


@pytest.mark.ranks(2, 3)
def test_b49_a_ring_that_is_handed_on(comm):
    """A thread makes calls on a ring that another has made; when it has ended the next one may, or end the ring."""
    ring, other = Ring(comm), Ring(comm)
    got = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: got.append(ring.allreduce(1)))
        thread.start()
        assert other.allreduce(1) == comm.size  # this thread's own
        thread.join()
    ring.close()
    other.close()
    assert got == [comm.size] * 2
