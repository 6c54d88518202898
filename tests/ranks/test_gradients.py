"""Gradients that are averaged again and again, and in place."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from mpiring import Ring, average_gradients

from ranks.reference import outcome
from ranks.test_cases import raised_everywhere

BUCKETS = pytest.mark.parametrize("bucket_bytes", [1, 24, None])


def nests(a, b, c) -> dict[str, Any]:
    """The same three arrays in containers of every kind."""
    return {
        "list": [a, b, c],
        "tuple": (a, b, c),
        "dict": {"a": a, 10: b, 9: c},
        "nest": {"a": [a, (b,)], "none": [], "c": {"d": c}},
        "ordered": OrderedDict(a=a, b=b, c=c),
    }


NESTS = sorted(nests(0, 0, 0))


def flattened(nest) -> list[Any]:
    if isinstance(nest, dict):
        return [leaf for value in nest.values() for leaf in flattened(value)]
    if isinstance(nest, (list, tuple)):
        return [leaf for value in nest for leaf in flattened(value)]
    return [nest]


def fingerprint(size: int) -> int:
    return int("1" * size, base=8)


def arrays(rank: int, i: int) -> list[np.ndarray]:
    """Of the i-th call; one is strided, one of no dimension, of two dtypes."""
    strided = np.zeros((3, 4), np.float32)
    strided[:, ::2] = i * 8**rank
    return [
        strided[:, ::2],
        np.array(2.0 * i * 8**rank),
        np.full(5, 3 * i * 8**rank, np.float32),
    ]


@BUCKETS
@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("in_place", [False, True])
def test_again_and_again(comm, ring, name, bucket_bytes, in_place):
    kept = []
    for i in range(1, 5):
        mine = arrays(comm.rank, i)
        nest = nests(*mine)[name]
        before = [x.copy() for x in mine]
        more = {"out": nest} if in_place else {}
        got = average_gradients(nest, ring, op="sum", bucket_bytes=bucket_bytes, **more)
        assert type(got) is type(nest)
        if isinstance(nest, dict):
            assert list(got) == list(nest)
        kept.append((i, flattened(got), mine, before))
    for i, got, mine, before in kept:  # no call has touched an earlier one's
        for factor, result, x, x_before in zip((1, 2, 3), got, mine, before):
            assert result.shape == x.shape and result.dtype == x.dtype
            assert (result == factor * i * fingerprint(comm.size)).all()
            assert (result is x) == in_place
            assert in_place or (x == x_before).all()


def test_a_strided_array_is_filled_and_nothing_beside_it(comm, ring):
    whole = np.full((3, 4), -1.0)
    whole[:, ::2] = 8**comm.rank
    for _ in range(2):
        grads = [whole[:, ::2]]
        got = average_gradients(grads, ring, op="max", out=grads)
        assert got[0] is grads[0]
    assert (whole[:, ::2] == 8 ** (comm.size - 1)).all()
    assert (whole[:, 1::2] == -1).all()


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("in_place", [False, True])
def test_a_rank_without_a_gradient_in_a_later_call(comm, ring, in_place):
    """It looks anew, while the others need not; and the call after that is as the first ones."""
    last = comm.size - 1
    for i in range(6):
        is_missing = i in (2, 3) and comm.rank == last
        grads: list[Any] = [np.full(2, 8.0**comm.rank), np.full(3, 8.0**comm.rank)]
        if is_missing:
            grads[1] = None
        out = grads if in_place else None
        got = average_gradients(grads, ring, op="sum", out=out)
        want = fingerprint(comm.size)
        assert (got[0] == want).all()
        assert (got[1] == want - (8 ** last if i in (2, 3) else 0)).all()
        assert (got[0] is grads[0]) == in_place
    nobody = average_gradients([None, np.ones(1)], ring)
    assert nobody[0] is None


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("is_list", [True, False])
def test_promise_5_a_rank_that_passes_something_else_in_a_later_call(
    comm, ring, is_list
):
    usual: Any = [np.ones(2), np.ones(3)]
    others: list[tuple[Any, str]] = [
        ([np.ones(2), np.ones(4)], "gradient [1]: rank 1 has a numpy float64[4]"),
        ([np.ones(2), np.ones(3, np.float32)], "a numpy float32[3]"),
        ([np.ones(2), np.ones(3), np.ones(1)], "a gradient named [2]"),
        ([np.ones(2), np.array(["no"] * 3)], "dtype <U2 is not supported"),
    ]
    if not is_list:
        usual = dict(enumerate(usual))
    for other, words in others:
        for _ in range(2):
            average_gradients(usual, ring)
        mine = (
            (other if is_list else dict(enumerate(other))) if comm.rank == 1 else usual
        )
        kind = "TypeError" if "dtype" in words else "ValueError"
        raised_everywhere(
            comm, ring, lambda: average_gradients(mine, ring), kind, words
        )
    for setting in ({"op": "max"}, {"order": "rank"}, {"bucket_bytes": 7}):
        mine = setting if comm.rank == 1 else {}
        raised_everywhere(
            comm,
            ring,
            lambda: average_gradients(usual, ring, **mine),
            "ValueError",
            "pass the same on every rank",
        )
    got = average_gradients(usual, ring)
    assert all((x == 1).all() for x in flattened(got))


@pytest.mark.parametrize("wrong", [True, [1], 1.0, "1"])
def test_a_wrong_argument_is_no_older_one(comm, ring, wrong):
    """True is 1 and 1.0 is, but no such number of bytes."""
    grads = [np.ones(3)]
    for _ in range(2):
        average_gradients(grads, ring, bucket_bytes=1)
    kind, text = outcome(lambda: average_gradients(grads, ring, bucket_bytes=wrong))
    assert kind == "ValueError" and "bucket_bytes" in text
    assert outcome(lambda: average_gradients(grads, ring, op=[1]))[0] == "ValueError"
    assert average_gradients(grads, ring, bucket_bytes=1)[0].tolist() == [1, 1, 1]


def read_only() -> np.ndarray:
    x = np.ones(3)
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("wrong", [read_only(), 3.0, np.float64(3)], ids=type)
@pytest.mark.parametrize("is_warm", [False, True])
def test_promise_5_what_cannot_be_filled(comm, ring, wrong, is_warm):
    good = np.ones(np.shape(wrong))
    for _ in range(2 * is_warm):
        grads = [good, np.ones(2)]
        average_gradients(grads, ring, out=grads)
    mine = [wrong if comm.rank == comm.size - 1 else good, np.ones(2)]
    raised_everywhere(
        comm,
        ring,
        lambda: average_gradients(mine, ring, out=mine),
        "TypeError" if type(wrong) is float else "ValueError",
        "gradient [0] ",
        "out=grads",
    )
    assert (mine[1] == 1).all()


class Quantity(np.ndarray):
    """An array that takes only its own kind, as those with units do."""

    def __setitem__(self, key, value):
        if not isinstance(value, Quantity):
            raise TypeError("no unit")
        super().__setitem__(key, value)


def test_an_array_of_a_derived_type_in_place(comm, ring):
    for _ in range(2):
        x = np.full(3, 8.0**comm.rank).view(Quantity)
        grads = [x, np.ones(2)] if comm.rank else [np.array(x), np.ones(2)]
        got = average_gradients(grads, ring, op="sum", out=grads)
        assert got[0] is grads[0]
        assert (np.array(got[0]) == fingerprint(comm.size)).all()


class Speechless(str):
    """A text that does not say itself."""

    def __str__(self):
        raise RuntimeError("not this")


class Unequal(str):
    """A text without a hash, equal to any."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other):
        return True


class Mute:
    def __str__(self):
        raise RuntimeError("not this")


@pytest.mark.parametrize("wrong", ["order", "op"])
def test_promise_5_an_argument_without_a_text(comm, ring, wrong):
    grads = [np.ones(3)]
    for _ in range(2):
        average_gradients(grads, ring)
    mine: dict[str, Any] = {wrong: Mute()} if comm.rank == comm.size - 1 else {}
    assert outcome(lambda: average_gradients(grads, ring, **mine))[0]
    assert average_gradients(grads, ring)[0].tolist() == [1, 1, 1]


def test_exchange_compares_texts_as_what_they_are(comm, ring):
    is_last = comm.rank == comm.size - 1
    alone = comm.size == 1
    said = []
    for kind in (str, Speechless, Unequal, str):
        for text in ("a", "a", "b" if is_last else "a", "x" * 200_000):
            said.append(ring.exchange("something", kind(text)))
    assert said == [True, True, alone, True] * 4
    wrong: list[tuple[Any, Any]] = [(5, "a"), ("a", b"a"), ([], None)]
    for name, text in wrong:
        mine = (name, text) if is_last else ("something", "a")
        kind_, told = outcome(lambda: ring.exchange(*mine))
        assert kind_ == "TypeError" and "expected a str" in told, told
    assert ring.exchange("something", "a")


def test_promise_5_out_is_grads_or_none(comm, ring):
    grads = [np.ones(3)]
    raised_everywhere(
        comm,
        ring,
        lambda: average_gradients(grads, ring, out=[*grads]),
        "ValueError",
        "pass out=grads to work in place",
    )


def test_promise_5_a_nest_that_holds_itself(comm, ring):
    nest: list[Any] = [np.ones(3)]
    if comm.rank == 0:
        nest.append(nest)
    kind, text = outcome(lambda: average_gradients(nest, ring))
    assert kind and "rank 0: maximum recursion depth" in text
    assert (ring.allreduce(np.ones(3)) == comm.size).all()


def test_a_ring_that_goes_takes_what_it_has_seen_with_it(comm):
    import gc
    import weakref

    from mpiring.training import gradients

    gc.collect()
    before = len(gradients._seen)
    ring = Ring(comm)
    for count in range(1, 40):
        average_gradients([np.ones(count)], ring)
    assert len(gradients._seen[ring]) <= 16
    gone = weakref.ref(ring)
    ring.close()
    del ring
    gc.collect()
    assert gone() is None and len(gradients._seen) == before
