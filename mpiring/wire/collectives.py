"""One rank's part of each collective, from the user's array to the result, as a program.

Every collective has the same four parts:

1. *prepare*: look at the arguments, take all memory.  Whatever goes wrong here is kept, not raised;
2. *open*: the opening exchange tells every rank of all ranks' failures and differences, and all raise alike
   (promise 5).  After it nothing can fail on one rank alone;
3. *execute* the schedule;
4. write the result to where the user wants it.

The path (which schedule) depends only on what the opening exchange has shown to be equal on all ranks, so
all ranks take the same.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from ..errors import RingError
from ..plan.programs import RankProgram, rank_program
from ..plan.schedules import ALGORITHMS, schedule
from ..plan.segments import Segments
from . import arithmetic
from .agree import FAILURE_BYTES, Opening, Summary, shortened
from .arithmetic import Array
from .arrays import Kind, kind_of
from .execute import Position, execute
from .memory import Memory, Scratch
from .transport import Program, Transport

# Up to this many bytes the two exchanges of the direct schedule beat the ring's 2 (size - 1).
DIRECT_BYTES = 64 << 10

Library = dict[str, Callable[..., Program[None]]]  # the MPI's own collectives, by name


class Call:
    """What one rank was asked to do, and what was wrong with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: tuple[tuple[str, str], ...] = ()
        self.failure: Exception | None = None

    @contextmanager
    def local(self) -> Iterator[None]:
        """Keep what goes wrong inside, for the opening exchange."""
        try:
            yield
        except Exception as error:
            self.failure = error

    def text(self) -> bytes:
        """What must be equal on all ranks."""
        return _call_text(self.name, self.fields)


class _Operand(NamedTuple):
    """An input or output as the collectives see it."""

    kind: Kind
    array: Array
    dtype: str

    @property
    def description(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.array.shape))}]"


class Collectives:
    """The collectives of one rank of a ring.

    Args:
        transport: carries the messages.
        opening: the ring's opening exchange.
        tag: of the schedules' messages.
        check: whether calls open with the exchange.
        library: the MPI's own collectives; none for a transport without MPI.
    """

    def __init__(
        self,
        transport: Transport,
        opening: Opening,
        tag: int,
        *,
        check: bool = True,
        library: Library | None = None,
    ) -> None:
        self.transport = transport
        self.scratch = Scratch()
        self._opening = opening
        self._tag = tag
        self._check = check
        self._library = library

    # ---- the collectives --------------------------------------------------------------------------

    def allreduce(
        self, x: Any, op: Any, out: Any, order: Any, algorithm: Any, position: Position
    ) -> Program[Array]:
        """``op`` over all ranks of ``x``; see :meth:`mpiring.Ring.allreduce`."""
        call = Call("allreduce")
        with call.local():
            source = _operand(x)
            path = self._path(call, source, op, order, algorithm)
            target = _output(source, out, source.array.shape)
            flat = _input(source, target)
            segments = Segments(flat.size, self.transport.size)

            def everywhere(segment: int) -> Array:
                return target.flat[segments[segment].slice]

            memory = self._memory(path, source, segments, flat, everywhere, op)
        yield from self.open(call)
        if memory is None:
            yield from self._reduce_by_library(
                "allreduce", source, flat, op, target.flat, position
            )
        else:
            yield from execute(memory, self.transport, self._tag, position)
        return target.done()

    def reduce_scatter(
        self, x: Any, op: Any, out: Any, order: Any, algorithm: Any, position: Position
    ) -> Program[Array]:
        """This rank's segment of the reduction; see :meth:`mpiring.Ring.reduce_scatter`."""
        call = Call("reduce_scatter")
        with call.local():
            source = _operand(x)
            path = self._path(call, source, op, order, algorithm)
            segments = Segments(source.array.size, self.transport.size)
            mine = segments[self.transport.rank]
            target = _output(source, out, (mine.length,))
            flat = _input(source, target, part=mine.slice)

            def at_home(segment: int) -> Array | None:
                return target.flat if segment == self.transport.rank else None

            memory = self._memory(path, source, segments, flat, at_home, op)
        yield from self.open(call)
        if memory is None:
            yield from self._reduce_by_library(
                "reduce_scatter", source, flat, op, target.flat, position, segments
            )
        else:
            yield from execute(memory, self.transport, self._tag, position)
        return target.done()

    def allgather(
        self, x: Any, out: Any, algorithm: Any, position: Position
    ) -> Program[Array]:
        """The ranks' arrays behind each other; see :meth:`mpiring.Ring.allgather`."""
        call = Call("allgather")
        rank, size = self.transport.rank, self.transport.size
        payload = b""
        with call.local():
            source = _operand(x)
            trailing = source.array.shape[1:]
            call.fields = (
                ("dtype", source.dtype),
                ("dimensions", str(max(source.array.ndim, 1))),
                ("trailing dimensions", str(list(trailing))),
                ("algorithm", str(algorithm)),
            )
            _known("algorithm", algorithm, ("auto", "mpi", *ALGORITHMS))
            self._need_library(algorithm)
            given = -1
            if out is not None:
                wanted = _checked_output(source, out)
                if wanted.shape[1:] != trailing or wanted.ndim != max(
                    source.array.ndim, 1
                ):
                    raise ValueError(
                        f"out has shape {wanted.shape}, expected (sum of lengths, "
                        f"{', '.join(map(str, trailing))}) with x of shape {source.array.shape}"
                    )
                given = len(wanted)
            length = source.array.shape[0] if source.array.ndim else 1
            payload = struct.pack("<qq", length, given)
        # Even unchecked, the lengths must be known.
        said = yield from self.open(call, payload, always=True)
        lengths, outs = zip(*(struct.unpack("<qq", item) for item in said))
        total = sum(lengths)
        for other, given in enumerate(outs):
            if given not in (-1, total):
                raise ValueError(
                    f"allgather: rank {other} passed an out of {given} rows, but the ranks bring "
                    f"{total} in all ({', '.join(map(str, lengths))}); pass out of that length or None"
                )
        position.phase = "taking memory for the result"
        width = source.array.size // length if length else _product(trailing)
        target = _output(source, out, (total, *trailing))
        flat_out = target.flat
        segments = Segments.of_lengths([n * width for n in lengths])
        mine = flat_out[segments[rank].slice]
        flat = source.kind.flat(source.array)
        if not source.kind.same_memory(flat, mine):
            mine[...] = (
                source.kind.copied(flat) if source.kind.overlaps(flat, mine) else flat
            )
        if algorithm == "mpi":
            position.phase = "the MPI's allgather"
            assert self._library is not None
            counts = [segment.length * mine.dtype.itemsize for segment in segments]
            yield from self._library["allgather"](source.kind.message(flat_out), counts)
        else:
            name = "ring" if algorithm == "auto" else algorithm
            path = _program("allgather", size, rank, name, "ring", False)
            memory = Memory(
                source.kind,
                path,
                segments,
                None,
                lambda segment: flat_out[segments[segment].slice],
                "max",
                source.dtype,
                self.scratch,
            )
            yield from execute(memory, self.transport, self._tag, position)
        return target.done()

    def barrier(self, position: Position) -> Program[None]:
        """The opening exchange alone: it ends when it has heard of every rank."""
        yield from self.open(Call("barrier"), always=True)

    def exchange(
        self, name: str, text: str, failure: Exception | None
    ) -> Program[bool]:
        """Whether all ranks say the same ``text``; raises on all if one brings a failure, or calls another name."""
        call = Call(name)
        call.failure = failure
        # The texts may differ and all go on; so they must not stand where the calls are compared.
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        said = yield from self.open(call, digest, always=True)
        return len(set(said)) == 1

    def open(
        self, call: Call, payload: bytes = b"", always: bool = False
    ) -> Program[list[bytes]]:
        """The opening exchange; raises alike on every rank unless all mean the same and none failed.

        Args:
            call: what this rank was asked to do.
            payload: a few bytes for every rank.
            always: exchange even in a ring that does not check.

        Returns:
            the ranks' payloads, in rank order; none if there was no exchange.
        """
        if not (self._check or always):
            if call.failure is not None:
                raise call.failure
            return []
        summary, payloads = yield from self._opening.exchange(
            call.text(), self._failure_text(call), payload
        )
        if summary.failure is not None:
            raise self._failure(call, summary)
        if summary.other is not None:
            raise _difference(summary)
        return payloads

    # ---- their common parts -----------------------------------------------------------------------

    def _path(
        self,
        call: Call,
        source: _Operand,
        op: Any,
        order: Any,
        algorithm: Any,
    ) -> RankProgram | None:
        """Check the arguments of a reduction and choose its schedule; None for the MPI's own."""
        call.fields = (
            ("array", source.description),
            ("op", str(op)),
            ("order", str(order)),
            ("algorithm", str(algorithm)),
        )
        arithmetic.check_op(op, source.dtype)
        _known("order", order, ("ring", "rank"))
        _known("algorithm", algorithm, ("auto", "mpi", *ALGORITHMS))
        self._need_library(algorithm)
        if algorithm == "mpi":
            return None
        wide = arithmetic.accumulator(op, source.dtype) != source.dtype
        if algorithm == "auto":
            # Wide partials would double a ring's bytes; a direct exchange sends the inputs as they are.
            small = (
                source.array.size * source.kind.itemsize(source.dtype) <= DIRECT_BYTES
            )
            algorithm = "direct" if small or wide or order == "rank" else "ring"
        size, rank = self.transport.size, self.transport.rank
        return _program(call.name, size, rank, algorithm, order, wide)

    def _memory(
        self,
        path: RankProgram | None,
        source: _Operand,
        segments: Segments,
        flat: Array,
        result: Callable[[int], Array | None],
        op: str,
    ) -> Memory | None:
        if path is None:
            return None
        return Memory(
            source.kind, path, segments, flat, result, op, source.dtype, self.scratch
        )

    def _need_library(self, algorithm: str) -> None:
        if algorithm == "mpi" and self._library is None:
            raise ValueError("algorithm='mpi' needs a ring over MPI")

    def _failure_text(self, call: Call) -> bytes | None:
        if call.failure is None:
            return None
        kind = type(call.failure)
        name = kind.__name__ if kind.__name__ in _RAISED else "RingError"
        reason = str(call.failure) or kind.__name__
        text = f"{name}\0{call.name}: rank {self.transport.rank}: {reason}"
        return shortened(text, FAILURE_BYTES)

    def _failure(self, call: Call, summary: Summary) -> Exception:
        assert summary.failure is not None
        name, _, message = summary.failure[1].decode().partition("\0")
        error = _RAISED[name](message)
        if summary.failure[0] == self.transport.rank:
            error.__cause__ = call.failure
        return error

    def _reduce_by_library(
        self,
        name: str,
        source: _Operand,
        flat: Array,
        op: str,
        flat_out: Array,
        position: Position,
        segments: Segments | None = None,
    ) -> Program[None]:
        """The MPI's own reduction, in the accumulator's dtype; then finished by us."""
        assert self._library is not None
        position.phase = f"the MPI's {name}"
        kind = source.kind
        wide = "float32" if source.dtype in arithmetic.HALVES else source.dtype
        total = flat_out
        if wide != source.dtype:
            narrow, flat = flat, kind.empty(flat.size, wide)
            flat[...] = narrow
            total = flat if segments is None else kind.empty(flat_out.size, wide)
        kind.message(flat)
        if segments is None:
            if total is not flat:
                total[...] = flat
            yield from self._library[name](total, op, wide)
        else:
            counts = [segment.length for segment in segments]
            yield from self._library[name](flat, op, total, wide, counts)
        kind.finish(op, self.transport.size, total, flat_out)


_RAISED: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (TypeError, ValueError, KeyError, MemoryError, RingError)
}


def _difference(summary: Summary) -> ValueError:
    """What two ranks mean differently, in words."""
    assert summary.other is not None
    (rank_a, text_a), (rank_b, text_b) = summary.first, summary.other
    fields_a, fields_b = (text.decode().split("\x1f") for text in (text_a, text_b))
    name_a, name_b = fields_a[0], fields_b[0]
    if name_a != name_b:
        return ValueError(
            f"rank {rank_b} called {name_b}, rank {rank_a} called {name_a}; "
            "every rank must make the same calls in the same order"
        )
    different = [(a, b) for a, b in zip(fields_a, fields_b) if a != b]
    said_a, said_b = (
        ", ".join(pair[i].replace("\x1e", " ") for pair in different) for i in (0, 1)
    )
    return ValueError(
        f"{name_a}: rank {rank_b} passed {said_b}, rank {rank_a} passed {said_a}; "
        "pass the same on every rank"
    )


@lru_cache(maxsize=512)
def _call_text(name: str, fields: tuple[tuple[str, str], ...]) -> bytes:
    return shortened("\x1f".join([name, *("\x1e".join(field) for field in fields)]))


@lru_cache(maxsize=256)
def _program(
    collective: str, size: int, rank: int, algorithm: str, order: str, wide: bool
) -> RankProgram:
    plan = schedule(collective, size, algorithm=algorithm, order=order)
    return rank_program(plan, rank, wide=wide)


# ---- inputs and outputs ---------------------------------------------------------------------------


class _Target:
    """Where a result goes: memory of ours, the user's ``out``, or both when ``out`` is strided."""

    def __init__(
        self, kind: Kind, result: Array, flat: Array, write_back: bool
    ) -> None:
        self._kind = kind
        self._result = result
        self.flat = flat
        self._write_back = write_back

    def done(self) -> Array:
        if self._write_back:
            self._kind.write_back(self.flat, self._result)
        return self._result


def _operand(x: Any) -> _Operand:
    kind = kind_of(x)
    array = kind.as_array(x)
    return _Operand(kind, array, kind.dtype_name(array))


def _checked_output(source: _Operand, out: Any) -> Array:
    if (
        kind_of(out) is not source.kind
        or not hasattr(out, "shape")
        or not hasattr(out, "strides")
    ):
        raise TypeError(
            f"out is a {type(out).__name__}, expected a {source.kind.name} array like x"
        )
    if source.kind.dtype_name(out) != source.dtype:
        raise ValueError(
            f"out has dtype {out.dtype}, x has {source.array.dtype}; they must match"
        )
    if not source.kind.is_writeable(out):
        raise ValueError(
            "out is read-only or its elements share memory; pass a writeable array"
        )
    return out


def _output(source: _Operand, out: Any, shape: tuple[int, ...]) -> _Target:
    kind = source.kind
    if out is None:
        result = kind.empty(shape, source.dtype)
        return _Target(kind, result, result.reshape(-1), False)
    array = _checked_output(source, out)
    if tuple(array.shape) != tuple(shape):
        raise ValueError(f"out has shape {tuple(array.shape)}, expected {tuple(shape)}")
    if kind.is_flat(array):
        return _Target(kind, out, array.reshape(-1), False)
    return _Target(kind, out, kind.empty(array.size, source.dtype), True)


def _input(source: _Operand, target: _Target, part: slice | None = None) -> Array:
    """The flat input; a copy if it overlaps the output in any way but the one that is in place."""
    kind = source.kind
    flat = kind.flat(source.array)
    in_place = kind.same_memory(flat if part is None else flat[part], target.flat)
    if not in_place and kind.overlaps(flat, target.flat):
        return kind.copied(flat)
    return flat


def _known(what: str, value: Any, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise ValueError(
            f"unknown {what} {value!r}; known: {', '.join(map(repr, known))}"
        )


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product
