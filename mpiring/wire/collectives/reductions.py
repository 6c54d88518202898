"""One rank's part of a collective, from the user's array to the result, as a program.

Every collective has the same four parts:

1. *prepare*: look at the arguments, take all memory.  Whatever goes wrong here is kept, not raised;
2. *open*: the opening exchange tells every rank of all ranks' failures and differences, and all raise alike
   (promise 5).  After it nothing can fail on one rank alone;
3. *execute* the schedule;
4. write the result to where the user wants it.

The path (which schedule) depends only on what the opening exchange has shown to be equal on all ranks, so
all ranks take the same.

Here are the reductions that leave something on every rank, and what all collectives have in common.  The others:
:mod:`mpiring.wire.collectives.gather`, :mod:`mpiring.wire.collectives.rooted`, :mod:`mpiring.wire.collectives.custom`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ...errors import harmless
from ...plan.catalog import algorithms, schedule
from ...plan.programs import RankProgram, rank_program
from ...plan.segments import Cut, Segments
from ..arrays import Kind
from ..arrays.operands import Operand, flat_input, operand, output
from ..execute import hierarchy
from ..execute.forms import MOST_CHUNKS, carry, memory_of, run_schedule
from ..execute.memory import InChunks, Memory
from ..node import fused
from ..node.peer_memory import PeerMemory
from ..node.shared import place_of
from ..node.stages import Stages
from ..node.ways import LEAST_BYTES, Ready, Ways
from ..opening.agree import Heard, Opening
from ..opening.calls import Call, as_text, told
from ..opening.member import Member
from ..opening.rehearsed import Rehearsed
from ..reduce import arithmetic
from ..reduce.arithmetic import Array
from ..transport.position import Position
from ..transport.protocol import Program, Transport
from . import small

_MOST_EXCHANGES = 16  # that are kept
_LONG = 64 << 10  # a text that is not kept

Library = dict[str, Callable[..., Program[None]]]  # the MPI's own collectives, by name


class Collectives(Member):
    """The collectives of one rank of a ring.

    Args:
        transport, opening, tag: as :class:`~mpiring.wire.opening.member.Member` takes them.  The opening exchange has
            room for what is to ride in it.
        library: the MPI's own collectives; none for a transport without MPI.
        peer_memory: what ordinary arrays may go by, on ranks of one host; None: by messages.
        stages: what ordinary arrays that are not long may go through, likewise.
        least_bytes: arrays of so many bytes, and longer ones, go by the peers' memory, the same on every rank.
        rest: as a member takes it.
    """

    def __init__(
        self,
        transport: Transport,
        opening: Opening,
        tag: int,
        *,
        library: Library | None = None,
        peer_memory: PeerMemory | None = None,
        stages: Stages | None = None,
        least_bytes: int = LEAST_BYTES,
        **rest: Any,
    ) -> None:
        super().__init__(transport, opening, tag, **rest)
        self.ways = Ways(self, peer_memory, stages, least_bytes)
        self.small_bytes = small.most_bytes(self.tuning.small_bytes, transport.size)
        self.library = library
        self._exchanges: dict[str, _Exchange] = {}  # by what they are for

    # ---- the collectives --------------------------------------------------------------------------

    def allreduce(
        self,
        x: Any,
        op: Any,
        out: Any,
        order: Any,
        algorithm: Any,
        position: Position,
        heard: Heard | None = None,
    ) -> Program[Array]:
        """``op`` over all ranks of ``x``; see :meth:`mpiring.Ring.allreduce`.

        Args:
            heard: what the opening exchange gave, if it is over.
        """
        call = Call("allreduce")
        mine: bytes | None = None
        memory: Memory | InChunks | None = None
        ready = Ready()
        with call.local():
            source = operand(x)
            path = self.path(call, source, op, order, algorithm)
            target = output(source, out, source.array.shape)
            flat = flat_input(source, target)
            segments = Segments(flat.size, self.transport.size)

            def in_messages() -> Memory | InChunks | None:
                if path is None:
                    return None
                return memory_of(self, path, source, segments, flat, target.places, op)

            mine = self.riding(call, source, flat, algorithm)
            if mine is None:
                if not (call.is_auto and self.ways.are_one_shot(flat.nbytes)):
                    share(call, source.kind, flat, target.flat)
                ready = self.ways.prepare(
                    call, source.kind, flat, target.flat, heard is not None
                )
                memory = None if call.hopes else in_messages()
                carry(self, call, source, path, target.flat)
            # The MPI reduces in place, in a dtype of its choice.
            wide = arithmetic.library_dtype(op, source.dtype)
            total = target.flat
            if path is None and wide != source.dtype:
                total = source.kind.empty(flat.size, wide)
        said = yield from self.open(call, mine or b"", heard=heard)
        if mine is not None:
            if all_ride(said, mine):
                small.combine(source.kind, said, op, order, source.dtype, target.flat)
                return target.done()
            memory = in_messages()
        xs, outs = call.places_of_all(self.transport.size)
        how = source.kind, op, order, flat, target.flat
        if self.is_shared(call, flat.size, xs, outs, between_hosts=True):
            position.phase = "node-shared allreduce"
            all_x = fused.reach(xs, flat.size, source.dtype)
            all_out = (
                all_x if outs == xs else fused.reach(outs, flat.size, source.dtype)
            )
            rank = self.transport.rank
            fused.allreduce(rank, source.kind, op, order, all_x, all_out)
            yield from self.closing.exchange(position)
        elif hosts := hierarchy.hosts_of(xs, outs):
            yield from hierarchy.combine(
                self, call, hosts, source, op, order, flat, target.places, position
            )
        elif (yield from self.ways.allreduce(call, ready, *how, position)):
            pass
        elif path is None:
            assert self.library is not None
            position.phase = "the MPI's allreduce"
            total[...] = flat
            yield from self.library["allreduce"](total, op, wide)
            source.kind.finish(op, self.transport.size, total, target.flat)
        else:
            memory = yield from self.sure(call, memory, in_messages, flat, position)
            yield from run_schedule(self, memory, call, source, position)
        return target.done()

    def reduce_scatter(
        self, x: Any, op: Any, out: Any, order: Any, algorithm: Any, position: Position
    ) -> Program[Array]:
        """This rank's segment of the reduction; see :meth:`mpiring.Ring.reduce_scatter`."""
        call = Call("reduce_scatter")
        home = self.transport.rank
        mine: bytes | None = None
        memory: Memory | InChunks | None = None
        ready = Ready()
        with call.local():
            source = operand(x)
            path = self.path(call, source, op, order, algorithm)
            segments = Segments(source.array.size, self.transport.size)
            own = segments[home]
            target = output(source, out, (own.length,))
            flat = flat_input(source, target, part=own.slice)

            def at_home(cut: Cut) -> Callable[[int], Array | None]:
                return lambda segment: (
                    target.flat[cut[segment].within(own)] if segment == home else None
                )

            def in_messages() -> Memory | InChunks | None:
                if path is None:
                    return None
                return memory_of(self, path, source, segments, flat, at_home, op)

            mine = self.riding(call, source, flat, algorithm)
            if mine is None:
                share(call, source.kind, flat)
                ready = self.ways.prepare(call, source.kind, flat)
                memory = None if call.hopes else in_messages()
                carry(self, call, source, path, target.flat)
            wide = arithmetic.library_dtype(op, source.dtype)
            total = target.flat
            if path is None:
                narrow, widens = flat, wide != source.dtype
                if widens:
                    flat = source.kind.empty(narrow.size, wide)
                    flat[...] = narrow
                # MPI forbids a result inside the input; MPICH compares addresses, of empty ones too.
                if widens or total.size == 0 or source.kind.overlaps(flat, total):
                    total = source.kind.empty(own.length, wide)
        said = yield from self.open(call, mine or b"")
        if mine is not None:
            if all_ride(said, mine):
                dtype = source.dtype
                small.combine(
                    source.kind, said, op, order, dtype, target.flat, own.slice, home
                )
                return target.done()
            memory = in_messages()
        xs, _ = call.places_of_all(self.transport.size)
        how = source.kind, op, order, flat, target.flat
        if self.is_shared(call, flat.size, xs, between_hosts=True):
            position.phase = "node-shared reduce_scatter"
            all_x = fused.reach(xs, flat.size, source.dtype)
            fused.reduce_scatter(home, source.kind, op, order, all_x, target.flat)
            yield from self.closing.exchange(position)
        elif hosts := hierarchy.hosts_of(xs):
            yield from hierarchy.combine(
                self, call, hosts, source, op, order, flat, at_home, position
            )
        elif (yield from self.ways.reduce_scatter(call, ready, *how, position)):
            pass
        elif path is None:
            assert self.library is not None
            position.phase = "the MPI's reduce_scatter"
            counts = [segment.length for segment in segments]
            yield from self.library["reduce_scatter"](flat, op, total, wide, counts)
            source.kind.finish(op, self.transport.size, total, target.flat)
        else:
            memory = yield from self.sure(call, memory, in_messages, flat, position)
            yield from run_schedule(self, memory, call, source, position)
        return target.done()

    def barrier(self, position: Position) -> Program[None]:
        """The opening exchange alone: it ends when it has heard of every rank."""
        yield from self.open(Call("barrier"), always=True)

    def exchange(
        self, name: str, text: str, failure: Exception | None
    ) -> Program[bool]:
        """Whether all ranks say the same ``text``; raises on all if one fails or calls something else."""
        call, size = Call(name), self.transport.size
        kept = self._exchanges.get(name)
        # The texts may differ and all go on; so they must not stand where the calls are compared.
        digest = kept.digest if kept and kept.text is text else _digest(text)
        heard: Heard | None = None
        if failure is None:
            if size == 1:
                return True
            if kept is None:
                kept = self._kept(call, len(digest))
            kept.text, kept.digest = text if len(text) < _LONG else None, digest
            said = kept.rehearsed.said
            said[self.transport.rank][:] = digest
            heard = yield from kept.rehearsed.exchange()
            if heard is None:
                return all(each == digest for each in said)
        call.failure = failure
        payloads = yield from self.open(call, digest, always=True, heard=heard)
        return len(set(payloads)) == 1

    def _kept(self, call: Call, length: int) -> _Exchange:
        """The exchange of such calls, in which all say a payload of that length."""
        if len(self._exchanges) >= _MOST_EXCHANGES:
            self._exchanges.clear()
        rank, text = self.transport.rank, call.text()
        kept = _Exchange(Rehearsed(self.opening, rank, text, told(), length))
        self._exchanges[call.name] = kept
        return kept

    # ---- node-shared memory -----------------------------------------------------------------------

    def is_shared(
        self,
        call: Call,
        count: int,
        *arrays: fused.Places,
        between_hosts: bool = False,
    ) -> bool:
        """Whether a call that has been opened moves no data by message: the same on every rank.

        Args:
            call: what was asked for.
            count: elements; where there are none, any path is as good.
            arrays: for each input or output that the others touch, the ranks' places.
            between_hosts: whether it may also be asked to share memory within each of several hosts.

        Raises:
            ValueError: if it was asked to, and cannot.
        """
        if fused.are_shared(*arrays):
            return True
        if between_hosts and hierarchy.hosts_of(*arrays):
            return False
        if call.must_share and count and self.transport.size > 1:
            raise harmless(ValueError(fused.why_not(call.name, arrays)))
        return False

    def sure(
        self,
        call: Call,
        memory: Memory | InChunks | None,
        make: Callable[[], Memory | InChunks | None],
        flat: Array,
        position: Position,
    ) -> Program[Memory | InChunks]:
        """The memory of a schedule, which a rank has not taken yet if it hoped to need none."""
        if call.all_places or call.all_addresses or call.someone_brings:
            with call.local():
                memory = make() if memory is None else memory
            yield from self.settle(call, flat.nbytes, position)
        assert memory is not None
        return memory

    # ---- their common parts -----------------------------------------------------------------------

    def path(
        self,
        call: Call,
        source: Operand,
        op: Any,
        order: Any,
        algorithm: Any,
        root: int | None = None,
    ) -> RankProgram | None:
        """Check the arguments of a reduction and choose its schedule; None for the MPI's own."""
        call.fields = (
            ("array", source.description),
            ("op", as_text(op)),
            ("order", as_text(order)),
            ("algorithm", as_text(algorithm)),
            ("root", str(root)),
        )
        arithmetic.check_op(op, source.dtype)
        note_flushing(call, source)
        known("order", order, ("ring", "rank"))
        known("algorithm", algorithm, names_of(call.name))
        self.need_library(algorithm, source.kind)
        self.choose(call, algorithm)
        if algorithm == "mpi":
            return None
        wide = arithmetic.accumulator(op, source.dtype) != source.dtype
        nbytes = source.array.size * source.kind.itemsize(source.dtype)
        if call.is_free:  # and finds no memory
            # Wide partials would double a ring's bytes; a direct exchange sends inputs as they are.
            small = nbytes <= self.tuning.direct_bytes
            algorithm = "direct" if small or wide or order == "rank" else "ring"
        size, rank = self.transport.size, self.transport.rank
        pieces = 0 if root is None else self.pieces(nbytes)
        return program_of(call.name, size, rank, algorithm, order, wide, root, pieces)

    def riding(
        self, call: Call, source: Operand, flat: Array, algorithm: Any
    ) -> bytes | None:
        """The flat array as bytes, if it is to ride in the opening exchange."""
        nbytes = flat.size * source.kind.itemsize(source.dtype)
        if algorithm != "auto" or nbytes > self.small_bytes:
            return None
        call.opens = True  # also where this rank's array cannot ride, and others' do
        return None if source.kind.is_device else bytes(flat.tobytes())

    def pieces(self, nbytes: int) -> int:
        """How many pieces a buffer of so many bytes is cut into for a chain."""
        return max(1, min(MOST_CHUNKS, -(-nbytes // self.tuning.piece_bytes)))

    def need_library(self, algorithm: str, kind: Kind) -> None:
        """Raise if the MPI's own collective is asked for and cannot be had."""
        if algorithm != "mpi":
            return
        if self.library is None:
            raise ValueError(
                "algorithm='mpi' needs a ring over MPI, of one member a process"
            )
        if kind.is_device:
            raise ValueError(
                "algorithm='mpi' takes host memory only: the MPIs' own collectives crash on device memory, or copy "
                "it to the host and reduce there; pass 'auto', or a host copy"
            )


class _Exchange:
    """What is kept of exchanges for one purpose.

    Attributes:
        rehearsed: the opening exchange.
        text, digest: of the last one, if the text is not long.
    """

    def __init__(self, rehearsed: Rehearsed) -> None:
        self.rehearsed = rehearsed
        self.text: str | None = None
        self.digest = b""


def _digest(text: str) -> bytes:
    """What stands for a text of any length."""
    data = text.encode(errors="backslashreplace")  # as a lone surrogate needs it
    return hashlib.blake2b(data, digest_size=16).digest()


def note_flushing(call: Call, source: Operand) -> None:
    """Take note of whether this rank's arithmetic is unlike that of most."""
    if arithmetic.may_underflow(source.dtype) and not source.kind.is_device:
        call.flushes = arithmetic.flushes()


def all_ride(said: list[bytes], mine: bytes) -> bool:
    """Whether every rank has brought its bytes; of no bytes nobody can tell."""
    return mine != b"" and all(len(item) == len(mine) for item in said)


def share(call: Call, kind: Kind, *arrays: Array) -> None:
    """Take note of where the input, and the output if others write it, are in node-shared memory: of both or none."""
    call.places = (None, None)
    if call.may_share and all(map(kind.is_flat, arrays)):
        places = [place_of(kind, array) for array in arrays]
        if all(places):
            call.places = places[0], (places[1] if len(places) > 1 else None)


@lru_cache(maxsize=128)
def program_of(
    collective: str,
    size: int,
    rank: int,
    algorithm: str,
    order: str,
    wide: bool,
    root: int | None = None,
    segments: int = 0,
) -> RankProgram:
    """One rank's part of a schedule by name; kept, since the same calls come again and again."""
    plan = schedule(
        collective, size, algorithm=algorithm, order=order, root=root, segments=segments
    )
    return rank_program(plan, rank, wide=wide)


@lru_cache(maxsize=16)
def names_of(collective: str) -> tuple[str, ...]:
    """What ``algorithm`` may be for a collective."""
    return ("auto", "shared", "mpi", *algorithms(collective))


def known(what: str, value: Any, names: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``names``."""
    if not isinstance(value, str) or value not in names:
        raise ValueError(
            f"unknown {what} {value!r}; known: {', '.join(map(repr, names))}"
        )
