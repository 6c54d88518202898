"""A member of a ring: what all collectives of one rank stand on.

Its transport, the exchange that opens a call and the one that closes it, scratch, and the settings that paths depend
on.  Whatever a collective does besides (:mod:`mpiring.wire.node`, :mod:`mpiring.wire.execute`,
:mod:`mpiring.wire.collectives`) takes a member, and a member knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import harmless
from ..arrays.scratch import Scratch
from ..settings.tuning import DEFAULTS, NODE, Tuning
from ..transport.device import Carriage
from ..transport.position import Position
from ..transport.protocol import Program, Transport
from .agree import Heard, Opening
from .calls import Call, difference, facts_of, with_facts
from .closing import Closing

# Memory of this size is there; before more is taken the ranks make sure that each of them has got it.
_SURE_BYTES = 1 << 20


class Member:
    """One rank of a ring.

    Args:
        transport: carries the messages.
        opening: the ring's opening exchange.
        tag: of the schedules' messages.
        check: whether calls open with the exchange.
        tuning: what the paths depend on, the same on every rank.
        device_transport: ``"direct"`` or ``"staged"``: how device memory travels, the same on every rank.
        node: gives the ranks that may share memory with this one, itself among them: collective the first time.
            None: there are none.
        is_on_node: whether all ranks are on one host.

    Attributes:
        has_shared: whether ``ring.empty`` has made memory that some ranks share: the same on every rank.
    """

    def __init__(
        self,
        transport: Transport,
        opening: Opening,
        tag: int,
        *,
        check: bool = True,
        tuning: Tuning = DEFAULTS[NODE],
        device_transport: str = "staged",
        node: Callable[[], tuple[int, ...]] | None = None,
        is_on_node: bool = False,
    ) -> None:
        self.transport = transport
        self.opening = opening
        self.tag = tag
        self.tuning = tuning
        self.node = node or (lambda: (transport.rank,))
        self.carriage = Carriage(transport, device_transport)
        self.scratch = Scratch()
        self.closing = Closing(transport, tag)
        self._closings: dict[range, Closing] = {}
        self._check = check
        self._is_on_node = is_on_node and transport.size > 1
        self.has_shared = False

    def open(
        self,
        call: Call,
        payload: bytes = b"",
        always: bool = False,
        heard: Heard | None = None,
    ) -> Program[list[bytes]]:
        """The opening exchange; raises alike on every rank unless all mean the same and none failed.

        Args:
            call: what this rank was asked to do.
            payload: a few bytes for every rank.
            always: exchange even in a ring that does not check.  A call that may find memory of the others does so.
            heard: what the exchange gave, if it is over.

        Returns:
            the ranks' payloads, in rank order; none if there was no exchange.
        """
        call.someone_stages = call.stages
        if not (self._check or always or call.opens):
            if call.failure is not None:
                raise harmless(call.take_failure())  # nothing has been sent
            return []
        if heard is None:
            heard = yield from self.opening.exchange(
                call.text(),
                call.failure_text(self.transport.rank),
                with_facts(call, payload),
            )
        summary, payloads = heard
        # No error has a name here: its traceback would hold itself, this call's arrays and the ring.
        if summary.failure is not None:
            raise harmless(call.error(summary, self.transport.rank))
        if summary.other is not None:
            raise harmless(difference(summary))
        if any(payloads):
            facts = zip(*map(facts_of, payloads))
            stages, brings, places, addresses, payloads = map(list, facts)
            call.someone_stages = any(stages)
            call.someone_brings, call.all_bring = any(brings), all(brings)
            if any(map(any, places)):
                call.all_places = places
            if any(map(any, addresses)):
                call.all_addresses = addresses
        return payloads

    def settle(
        self, call: Call, nbytes: int, position: Position, is_sure: bool = True
    ) -> Program[None]:
        """Raise what went wrong since the opening exchange: where its answer was needed to take memory.

        If that is a lot, or not sure to be had, the ranks agree once more, so that all of them raise.  Else a
        rank that fails, which can hardly be, breaks its ring.
        """
        if nbytes > _SURE_BYTES or not is_sure:
            yield from self.open(call, always=True)
        elif call.failure is not None:
            position.phase = "taking memory for the result"
            raise call.take_failure()

    def closing_of(self, ranks: range) -> Closing:
        """The closing exchange of some ranks, this one among them; kept, as its messages are used again."""
        if ranks not in self._closings:
            self._closings[ranks] = Closing(self.transport, self.tag, ranks)
        return self._closings[ranks]

    def choose(self, call: Call, algorithm: str) -> None:
        """Take note of the algorithm asked for.

        What an unchecked ring does may depend on nothing but what all ranks know without a word: not on the memory
        that this rank passes.  So on one host, and where the ring has made memory that is shared, every call that
        is free to find some opens; elsewhere none does, and what could be found is left alone.
        """
        call.choose(algorithm, self._check or self._is_on_node or self.has_shared)
