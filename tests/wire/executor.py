"""Run any schedule on real arrays in one process, and compare with what the proof of it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpiring.plan import Segments, verify
from mpiring.plan.programs import rank_program
from mpiring.wire import arrays
from mpiring.wire.arrays.scratch import Scratch
from mpiring.wire.execute import memory, pipeline, steps
from mpiring.wire.reduce.arithmetic import accumulator
from mpiring.wire.transport.local import LocalNetwork
from mpiring.wire.transport.position import Position

from wire import reference
from wire.interleaving import chooser


@dataclass(frozen=True)
class Machine:
    """What runs a schedule: ours, or a broken one."""

    execute: Any = steps.execute
    memory: Any = memory.Memory


class Watched(list):
    """A memory's free slots, which remember how few there were."""

    def __init__(self, slots):
        super().__init__(slots)
        self.fewest = len(self)

    def pop(self, index=-1):
        slot = super().pop(index)
        self.fewest = min(self.fewest, len(self))
        return slot


def check(
    schedule, op, dtype, count, seed, rendezvous=None, in_place=False, machine=None
):
    """Run a schedule and compare every result with the order that was proven, bit for bit.

    Returns, for each rank, how many slots it had and how many it used at one time.
    """
    machine = machine or Machine()
    size, cut = schedule.size, reference.bounds(count, schedule.segments)
    xs = [reference.varied(dtype, count, rank, seed) for rank in range(size)]
    originals = [x.copy() for x in xs]
    moves = schedule.collective in ("allgather", "broadcast")
    want = wanted(schedule, op, xs, cut)

    network = LocalNetwork(size, chooser(seed), rendezvous, message_bytes=64)
    outs, memories = [], []
    for rank in range(size):
        out = xs[rank] if in_place else np.full_like(xs[rank], 1)
        outs.append(out)
        results = {s: out[slice(*cut[s])] for s in schedule.results(rank)}
        if moves:
            given = schedule.collective == "broadcast" or None
            for s in results:
                if rank == schedule.root if given else s == schedule.owned(rank):
                    results[s][...] = originals[rank][slice(*cut[s])]
        program = rank_program(schedule, rank, wide=accumulator(op, dtype) != dtype)
        memories.append(
            machine.memory(
                arrays.NUMPY,
                program,
                Segments.of_lengths([stop - start for start, stop in cut]),
                None if moves else xs[rank],
                results.get,
                op,
                dtype,
                Scratch(),
            )
        )
        memories[-1]._slots = Watched(memories[-1]._slots)
    programs = [
        machine.execute(m, transport, 1, Position())
        for m, transport in zip(memories, network.transports)
    ]
    network.run(programs)

    usage = []
    for rank in range(size):
        for s in schedule.results(rank):
            got = outs[rank][slice(*cut[s])]
            assert reference.same_bits(got, want[s]), (rank, s, got, want[s])
        slots = memories[rank]._slots
        assert len(slots) == memories[rank].program.slots, "a slot is still in use"
        usage.append((len(slots), len(slots) - slots.fewest))
        if not in_place:
            assert reference.same_bits(xs[rank], originals[rank]), "the input changed"
            untouched = np.full_like(outs[rank], 1)
            for s in set(range(schedule.segments)) - set(schedule.results(rank)):
                assert reference.same_bits(
                    outs[rank][slice(*cut[s])], untouched[slice(*cut[s])]
                )
    return usage


def wanted(schedule, op, xs, cut):
    """The result of each segment, by the proven order."""
    proof = verify(schedule)
    pieces = []
    for s, order in enumerate(proof.orders):
        values = [x[slice(*cut[s])] for x in xs]
        if order:
            total = reference.combined(op, values, order)
            pieces.append(reference.finished(op, total, schedule.size, xs[0].dtype))
        else:
            root = schedule.root
            pieces.append(values[schedule.owner(s) if root is None else root].copy())
    return pieces


def check_in_chunks(
    schedule, op, dtype, count, seed, length, window, rendezvous=None, in_place=False
):
    """Run a schedule chunk by chunk, and compare every result with the first form's order, bit for bit."""
    size, cut = schedule.size, reference.bounds(count, schedule.segments)
    xs = [reference.varied(dtype, count, rank, seed) for rank in range(size)]
    originals = [x.copy() for x in xs]
    want = wanted(schedule, op, xs, cut)
    moves = schedule.collective in ("allgather", "broadcast")
    network = LocalNetwork(size, chooser(seed), rendezvous, message_bytes=64)
    outs, programs = [], []
    for rank, transport in enumerate(network.transports):
        out = xs[rank] if in_place else np.full_like(xs[rank], 1)
        outs.append(out)
        kept = schedule.results(rank)
        if moves:
            for s in kept:
                is_broadcast = schedule.collective == "broadcast"
                if rank == schedule.root if is_broadcast else s == schedule.owned(rank):
                    out[slice(*cut[s])] = originals[rank][slice(*cut[s])]

        def places(pieces, out=out, kept=kept):
            return lambda s: out[pieces[s].slice] if s in kept else None

        memories, landings = memory.in_chunks(
            arrays.NUMPY,
            rank_program(schedule, rank, wide=accumulator(op, dtype) != dtype),
            Segments.of_lengths([stop - start for start, stop in cut]),
            None if moves else xs[rank],
            places,
            op,
            dtype,
            Scratch(),
            length,
            window,
        )
        programs.append(
            pipeline.execute_in_chunks(
                memories, landings, transport, 1, Position(), window
            )
        )
    network.run(programs)
    for rank in range(size):
        for s in schedule.results(rank):
            got = outs[rank][slice(*cut[s])]
            assert reference.same_bits(got, want[s]), (rank, s, got, want[s])
        if not in_place:
            assert reference.same_bits(xs[rank], originals[rank]), "the input changed"
