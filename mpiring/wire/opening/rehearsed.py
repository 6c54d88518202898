"""An opening exchange of which all but some bytes of the payloads is known beforehand.

Where the same call is made again and again, the messages of :mod:`mpiring.wire.opening.agree` differ in their payloads
alone, and not in how long those are.  So they are written down once, with room for the payloads, and an exchange is to
fill in mine, to start the messages, and to compare what comes with what was expected.

The messages are those of :meth:`Opening.exchange`: another rank may make that one, and mean another call.  As soon as
something else comes than was expected, it takes over.
"""

from __future__ import annotations

from ..transport.protocol import Program
from .agree import (
    Begun,
    Heard,
    Opening,
    Round,
    Summary,
    encode,
    lead,
    length_of,
    places,
)


class Rehearsed:
    """An exchange in which all say the same text, and payloads of one length that begin alike.

    Args:
        opening: the ring's, of two ranks or more.
        rank: who we are.
        text: what all say.
        begin: the first byte of each payload.
        length: bytes of a payload after that.

    Attributes:
        said: for each rank the rest of its payload, at an aligned address.  Mine is to be filled in before
            :meth:`exchange`; the others' are valid after it, until the ring's next exchange.
    """

    def __init__(
        self, opening: Opening, rank: int, text: bytes, begin: bytes, length: int
    ) -> None:
        self._opening = opening
        self._text, self._begin = text, begin
        head = encode(Summary((rank, text)))
        slots: list[memoryview] = []  # of this rank, of the one before it, and so on
        self._legs = [_Leg(r, head, begin, length, slots) for r in opening.rounds]
        self._slots = slots
        self.said = [slots[(rank - r) % len(slots)] for r in range(len(slots))]

    def exchange(self) -> Program[Heard | None]:
        """Tell and hear; gives nothing if all went as expected, else what :meth:`Opening.exchange` gives."""
        for number, leg in enumerate(self._legs):
            leg.start()
            receive, send = leg.receive, leg.send
            while not receive.test():
                yield receive
            if not leg.is_expected():
                slots = [self._begin + slot for slot in self._slots[: leg.known]]
                begun = Begun(number, slots, send)
                heard = yield from self._opening.exchange(
                    self._text, None, slots[0], begun
                )
                return heard
            while not send.test():
                yield send
        self._opening.count += 1
        return None


class _Leg:
    """One round of the exchange.

    Attributes:
        receive, send: its messages.
        known: how many payloads there are before it.
    """

    def __init__(
        self,
        round: Round,
        head: bytes,
        begin: bytes,
        length: int,
        slots: list[memoryview],
    ) -> None:
        size = len(begin) + length
        starts = places(len(head), round.new, size)
        # Both are the ring's: MPI keeps no message for each call that is remembered.
        self.receive, self.send = round.receive, round.send_of(starts[-1] + size)
        room, out = memoryview(round.room), round.out
        label = length_of(begin + bytes(length)) + begin
        first, *others = starts
        self._expected = head + lead(len(head)) + label
        self._room = round.room
        self._labels = [room[at - 2 : at + len(begin)] for at in others]
        self._label = label
        # What is written before each message, and where.
        self._writes: list[tuple[memoryview, bytes | memoryview]] = [
            (out[: first + len(begin)], self._expected)
        ]
        self._writes += [(out[at - 2 : at + len(begin)], label) for at in others]
        payloads = [slice(at + len(begin), at + size) for at in starts]
        if not slots:
            slots.append(out[payloads[0]])  # mine, in the first message of all
        elif length:
            self._writes += [(out[p], slot) for p, slot in zip(payloads, slots)]
        self.known = len(slots)
        slots += [room[p] for p in payloads]

    def start(self) -> None:
        """Send what is known, and listen."""
        self.receive.start()
        for place, what in self._writes:
            place[:] = what
        self.send.start()

    def is_expected(self) -> bool:
        """Whether what has come says the same, with payloads like mine."""
        if not self._room.startswith(self._expected):
            return False
        return all([label == self._label for label in self._labels])
