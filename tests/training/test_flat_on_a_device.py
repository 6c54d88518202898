"""Flat buffers on the deferred device: whose stream waits for whom when several streams and libraries meet."""

from __future__ import annotations

import numpy as np
import pytest

from mpiring.training.flat import Flat, Layout, replace, signature
from mpiring.wire.arrays import kind_of

from devices import local, lookalikes
from devices.deferred import lazy, reach

pytestmark = pytest.mark.untraced  # tests/ranks/test_device.py is traced


@pytest.fixture
def cupy(monkeypatch):
    return local.install(monkeypatch, choose=lazy, spontaneous=False)


def flat_of(array, names="a"):
    """A flat buffer for arrays like this one."""
    kind = kind_of(array).bound(kind_of(array).as_array(array))
    return Flat(Layout([signature(name, array) for name in names]), kind)


def filled(cupy, value, stream):
    """An array that the stream has still to write."""
    with stream:
        array = cupy.empty(50, "f8")
        array.fill(value)
    return array


def free(cupy):
    return cupy.cuda.Stream(non_blocking=True)


def values(cupy, array):
    """What it holds when all is done."""
    cupy.cuda.Device().synchronize()
    return set(reach(array).reshape(-1).tolist())


def test_arrays_that_name_different_streams(monkeypatch, cupy):
    numba = lookalikes.numba(monkeypatch, cupy)
    given = {
        name: numba.ndarray(filled(cupy, number, stream), stream)
        for number, name in enumerate("abc")
        for stream in [free(cupy)]
    }
    flat = flat_of(given["a"], "abc")
    flat.fill(given)
    for number, view in enumerate(flat.views.values()):
        assert set(numba.asnumpy(view).tolist()) == {number}


def test_memory_of_another_library_is_free_when_it_has_been_read(monkeypatch, cupy):
    """torch hands it out again in the order of its own stream."""
    torch = lookalikes.torch(monkeypatch, cupy)
    flat = flat_of(filled(cupy, 0, free(cupy)))
    with torch.queueing(0):
        tensor = torch.Tensor(cupy.empty(50, "f8"))
        tensor.array.fill(5)
    replace([flat], {"a": tensor})
    with torch.queueing(0):
        tensor.array.fill(9)
        cupy.cuda.get_current_stream().synchronize()
    assert values(cupy, flat.views["a"]) == {5}


def test_values_of_the_host(cupy):
    flat = flat_of(filled(cupy, 0, free(cupy)))
    replace([flat], {"a": np.arange(50.0)})
    assert values(cupy, flat.views["a"]) == set(range(50))
    replace([flat], {"a": [7.0] * 50})
    assert values(cupy, flat.views["a"]) == {7}


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_b38_views_of_each_other(cupy, dtype):
    """Each part gets what the other held, whichever is written first, and if they are of two buffers."""
    stream = free(cupy)
    with stream:
        one, other = flat_of(cupy.zeros(50), "ab"), flat_of(cupy.zeros(50, dtype), "c")
        for number, view in enumerate({**one.views, **other.views}.values()):
            view.fill(number)
        p = {**one.views, **other.views}
        replace([one, other], {"a": p["b"], "b": p["c"][::-1], "c": p["a"]})
        found = {**one.views, **other.views}
        stream.synchronize()
    assert [values(cupy, found[name]) for name in "abc"] == [{1}, {2}, {0}]


@pytest.mark.parametrize(
    "value, dtype, words",
    [
        (9.5, "i8", "gave 9.5 at .49. for a, which is a cupy int64.50."),
        (1e39, "f4", "gave 1e.39 at .49. for a"),
        (2j, "f8", "gave 2j at .49. for a"),
    ],
)
def test_b38_what_does_not_fit(cupy, value, dtype, words):
    """The host waits for what the stream has still to write, and looks at it."""
    stream = free(cupy)
    with stream:
        given, zeros = cupy.zeros(50, type(value)), cupy.zeros(50, dtype)
        given[49] = value
        flat = flat_of(zeros)
        flat.fill({"a": zeros})
        with pytest.raises(ValueError, match=words):
            replace([flat], {"a": given})
        with pytest.raises(ValueError, match=words):
            replace([flat], {"a": cupy.asnumpy(given)})
        assert values(cupy, flat.views["a"]) == {0}
        given[49] = 3
        replace([flat], {"a": given})
    assert values(cupy, flat.views["a"]) == {0, 3}


def test_an_array_of_the_device_for_a_parameter_of_the_host(cupy):
    flat = flat_of(np.zeros(50))
    stream = free(cupy)
    with stream:
        replace([flat], {"a": filled(cupy, 4, stream)})
    assert flat.views["a"].tolist() == [4] * 50


def test_what_was_kept_comes_back(cupy):
    """On the streams of whoever writes, also between the copies."""
    first, second = free(cupy), free(cupy)
    with first:
        flat = flat_of(filled(cupy, 0, first))
        flat.fill({"a": filled(cupy, 3, first)})
        kept = flat.copied()
        flat.views["a"].fill(9)
        first.synchronize()
    with second:
        flat.take_from(kept)
        kept.whole.fill(-1)
        second.synchronize()
    assert values(cupy, flat.views["a"]) == {3}


def test_a_copy_is_in_the_order_of_the_stream_that_is_current(cupy):
    """Dropped, its memory serves that stream again, and no other that knows nothing of it."""
    first, second = free(cupy), free(cupy)
    with first:
        flat = flat_of(filled(cupy, 3, first))
        flat.fill({"a": filled(cupy, 3, first)})
    with second:
        copy = flat.copied()
        second.synchronize()
        y = copy.views["a"] * 2
        del copy
    with first:
        cupy.empty(50, "f8").fill(-1)
        first.synchronize()
    assert values(cupy, y) == {6}


def test_arrays_of_two_devices(cupy):
    places: dict[str, tuple[str, str]] = {}
    here = filled(cupy, 1, free(cupy))
    with cupy.cuda.Device(1):
        there = cupy.asarray(np.ones(50))
    signature("a", here, places)
    signature("n", np.ones(3), places)
    with pytest.raises(ValueError, match="b is on device 1, a on device 0"):
        signature("b", there, places)
    with pytest.raises(ValueError, match="an array on device 1, expected one on .* 0"):
        replace([flat_of(here)], {"a": there})
