"""The closing exchange, which ends a call whose ranks touch each other's memory: nobody leaves before all have come."""

from __future__ import annotations

from collections.abc import Iterator

from ...plan.schedules import dissemination
from ..transport.position import Position
from ..transport.protocol import Persistent, Program, Transport


class Closing:
    """The closing exchange of a ring: a dissemination, like the opening exchange, of one byte.

    Args:
        transport: carries it.
        tag: of its messages.
        ranks: that take part, this one among them; None for all.
    """

    def __init__(
        self, transport: Transport, tag: int, ranks: range | None = None
    ) -> None:
        self._transport, self._tag = transport, tag
        self._ranks = range(transport.size) if ranks is None else ranks
        self._turns: list[tuple[Persistent, Persistent]] | None = None

    def exchange(self, position: Position) -> Program[None]:
        """End when all ranks have come here."""
        position.phase = "closing exchange"
        if self._turns is None:
            self._turns = list(self._made())
        for receive, send in self._turns:
            receive.start()
            send.start()
            while not receive.test():
                yield receive
            while not send.test():
                yield send

    def _made(self) -> Iterator[tuple[Persistent, Persistent]]:
        transport, tag, ranks = self._transport, self._tag, self._ranks
        for turn in dissemination(ranks.index(transport.rank), len(ranks)):
            source, dest = ranks[turn.source], ranks[turn.dest]
            receive = transport.persistent_receive(bytearray(1), source, tag)
            yield receive, transport.persistent_send(b"\1", dest, tag)
