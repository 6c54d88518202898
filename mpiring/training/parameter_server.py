"""The parameter server: one rank keeps the parameters, the others pull them and push gradients.

The lecture's four steps (section 1.4): *pull* the parameters (a broadcast), *compute*, *push* the gradients
(a reduce), *update*.  Every step moves the whole model twice, and the server's link carries it all if every
worker talks to the server: what the ring all-reduce was invented against (section 3.2).

Synchronous mode
    All workers go step by step.  Before each step every rank says what it wants; a pull is answered at once,
    by a broadcast, in which all take part; a push waits until every worker that is still there pushes, then
    the sum of the gradients is reduced to the server, which updates once.  A worker that is done goes on
    taking part, with zeros, until all are done.  Steps are collectives: the ring's timeout is how long a rank
    waits for the slowest worker to come to the next one.

Asynchronous mode
    Workers pull and push when they are ready, by messages to the server, which applies each push as one
    update in the order they arrive.  A pull gets a snapshot, taken between two updates.  The server hears
    each worker by itself, so messages of different workers never mix.  With a timeout on the ring, ``serve``
    gives up when no worker has said anything for that long.

If the update raises, or gives what does not fit, the parameters are as before it, the server's ``serve`` raises that,
and every worker a :class:`RingError` that says so when it next asks for something.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, SupportsIndex

import numpy as np

from ..errors import RingError, harmless
from ..ring import Ring
from ..wire.arrays.operands import operand
from ..wire.reduce.arithmetic import Array
from ..wire.transport.device import Carriage
from ..wire.transport.mpi import TAG_SERVER
from ..wire.transport.position import Position
from ..wire.transport.protocol import Program, Request, together, wait
from .agreement import by_name, check_server, difference, everyone_says, parameter
from .flat import Flat, Layout, groups, named, signature
from .updates import Update, Updates

_SERVE, _PULL, _PUSH, _DONE, _FAILED = range(5)  # what a rank wants
_REPLY = struct.Struct(
    "<H512s"
)  # bytes of what went wrong in the update, 0 if all is well


class ParameterServer:
    """Parameters on one rank, served to the others.  Making one is collective over the ring.

    Args:
        ring: its root serves, its other ranks work.
        params: a mapping of named arrays; the root's values are the ones that count, but every rank gives the
            same names, dtypes and shapes.  They are copied.
        update: ``update(params, grads)``, called on the root: changes the arrays in ``params`` in place, puts
            others in their place, or returns new values for some or all of them; these may be views of other
            parameters.  A value has to fit: floats are rounded, nothing else may be lost.  ``grads`` has the sum
            over the workers (sync) or one worker's gradients (async), zeros where none were pushed; its memory is
            used again for the next update.  Workers may pass None.
        root: the rank that serves.
        mode: ``"sync"`` or ``"async"``.

    Raises:
        TypeError, ValueError: on every rank, naming what differs.
    """

    def __init__(
        self,
        ring: Ring,
        params: Mapping[str, Any],
        update: Update | None,
        *,
        root: int = 0,
        mode: str = "sync",
    ) -> None:
        self.ring = ring
        self.root = root
        self.mode = mode
        self._ended = ""  # how this rank's part has ended, in words
        failure: Exception | None = None
        said = ""
        try:
            self.root = check_server(ring, params, update, root, mode)
            arrays = by_name(params)
            places: dict[str, tuple[str, str]] = {}
            signatures = [
                parameter(name, array, places) for name, array in arrays.items()
            ]
            said = json.dumps({"root": self.root, "mode": mode, "params": signatures})
            self._params = [
                Flat(Layout(group), operand(arrays[group[0].name]).kind)
                for group in groups(signatures)
            ]
            self._grads = [flat.another() for flat in self._params]
            for flat in self._params:
                flat.fill(arrays)
            if update is not None and ring.rank == self.root:
                self._updates = Updates(update, self._params)
        except Exception as error:
            failure = error
        with ring.composed("ParameterServer"):
            if not ring.exchange("ParameterServer", said, failure):
                raise harmless(difference(everyone_says(ring, said)))

    @property
    def params(self) -> dict[str, Array]:
        """The parameters as this rank has them: on the root the current ones, else the last it was sent."""
        return named(self._params)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "a ParameterServer can be neither copied nor pickled: it is this rank's part of something that all ranks "
            "of a ring hold together; make another one, on every rank, or copy its params"
        )

    # ---- the server's side ------------------------------------------------------------------------

    def serve(self) -> dict[str, Array]:
        """On the root: serve until every worker is done, and return the parameters.

        Raises:
            RingError: on a rank that is not the root, and if it was called before.
            RingTimeout: if the ring has a timeout and no worker says anything for so long.
            TypeError, ValueError: if ``update`` gave a parameter what it cannot hold; the workers get a
                :class:`RingError`, as from whatever else ``update`` raises.
        """
        if self.ring.rank != self.root:
            raise RingError(
                f"serve: rank {self.ring.rank} is a worker, rank {self.root} serves"
            )
        if self._ended:
            raise RingError(f"serve: {self._ended}; make a new ParameterServer")
        self._ended = "every worker is done"
        try:
            if self.mode == "async":
                self._serve_each()
            else:
                self._serve_in_step()
        except BaseException as error:
            self._ended = f"it has ended: {type(error).__name__}: {error}"
            raise
        return self.params

    # ---- the workers' side ------------------------------------------------------------------------

    def pull(self) -> dict[str, Array]:
        """The current parameters, in new arrays.

        Raises:
            RingError: on the root, after :meth:`done`, or if the server's update raised.
            RingTimeout: the ring is broken afterwards.
        """
        self._check_worker("pull")
        if self.mode == "async":
            self.ring.perform("pull", self._ask_for_parameters)
        else:
            self._in_step(_PULL)
        return named([flat.copied() for flat in self._params])

    def push(self, grads: Mapping[str, Any]) -> None:
        """Give gradients to the server.

        Args:
            grads: arrays by name, of the parameters' dtypes and shapes; what is missing or None is zero.

        Raises:
            TypeError, ValueError: here alone, for a name, dtype or shape the server does not have, before
                anything is sent.
            RingError: on the root, after :meth:`done`, or if the server's update raised.
            RingTimeout: the ring is broken afterwards.
        """
        self._check_worker("push")
        signatures = {
            item.name: item for flat in self._grads for item in flat.layout.signatures
        }
        for name, given in grads.items():
            if name not in signatures:
                raise ValueError(
                    f"push: no parameter is named {name!r}; known: {sorted(signatures)}"
                )
            found = signature(name, given)
            if found.dtype is not None and found != signatures[name]:
                raise ValueError(
                    f"push: {name} is a {found}, the parameter is a {signatures[name]}"
                )
        for flat in self._grads:
            flat.fill(grads)
        if self.mode == "async":
            self.ring.perform("push", self._send_gradients)
        else:
            self._in_step(_PUSH)

    def done(self) -> None:
        """Say that this worker is through.  In sync mode it returns when all are.

        Raises:
            RingError: on the root, if called before, or if the server's update raised.
            RingTimeout: the ring is broken afterwards.
        """
        self._check_worker("done")
        self._ended = "this worker is done"
        if self.mode == "async":
            self.ring.perform("done", self._say_done)
            return
        while self._step(_DONE) is not None:
            pass

    def _check_worker(self, verb: str) -> None:
        if self.ring.rank == self.root:
            raise RingError(
                f"{verb}: rank {self.root} is the server; its part is serve()"
            )
        if self._ended:
            raise RingError(f"{verb}: {self._ended}")

    # ---- synchronous: every rank takes part in every step -----------------------------------------

    def _in_step(self, wanted: int) -> None:
        """Take part in the others' steps until this worker's own is taken."""
        while self._step(wanted) != wanted:
            pass

    def _serve_in_step(self) -> None:
        while (taken := self._step(_SERVE)) is not None:
            if taken == _PUSH:
                try:
                    self._updates.apply(self._grads)
                except Exception as failure:
                    with suppress(RingError):  # the workers may be gone
                        self._wishes(_FAILED, _told(failure))
                    raise

    def _step(self, wanted: int) -> int | None:
        """One step of all ranks: returns what was done, None if every worker is done."""
        with self.ring.composed("parameter server"):
            return self._taken(wanted)

    def _taken(self, wanted: int) -> int | None:
        ring = self.ring
        wishes = self._wishes(wanted)
        workers = [wish for rank, wish in enumerate(wishes) if rank != self.root]
        if all(wish == _DONE for wish in workers):
            return None
        if _PULL in workers:
            for flat in self._params:
                ring.broadcast(flat.whole, self.root)
            return _PULL
        for flat in self._grads:
            if wanted != _PUSH:
                flat.fill({})
            out = flat.whole if ring.rank == self.root else None
            ring.reduce(flat.whole, "sum", self.root, out=out)
        return _PUSH

    def _wishes(self, wanted: int, failure: bytes = b"") -> list[int]:
        """What each rank wants; raises on the workers if the server says that it failed."""
        ring, place = self.ring, self.root + 1
        mine = np.frombuffer(bytes([wanted]) + failure, np.uint8)
        said = ring.allgather(mine).tobytes()
        more = len(said) - ring.size  # only the root says more than a byte
        text, wishes = said[place : place + more], said[:place] + said[place + more :]
        if wishes[self.root] == _FAILED and ring.rank != self.root:
            raise self._failed(text)
        return list(wishes)

    # ---- asynchronous: messages between a worker and the server -----------------------------------

    def _serve_each(self) -> None:
        failures: list[Exception] = []
        try:
            self.ring.perform("serve", partial(self._listen_to_all, failures))
        except RingError as error:
            if failures:  # and a worker has never come to hear of it
                raise error from failures[0]
            raise
        if failures:
            raise failures[0]

    def _listen_to_all(
        self, failures: list[Exception], carriage: Carriage, position: Position
    ) -> Program[None]:
        workers = [rank for rank in range(carriage.inner.size) if rank != self.root]
        lines = [_Line(carriage, position, rank) for rank in workers]
        yield from together([self._listen(line, failures) for line in lines])

    def _listen(self, line: _Line, failures: list[Exception]) -> Program[None]:
        """Serve one worker until it is done, or has been told of a failure."""
        grads = [flat.another() for flat in self._grads]
        while True:
            wish = bytearray(1)
            yield from line.receive(wish)
            if wish[0] == _PUSH:
                yield from line.move(False, grads)
                if not failures:
                    try:
                        self._updates.apply(grads)
                    except Exception as error:
                        failures.append(error)
                continue
            # What is said now counts: another worker's push may fail while the answer is on its way.
            text = _told(failures[0]) if failures else b""
            yield from line.send(_REPLY.pack(len(text), text))
            if text or wish[0] == _DONE:
                line.is_over()
                return
            snapshot = [flat.copied() for flat in self._params]
            yield from line.move(True, snapshot)

    def _ask_for_parameters(
        self, carriage: Carriage, position: Position
    ) -> Program[None]:
        line = self._to_server(carriage, position)
        yield from self._ask(line, _PULL)
        yield from line.move(False, self._params)

    def _send_gradients(self, carriage: Carriage, position: Position) -> Program[None]:
        line = self._to_server(carriage, position)
        yield from line.send(bytes([_PUSH]))
        yield from line.move(True, self._grads)

    def _say_done(self, carriage: Carriage, position: Position) -> Program[None]:
        yield from self._ask(self._to_server(carriage, position), _DONE)

    def _to_server(self, carriage: Carriage, position: Position) -> _Line:
        """This worker's line; what the other workers do is no concern of its."""
        position.excused = frozenset(range(carriage.inner.size)) - {self.root}
        return _Line(carriage, position, self.root)

    def _ask(self, line: _Line, wish: int) -> Program[None]:
        yield from line.send(bytes([wish]))
        reply = bytearray(_REPLY.size)
        yield from line.receive(reply)
        length, text = _REPLY.unpack(reply)
        if length:
            raise self._failed(text[:length])

    def _failed(self, text: bytes) -> RingError:
        """The error of a worker that hears that an update failed; its part ends with it."""
        self._ended = (
            f"parameter server: the update raised on rank {self.root}: "
            f"{text.decode(errors='replace')}"
        )
        return harmless(RingError(self._ended))


class _Line:
    """The messages between one worker and the server."""

    def __init__(self, carriage: Carriage, position: Position, peer: int) -> None:
        self._carriage = carriage
        self._position = position
        self._peer = peer

    def send(self, data: bytes) -> Program[None]:
        transport = self._carriage.inner
        yield from self._wait(transport.post_send(data, self._peer, TAG_SERVER))

    def receive(self, room: bytearray) -> Program[None]:
        transport = self._carriage.inner
        yield from self._wait(transport.post_receive(room, self._peer, TAG_SERVER))

    def move(self, is_send: bool, flats: list[Flat]) -> Program[None]:
        """Send or receive flat buffers, one after another."""
        for flat in flats:
            request = flat.post(self._carriage, is_send, self._peer, TAG_SERVER)
            yield from self._wait(request)

    def is_over(self) -> None:
        """No more will come: whoever waits in vain does not wait for this rank."""
        self._position.excused |= {self._peer}

    def _wait(self, request: Request) -> Program[None]:
        yield from wait(request)
        self._position.has_moved = True


def _told(error: Exception) -> bytes:
    """What went wrong, as the workers hear it."""
    text = f"{type(error).__name__}: {error}".encode(errors="backslashreplace")
    return text[: _REPLY.size - 2]
