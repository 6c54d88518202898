"""Several ranks in this process, each with its collectives, and what each of them got out of a call."""

from __future__ import annotations

from dataclasses import replace

from mpiring.wire.collectives.gather import allgather
from mpiring.wire.collectives.reductions import Collectives
from mpiring.wire.node.peer_memory import PeerMemory
from mpiring.wire.node.stages import Stages
from mpiring.wire.opening.agree import PAYLOAD_BYTES, Opening
from mpiring.wire.settings import tuning as tunings
from mpiring.wire.transport.local import LocalNetwork, first
from mpiring.wire.transport.position import Position

from wire.interleaving import chooser

TAG = 2  # of messages with data, and of the closing exchange


class Ranks:
    """``size`` ranks.  ``seed`` chooses the interleaving; None is the fair one.

    ``tuning`` has the settings that are not the defaults; nothing rides in the opening exchange unless it says so.
    ``node(rank)`` are the ranks that the MPI would say share memory with that one.  With ``peers`` they reach into
    each other's arrays, with ``stages`` they have stages of such lengths, however short the arrays are.
    """

    def __init__(
        self,
        size,
        seed=None,
        rendezvous=True,
        message_bytes=1 << 30,
        device_transport="staged",
        tuning=None,
        node=None,
        peers=False,
        stages=None,
        **more,
    ):
        settings = replace(
            tunings.DEFAULTS[tunings.NODE], **{"small_bytes": 0, **(tuning or {})}
        )
        room = max(PAYLOAD_BYTES, settings.small_bytes + 1)
        choose = first if seed is None else chooser(seed)
        self.size = size
        self.network = LocalNetwork(size, choose, rendezvous, message_bytes, **more)
        self.collectives = [
            Collectives(
                transport,
                Opening(transport, TAG - 1, room),
                TAG,
                tuning=settings,
                device_transport=device_transport,
                node=node and (lambda rank=rank: node(rank)),
                peer_memory=PeerMemory() if peers else None,
                stages=stages and Stages(size, stages),
                least_bytes=0,
                is_on_node=peers or stages is not None,
            )
            for rank, transport in enumerate(self.network.transports)
        ]

    def run(self, program):
        """Run ``program(rank, collectives)``, a generator, on each rank; what it returned or raised."""
        return self.network.run(
            [kept(program(rank, c)) for rank, c in enumerate(self.collectives)]
        )

    def sends(self, call):
        """What a call gives, and how many bytes its longest message has, those of the opening exchange left out."""
        longest = 0
        posts = [t.post_send for t in self.network.transports]

        def watched(post):
            def post_send(buffer, dest, tag):
                nonlocal longest
                if tag == TAG:
                    longest = max(longest, len(buffer))
                return post(buffer, dest, tag)

            return post_send

        for transport, post in zip(self.network.transports, posts):
            vars(transport)["post_send"] = watched(post)
        try:
            return call(), longest
        finally:
            for transport in self.network.transports:
                del vars(transport)["post_send"]

    def call(self, name, arguments):
        """Call one collective on each rank with ``arguments(rank)``."""
        return self.run(lambda rank, c: call(c, name, *arguments(rank)))


def kept(program):
    """A program that returns the exception where another would raise it."""
    try:
        return (yield from program)
    except Exception as error:
        return error


DEFAULTS = {
    "allreduce": ("sum", None, "ring", "auto"),
    "reduce_scatter": ("sum", None, "ring", "auto"),
    "allgather": (None, "auto"),
    "barrier": (),
}


def call(collectives, name, *arguments):
    """The program of a collective; arguments that are left out have the ring's defaults."""
    given = len(arguments) - (name != "barrier")
    rest = DEFAULTS[name][given:] if name in DEFAULTS else ()
    position = () if name == "exchange" else (Position(),)
    if name == "allgather":
        return allgather(collectives, *arguments, *rest, *position)
    return getattr(collectives, name)(*arguments, *rest, *position)
