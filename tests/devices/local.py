"""The ranks of one process, each with a pretended device: what a case sees of a ring."""

from __future__ import annotations

from mpiring.wire.arrays import cuda_driver
from mpiring.wire.collectives import custom, rooted
from mpiring.wire.ring import messages
from mpiring.wire.ring.messages import Message
from mpiring.wire.transport.position import Position

from devices import deferred
from wire.ranks import Ranks, call


class LocalRing:
    """The collectives of one rank as programs to ``yield from``, with a ring's defaults."""

    repeats = 2  # in each of several interleavings
    many = 50

    def __init__(self, rank, collectives):
        self.rank, self.size = rank, collectives.transport.size
        self.collectives = collectives

    def _reduction(
        self, name, x, op="sum", *, out=None, order="ring", algorithm="auto"
    ):
        return call(self.collectives, name, x, op, out, order, algorithm)

    def allreduce(self, *args, **kwargs):
        return self._reduction("allreduce", *args, **kwargs)

    def reduce_scatter(self, *args, **kwargs):
        return self._reduction("reduce_scatter", *args, **kwargs)

    def allgather(self, x, *, out=None, algorithm="auto"):
        return call(self.collectives, "allgather", x, out, algorithm)

    def reduce(self, x, op="sum", root=0, *, out=None, order="ring", algorithm="auto"):
        return rooted.reduce(
            self.collectives, x, op, root, out, order, algorithm, Position()
        )

    def broadcast(self, x, root=0, *, algorithm="auto"):
        return rooted.broadcast(self.collectives, x, root, algorithm, Position())

    def run(self, schedule, x, op="sum", *, out=None):
        return custom.run(self.collectives, schedule, x, op, out, Position())

    def exchange(self, *given):
        """Messages (True, x, dest, tag) and (False, out, source, tag) of one group."""
        group = [Message(*message) for message in given]
        return messages.exchange(self.collectives.carriage, group)


def install(monkeypatch, **more):
    """The deferred device as ``cupy``, and its driver."""
    cupy = deferred.install(monkeypatch, **more)
    monkeypatch.setattr(cuda_driver, "driver", deferred.Driver)
    return cupy


def run(
    case,
    size,
    xp,
    transport,
    seed=1,
    rendezvous=None,
    message_bytes=40,
    tuning=None,
):
    """Run a case on ``size`` ranks, each with a stream of its own; what each returned."""
    ranks = Ranks(
        size,
        seed,
        rendezvous,
        message_bytes=message_bytes,
        device_transport=transport,
        tuning=tuning,
        reach=deferred.reach,
    )
    programs = [
        deferred.on_a_stream_of_its_own(
            case(LocalRing(rank, c), xp), non_blocking=rank % 2 == 1
        )
        for rank, c in enumerate(ranks.collectives)
    ]
    return ranks.network.run(programs)
