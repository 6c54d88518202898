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

from ...errors import harmless
from ..arrays.operands import Operand, Passed, Target, checked_output, clash, operand
from ..reduce.arithmetic import DTYPES, itemsize
from ..settings.arguments import whole_number
from ..transport.device import Carriage
from ..transport.protocol import Program, Transport, together, wait

USER_TAGS = 1 << 14  # tags 0 .. USER_TAGS - 1 are the user's

_HEADER = struct.Struct("<Bq")  # dtype as its place in _CODES, count in elements
_CODES = sorted(DTYPES)


class Message(NamedTuple):
    """One call of ``send`` or ``recv``."""

    is_send: bool
    array: Any
    peer: int
    tag: int


class _Post(NamedTuple):
    """A message that has been checked."""

    place: int  # among the messages of its group
    message: Message
    source: Operand
    transport: Transport  # for its data


def exchange(
    carriage: Carriage, messages: list[Message], is_group: bool = True
) -> Program[list[Any]]:
    """Post all messages together and wait for all; gives the array of each.

    Args:
        carriage: of this rank.
        messages: sends and receives, in the order of the calls.
        is_group: whether they stand in a group; one alone cannot be to oneself.

    Returns:
        what was sent and received; of a receive into what cannot be filled, a new array.

    Raises:
        ValueError, TypeError: for a wrong argument, and for arrays that overlap, before anything is sent.
        ValueError: if what arrives is not what a receive has room for, after all are done.
    """
    transport = carriage.inner
    channels: dict[tuple[bool, int, int], list[_Post]] = {}
    posts = []
    for place, message in enumerate(messages):
        try:
            message, source = _checked(transport, message, is_group)
        except (TypeError, ValueError) as error:
            raise harmless(error)  # nothing has been sent
        stages = carriage.stages(source.kind, source.array)
        # Neither end knows the other's memory, so that all data are cut as if it were staged.
        carrier = carriage.transport(source.kind, stages, someone_stages=True)
        posts.append(_Post(place, message, source, carrier))
        channel = (message.is_send, message.peer, message.tag)
        channels.setdefault(channel, []).append(posts[-1])
        if stages:
            carriage.reserve(source.kind, len(channels))
    _check_apart(transport, posts)
    results = [message.array for message in messages]
    programs = [
        (_send_all if channel[0].message.is_send else _receive_all)(
            transport, channel, results
        )
        for channel in channels.values()
    ]
    yield from together(programs)
    return results


def _checked(
    transport: Transport, message: Message, is_group: bool
) -> tuple[Message, Operand]:
    verb, end = ("send", "dest") if message.is_send else ("recv", "source")
    _, array, peer, tag = message
    me = f"{verb}: rank {transport.rank}"
    peer = whole_number(f"{me}: {end}", peer, 0, transport.size - 1)
    if peer == transport.rank and not is_group:
        raise ValueError(
            f"{me}: {end} is this rank itself, which would wait for ever: "
            "put the send and the recv into one group()"
        )
    tag = whole_number(f"{me}: tag", tag, 0, USER_TAGS - 1)
    try:
        source = operand(array)
        is_immutable = source.kind.is_immutable(array)
        if is_immutable and is_group and not message.is_send:
            raise TypeError(
                f"a {type(array).__name__} cannot be filled in a group; receive into another kind of array"
            )
        if not message.is_send and not is_immutable:
            checked_output(source, array)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{me}: {error}") from None
    return Message(message.is_send, array, peer, tag), source


def _check_apart(transport: Transport, posts: list[_Post]) -> None:
    """Raise if an array that is filled is part of that of another message: all are under way at one time."""
    passed = [Passed(p.source, not p.message.is_send, p.place) for p in posts]
    if (places := clash(passed)) is not None:
        one, other = (_call(posts[place].message) for place in places)
        raise harmless(
            ValueError(
                f"group: rank {transport.rank}: {one} fills memory that {other} has, too, and both are under way at "
                "one time; pass arrays that do not overlap"
            )
        )


def _call(message: Message) -> str:
    """A call as the user wrote it, but for its array."""
    verb, end = ("send", "dest") if message.is_send else ("recv", "source")
    return f"{verb}({end}={message.peer}, tag={message.tag})"


def _send_all(
    transport: Transport, channel: list[_Post], results: list[Any]
) -> Program[None]:
    """The sends of one channel, one after another."""
    for place, (_, theirs, peer, tag), source, carrier in channel:
        kind = source.kind
        flat = kind.flat(source.array)
        header = _HEADER.pack(_CODES.index(source.dtype), flat.size)
        requests = [
            transport.post_send(header, peer, tag),
            carrier.isend(kind.message(flat), peer, tag),
        ]
        for request in requests:
            yield from wait(request)
        results[place] = kind.finished(theirs, source.array)


def _receive_all(
    transport: Transport, channel: list[_Post], results: list[Any]
) -> Program[None]:
    """The receives of one channel, one after another: their headers and data come in turns."""
    failure: ValueError | None = None
    for place, (_, out, peer, tag), source, carrier in channel:
        header = bytearray(_HEADER.size)
        yield from wait(transport.post_receive(header, peer, tag))
        code, count = _HEADER.unpack(header)
        kind, array = source.kind, source.array
        fits = (_CODES[code], count) == (source.dtype, array.size)
        if not fits:
            # As bytes: this process may have no such dtype, and the message must be taken all the same.
            rest = kind.empty(count * itemsize(_CODES[code]), "uint8")
            yield from wait(carrier.irecv(kind.message(rest), peer, tag))
            failure = failure or ValueError(
                f"recv: rank {transport.rank} passed {source.description}, but rank {peer} sent "
                f"{count} elements of {_CODES[code]}; dtype and count must be the sender's"
            )
            continue
        if kind.is_immutable(out):
            target = Target(kind, *kind.new(array.shape, source.dtype))
        else:
            target = Target(kind, out, array)
        yield from wait(carrier.irecv(kind.message(target.flat), peer, tag))
        results[place] = target.done()
    if failure is not None:
        raise harmless(failure)
