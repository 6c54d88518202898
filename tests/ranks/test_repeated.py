"""All-reduces that a ring has seen before, with a deadline or asynchronously, and how little Python is around them."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from mpiring import Ring, RingTimeout

from ranks.denormals import DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, flushing
from ranks.reference import outcome
from ranks.test_promise_6_no_silent_hang import meet

BOTH = FLUSH_TO_ZERO | DENORMALS_ARE_ZERO

FORMS = {
    "plain": lambda ring, x: ring.allreduce(x),
    "timed": lambda ring, x: ring.allreduce(x, timeout=60),
    "asynchronous": lambda ring, x: ring.allreduce(x, async_op=True).wait(),
    "both": lambda ring, x: ring.allreduce(x, async_op=True, timeout=60).wait(),
}
# Bytes that ride, go through stages, and go by the peers' memory or by messages.
COUNTS = (1, 1000, 600_000)


def python_calls(function) -> int:
    """How many Python functions a call of ``function`` enters, generators each time that they go on."""
    count = 0

    def profile(frame, event, arg):
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.ranks(1)
@pytest.mark.parametrize("form", FORMS)
def test_one_rank_has_little_around_a_call(comm, form):
    ring, x = Ring(comm), np.ones(1000, np.float32)
    FORMS[form](ring, x)
    assert threading.active_count() < 10  # nobody else is counted
    least = min(python_calls(lambda: FORMS[form](ring, x)) for _ in range(3))
    assert least <= 45, least


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", COUNTS)
def test_every_form_gives_the_same(comm, form, count):
    ring = Ring(comm)
    got = []
    for i in (1, 2, 3):
        x = np.full(count, i * 8.0**comm.rank)
        got.append((i, FORMS[form](ring, x), x))
    for i, y, x in got:
        assert y is not x and (x == i * 8.0**comm.rank).all()
        assert (y == i * sum(8.0**r for r in range(comm.size))).all()


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_promise_6_a_rank_that_is_missing_is_named(comm, count, is_async):
    """In the third call of its kind."""
    ring, x = Ring(comm), np.ones(count)
    told = ("", "")
    for _ in range(2):
        ring.allreduce(x, timeout=60)
    if comm.rank != 1:

        def call():
            if is_async:
                return ring.allreduce(x, async_op=True, timeout=0.3).wait()
            return ring.allreduce(x, timeout=0.3)

        told = outcome(call)
    meet(comm)
    if comm.rank != 1:
        kind, text = told
        assert kind == RingTimeout.__name__, told
        assert "in no call of this ring: rank 1" in text, text


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("count", [2, *COUNTS])
def test_b43_who_flushed_before_and_does_not_now(comm, count):
    """What was learnt while ranks flushed is no part of later calls, and a difference is told each time."""
    ring, x = Ring(comm), np.full(count, 1e-310)
    last = comm.size - 1

    def call(is_flushing):
        with flushing(BOTH) if is_flushing else nullcontext():
            return ring.allreduce(x)

    for _ in range(2):
        assert (call(True).view(np.int64) == 0).all()  # on all ranks
    for _ in range(2):
        kind, text = outcome(lambda: call(comm.rank == last))
        assert kind == "ValueError" and "denormal numbers" in text
    for _ in range(3):
        assert (call(False) == comm.size * 1e-310).all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("op", ["sum", "avg", "max"])
def test_promise_4_a_nan_of_any_form(comm, dtype, op):
    """Also on a ring of one rank, whose result is its input: the sign and payload of a NaN are of one path's."""
    ring = Ring(comm)
    bits = {"float16": 0xFE01, "float32": 0xFFC00001}[dtype]
    x = np.full(8, bits, np.uint16 if dtype == "float16" else np.uint32).view(dtype)
    forms = [form(ring, x) for form in FORMS.values() for _ in range(2)]
    same = [ring.allreduce(x, op, algorithm=a) for a in ("auto", "auto", "direct")]
    assert len({y.tobytes() for y in forms}) == 1
    assert len({y.tobytes() for y in same}) == 1 or dtype == "float32"


class Wrong:
    """What is no argument, and fails whatever is asked of it."""

    def fail(self, *_):
        raise RuntimeError("not this")

    __str__ = __hash__ = __eq__ = __bool__ = fail


WRONG: dict[str, dict[str, Any]] = {
    "algorithm": {"algorithm": np.array(["auto", "x"])},
    "order": {"order": np.array(["ring", "x"])},
    "async_op": {"async_op": np.ones(2)},
    "an order without a text": {"order": Wrong()},
    "an algorithm without a text": {"algorithm": Wrong()},
    "an async_op that is neither": {"async_op": Wrong()},
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("count", COUNTS[:2])
def test_promise_5_an_argument_that_fails_when_it_is_looked_at(comm, name, count):
    ring, x = Ring(comm, timeout=20), np.ones(count)
    for _ in range(2):
        ring.allreduce(x)
    mine = WRONG[name] if comm.rank == comm.size - 1 else {}
    kind, _ = outcome(lambda: ring.allreduce(x, **mine))
    assert kind
    assert (ring.allreduce(x) == comm.size).all()


@pytest.mark.parametrize("timeout", ["soon", -1, True, float("nan")])
def test_promise_5_a_wrong_timeout_raises_on_every_rank(comm, timeout):
    ring, x = Ring(comm), np.ones(3)
    for _ in range(2):
        ring.allreduce(x)
    mine = timeout if comm.rank == comm.size - 1 else 60
    kind, text = outcome(lambda: ring.allreduce(x, timeout=mine))
    assert kind == "ValueError" and "timeout must be seconds" in text
    assert (ring.allreduce(x) == comm.size).all()
