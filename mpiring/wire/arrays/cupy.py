"""CuPy: the engine of every array in a GPU's memory.

Theory: streams
    Work on a GPU is queued on *streams*: a stream does its work in order, two streams do theirs in any order
    unless an *event* orders them, and the host sees neither unless it waits.  MPI works on the host's time.

    Each call works on a stream of ours, S, one for each device and process.  X is the stream that was current
    for the array's library when the call was made.

    ===================  ========================================================================
    in                   S waits for an event recorded on X: the input is as X leaves it
    a new result         comes from the pool in X's order (it may hand out memory whose last use X has
                         still to do), so S waits for X again
    to MPI               an event is recorded on S; no buffer is MPI's before the event is done
                         (:mod:`mpiring.wire.transport.device` says when)
    out                  X waits for an event recorded on S: what the user queues next comes after
    ===================  ========================================================================

    The host never waits for a device as a whole, and never for X: it polls events of S.

Scratch and packed copies are allocated with S current, so that the pool gives them out again in S's order.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np

from ..reduce.arithmetic import Array
from . import cuda_driver, device_kernels
from .host import Kind, as_dtype, has_own_places

_LIBRARY = "cupy"
_SUCCESS, _NOT_READY = 0, 600  # of cudaError_t


class Mark:
    """What a stream has been given so far.

    CuPy's own ``Event.done`` says False for ever of work that has died, as of a kernel that wrote where it must
    not: whoever polls it would wait for ever, and never hear of the error.
    """

    __slots__ = ("event", "_runtime")

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._runtime = cupy.cuda.runtime
        self.event = cupy.cuda.Event(disable_timing=True)
        self.event.record(stream)

    @property
    def done(self) -> bool:
        """Whether the work is done; raises CUDA's error if some has failed."""
        status = self._runtime.eventQuery(self.event.ptr)
        if status not in (_SUCCESS, _NOT_READY):
            raise self._runtime.CUDARuntimeError(status)
        return bool(status == _SUCCESS)


class CupyKind(Kind):
    """CuPy's arrays; one for each call, once it is bound."""

    name = "cupy"
    is_device = True

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy
        self._device: Any = None
        self._theirs: Any = None  # X
        self._ours: Any = None  # S

    # ---- the user's arrays ------------------------------------------------------------------------

    def is_array(self, x: object) -> bool:
        return isinstance(x, self.cupy.ndarray)

    def as_array(self, x: Any) -> Array:
        return x

    def bound(self, array: Array) -> CupyKind:
        early = _at_call.get()
        is_mine = type(early) is type(self) and not self.names_streams
        if early is not None and is_mine and early._device.id == array.device.id:
            call = copy.copy(early)
        else:
            call = copy.copy(self)
            call._device = self.cupy.cuda.Device(array.device.id)
            with call._device:
                call._theirs = call.current_stream()
                call._ours = _stream_of(self.cupy, array.device.id)
        call._enter()
        return call

    def current_stream(self) -> Any:
        """The stream that is current for the array's library, on the current device."""
        return self.cupy.cuda.get_current_stream()

    def new(self, shape: int | tuple[int, ...], dtype: Any) -> tuple[Any, Array]:
        if self._ours is None:
            array = self.cupy.empty(shape, as_dtype(dtype))
        else:
            with self._device, self._theirs:
                array = self.cupy.empty(shape, as_dtype(dtype))
            self._enter()
        return array, array

    def finished(self, theirs: Any, array: Array) -> Any:
        self._leave()
        return theirs

    # ---- streams ----------------------------------------------------------------------------------

    def _enter(self) -> None:
        """S waits for what X has to do so far."""
        with self._device:
            self._ours.wait_event(self._mark(self._theirs).event)

    def _leave(self) -> None:
        """X waits for what S has to do so far."""
        with self._device:
            self._theirs.wait_event(self.mark().event)

    def mark(self) -> Mark:
        """A mark that is ``done`` when all work of ours so far is."""
        with self._device:
            return self._mark(self._ours)

    def _mark(self, stream: Any) -> Mark:
        return Mark(self.cupy, stream)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """On the array's device with S current; before a call is bound, wherever the user is."""
        if self._ours is None:
            yield
        else:
            with self._device, self._ours:
                yield

    # ---- what it is -------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        bound = self._device is not None
        number = self._device.id if bound else self.cupy.cuda.Device().id
        # What an allocator of another sort gave must not serve a later call that goes direct.
        sort = "" if CupyKind.new_goes_direct(self) else ", memory that is staged"
        return f"device {number}{sort}"

    def device_of(self, x: Array) -> str:
        return f"device {x.device.id}"

    def is_flat(self, x: Array) -> bool:
        return bool(x.flags.c_contiguous and x.dtype.isnative)

    def overlaps(self, a: Array, b: Array) -> bool:
        return bool(self.cupy.may_share_memory(a, b))

    def meets(self, a: Array, b: Array) -> bool:
        return self.overlaps(a, b)

    def is_writeable(self, x: Array) -> bool:
        return has_own_places(x)

    def pointer(self, x: Array) -> int:
        return int(x.data.ptr)

    def on_host(self, x: Array) -> Array:
        with self._at_work():
            return self.cupy.asnumpy(x)

    # ---- flat buffers and arithmetic, on S --------------------------------------------------------

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        with self._at_work():
            return self.cupy.empty(shape, as_dtype(dtype))

    def copy(self, source: Array, out: Array) -> None:
        with self._at_work():
            is_of_the_host = isinstance(source, np.ndarray) and source.ndim > 0
            out[...] = self.cupy.asarray(source) if is_of_the_host else source

    def fold(self, op: str, operands: Sequence[Array], out: Array) -> None:
        with self._at_work():
            device_kernels.fold(self.cupy, op, operands, out)

    def finish(self, op: str, size: int, value: Array, out: Array) -> None:
        with self._at_work():
            device_kernels.finish(self.cupy, op, size, value, out)

    # ---- for a transport --------------------------------------------------------------------------

    def goes_direct(self, x: Array) -> bool:
        """Whether an MPI that takes device memory takes this too: not managed, nor of a stream-ordered pool."""
        return bool(x.size == 0 or cuda_driver.is_plain(int(x.data.ptr)))

    def new_goes_direct(self) -> bool:
        """The same of the memory that the next array here would have; starts no CUDA."""
        cupy = self.cupy
        if cupy.cuda.get_allocator() == cupy.get_default_memory_pool().malloc:
            return True
        return self.goes_direct(self.empty(1, "uint8"))

    def pinned(self, nbytes: int) -> Any:
        """Host memory that the device copies to and from at its own time, as bytes."""
        with self._device:
            memory = self.cupy.cuda.alloc_pinned_memory(nbytes)
        return np.frombuffer(memory, np.uint8, nbytes)

    def fetch(self, piece: Array, host: Any) -> None:
        """Queue a copy of bytes of the device to the host."""
        with self._device:
            piece.data.copy_to_host_async(host.ctypes.data, len(piece), self._ours)

    def store(self, host: Any, piece: Array) -> None:
        """Queue a copy of bytes of the host to the device."""
        with self._device:
            piece.data.copy_from_host_async(host.ctypes.data, len(piece), self._ours)


def as_at_call(program: Generator[T, None, R], kind: CupyKind) -> Generator[T, None, R]:
    """A program that finds X as it was when its call was made, whenever it runs.

    Args:
        program: of an asynchronous call.
        kind: of the call's array, bound when the call was made.
    """
    while True:
        token = _at_call.set(kind)
        try:
            item = next(program)
        except StopIteration as stop:
            result: R = stop.value
            return result
        finally:
            _at_call.reset(token)
        yield item


T = TypeVar("T")
R = TypeVar("R")

_at_call: ContextVar[CupyKind | None] = ContextVar("at_call", default=None)
_kinds: dict[int, CupyKind] = {}  # by the module object
_streams: dict[tuple[int, int], Any] = {}  # S, by the module object and the device


def cupy_kind(x: object) -> CupyKind | None:
    """The kind of a CuPy array; None if it is none."""
    kind = cupy_here()
    return kind if kind is not None and kind.is_array(x) else None


def cupy_here() -> CupyKind | None:
    """The kind of CuPy's arrays, None if this process has not imported CuPy."""
    cupy = sys.modules.get(_LIBRARY)
    if cupy is None:
        return None
    kind = _kinds.get(id(cupy))
    if kind is None:
        kind = _kinds[id(cupy)] = CupyKind(cupy)
    return kind


def _stream_of(cupy: Any, device: int) -> Any:
    """Our stream of a device.  Not a blocking one: it would wait for the user's default stream and hold it up."""
    stream = _streams.get((id(cupy), device))
    if stream is None:
        # One of them, whichever thread comes first: scratch is safe in the order of one stream only.
        stream = cupy.cuda.Stream(non_blocking=True)
        stream = _streams.setdefault((id(cupy), device), stream)
    return stream
