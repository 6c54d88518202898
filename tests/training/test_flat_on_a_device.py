"""Flat buffers on the deferred device: whose stream waits for whom when several streams and libraries meet."""

from __future__ import annotations

import numpy as np
import pytest

from mpiring.training.flat import Flat, signature
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
    return Flat([signature(name, array) for name in names], kind)


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
    flat.update({"a": tensor})
    with torch.queueing(0):
        tensor.array.fill(9)
        cupy.cuda.get_current_stream().synchronize()
    assert values(cupy, flat.views["a"]) == {5}


def test_values_of_the_host(cupy):
    flat = flat_of(filled(cupy, 0, free(cupy)))
    flat.update({"a": np.arange(50.0)})
    assert values(cupy, flat.views["a"]) == set(range(50))
    flat.update({"a": [7.0] * 50})
    assert values(cupy, flat.views["a"]) == {7}


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
        flat_of(here).update({"a": there})
