"""The pretended device does its work in every order that CUDA allows, and in no other."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices import deferred
from devices.deferred import eager, lazy, reach, seeded
from devices.machine import Machine
from devices.scheduler import PATIENCE
from devices.trials import (
    device,
    every_way,
    finish_all,
    free_stream,
    number,
    outcomes,
    settled,
    wait_for_it,
)


@pytest.fixture
def cupy():
    """A device that does nothing before it must."""
    with device() as cupy:
        yield cupy


# ---- streams and events ---------------------------------------------------------------------------


def handed_over(first, second, between=lambda cupy, first, second: None):
    """What the second stream reads of what the first one writes."""

    def program(cupy):
        a, b = first(cupy), second(cupy)
        x, y = settled(cupy, 0), settled(cupy, 2)
        with a:
            x.fill(1)
        between(cupy, a, b)
        with b:
            y[...] = x
        return number(cupy, y)

    return outcomes(program)


def null(cupy):
    return cupy.cuda.Stream.null


def blocking(cupy):
    return cupy.cuda.Stream()


@pytest.mark.parametrize(
    "first, second, seen",
    [
        (free_stream, free_stream, {0, 1}),
        (blocking, blocking, {0, 1}),
        (blocking, free_stream, {0, 1}),
        (null, free_stream, {0, 1}),
        (free_stream, null, {0, 1}),
        (null, blocking, {1}),
        (blocking, null, {1}),
        (null, null, {1}),
    ],
)
def test_which_streams_are_in_order_without_an_event(first, second, seen):
    assert handed_over(first, second) == seen
    assert handed_over(first, second, wait_for_it) == {1}


def test_a_race_is_seen_with_some_seed_and_none_with_the_event():
    def program(cupy, between):
        x, y = settled(cupy, 0), settled(cupy, 2)
        a, b = free_stream(cupy), free_stream(cupy)
        with a:
            x.fill(1)
        between(cupy, a, b)
        with b:
            y[...] = x
        b.synchronize()
        return float(reach(y)[0])

    for between, seen in ((lambda *_: None, {0, 1}), (wait_for_it, {1})):
        results = set()
        for seed in range(20):
            with device(seeded(seed)) as cupy:
                results.add(program(cupy, between))
        assert results == seen


def test_the_null_stream_between_two_blocking_ones():
    def work_on_null(cupy, first, second):
        cupy.cuda.Stream.null.record()

    def work_on_null_of_another_device(cupy, first, second):
        with cupy.cuda.Device(1):
            cupy.cuda.Stream.null.record()

    assert handed_over(blocking, blocking, work_on_null) == {1}
    assert handed_over(blocking, blocking, work_on_null_of_another_device) == {0, 1}
    assert handed_over(free_stream, free_stream, work_on_null) == {0, 1}


def test_a_wait_is_for_what_was_recorded_then():
    def recorded_before_and_after(cupy, first, second):
        event = cupy.cuda.Event()
        event.record(free_stream(cupy))
        second.wait_event(event)
        event.record(first)  # too late for the second

    def not_recorded(cupy, first, second):
        second.wait_event(cupy.cuda.Event())

    def first_waits(cupy, first, second):
        wait_for_it(cupy, second, first)

    for between in (recorded_before_and_after, not_recorded, first_waits):
        assert handed_over(free_stream, free_stream, between) == {0, 1}


def test_a_wait_on_another_device():
    def program(cupy):
        x = settled(cupy, 0)
        here = free_stream(cupy)
        with here:
            x.fill(1)
        event = here.record()
        with cupy.cuda.Device(1):
            there = free_stream(cupy)
            there.wait_event(event)
            there.synchronize()
        return float(reach(x)[0])

    assert outcomes(program) == {1}


def test_a_stream_that_was_dropped_is_still_waited_for():
    def program(cupy):
        x, y = settled(cupy, 0), settled(cupy, 2)
        stream = cupy.cuda.Stream()
        with stream:
            x.fill(1)
        del stream
        cupy.cuda.Stream()
        y[...] = x  # on the null stream
        return number(cupy, y)

    assert outcomes(program) == {1}


def test_an_event_not_recorded_is_done(cupy):
    event = cupy.cuda.Event()
    assert event.done
    event.synchronize()


@pytest.mark.parametrize("choose", [lazy, eager, seeded(1), seeded(2)])
def test_a_loop_that_polls_ends(choose):
    with device(choose, spontaneous=False) as cupy:
        x = cupy.zeros(3)
        for _ in range(5):
            x += 1
        event = cupy.cuda.get_current_stream().record()
        polls = 1
        while not event.done:
            polls += 1
        assert polls <= (PATIENCE + 1) * 8  # noise, 0, five times 1, the event
        assert choose is not lazy or polls > 8
        assert choose is not eager or polls == 1
        assert reach(x).tolist() == [5, 5, 5]
        x += 1
        while not cupy.cuda.get_current_stream().done:
            pass
        assert reach(x).tolist() == [6, 6, 6]


def test_who_waits_may_get_less_or_more():
    def program(cupy):
        x, y = settled(cupy, 0), settled(cupy, 0)
        a, b = free_stream(cupy), free_stream(cupy)
        with a:
            x.fill(1)
        with b:
            y.fill(1)
            y.fill(2)
        a.synchronize()
        return float(reach(x)[0]), float(reach(y)[0])

    assert set(every_way(program, spontaneous=False)) == {(1, 0), (1, 1), (1, 2)}


# ---- all orders, and no others --------------------------------------------------------------------


def orders(build):
    """Every order in which the operations of ``build(machine)`` can be done."""

    def program(cupy):
        machine = deferred.machine_of_this_test()
        build(machine)
        finish_all(cupy)
        return tuple(machine.queue.history)

    return set(every_way(program, spontaneous=False))


def test_every_order_that_cuda_allows_and_no_other():
    def build(machine):
        a, b = (machine.cards[0].line(blocking=False) for _ in range(2))
        a.add(None, "a1")
        event = a.add(None, "event")
        a.add(None, "a2")
        b.add(None, "b1")
        b.add(None, "wait", event)
        b.add(None, "b2")

    before = ["a1 event", "event a2", "b1 wait", "wait b2", "event wait"]
    arrows = [arrow.split() for arrow in before]
    names = ["a1", "event", "a2", "b1", "wait", "b2"]
    allowed = {
        order
        for order in itertools.permutations(names)
        if all(order.index(x) < order.index(y) for x, y in arrows)
    }
    assert orders(build) == allowed and len(allowed) == 10


PROGRAMS = st.lists(
    st.tuples(st.sampled_from(["work", "record", "wait"]), st.integers(0, 3)),
    max_size=12,
)


@given(PROGRAMS, st.integers(0, 2**32 - 1))
def test_no_order_that_cuda_does_not_allow(steps, seed):
    """Streams 0 (null), 1 and 2 (blocking) and 3 (not); waits are for the last event recorded."""
    machine = Machine(seeded(seed))
    card = machine.cards[0]
    lines = [card.null, card.line(True), card.line(True), card.line(False)]
    given_to: list[tuple[str, int]] = []  # operations: name, stream
    arrows = []
    recorded = None
    for what, stream in steps:
        name = f"{what} {len(given_to)}"
        for other, its_stream in given_to:
            in_order = stream == its_stream or (
                0 in (stream, its_stream) and 3 not in (stream, its_stream)
            )
            if in_order:
                arrows.append((other, name))
        if what == "wait" and recorded:
            arrows.append((recorded[0], name))
        node = lines[stream].add(
            None, name, *([recorded[1]] if what == "wait" and recorded else [])
        )
        given_to.append((name, stream))
        if what == "record":
            recorded = name, node
    machine.queue.finish(card.last)
    done = machine.queue.history
    assert sorted(done) == sorted(name for name, _ in given_to)
    assert all(done.index(x) < done.index(y) for x, y in arrows)


def test_the_same_seed_gives_the_same_order():
    def order(seed):
        with device(seeded(seed)) as cupy:
            x = settled(cupy, 0)
            for _ in range(10):
                with free_stream(cupy):
                    x.fill(1)
                    x + 1
            finish_all(cupy)
            return tuple(deferred.machine_of_this_test().queue.history)

    found = [order(seed) for seed in (3, 7, 11, 3, 7, 11)]
    assert found[:3] == found[3:] and len(set(found)) == 3
