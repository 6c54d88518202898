"""The pretended device's streams and devices: handles, what is current, what is refused."""

from __future__ import annotations

import threading

import pytest

from devices.deferred import reach
from devices.machine import CUDARuntimeError
from devices.trials import device, free_stream


@pytest.fixture
def cupy():
    """A device that does nothing before it must."""
    with device() as cupy:
        yield cupy


def test_handles(cupy):
    stream = free_stream(cupy)
    assert stream.ptr > 2 and stream.device_id == 0 and stream.is_non_blocking
    assert not cupy.cuda.Stream().is_non_blocking
    assert cupy.cuda.Stream.null.ptr == 0 and stream != cupy.cuda.Stream.null
    same = cupy.cuda.Stream.from_external(stream)
    with pytest.warns(DeprecationWarning, match="from_external"):
        also = cupy.cuda.ExternalStream(stream.ptr, 0)
    assert same == also == stream and stream.__cuda_stream__() == (0, stream.ptr)
    with same:
        x = cupy.full(2, 1.0)
    also.synchronize()
    assert reach(x).tolist() == [1, 1]
    other = cupy.cuda.Stream.from_external(free_stream(cupy))  # and that is gone
    for use in (other.synchronize, other.record, other.use):
        with pytest.raises(CUDARuntimeError, match="there is no stream"):
            use()


def test_what_is_current(cupy):
    current = cupy.cuda.get_current_stream
    assert current() is cupy.cuda.Stream.null
    a, b = free_stream(cupy), cupy.cuda.Stream()
    with a:
        with b:
            assert current() is b
            elsewhere = []
            thread = threading.Thread(target=lambda: elsewhere.append(current()))
            thread.start()
            thread.join()
            assert elsewhere == [cupy.cuda.Stream.null]
        assert current() is a
        with cupy.cuda.Device(1):
            assert current() is cupy.cuda.Stream.null and current(0) is a
    b.use()
    assert current() is b


def test_devices(cupy):
    assert cupy.cuda.runtime.getDeviceCount() == 2
    here, x = free_stream(cupy), cupy.ones(2)
    with cupy.cuda.Device(1) as second:
        assert int(cupy.cuda.Device()) == second.id == 1
        y = cupy.ones(2)
        assert y.device == second and y.data.device_id == 1 and x.device.id == 0
        for compute in (
            lambda: x + x,
            lambda: x + y,
            lambda: x.fill(1),
            lambda: cupy.ElementwiseKernel("T a", "T b", "b = a")(x),
        ):
            with pytest.raises(ValueError, match="array device = 0 while current = 1"):
                compute()
        with pytest.raises(RuntimeError, match="does not match"):
            here.use()
        with pytest.raises(CUDARuntimeError, match="event of device 1"):
            cupy.cuda.Event().record(here)
        assert x.get().tolist() == [1, 1]
    assert cupy.cuda.Device().id == 0
    assert (y.get() + x.get()).tolist() == [2, 2]
    with pytest.raises(CUDARuntimeError, match="no device 2 of 2"):
        cupy.cuda.Device(2).use()
