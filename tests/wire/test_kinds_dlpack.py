"""Arrays of libraries that mpiring has never heard of, which say themselves what they are."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from mpiring.wire.arrays import kind_named, kind_of, libraries_here
from mpiring.wire.collectives import rooted
from mpiring.wire.transport.position import Position

from wire.libraries import OTHERS, STRICT, check
from wire.ranks import Ranks


class Array:
    """A library's array: memory of NumPy's, seen by DLPack alone."""

    __module__ = "newlib.core"

    def __init__(self, values, device=(1, 0), error=None):
        self.values = np.asarray(values)
        self.device, self.error = device, error

    @property
    def shape(self):
        return self.values.shape

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **kwargs):
        if self.error:
            raise self.error
        return self.values.__dlpack__(**kwargs)


@pytest.fixture
def newlib(monkeypatch):
    module = types.ModuleType("newlib")
    vars(module)["from_dlpack"] = lambda x: Array(np.from_dlpack(x))
    monkeypatch.setitem(sys.modules, "newlib", module)
    return module


def allreduce(xs, outs=None):
    outs = outs or [None] * len(xs)
    return Ranks(len(xs)).call("allreduce", lambda r: (xs[r], "sum", outs[r]))


def test_the_library_makes_the_result(newlib):
    xs = [Array(np.full(3, 8.0**r)) for r in range(3)]
    for result in allreduce(xs):
        assert type(result) is Array and result.values.tolist() == [73.0] * 3
    assert kind_of(xs[0]).name == "newlib"
    assert kind_named("newlib").name == "newlib" and "newlib" in libraries_here()
    for result, x in zip(allreduce(xs, xs), xs):
        assert result is x and x.values.tolist() == [73.0] * 3


class Copying(Array):
    """Every look at it is a copy."""

    __module__ = "newlib.core"

    def __dlpack__(self, **kwargs):
        return self.values.copy().__dlpack__(**kwargs)


@pytest.mark.parametrize("kind", [Array, Copying])
def test_what_may_not_be_written_counts_as_immutable(newlib, kind):
    values = np.full(3, 8.0)
    values.flags.writeable = kind is Copying
    x = kind(values)
    results = allreduce([x, x], [None, x])
    assert {type(error) for error in results} == {ValueError}
    assert all(
        f"rank 1: out is a {kind.__name__}, which cannot be filled" in str(e)
        for e in results
    )
    received = Ranks(2).run(
        lambda r, c: rooted.broadcast(
            c, [Array(np.ones(3)), x][r], 0, "auto", Position()
        )
    )
    assert received[1] is not x and received[1].values.tolist() == [1, 1, 1]


def test_a_library_that_makes_no_arrays(newlib):
    del vars(newlib)["from_dlpack"]
    xs = [Array(np.full(3, 8.0**r)) for r in range(2)]
    results = allreduce(xs)
    assert {type(error) for error in results} == {TypeError}
    assert all("newlib has no from_dlpack" in str(error) for error in results)
    for result, x in zip(allreduce(xs, xs), xs):  # no new one is needed
        assert result is x and x.values.tolist() == [9, 9, 9]
    assert "newlib" not in libraries_here()


@pytest.mark.parametrize(
    "x, words",
    [
        (Array(np.ones(3), device=(8, 0)), "newlib.core.Array on a device of DLPack's"),
        (
            Array(np.ones(3), error=BufferError("nothing to see")),
            "NumPy cannot see the memory of a newlib.core.Array by DLPack: nothing to",
        ),
    ],
)
def test_what_nobody_can_see(newlib, x, words):
    results = allreduce([Array(np.ones(3)), x])
    assert {type(error) for error in results} == {TypeError}
    assert all(f"rank 1: a {words}" in str(e) or words in str(e) for e in results)


def test_on_cuda_it_needs_cupy(newlib, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    x = Array(np.ones(3), device=(2, 0))
    with pytest.raises(TypeError, match="newlib.core.Array on CUDA is reduced by CuPy"):
        kind_of(x)


def test_what_is_no_array_says_what_works():
    class Column:
        def __array__(self):
            return np.ones(3)

    for x, advice in (
        (Column(), ": pass np.asarray"),
        (object(), "; what works: arra"),
    ):
        with pytest.raises(TypeError, match=f"is no array mpiring knows{advice}"):
            kind_of(x)
    with pytest.raises(TypeError, match="NumPy, CuPy, torch, JAX, Numba and whatever"):
        kind_of(object())


@pytest.mark.skipif(STRICT not in OTHERS, reason=f"{STRICT} is not installed")
def test_the_library_is_the_namespace():
    x = STRICT.asarray(np.arange(3.0))
    assert type(x).__module__ != "array_api_strict"
    assert kind_of(x).name == "array_api_strict"
    check(STRICT, allreduce([x])[0], np.arange(3.0))
    assert "array_api_strict" in libraries_here()
