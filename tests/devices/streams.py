"""Streams, events and devices with CuPy's face: ``cupy.cuda.Stream``, ``Event``, ``Device`` and what goes with them.

Names, arguments and errors are CuPy 14's; what they do is in :mod:`devices.scheduler`.
"""

from __future__ import annotations

import warnings
import weakref
from itertools import count

from devices.machine import CUDARuntimeError, present


def current_device() -> int:
    return present().context.device


def get_current_stream(device_id=-1):
    device = current_device() if device_id == -1 else device_id
    return present().context.streams.get(device, Stream.null)


def current_line(device=None):
    """The line on which the next operation goes; of the current stream unless one is given."""
    device = current_device() if device is None else device
    return _line(get_current_stream(device), device)


def line_of(stream, device=None):
    """The line of a stream argument: None is the current stream."""
    return current_line(device) if stream is None else _line(stream, device)


def _line(stream, device=None):
    return present().line(stream.ptr, device)


class _BaseStream:
    def __init__(self, ptr, device_id):
        self.ptr = ptr
        self.device_id = device_id

    def __eq__(self, other):
        return isinstance(other, _BaseStream) and self.ptr == other.ptr

    def __hash__(self):
        return self.ptr

    def __repr__(self):
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"

    def __cuda_stream__(self):
        return (0, self.ptr)

    def _check_device(self):
        current = current_device()
        if self.device_id not in (-1, current):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id})"
                f" does not match with the current device ({current})"
            )

    def use(self):
        self._check_device()
        _line(self)  # must be there
        present().context.streams[current_device()] = self
        return self

    def __enter__(self):
        context = present().context
        before = (context.device, get_current_stream())
        self.use()
        context.stack.append(before)
        return self

    def __exit__(self, *args):
        context = present().context
        device, stream = context.stack.pop()
        context.streams[device] = stream

    @property
    def is_non_blocking(self):
        return not _line(self).blocking

    @property
    def done(self):
        queue = present().queue
        queue.counts["poll of a stream"] += 1
        return queue.poll(_line(self).last)

    def synchronize(self):
        queue = present().queue
        queue.counts["synchronize of a stream"] += 1
        queue.finish(_line(self).last)

    def record(self, event=None):
        if event is None:
            event = Event()
        event.record(self)
        return event

    def wait_event(self, event):
        if event._node is not None:
            _line(self).add(None, "wait", event._node)


class Stream(_BaseStream):
    """A new stream of the current device, or with ``null`` the legacy null stream of whichever is current."""

    null: Stream  # set below

    def __init__(self, null=False, non_blocking=False, ptds=False, priority=0):
        self._own = None
        if null:
            super().__init__(0, -1)
        elif ptds:
            raise CUDARuntimeError("the pretended device has no per-thread streams")
        else:
            machine = present()
            device = current_device()
            self._own = machine.cards[device].line(blocking=not non_blocking)
            machine.lines[self._own.ptr] = self._own
            super().__init__(self._own.ptr, device)

    def __del__(self):
        own = getattr(self, "_own", None)
        if own is not None:
            own.alive = False  # what it was given is still done

    @staticmethod
    def from_external(stream):
        """The stream of another library, by the CUDA stream protocol."""
        if not hasattr(stream, "__cuda_stream__"):
            raise TypeError(f"{stream!r} does not implement the CUDA stream protocol")
        _, ptr = stream.__cuda_stream__()
        return _External(ptr, -1)


Stream.null = Stream(null=True)


class _External(_BaseStream):
    """A stream that somebody else made, by its handle."""


class ExternalStream(_External):
    def __init__(self, ptr, device_id=-1):
        warnings.warn(
            "ExternalStream is deprecated. Use Stream.from_external() instead to interoperate with external streams "
            "that implement the CUDA stream protocol.",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(ptr, device_id)


_events = count(0x5EED0008, 16)
_known: weakref.WeakValueDictionary[int, Event] = weakref.WeakValueDictionary()


class Event:
    """What a stream had been given when it was recorded."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        if interprocess and not disable_timing:
            raise ValueError("Timing must be disabled for interprocess events")
        self.ptr = next(_events)
        self._node = None
        self._device = current_device()
        self._machine = present()
        _known[self.ptr] = self

    def record(self, stream=None):
        line = line_of(stream)
        if line.card.number != self._device:
            raise CUDARuntimeError(
                f"cudaErrorInvalidResourceHandle: an event of device {self._device}"
                f" cannot be recorded on a stream of device {line.card.number}"
            )
        self._node = line.add(None, "event")

    @property
    def done(self):
        return query_event(self.ptr) == 0

    def synchronize(self):
        queue = present().queue
        queue.counts["synchronize of an event"] += 1
        queue.finish([self._node])


def query_event(ptr):
    """``cudaEventQuery``: 0 if it is done, 600 if it is not, or what a kernel has died of."""
    event = _known[ptr]
    machine = event._machine
    if machine.failure:
        return machine.failure
    machine.queue.counts["poll of an event"] += 1
    return 0 if machine.queue.poll([event._node]) else 600


class Device:
    """A device by its number; the current one if none is given.  Not hashable, as CuPy's is not."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, device=None):
        self.id = current_device() if device is None else int(device)
        self._before = []

    def __int__(self):
        return self.id

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __repr__(self):
        return f"<CUDA Device {self.id}>"

    def use(self):
        devices = len(present().cards)
        if not 0 <= self.id < devices:
            raise CUDARuntimeError(
                f"cudaErrorInvalidDevice: no device {self.id} of {devices}"
            )
        present().context.device = self.id
        return self

    def __enter__(self):
        before = current_device()
        self.use()
        self._before.append(before)
        return self

    def __exit__(self, *args):
        present().context.device = self._before.pop()

    def synchronize(self):
        queue = present().queue
        queue.counts["synchronize of a device"] += 1
        queue.finish(present().cards[self.id].last)
