"""What one rank was asked to do, and the errors that all ranks raise alike about it (promise 5)."""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager
from functools import lru_cache
from types import TracebackType
from typing import Any, NamedTuple

from ...errors import DeadlockError, RingError, ScheduleError
from ..arrays.mapped import Place
from .agree import FAILURE_BYTES, Summary, shortened


class Call:
    """What one rank was asked to do, and what was wrong with it.

    Attributes:
        name: of the collective.
        fields: what must be equal on all ranks, by name.
        flushes: whether this rank's processor takes denormal numbers for zero, where that matters.
        failure: what went wrong here, None if nothing did.
        stages: whether this rank's buffers travel through host memory.
        someone_stages: whether some rank's do, known after the opening exchange.
        places: where this rank's input and output are in node-shared memory, None for other memory.
        all_places: of all ranks, in rank order, known after the opening exchange; empty if nobody has any.
        addresses, all_addresses: the same in the memory of each rank's process, for peers that reach into it.
        brings: whether this rank puts its input where the others reach it, into the stages of the ring.
        someone_brings, all_bring: whether some rank does, and every rank, known after the opening exchange.
        is_free: whether the algorithm leaves the path open.
        may_share, must_share: whether it may move no data by message, and has to.
        opens: whether it begins with the opening exchange even if the ring does not check; the same on every rank.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: tuple[tuple[str, str], ...] = ()
        self.flushes = False
        self.failure: Exception | None = None
        self.stages = self.someone_stages = False
        self.places: Places = (None, None)
        self.all_places: list[Places] = []
        self.addresses: Places = (None, None)
        self.all_addresses: list[Places] = []
        self.brings = self.someone_brings = self.all_bring = False
        self.is_free = self.may_share = self.must_share = self.opens = False

    @property
    def is_auto(self) -> bool:
        """Whether it may go any way."""
        return self.may_share and not self.must_share

    def choose(self, algorithm: str, finds_memory: bool) -> None:
        """Take note of what the algorithm asked for says of memory that the others reach.

        Args:
            algorithm: by name.
            finds_memory: whether ``"auto"`` is to look for any.
        """
        self.must_share = algorithm == "shared"
        self.is_free = self.must_share or algorithm == "auto"
        self.may_share = self.opens = self.must_share or self.is_free and finds_memory

    def local(self) -> AbstractContextManager[None]:
        """Keep what goes wrong inside, for the opening exchange; of several failures the first."""
        return _Local(self)

    @property
    def hopes(self) -> bool:
        """Whether this rank hopes that no data travels by message, and has told the others where its arrays are."""
        return self.brings or any(self.places) or any(self.addresses)

    def places_of_all(self, size: int) -> tuple[list[Place | None], list[Place | None]]:
        """The places of the ranks' inputs and of their outputs, after the opening exchange."""
        return _apart(self.all_places, size)

    def addresses_of_all(
        self, size: int
    ) -> tuple[list[Place | None], list[Place | None]]:
        """The addresses of the ranks' inputs and of their outputs, after the opening exchange."""
        return _apart(self.all_addresses, size)

    def text(self) -> bytes:
        """What must be equal on all ranks."""
        fields = (_FLUSHES, *self.fields) if self.flushes else self.fields
        return _call_text(self.name, fields)

    def failure_text(self, rank: int) -> bytes | None:
        """This rank's failure as the opening exchange carries it, None if there is none."""
        if self.failure is None:
            return None
        kind = type(self.failure).__name__
        name = kind if kind in _RAISED else RingError.__name__
        text = f"{name}\0{self.name}: rank {rank}: {str(self.failure) or kind}"
        return shortened(text, FAILURE_BYTES)

    def take_failure(self) -> Exception:
        """This rank's failure, for raising it; it is not held here any more."""
        assert self.failure is not None
        failure, self.failure = self.failure, None
        return failure

    def error(self, summary: Summary, rank: int) -> Exception:
        """What every rank raises after the exchange: the failure of the lowest rank that has one."""
        assert summary.failure is not None
        name, _, message = summary.failure[1].decode(errors="replace").partition("\0")
        mine = self.failure if summary.failure[0] == rank else None
        self.failure = None  # of all members of this process
        error = _RAISED[name](message)
        if mine is not None and type(mine).__name__ not in _RAISED:
            error = _as_both(message, type(mine))
        error.__cause__ = mine
        return error


def as_text(value: Any) -> str:
    """A value of the user's as the ranks compare it: text as the text it is, though a str's heir may show another."""
    return str.__str__(value) if isinstance(value, str) else str(value)


def _as_both(message: str, kind: type[Exception]) -> RingError:
    """An error of all ranks that this one can catch by the type of its own, too: a signal handler's, say."""
    try:
        both: type[RingError] = type(RingError.__name__, (RingError, kind), {})
        return both(message)
    except (
        Exception
    ):  # a type that takes other arguments, or cannot be joined with another one
        return RingError(message)


class _Local(AbstractContextManager[None]):
    """Keeps the failure of a call."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, Exception) and self._call.failure is None:
            self._call.failure = error
        return isinstance(error, Exception)


Places = tuple[Place | None, Place | None]  # of a rank's input and output


def _apart(
    everyone: list[Places], size: int
) -> tuple[list[Place | None], list[Place | None]]:
    everyone = everyone or [(None, None)] * size
    return [x for x, _ in everyone], [out for _, out in everyone]


# A payload begins with a byte of flags, and those of input's and output's places and addresses that it says are there.
_STAGES, _BRINGS, *_FLAGS = (1 << bit for bit in range(6))
_PLACE = struct.Struct("<8sQ")
_HERE = bytes(8)  # no region, but the memory of a process


def at_address(address: int) -> Place:
    """A place in the memory of a rank's own process."""
    return Place(_HERE, address)


_NOWHERE: Places = (None, None)


def with_facts(call: Call, payload: bytes) -> bytes:
    """What a rank brings to the opening exchange: its payload, and before it what a path depends on."""
    if not (call.stages or call.hopes or payload):
        return b""
    return told(call.places, call.addresses, call.stages, call.brings) + payload


def told(
    places: Places = _NOWHERE,
    addresses: Places = _NOWHERE,
    stages: bool = False,
    brings: bool = False,
) -> bytes:
    """What a path depends on, as bytes: of a :class:`Call` the attributes of these names."""
    flags, parts = stages * _STAGES | brings * _BRINGS, []
    for flag, place in zip(_FLAGS, (*places, *addresses)):
        if place is not None:
            flags |= flag
            parts.append(_PLACE.pack(*place))
    return bytes([flags]) + b"".join(parts)


class Facts(NamedTuple):
    """What a rank has told: of a :class:`Call` the attributes of these names, and its payload."""

    stages: bool = False
    brings: bool = False
    places: Places = _NOWHERE
    addresses: Places = _NOWHERE
    payload: bytes = b""


def facts_of(said: bytes) -> Facts:
    """What :func:`with_facts` was given."""
    if not said:
        return Facts()
    flags, at = said[0], 1
    places: list[Place | None] = []
    for flag in _FLAGS:
        place = None
        if flags & flag:
            place = Place(*_PLACE.unpack_from(said, at))
            at += _PLACE.size
        places.append(place)
    x, out, x_here, out_here = places
    stages, brings = bool(flags & _STAGES), bool(flags & _BRINGS)
    return Facts(stages, brings, (x, out), (x_here, out_here), said[at:])


_RAISED: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        TypeError,
        ValueError,
        KeyError,
        MemoryError,
        RingError,
        ScheduleError,
        DeadlockError,
    )
}


def difference(summary: Summary) -> ValueError:
    """The error that says what two ranks mean differently."""
    assert summary.other is not None
    (rank_a, text_a), (rank_b, text_b) = summary.first, summary.other
    fields_a, fields_b = (text.decode().split("\x1f") for text in (text_a, text_b))
    name_a, name_b = fields_a[0], fields_b[0]
    said = "\x1e".join(_FLUSHES)
    if name_a != name_b:
        return ValueError(
            f"rank {rank_b} called {name_b}, rank {rank_a} called {name_a}; "
            "every rank must make the same calls in the same order"
        )
    flush = [said in fields for fields in (fields_a, fields_b)]
    fields_a, fields_b = (
        [field for field in fields if field != said] for fields in (fields_a, fields_b)
    )
    if flush[0] != flush[1] and fields_a == fields_b:
        one, other = (rank_a, rank_b) if flush[0] else (rank_b, rank_a)
        return ValueError(
            f"{name_a}: rank {one} takes denormal numbers for zero, rank {other} does not, so that their results would "
            f"differ; a library that rank {one} has loaded, built with -ffast-math, has switched that on, or a call "
            "such as torch.set_flush_denormal: do it on every rank or on none"
        )
    different = [(a, b) for a, b in zip(fields_a, fields_b) if a != b]
    said_a, said_b = (
        ", ".join(pair[i].replace("\x1e", " ") for pair in different) for i in (0, 1)
    )
    return ValueError(
        f"{name_a}: rank {rank_b} passed {said_b}, rank {rank_a} passed {said_a}; "
        "pass the same on every rank"
    )


# Stands before all other fields, where no text is too long for it.
_FLUSHES = ("denormals", "flushed to zero")


@lru_cache(maxsize=512)
def _call_text(name: str, fields: tuple[tuple[str, str], ...]) -> bytes:
    return shortened("\x1f".join([name, *("\x1e".join(field) for field in fields)]))
