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

If the update raises, the server's ``serve`` raises that, and every worker a :class:`RingError` that says so
when it next asks for something.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from ..errors import RingError, harmless
from ..ring import Ring
from ..wire.arithmetic import Array
from ..wire.device_transport import Carriage
from ..wire.execute import Position
from ..wire.mpi import TAG_SERVER
from ..wire.operands import operand
from ..wire.transport import Program, Request, together, wait
from .agreement import check_server, difference, everyone_says, parameter
from .flat import Flat, groups, signature

_SERVE, _PULL, _PUSH, _DONE, _FAILED = range(5)  # what a rank wants
_REPLY = struct.Struct(
    "<H512s"
)  # bytes of what went wrong in the update, 0 if all is well

Update = Callable[[dict[str, Array], dict[str, Array]], "Mapping[str, Any] | None"]


class ParameterServer:
    """Parameters on one rank, served to the others.  Making one is collective over the ring.

    Args:
        ring: its root serves, its other ranks work.
        params: a mapping of named arrays; the root's values are the ones that count, but every rank gives the
            same names, dtypes and shapes.  They are copied.
        update: ``update(params, grads)``, called on the root: changes the arrays in ``params`` in place, puts
            others in their place, or returns new values for some or all of them.  ``grads`` has the sum over
            the workers (sync) or one worker's gradients (async), zeros where none were pushed; its memory is
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
        self._update = update
        self._finished = False
        failure: Exception | None = None
        said = ""
        try:
            check_server(ring, params, update, root, mode)
            places: dict[str, tuple[str, str]] = {}
            signatures = [
                parameter(name, params[name], places) for name in sorted(params)
            ]
            said = json.dumps({"root": root, "mode": mode, "params": signatures})
            self._params = [
                Flat(group, operand(params[group[0].name]).kind)
                for group in groups(signatures)
            ]
            self._grads = [flat.another() for flat in self._params]
            for flat in self._params:
                flat.fill(params)
        except Exception as error:
            failure = error
        if not ring.exchange("ParameterServer", said, failure):
            raise difference(everyone_says(ring, said))

    @property
    def params(self) -> dict[str, Array]:
        """The parameters as this rank has them: on the root the current ones, else the last it was sent."""
        return _named(self._params)

    # ---- the server's side ------------------------------------------------------------------------

    def serve(self) -> dict[str, Array]:
        """On the root: serve until every worker is done, and return the parameters.

        Raises:
            RingError: on a rank that is not the root, and if it was called before.
            RingTimeout: if the ring has a timeout and no worker says anything for so long.
            Exception: what ``update`` raised; the workers get a :class:`RingError`.
        """
        if self.ring.rank != self.root:
            raise RingError(
                f"serve: rank {self.ring.rank} is a worker, rank {self.root} serves"
            )
        if self._finished:
            raise RingError("serve: every worker is done; make a new ParameterServer")
        self._finished = True
        if self.mode == "async":
            failure = self.ring.perform("serve", self._listen_to_all)
            if failure is not None:
                raise failure
        else:
            self._serve_in_step()
        return self.params

    def _apply(self, grads: list[Flat]) -> None:
        assert self._update is not None
        current = self.params
        given = dict(current)
        returned = self._update(given, _named(grads))
        copies = [i.name for f in self._params if f.shows_copies for i in f.signatures]
        new = {
            name: value
            for name, value in given.items()
            if name in copies or value is not current.get(name)
        }
        new.update(returned or {})
        for name, value in new.items():
            if name not in current:
                raise ValueError(
                    f"update: gave {name!r}, which is no parameter; known: {sorted(current)}"
                )
            shape = () if value is None else np.shape(value)
            if value is None or shape != current[name].shape:
                got = "None" if value is None else f"shape {shape}"
                raise ValueError(
                    f"update: gave {got} for {name}, expected shape {current[name].shape}"
                )
        for flat in self._params:
            flat.update(new)

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
        return _named([flat.copied() for flat in self._params])

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
            item.name: item for flat in self._grads for item in flat.signatures
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
        self._finished = True
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
        if self._finished:
            raise RingError(
                f"{verb}: this worker is done, or was told that the server failed"
            )

    # ---- synchronous: every rank takes part in every step -----------------------------------------

    def _in_step(self, wanted: int) -> None:
        """Take part in the others' steps until this worker's own is taken."""
        while self._step(wanted) != wanted:
            pass

    def _serve_in_step(self) -> None:
        while (taken := self._step(_SERVE)) is not None:
            if taken == _PUSH:
                try:
                    self._apply(self._grads)
                except Exception as failure:
                    with suppress(RingError):  # the workers may be gone
                        self._wishes(_FAILED, _told(failure))
                    raise

    def _step(self, wanted: int) -> int | None:
        """One step of all ranks: returns what was done, None if every worker is done."""
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
            self._finished = True
            raise self._failed(text)
        return list(wishes)

    # ---- asynchronous: messages between a worker and the server -----------------------------------

    def _listen_to_all(
        self, carriage: Carriage, position: Position
    ) -> Program[Exception | None]:
        failures: list[Exception] = []
        workers = [rank for rank in range(carriage.inner.size) if rank != self.root]
        lines = [_Line(carriage, position, rank) for rank in workers]
        yield from together([self._listen(line, failures) for line in lines])
        return failures[0] if failures else None

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
                        self._apply(grads)
                    except Exception as error:
                        failures.append(error)
                continue
            # What is said now counts: another worker's push may fail while the answer is on its way.
            text = _told(failures[0]) if failures else b""
            yield from line.send(_REPLY.pack(len(text), text))
            if text or wish[0] == _DONE:
                return
            snapshot = [flat.copied() for flat in self._params]
            yield from line.move(True, snapshot)

    def _ask_for_parameters(
        self, carriage: Carriage, position: Position
    ) -> Program[None]:
        line = _Line(carriage, position, self.root)
        yield from self._ask(line, _PULL)
        yield from line.move(False, self._params)

    def _send_gradients(self, carriage: Carriage, position: Position) -> Program[None]:
        line = _Line(carriage, position, self.root)
        yield from line.send(bytes([_PUSH]))
        yield from line.move(True, self._grads)

    def _say_done(self, carriage: Carriage, position: Position) -> Program[None]:
        yield from self._ask(_Line(carriage, position, self.root), _DONE)

    def _ask(self, line: _Line, wish: int) -> Program[None]:
        yield from line.send(bytes([wish]))
        reply = bytearray(_REPLY.size)
        yield from line.receive(reply)
        length, text = _REPLY.unpack(reply)
        if length:
            self._finished = True
            raise harmless(self._failed(text[:length]))

    def _failed(self, text: bytes) -> RingError:
        return RingError(
            f"parameter server: the update raised on rank {self.root}: {text.decode(errors='replace')}"
        )


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

    def _wait(self, request: Request) -> Program[None]:
        yield from wait(request)
        self._position.has_moved = True


def _told(error: Exception) -> bytes:
    """What went wrong, as the workers hear it."""
    text = f"{type(error).__name__}: {error}".encode(errors="backslashreplace")
    return text[: _REPLY.size - 2]


def _named(flats: list[Flat]) -> dict[str, Array]:
    return {name: view for flat in flats for name, view in flat.views.items()}
