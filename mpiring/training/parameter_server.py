"""The parameter server: one rank keeps the parameters, the others pull them and push gradients.

The lecture's four steps (section 1.4): *pull* the parameters (a broadcast), *compute*, *push* the gradients
(a reduce), *update*.  Every step moves the whole model twice, and the server's link carries it all if every
worker talks to the server: what the ring all-reduce was invented against (section 3.2).

Synchronous mode
    All workers go step by step.  Before each step every rank says what it wants; a pull is answered at once,
    by a broadcast, in which all take part; a push waits until every worker that is still there pushes, then
    the sum of the gradients is reduced to the server, which updates once.  A worker that is done goes on
    taking part, with zeros, until all are done.

Asynchronous mode
    Workers pull and push when they are ready, by messages to the server, which applies each push as one
    update in the order they arrive.  A pull gets a snapshot, taken between two updates.  The server hears
    each worker by itself, so messages of different workers never mix.

If the update raises, the server's ``serve`` raises that, and every worker a :class:`RingError` that says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import RingError
from ..ring import Ring
from ..wire.arithmetic import Array
from ..wire.mpi import TAG_SERVER
from ..wire.transport import Program, Transport, together, wait
from .flat import Flat, groups, signature

_SERVE, _PULL, _PUSH, _DONE, _FAILED = range(5)
_SAID_BYTES = 512  # of what went wrong in the update

Update = Callable[[dict[str, Array], dict[str, Array]], "Mapping[str, Any] | None"]


class ParameterServer:
    """Parameters on one rank, served to the others.  Making one is collective over the ring.

    Args:
        ring: its root serves, its other ranks work.
        params: a mapping of named arrays; the root's values are the ones that count, but every rank gives the
            same names, dtypes and shapes.
        update: ``update(params, grads)``, called on the root: changes ``params`` in place, or returns new
            values for some or all of them.  ``grads`` has the sum over the workers (sync) or one worker's
            gradients (async), and zeros where none were pushed.
        root: the rank that serves.
        mode: ``"sync"`` or ``"async"``.

    Raises:
        TypeError, ValueError: on every rank, naming what differs.
    """

    def __init__(
        self,
        ring: Ring,
        params: Mapping[str, Any],
        update: Update,
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
            if mode not in ("sync", "async"):
                raise ValueError(f"unknown mode {mode!r}; known: 'sync', 'async'")
            if (
                isinstance(root, bool)
                or not isinstance(root, int)
                or not 0 <= root < ring.size
            ):
                raise ValueError(f"root must be 0 to {ring.size - 1}, got {root!r}")
            if ring.size < 2:
                raise ValueError(
                    "a parameter server needs a ring of 2 or more: a server and workers"
                )
            signatures = [signature(name, params[name]) for name in sorted(params)]
            missing = [item.name for item in signatures if item.dtype is None]
            if missing:
                raise TypeError(
                    f"parameter {missing[0]} is None; every parameter must be an array"
                )
            said = json.dumps([root, mode, signatures])
            self._params = [Flat(group) for group in groups(signatures)]
            self._grads = [Flat(group) for group in groups(signatures)]
            self._names = frozenset(item.name for item in signatures)
            for flat in self._params:
                flat.fill(params)
        except Exception as error:
            failure = error
        if not ring.exchange("ParameterServer", said, failure):
            raise ValueError(
                "ParameterServer: the ranks differ in root, mode, or the parameters' names, dtypes or "
                f"shapes; rank {ring.rank} passed {said}"
            )

    @property
    def params(self) -> dict[str, Array]:
        """The parameters as this rank has them: on the root the current ones, else the last pulled."""
        return {
            name: view for flat in self._params for name, view in flat.views.items()
        }

    # ---- the server's side ------------------------------------------------------------------------

    def serve(self) -> dict[str, Array]:
        """On the root: serve until every worker is done, and return the parameters.

        Raises:
            RingError: on a rank that is not the root.
            Exception: what ``update`` raised; the workers get a :class:`RingError`.
        """
        if self.ring.rank != self.root:
            raise RingError(
                f"serve: rank {self.ring.rank} is a worker, rank {self.root} serves"
            )
        if self.mode == "async":
            failure = self.ring.perform("serve", self._listen_to_all)
            if failure is not None:
                raise failure
        else:
            self._serve_in_step()
        return self.params

    def _apply(self, grads: list[Flat]) -> None:
        named = {name: view for flat in grads for name, view in flat.views.items()}
        params = self.params
        changed = self._update(params, named)
        if changed is not None:
            for name, value in changed.items():
                params[name][...] = value

    # ---- the workers' side ------------------------------------------------------------------------

    def pull(self) -> dict[str, Array]:
        """The current parameters, in new arrays.

        Raises:
            RingError: on the root, after :meth:`done`, or if the server's update raised.
        """
        self._check_worker("pull")
        if self.mode == "async":
            self.ring.perform("pull", self._ask_for_parameters)
        else:
            self._in_step(_PULL)
        return {name: view.copy() for name, view in self.params.items()}

    def push(self, grads: Mapping[str, Any]) -> None:
        """Give gradients to the server.

        Args:
            grads: arrays by name, of the parameters' dtypes and shapes; what is missing or None is zero.

        Raises:
            ValueError: here alone, for a name or shape the server does not have, before anything is sent.
            RingError: on the root, after :meth:`done`, or if the server's update raised.
        """
        self._check_worker("push")
        unknown = sorted(set(grads) - self._names)
        if unknown:
            raise ValueError(
                f"push: no parameter is named {unknown[0]!r}; known: {sorted(self._names)}"
            )
        for flat in self._grads:
            for item in flat.signatures:
                given = grads.get(item.name)
                found = signature(item.name, given)
                if found.dtype is not None and found != item:
                    raise ValueError(
                        f"push: {item.name} is a {found}, the parameter is a {item}"
                    )
            flat.fill(grads)
        if self.mode == "async":
            self.ring.perform("push", self._send_gradients)
        else:
            self._in_step(_PUSH)

    def done(self) -> None:
        """Say that this worker is through.  In sync mode it returns when all are."""
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
            raise RingError(f"{verb}: this worker is done")

    # ---- synchronous: every rank takes part in every step -----------------------------------------

    def _in_step(self, wanted: int) -> None:
        """Take part in the others' steps until this worker's own is taken."""
        while self._step(wanted) != wanted:
            pass

    def _serve_in_step(self) -> None:
        wanted = _SERVE
        failure: Exception | None = None
        while (taken := self._step(wanted)) is not None:
            if taken == _PUSH:
                try:
                    self._apply(self._grads)
                except Exception as error:
                    failure, wanted = error, _FAILED
            if failure is not None:
                try:
                    self._step(wanted)
                except RingError:
                    raise failure from None

    def _step(self, wanted: int) -> int | None:
        """One step of all ranks: returns what was done, None if every worker is done."""
        ring = self.ring
        wishes = ring.allgather(np.array([wanted], np.uint8))
        workers = [int(wish) for rank, wish in enumerate(wishes) if rank != self.root]
        if wishes[self.root] == _FAILED:
            raise RingError(f"parameter server: the update raised on rank {self.root}")
        if all(wish == _DONE for wish in workers):
            return None
        if _PULL in workers:
            for flat in self._params:
                ring.broadcast(flat.buffer, self.root)
            return _PULL
        for flat in self._grads:
            if wanted != _PUSH:
                flat.fill({})
            ring.reduce(flat.buffer, "sum", self.root, out=self._out(flat))
        return _PUSH

    def _out(self, flat: Flat) -> Array | None:
        return flat.buffer if self.ring.rank == self.root else None

    # ---- asynchronous: messages between a worker and the server -----------------------------------

    def _listen_to_all(self, transport: Transport) -> Program[Exception | None]:
        failures: list[Exception] = []
        workers = [rank for rank in range(transport.size) if rank != self.root]
        yield from together(
            [self._listen(transport, rank, failures) for rank in workers]
        )
        return failures[0] if failures else None

    def _listen(
        self, transport: Transport, worker: int, failures: list[Exception]
    ) -> Program[None]:
        """Serve one worker until it is done, or has been told of a failure."""
        grads = [Flat(flat.signatures) for flat in self._grads]
        while True:
            wish = bytearray(1)
            yield from wait(transport.post_receive(wish, worker, TAG_SERVER))
            if wish[0] == _PUSH:
                yield from _move(transport.irecv, grads, worker)
                if not failures:
                    try:
                        self._apply(grads)
                    except Exception as error:
                        failures.append(error)
                continue
            # The reply: whether all is well, then what went wrong.
            text = f"{type(failures[0]).__name__}: {failures[0]}" if failures else ""
            reply = bytes([bool(failures)]) + text.encode()[:_SAID_BYTES]
            yield from wait(transport.post_send(reply, worker, TAG_SERVER))
            if failures or wish[0] == _DONE:
                return
            snapshot = [Flat(flat.signatures) for flat in self._params]
            for copy in snapshot:
                copy.fill(self.params)
            yield from _move(transport.isend, snapshot, worker)

    def _ask_for_parameters(self, transport: Transport) -> Program[None]:
        yield from self._ask(transport, _PULL)
        yield from _move(transport.irecv, self._params, self.root)

    def _send_gradients(self, transport: Transport) -> Program[None]:
        yield from wait(transport.post_send(bytes([_PUSH]), self.root, TAG_SERVER))
        yield from _move(transport.isend, self._grads, self.root)

    def _say_done(self, transport: Transport) -> Program[None]:
        yield from self._ask(transport, _DONE)

    def _ask(self, transport: Transport, wish: int) -> Program[None]:
        yield from wait(transport.post_send(bytes([wish]), self.root, TAG_SERVER))
        reply = bytearray(1 + _SAID_BYTES)
        yield from wait(transport.post_receive(reply, self.root, TAG_SERVER))
        if reply[0]:
            self._finished = True
            said = bytes(reply[1:]).rstrip(b"\0").decode(errors="replace")
            raise RingError(
                f"parameter server: the update raised on rank {self.root}: {said}"
            )


def _move(post: Callable[..., Any], flats: list[Flat], peer: int) -> Program[None]:
    """Send or receive flat buffers, all at once."""
    requests = [post(flat.message(), peer, TAG_SERVER) for flat in flats]
    for request in requests:
        yield from wait(request)
