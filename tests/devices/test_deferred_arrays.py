"""The pretended device's arrays: the host cannot touch them, and what they do is done later."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest

from devices import compiled, deferred
from devices.deferred import eager, is_noise, reach, seeded
from devices.machine import CUDARuntimeError
from devices.trials import device, free_stream, number, outcomes, settled


@pytest.fixture
def cupy():
    """A device that does nothing before it must."""
    with device() as cupy:
        yield cupy


# ---- the host cannot touch it ---------------------------------------------------------------------


def test_the_host_cannot_touch_it(cupy):
    x = cupy.asarray(np.arange(3.0))
    for touch in (
        lambda: np.asarray(x),
        lambda: np.add(np.ones(3), x),
        lambda: memoryview(x),
        lambda: x.__setitem__(slice(None), np.ones(3)),
        lambda: cupy.add(x, np.ones(3)),
        lambda: np.zeros(3).__setitem__(slice(None), x),
        lambda: cupy.ElementwiseKernel("T a", "T b", "b = a")(np.ones(3)),
    ):
        with pytest.raises(TypeError):
            touch()


def test_it_says_where_it_is(cupy):
    x = cupy.empty((4, 6), "f4")
    interface = x.__cuda_array_interface__
    assert interface["version"] == 3 and interface["strides"] is None
    assert interface["data"] == (x.data.ptr, False) and interface["typestr"] == "<f4"
    assert x.data.ptr % 512 == 0 and interface["stream"] == 1
    column = x[1:, 2]
    assert column.__cuda_array_interface__["data"][0] == x.data.ptr + 4 * 8
    assert column.__cuda_array_interface__["strides"] == (24,)
    assert column.data.mem is x.data.mem and column.base is x
    assert cupy.empty((3, 0)).__cuda_array_interface__["data"] == (0, False)
    with free_stream(cupy) as stream:
        assert x.__cuda_array_interface__["stream"] == stream.ptr


INDICES = [
    np.s_[1],
    np.s_[1, 2],
    np.s_[..., ::-2],
    np.s_[1:, None, 2],
    np.s_[:, 3:3],
    np.s_[()],
]


@pytest.mark.parametrize("index", INDICES)
def test_views_are_as_numpys(cupy, index):
    host = np.arange(24, dtype="i4").reshape(4, 6)
    x = cupy.asarray(host)
    view = x[index]
    assert np.array_equal(view.get(), host[index])
    view[...] = 99
    host[index] = 99
    assert np.array_equal(x.get(), host)
    same = np.asarray(host[index])
    assert view.shape == same.shape and (same.ndim == 0 or view.strides == same.strides)
    for other in ([0, 1], host > 3, 1.0, True):
        with pytest.raises(TypeError, match="knows no index"):
            x[other]


def test_arrays_are_as_numpys(cupy):
    host = np.arange(6, dtype="c8").reshape(2, 3) * (1 + 2j)
    x = cupy.asarray(host)
    for want, got in (
        (host.T, x.T),
        (host.real, x.real),
        (host.imag, x.imag),
        (host.reshape(3, 2), x.reshape(3, 2)),
        (host.T.ravel(), x.T.ravel()),
        (host.view("f4"), x.view("f4")),
        (host + host, x + x),
        (2 * host - 1, 2 * x - 1),
        (host / 4, x / 4),
        (np.arange(3), cupy.arange(3)),
        (np.ones(3, "u1"), cupy.ones(3, "u1")),
        (host, x.copy()),
        (host.real.astype("i8"), x.real.astype("i8")),
    ):
        assert got.dtype == want.dtype and np.array_equal(got.get(), want)
    assert x.T.copy("K").flags.f_contiguous and x.T.copy().flags.c_contiguous
    assert type(x).__module__ == "cupy"
    assert cupy.asarray(x) is x and cupy.asarray(x, copy=True) is not x
    with pytest.raises(AttributeError):
        x.note = "CuPy's arrays take none"
    assert len(x) == 2 and x.nbytes == 48 and x.itemsize == 8 and x.ndim == 2
    assert cupy.may_share_memory(x, x[1]) and not cupy.may_share_memory(x, x + 0)
    x += 1
    assert np.array_equal(cupy.asnumpy(x), host + 1)


# ---- work is queued, memory is noise --------------------------------------------------------------


def test_memory_is_noise_until_the_work_is_done(cupy):
    stream = cupy.cuda.get_current_stream()
    x = cupy.empty(3, "f4")
    assert is_noise(reach(x))
    x[...] = 1
    y = x + x
    assert is_noise(reach(x)) and is_noise(reach(y))
    assert not stream.done
    stream.synchronize()
    assert reach(x).tolist() == [1, 1, 1] and reach(y).tolist() == [2, 2, 2]
    assert stream.done and not is_noise(reach(x))


def test_a_copy_from_the_host_is_queued_too(cupy):
    host = np.arange(3.0)
    x = cupy.asarray(host)
    host[...] = 9  # it was read already
    assert is_noise(reach(x))
    assert x.get().tolist() == [0, 1, 2]
    x.set(host)
    host[...] = 8
    assert x.get().tolist() == [9, 9, 9]
    for error, wrong in ((TypeError, [1.0] * 3), (TypeError, np.ones(3, "f4")), (ValueError, np.ones(4))):  # fmt: skip
        with pytest.raises(error):
            x.set(wrong)
    assert reach(cupy.array([1, 2], blocking=True)).tolist() == [1, 2]


def test_what_waits_for_a_copy_to_the_host(cupy):
    x = cupy.full(3, 7.0)
    assert cupy.asnumpy(x).tolist() == x.get().tolist() == [7, 7, 7]
    out = np.zeros(3)
    assert x.get(out=out, blocking=False) is out and is_noise(out)
    cupy.cuda.get_current_stream().synchronize()
    assert out.tolist() == [7, 7, 7]
    assert bool(x[0] == 7) and x[0].item() == 7


def test_eager_work_is_done_at_once():
    with device(eager) as cupy:
        x = cupy.full(3, 1.0)
        assert reach(x).tolist() == [1, 1, 1]
    with device(eager, spontaneous=False) as cupy:
        x = cupy.full(3, 1.0)
        assert is_noise(reach(x))


def test_a_stream_keeps_its_order():
    def program(cupy):
        x = settled(cupy, 0)
        x += 1
        x *= 2
        x += 1
        return number(cupy, x)

    assert outcomes(program) == {3}
    with device(seeded(5)) as cupy:
        assert program(cupy) == 3


# ---- one device for several ranks, and for one test -------------------------------------------------


def test_each_rank_has_a_stream_of_its_own(cupy):
    seen = []

    def program(rank):
        stream = cupy.cuda.get_current_stream()
        with free_stream(cupy) as inner:
            yield
            seen.append(cupy.cuda.get_current_stream() is inner)
            with cupy.cuda.Device(1):
                yield
        seen.append(cupy.cuda.get_current_stream() is stream)
        return stream

    programs = [deferred.on_a_stream_of_its_own(program(r)) for r in range(3)]
    streams = []
    while programs:
        for each in list(programs):
            try:
                next(each)
            except StopIteration as stop:
                streams.append(stop.value)
                programs.remove(each)
            assert cupy.cuda.get_current_stream() is cupy.cuda.Stream.null
            assert cupy.cuda.Device().id == 0
    assert all(seen) and len({*streams, cupy.cuda.Stream.null}) == 4


def test_it_is_cupy_for_one_test():
    before = sys.modules.get("cupy")
    with device() as cupy:
        assert sys.modules["cupy"] is cupy
        stream, x = free_stream(cupy), cupy.ones(2)
    assert sys.modules.get("cupy") is before
    for use in (stream.synchronize, lambda: x + 1, deferred.machine_of_this_test):
        with pytest.raises(CUDARuntimeError, match="no device is pretended"):
            use()
    with device():
        with pytest.raises(CUDARuntimeError, match="there is no stream"):
            stream.synchronize()


def test_without_a_device_a_program_runs_as_it_is():
    def program():
        yield 1
        return 2

    alone = deferred.on_a_stream_of_its_own(program())
    assert next(alone) == 1
    with pytest.raises(StopIteration) as stop:
        next(alone)
    assert stop.value.value == 2


def test_without_a_compiler_device_tests_are_skipped(monkeypatch):
    monkeypatch.setattr(compiled, "COMPILER", "no-such-compiler")
    assert shutil.which("no-such-compiler") is None
    with pytest.raises(pytest.skip.Exception, match="there is no no-such-compiler"):
        deferred.install(monkeypatch)


def test_what_was_asked_of_it_is_counted(cupy):
    x = cupy.ones(2)
    cupy.ElementwiseKernel("T a", "T b", "b = a", "echo")(x)
    cupy.cuda.get_current_stream().record().synchronize()
    queue = deferred.machine_of_this_test().queue
    counts = queue.counts
    assert counts["noise"] == 2 and counts["kernel echo"] == counts["event"] == 1
    assert counts["synchronize of an event"] == 1
    assert counts["synchronize of a device"] == 0
    assert queue.history[-2:] == ["kernel echo", "event"]
