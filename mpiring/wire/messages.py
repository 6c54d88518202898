"""Point to point: send, receive, and groups of them that are posted together.

A message is two: a header that says what the sender sends, then the data.  A receiver whose array does not
fit takes the data all the same, so that the ring stays usable, and then raises.

Group semantics are those of NCCL's (the lecture, section 2.1.6): nothing starts before the group ends, then
everything is posted at once, so no order of sends and receives deadlocks, also not to oneself.  Messages from
one rank with one tag match in the order of the calls.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from .arithmetic import DTYPES
from .operands import Operand, checked_output, operand
from .transport import Program, Transport, together, wait

USER_TAGS = 1 << 14  # tags 0 .. USER_TAGS - 1 are the user's

_HEADER = struct.Struct("<Bq")  # dtype as its place in _CODES, count in elements
_CODES = sorted(DTYPES)


class Message(NamedTuple):
    """One call of ``send`` or ``recv``."""

    is_send: bool
    array: Any
    peer: int
    tag: int


def exchange(
    transport: Transport, messages: list[Message], is_group: bool = True
) -> Program[list[Any]]:
    """Post all messages together and wait for all; gives the array of each.

    Args:
        transport: carries them.
        messages: sends and receives, in the order of the calls.
        is_group: whether they stand in a group; one alone cannot be to oneself.

    Raises:
        ValueError, TypeError: for a wrong argument, before anything is sent.
        ValueError: if what arrives is not what a receive has room for, after all are done.
    """
    checked = [_checked(transport, message, is_group) for message in messages]
    receives: dict[tuple[int, int], list[tuple[int, Operand, Any]]] = {}
    for place, (message, source) in enumerate(zip(messages, checked)):
        if not message.is_send:
            channel = (message.peer, message.tag)
            receives.setdefault(channel, []).append((place, source, message.array))
    programs = [
        _receive_all(transport, peer, tag, waiting)
        for (peer, tag), waiting in receives.items()
    ]
    programs += [
        _send(transport, message, source)
        for message, source in zip(messages, checked)
        if message.is_send
    ]
    yield from together(programs)
    return [message.array for message in messages]


def _checked(transport: Transport, message: Message, is_group: bool) -> Operand:
    verb, end = ("send", "dest") if message.is_send else ("recv", "source")
    _, array, peer, tag = message
    me = f"{verb}: rank {transport.rank}"
    if (
        isinstance(peer, bool)
        or not isinstance(peer, int)
        or not 0 <= peer < transport.size
    ):
        raise ValueError(f"{me}: {end} must be 0 to {transport.size - 1}, got {peer!r}")
    if peer == transport.rank and not is_group:
        raise ValueError(
            f"{me}: {end} is this rank itself, which would wait for ever: "
            "put the send and the recv into one group()"
        )
    if isinstance(tag, bool) or not isinstance(tag, int) or not 0 <= tag < USER_TAGS:
        raise ValueError(f"{me}: tag must be 0 to {USER_TAGS - 1}, got {tag!r}")
    try:
        source = operand(array)
        if not message.is_send:
            checked_output(source, array)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{me}: {error}") from None
    return source


def _send(transport: Transport, message: Message, source: Operand) -> Program[None]:
    kind = source.kind
    flat = kind.flat(source.array)
    header = _HEADER.pack(_CODES.index(source.dtype), flat.size)
    requests = [
        transport.post_send(header, message.peer, message.tag),
        transport.isend(kind.message(flat), message.peer, message.tag),
    ]
    for request in requests:
        yield from wait(request)


def _receive_all(
    transport: Transport, peer: int, tag: int, waiting: list[tuple[int, Operand, Any]]
) -> Program[None]:
    """The receives of one channel, one after another: their headers and data come in turns."""
    failure: ValueError | None = None
    for _, target, out in waiting:
        header = bytearray(_HEADER.size)
        yield from wait(transport.post_receive(header, peer, tag))
        code, count = _HEADER.unpack(header)
        kind, array = target.kind, target.array
        fits = (_CODES[code], count) == (target.dtype, array.size)
        if fits and kind.is_flat(array):
            flat = array.reshape(-1)
        else:
            flat = kind.empty(count, _CODES[code])
        yield from wait(transport.irecv(kind.message(flat), peer, tag))
        if not fits:
            failure = failure or ValueError(
                f"recv: rank {transport.rank} passed {target.description}, but rank {peer} sent "
                f"{count} elements of {_CODES[code]}; dtype and count must be the sender's"
            )
        elif not kind.is_flat(array):
            kind.write_back(flat, array)
    if failure is not None:
        raise failure
