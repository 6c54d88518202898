"""The asynchronous server's messages, of several ranks in one process, under hostile interleavings.

``check`` runs workers that push and pull at random; mistakes in the server show that it can fail.
"""

from __future__ import annotations

import inspect
import types
from contextlib import nullcontext
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.errors import DeadlockError, RingError
from mpiring.training import parameter_server, updates
from mpiring.wire.transport.device import Carriage
from mpiring.wire.transport.local import LocalNetwork
from mpiring.wire.transport.position import Position

from wire.interleaving import chooser, protocols, seeds
from wire.ranks import kept

SHAPES = {"a": ((9,), "i8"), "b": ((), "i8"), "c": ((2, 3), "f4")}


class Place:
    """What a server needs of a ring before its first message: a rank of so many."""

    members = 1

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def exchange(self, name, text, failure):
        assert failure is None
        return True

    def composed(self, name):
        return nullcontext()


def arrays(number):
    return {n: np.full(shape, number, dtype) for n, (shape, dtype) in SHAPES.items()}


def check(module, size, seed, protocol, root=0, failing=None):
    """Workers push their number in every array; what is pulled has them all alike, my own among them."""
    updates = []

    def update(params, grads):
        who = {int(n) for grad in grads.values() for n in np.ravel(grad)}
        assert len(who) == 1, f"messages of several workers: {who}"
        updates.append(who.pop())
        if len(updates) == failing:
            raise LookupError("boom-17")
        for name, grad in grads.items():
            params[name] = params[name] + grad

    def server(transport):
        server = make(transport)
        carriage = Carriage(transport, "direct")
        failures: list[Exception] = []
        yield from server._listen_to_all(failures, carriage, Position(False))
        if failures:
            raise failures[0]
        return server.params

    def worker(transport):
        server, random = make(transport), Random(seed + transport.rank)
        carriage = Carriage(transport, "direct")
        pushed = 0
        while pushed < 4:
            if random.random() < 0.6:
                pushed += 1
                fill(server)
                yield from server._send_gradients(carriage, Position(False))
            else:
                yield from server._ask_for_parameters(carriage, Position(False))
                numbers = {int(n) for p in server.params.values() for n in np.ravel(p)}
                assert len(numbers) == 1, f"arrays of several moments: {numbers}"
                assert numbers.pop() // 8**transport.rank % 8 == pushed
        yield from server._say_done(carriage, Position(False))

    def fill(server):
        for flat in server._grads:
            flat.fill(arrays(8**server.ring.rank))

    def make(transport):
        place = Place(transport.rank, size)
        return module.ParameterServer(place, arrays(0), update, root=root, mode="async")

    network = LocalNetwork(size, chooser(seed), protocol, message_bytes=11)
    programs = [(server if t.rank == root else worker)(t) for t in network.transports]
    results = network.run([kept(program) for program in programs])
    return results, updates


@examples(max_examples=80)
@given(size=st.integers(2, 5), seed=seeds, protocol=protocols, at_end=st.booleans())
def test_no_push_is_lost_and_none_are_mixed(size, seed, protocol, at_end):
    root = size - 1 if at_end else 0
    results, updates = check(parameter_server, size, seed, protocol, root)
    workers = [rank for rank in range(size) if rank != root]
    assert [results[rank] for rank in workers] == [None] * len(workers), results
    assert sorted(updates) == sorted([8**rank for rank in workers] * 4)
    for params in results[root].values():
        assert (params == 4 * sum(8**rank for rank in workers)).all()


@examples(max_examples=60)
@given(size=st.integers(2, 5), seed=seeds, protocol=protocols, at=st.integers(1, 4))
def test_a_failure_reaches_every_worker(size, seed, protocol, at):
    results, updates = check(parameter_server, size, seed, protocol, failing=at)
    assert len(updates) == at
    assert type(results[0]) is LookupError
    for result in results[1:]:
        assert type(result) is RingError
        assert str(result).endswith("update raised on rank 0: LookupError: boom-17")


MISTAKES = {
    "one buffer for all workers": (
        "grads = [flat.another() for flat in self._grads]",
        "grads = self._grads",
    ),
    "sends what it goes on changing": (
        "snapshot = [flat.copied() for flat in self._params]",
        "snapshot = self._params",
    ),
    "does not wait for the gradients": (
        "            yield from self._wait(request)\n",
        "            if flat is flats[0]:\n                yield from self._wait(request)\n",
    ),
    "loses what was put in the place of an array": (
        "if name in copies or value is not current.get(name)",
        "if False",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_each_of_these_mistakes_is_found(what):
    old, new = MISTAKES[what]
    sources = [
        Path(inspect.getfile(m)).read_text() for m in (updates, parameter_server)
    ]
    assert sum(source.count(old) for source in sources) == 1
    mistaken = types.ModuleType("mpiring.training.mistaken")
    mistaken.__package__ = "mpiring.training"
    for source in sources:
        # The second module's import of the first would undo what was made of that.
        source = source.replace("from .updates import Update, Updates\n", "")
        exec(source.replace(old, new), mistaken.__dict__)
    with pytest.raises((AssertionError, RingError, DeadlockError)):
        for seed in range(40):
            results, _ = check(mistaken, 3, seed, None)
            assert isinstance(results[0], dict), results
            assert results[1:] == [None, None], results
