"""Sends, receives and groups of several ranks in one process, under interleavings that try to break them."""

from __future__ import annotations

import types
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.errors import DeadlockError, RingError, harmless
from mpiring.wire.arrays import Kind
from mpiring.wire.ring import messages
from mpiring.wire.ring.messages import USER_TAGS, Message, exchange
from mpiring.wire.transport.device import Carriage
from mpiring.wire.transport.local import LocalNetwork
from mpiring.wire.transport.protocol import AnyOf, Request, together, wait

from wire.interleaving import chooser, protocols, seeds
from wire.ranks import kept
from wire.reference import DTYPES, same_bits, varied


def group(network, calls):
    """Run one group on each rank, ``calls[rank]`` its messages; what each got or raised."""
    return network.run(
        [
            kept(exchange(Carriage(t, "direct"), calls[t.rank]))
            for t in network.transports
        ]
    )


def send(array, dest, tag=0):
    return Message(True, array, dest, tag)


def recv(out, source, tag=0):
    return Message(False, out, source, tag)


def strided(dtype, count):
    """Room for so many elements that is not flat: every other one, from behind."""
    return np.zeros(2 * count + 2, varied(dtype, 0, 0).dtype)[-2:1:-2]


def traffic(size, channels, seed):
    """Random messages, and each rank's calls in an order of its own: (calls, [(out, what must arrive)]).

    Only the messages of one channel (source, dest, tag) keep their order.
    """
    random = Random(seed)
    calls: list[list[Message]] = [[] for _ in range(size)]
    expected: list[tuple[Any, Any]] = []
    for source, dest, tag in channels:
        dtype = random.choice(DTYPES)
        count = random.choice([0, 1, 2, 7, 40])
        data = varied(dtype, count, source, len(expected) + 17)
        x, out = data.copy(), np.zeros_like(data)
        if random.random() < 0.5:
            x, out = strided(dtype, count), strided(dtype, count)
            x[...] = data
        calls[source].append(send(x, dest, tag))
        calls[dest].append(recv(out, source, tag))
        expected.append((out, data))
    return [in_another_order(of_rank, random) for of_rank in calls], expected


def in_another_order(messages, random):
    """The messages shuffled, those of one channel in their order."""
    waiting: dict[Any, list[Message]] = {}
    for message in messages:
        waiting.setdefault((message.is_send, message.peer, message.tag), []).append(
            message
        )
    channels = list(Counter({c: len(m) for c, m in waiting.items()}).elements())
    random.shuffle(channels)
    return [waiting[channel].pop(0) for channel in channels]


@examples(max_examples=150)
@given(data=st.data(), size=st.integers(1, 5), seed=seeds, protocol=protocols)
def test_any_messages_in_any_order(data, size, seed, protocol):
    """Between all pairs, also to oneself; several to one peer; tags; nothing; any dtype; split."""
    ranks = st.integers(0, size - 1)
    channels = data.draw(st.lists(st.tuples(ranks, ranks, st.sampled_from([0, 3]))))
    check_traffic(size, channels, seed, protocol)


def check_traffic(size, channels, seed, protocol):
    calls, expected = traffic(size, channels, seed)
    network = LocalNetwork(size, chooser(seed), protocol, message_bytes=11)
    got = group(network, calls)
    for of_rank, asked in zip(got, calls):
        assert [id(a) for a in of_rank] == [id(m.array) for m in asked]
    for out, sent in expected:
        assert same_bits(np.ascontiguousarray(out), sent)


MISTAKES = {
    "does not wait for the data": (
        "        yield from wait(carrier.irecv(kind.message(target.flat), peer, tag))\n",
        "        carrier.irecv(kind.message(target.flat), peer, tag)\n",
    ),
    "does not wait for its sends": (
        "        for request in requests:\n            yield from wait(request)\n",
        "        yield from wait(requests[0])\n",
    ),
    "one message after the other": (
        "    yield from together(programs)\n",
        "    for program in programs:\n        yield from program\n",
    ),
    "mixes up tags": (
        "transport.post_send(header, peer, tag)",
        "transport.post_send(header, peer, 0)",
    ),
    "receives of a channel side by side": (
        "channels.setdefault(channel, [])",
        "channels.setdefault((*channel, place * (not message.is_send)), [])",
    ),
    "forgets to write back": ("target.done()", "out"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_each_of_these_mistakes_is_found(what, monkeypatch):
    old, new = MISTAKES[what]
    source = Path(messages.__file__).read_text()
    assert source.count(old) == 1
    if "place" in new:
        loop = "for (peer, tag), waiting in"
        source = source.replace(loop, "for (peer, tag, _), waiting in")
    mistaken = types.ModuleType("mpiring.wire.ring.mistaken")
    mistaken.__package__ = "mpiring.wire.ring"
    exec(source.replace(old, new), mistaken.__dict__)
    monkeypatch.setitem(globals(), "exchange", mistaken.exchange)
    channels = [(a, b, tag) for a in (0, 1) for b in (0, 1) for tag in (0, 3)] * 2
    with pytest.raises(
        (AssertionError, ValueError, RingError, DeadlockError, KeyError)
    ):
        for seed in range(40):
            check_traffic(2, channels, seed, None)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_what_a_group_is_for(size):
    """Everybody sends first: fine in a group, a deadlock when each call waits."""
    calls = [
        [
            send(np.full(9, 8**rank), (rank + 1) % size),
            recv(np.zeros(9, int), (rank - 1) % size),
        ]
        for rank in range(size)
    ]
    group(LocalNetwork(size), calls)
    for rank, (_, message) in enumerate(calls):
        assert message.array.tolist() == [8 ** ((rank - 1) % size)] * 9

    def one_by_one(transport):
        for message in calls[transport.rank]:
            yield from exchange(Carriage(transport, "direct"), [message])

    network = LocalNetwork(size)
    with pytest.raises(DeadlockError):
        network.run([one_by_one(t) for t in network.transports])
    with pytest.raises(RingError, match="never received"):
        group(LocalNetwork(size, rendezvous=False), [[message] for message, _ in calls])


@examples(max_examples=60)
@given(
    odd=st.integers(0, 3),
    sent=st.sampled_from(["float32[5]", "float64[4]", "int32[5]", "float32[0]"]),
    seed=seeds,
    protocol=protocols,
)
@example(odd=0, sent="float32[0]", seed=0, protocol=True)
def test_a_wrong_message_among_right_ones(odd, sent, seed, protocol):
    """The receiver alone raises, naming both; the messages before and after it arrive."""
    dtype, count = sent[:-1].split("[")
    xs = [np.full(4, n + 1, "f4") for n in range(4)]
    xs[odd] = np.full(int(count), 9, dtype)
    outs = [np.zeros((2, 2), "f4") for _ in range(4)]
    network = LocalNetwork(2, chooser(seed), protocol, message_bytes=7)
    calls = [[send(x, 1) for x in xs], [recv(out, 0) for out in outs]]
    sender, receiver = group(network, calls)
    assert not isinstance(sender, Exception)
    assert type(receiver) is ValueError
    assert str(receiver) == (
        "recv: rank 1 passed float32[2,2], but rank 0 sent "
        f"{count} elements of {dtype}; dtype and count must be the sender's"
    )
    for n, out in enumerate(outs):
        assert out.ravel().tolist() == [0 if n == odd else n + 1] * 4
    again = np.zeros(4, "f4")
    group(network, [[send(xs[odd - 1], 1)], [recv(again, 0)]])
    assert same_bits(again, xs[odd - 1])


read_only = np.zeros(3)
read_only.flags.writeable = False
WRONG = {
    "dest": (
        send(np.ones(3), 2),
        "ValueError: send: rank 1: dest must be 0 to 1, got 2",
    ),
    "source": (recv(np.ones(3), -1), "ValueError: recv: rank 1: source must be 0 to 1"),
    "bool": (send(np.ones(3), True), "ValueError: send: rank 1: dest must be 0 to 1"),
    "tag": (send(np.ones(3), 0, USER_TAGS), "tag must be 0 to 16383, got 16384"),
    "negative tag": (recv(np.ones(3), 0, -1), "tag must be 0 to 16383, got -1"),
    "tag's type": (send(np.ones(3), 0, "a"), "tag must be 0 to 16383, got 'a'"),
    "list": (send([1, 2], 0), "TypeError: send: rank 1: a builtins.list"),
    "None": (recv(None, 0), "TypeError: recv: rank 1: a builtins.NoneType"),
    "number": (recv(1.0, 0), "TypeError: recv: rank 1: out is a float"),
    "read-only": (recv(read_only, 0), "ValueError: recv: rank 1: out is read-only"),
    "object": (send(np.array([None]), 0), "TypeError: send: rank 1: dtype object"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_stops_the_whole_group_before_it_starts(what):
    message, text = WRONG[what]
    network = LocalNetwork(2)
    program = exchange(
        Carriage(network.transports[1], "direct"), [send(np.ones(3), 0), message]
    )
    with pytest.raises((TypeError, ValueError)) as caught:
        next(program)
    assert text in f"{caught.typename}: {caught.value}"
    assert network.messages == 0


@pytest.mark.parametrize("make", [send, recv])
def test_a_message_to_oneself_needs_a_group(make):
    network = LocalNetwork(2)
    alone = exchange(
        Carriage(network.transports[1], "direct"), [make(np.ones(3), 1)], is_group=False
    )
    with pytest.raises(ValueError, match=r"rank 1: \w+ is this rank itself.*group\(\)"):
        next(alone)
    assert network.messages == 0


# ---- programs side by side ------------------------------------------------------------------------


def talk(transport, peer, tag, rounds, failing=None):
    """Exchange numbers with a peer, and perhaps raise at a round; gives the last number heard."""
    heard = bytearray(1)
    for i in range(rounds):
        if i == failing:
            raise harmless(ValueError(f"round {i} with {peer}, tag {tag}"))
        receive = transport.post_receive(heard, peer, tag)
        yield from wait(transport.post_send(bytes([10 * tag + i]), peer, tag))
        yield from wait(receive)
    return heard[0]


@examples(max_examples=60)
@given(seed=seeds, protocol=protocols, rounds=st.lists(st.integers(0, 4), max_size=5))
def test_programs_go_on_side_by_side(seed, protocol, rounds):
    network = LocalNetwork(2, chooser(seed), protocol)
    programs = [
        together([talk(t, 1 - t.rank, tag, n) for tag, n in enumerate(rounds)])
        for t in network.transports
    ]
    wanted = [10 * tag + n - 1 if n else 0 for tag, n in enumerate(rounds)]
    assert network.run(programs) == [wanted, wanted]


@examples(max_examples=60)
@given(seed=seeds, protocol=protocols)
def test_one_that_raises_does_not_stop_the_others(seed, protocol):
    """Both ranks' programs 1 fail at round 2, 0 and 2 go on to their end; the first error is raised."""
    network = LocalNetwork(2, chooser(seed), protocol)
    ended = []

    def noted(program):
        yield from program
        ended.append(1)

    def rank(t):
        peer = 1 - t.rank
        return together(
            [
                noted(talk(t, peer, 0, 4)),
                talk(t, peer, 1, 4, failing=2),
                noted(talk(t, peer, 2, 4)),
            ]
        )

    for rank_number, error in enumerate(
        network.run([kept(rank(t)) for t in network.transports])
    ):
        assert str(error) == f"round 2 with {1 - rank_number}, tag 1"
    assert len(ended) == 4


def test_an_error_that_breaks_the_ring_is_raised_at_once():
    """As a signal handler's: the programs beside it may never end."""

    class Never(Request):
        verb, peer = "receive from", 0

        def test(self):
            return False

    def interrupted():
        yield Never()
        raise TimeoutError("alarm-31")

    def endless():
        while True:
            yield Never()

    together_ = together([endless(), interrupted()])
    next(together_)
    with pytest.raises(TimeoutError, match="alarm-31"):
        next(together_)


def test_a_wrong_message_of_a_dtype_that_is_not_here(monkeypatch):
    """As bfloat16 without ml_dtypes: it is taken all the same, and the next message is not mistaken for it."""
    outs = [np.zeros(3, "f4") for _ in range(2)]
    given = [np.ones(5, "f2"), np.arange(3, dtype="f4")]
    network = LocalNetwork(2)
    calls = [[send(x, 1) for x in given], [recv(out, 0) for out in outs]]
    make = Kind.empty

    def no_float16(self, shape, dtype):
        if dtype == "float16":
            raise TypeError("no such dtype here")
        return make(self, shape, dtype)

    monkeypatch.setattr(Kind, "empty", no_float16)
    _, receiver = group(network, calls)
    assert type(receiver) is ValueError and "5 elements of float16" in str(receiver)
    assert outs[1].tolist() == [0, 1, 2]


def test_what_several_wait_for_in_words():
    network = LocalNetwork(3)
    me = network.transports[0]
    requests = [me.post_receive(bytearray(1), peer, 0) for peer in (1, 2, 1)]
    either = AnyOf(requests)
    assert str(either) == "receive from rank 1 or to receive from rank 2"
    assert (either.peer, either.test()) == (1, False)
