"""The opening exchange: its algebra, its messages, and that every rank ends with the same summary."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.wire.opening.agree import (
    FAILURE_BYTES,
    PAYLOAD_BYTES,
    TEXT_BYTES,
    Opening,
    Summary,
    decode,
    encode,
    join,
    pack,
    places,
    shortened,
    unpack,
)
from mpiring.wire.transport.local import LocalNetwork, LocalTransport, first

from wire.interleaving import chooser, protocols, seeds

# ---- the algebra ----------------------------------------------------------------------------------


def summary_of(said):
    """The summary of a set of ranks by its definition; ``said`` is {rank: (text, failure)}."""
    lowest = min(said)
    text = said[lowest][0]
    other = [rank for rank in sorted(said) if said[rank][0] != text]
    failed = [rank for rank in sorted(said) if said[rank][1] is not None]
    return Summary(
        (lowest, text),
        (other[0], said[other[0]][0]) if other else None,
        (failed[0], said[failed[0]][1]) if failed else None,
    )


texts = st.sampled_from([b"", b"a", b"b", "\N{SNOWMAN}".encode()])
failures = st.sampled_from([None, None, b"", b"oh", b"no"])
worlds = st.lists(st.tuples(texts, failures), min_size=1, max_size=7)


@st.composite
def sets_of_one_world(draw, number):
    """Some non-empty sets of ranks, which may overlap, and what each rank of the world said."""
    world = dict(enumerate(draw(worlds)))
    ranks = st.sets(st.sampled_from(sorted(world)), min_size=1)
    return [{r: world[r] for r in draw(ranks)} for _ in range(number)]


@given(sets_of_one_world(2))
def test_a_join_is_the_summary_of_the_union(sets):
    a, b = sets
    assert join(summary_of(a), summary_of(b)) == summary_of({**a, **b})


@given(sets_of_one_world(3))
def test_join_is_associative_commutative_and_idempotent(sets):
    a, b, c = map(summary_of, sets)
    assert join(a, b) == join(b, a)
    assert join(join(a, b), c) == join(a, join(b, c))
    assert join(a, a) == a


said = st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=TEXT_BYTES))
failed = st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=FAILURE_BYTES))
LONGEST = Summary(
    (0, b"\xff" * TEXT_BYTES),
    (2**31 - 1, b"\xfe" * TEXT_BYTES),
    (2**31 - 1, b"\xfd" * FAILURE_BYTES),
)


@given(st.builds(Summary, said, st.none() | said, st.none() | failed), st.binary())
@example(LONGEST, b"")
@example(Summary((3, b"")), b"\1")
@example(Summary((3, "rank \N{GREEK SMALL LETTER RHO}".encode()), None, (0, b"")), b"")
def test_decode_undoes_encode(summary, what_follows):
    head = encode(summary)
    assert decode(head + what_follows, summary.first[0]) == summary
    assert decode(bytearray(head + what_follows), summary.first[0]) == summary
    assert len(head) <= len(encode(LONGEST))


@given(st.binary(max_size=TEXT_BYTES))
def test_the_head_of_those_who_agree_says_nothing_of_them(text):
    assert encode(Summary((0, text))) == encode(Summary((7, text)))
    assert decode(encode(Summary((0, text))), 5) == Summary((5, text))


@given(
    st.lists(st.binary(max_size=PAYLOAD_BYTES), min_size=1, max_size=9),
    st.binary(max_size=40),
)
def test_unpack_undoes_pack(slots, text):
    head = encode(Summary((0, text)))
    message = bytearray(head + pack(slots, len(head)) + b"noise")
    assert unpack(message, len(slots)) == slots


@given(st.integers(0, 40), st.integers(1, 5), st.binary(min_size=1, max_size=40))
def test_places_are_where_the_payloads_are(at, count, slot):
    message = bytes(at) + pack([slot] * count, at)
    for place in places(at, count, len(slot)):
        assert message[place : place + len(slot)] == slot
        assert (place + 1) % 16 == 0  # what follows the byte of flags


def test_no_payloads_are_a_byte():
    assert len(pack([b""] * 5, 7)) == 1


# ---- shortened ------------------------------------------------------------------------------------


@given(st.text(), st.integers(21, 60))
@example("x" * 100, 21)
@example("\N{SNOWMAN}" * 100, 40)
@example("\udc80" * 30, 40)
def test_shortened(text, limit):
    short = shortened(text, limit)
    assert len(short) <= limit
    short.decode()
    whole = text.encode(errors="backslashreplace")
    if len(whole) <= limit:
        assert short == whole
    else:
        begin, mark, digest = short.rpartition(b"... #")
        assert mark and len(digest) == 16 and whole.startswith(begin)


def test_long_texts_are_still_told_apart():
    long = "x" * 5000
    assert shortened(long + "y") != shortened(long + "z")
    assert shortened(long) == shortened("x" * 5000)


# ---- the exchange ---------------------------------------------------------------------------------


def exchange(said, payloads=None, seed=None, rendezvous=True):
    """Run the exchange: what each rank ends with, and the network."""
    size = len(said)
    network = LocalNetwork(size, first if seed is None else chooser(seed), rendezvous)
    payloads = payloads or [b""] * size
    openings = [Opening(transport, 1) for transport in network.transports]
    results = network.run(
        [
            opening.exchange(text, failure, payload)
            for opening, (text, failure), payload in zip(openings, said, payloads)
        ]
    )
    return results, network


@pytest.mark.parametrize("size, texts", [(1, "ab"), (2, "abc"), (3, "abc"), (4, "ab")])
def test_every_pattern_of_texts_and_failures(size, texts):
    options = [(t.encode(), f) for t in texts for f in (None, b"failed")]
    for said in product(options, repeat=size):
        results, _ = exchange(said, seed=hash(said) % 1000, rendezvous=None)
        expected = summary_of(dict(enumerate(said)))
        assert results == [(expected, [b""] * size)] * size


def test_every_pattern_of_three_texts_on_four_ranks():
    for said in product([(b"a", None), (b"b", None), (b"c", b"failed")], repeat=4):
        results, _ = exchange(said)
        assert results == [(summary_of(dict(enumerate(said))), [b""] * 4)] * 4


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17])
def test_all_ranks_end_with_the_same(size):
    @examples(max_examples=20)
    @given(
        said=st.lists(st.tuples(texts, failures), min_size=size, max_size=size),
        payloads=st.lists(
            st.sampled_from([b"", b"x", bytes(range(PAYLOAD_BYTES))]),
            min_size=size,
            max_size=size,
        ),
        seed=seeds,
        rendezvous=protocols,
    )
    def search(said, payloads, seed, rendezvous):
        results, network = exchange(said, payloads, seed, rendezvous)
        assert results == [(summary_of(dict(enumerate(said))), payloads)] * size
        assert network.messages == size * math.ceil(math.log2(size))

    search()
    # One rank that differs, one that fails: found wherever it is.
    for odd in range(size):
        said = [(b"odd" if r == odd else b"even", None) for r in range(size)]
        results, _ = exchange(said, [bytes([r]) for r in range(size)], odd, None)
        mine = [bytes([r]) for r in range(size)]
        assert results == [(summary_of(dict(enumerate(said))), mine)] * size


def test_the_exchange_is_used_again_and_again():
    """A round's buffer still holds an earlier, longer message."""
    calls = [
        ((b"longest " * 40, b"failed " * 80), b"p" * 60),
        ((b"same", None), b""),
        ((b"sam", None), b"q"),
    ]

    def program(transport):
        opening, seen = Opening(transport, 1), []
        for (text, failure), payload in calls:
            failure = failure if transport.rank == 1 else None
            seen.append((yield from opening.exchange(text, failure, payload)))
        return seen

    network = LocalNetwork(3, chooser(1), None)
    for seen in network.run([program(transport) for transport in network.transports]):
        assert seen == [
            (
                Summary((0, b"longest " * 40), None, (1, b"failed " * 80)),
                [b"p" * 60] * 3,
            ),
            (Summary((0, b"same")), [b""] * 3),
            (Summary((0, b"sam")), [b"q"] * 3),
        ]


def sent(size, text, failure, payload=b""):
    """All messages, by rank, where every rank says the same."""
    network = LocalNetwork(size)
    messages: list[list[bytes]] = [[] for _ in range(size)]

    class Recorded(LocalTransport):
        def post_send(self, buffer, dest, tag):
            messages[self.rank].append(bytes(buffer))
            return super().post_send(buffer, dest, tag)

    transports = [Recorded(network, rank, 1 << 30) for rank in range(size)]
    network.run([Opening(t, 1).exchange(text, failure, payload) for t in transports])
    return messages


@pytest.mark.parametrize("size", [2, 3, 8, 17])
def test_messages_of_those_who_agree_are_equal_byte_for_byte(size):
    messages = sent(size, b"allreduce", None)
    assert all(message == messages[0] for message in messages)
    assert len(set(messages[0])) == 1  # in each round the same
    head = encode(Summary((0, b"allreduce")))
    for message in messages[0]:
        assert message.rstrip(b"\0") == head.rstrip(b"\0")
        assert len(message) == 64


@pytest.mark.parametrize("size", [2, 5, 16])
def test_messages_are_bounded(size):
    text, failure = b"t" * TEXT_BYTES, b"f" * FAILURE_BYTES
    for row in sent(size, text, failure, b"p" * PAYLOAD_BYTES):
        assert len(row) == math.ceil(math.log2(size))
        for number, message in enumerate(row):
            slots = 2**number * (2 + PAYLOAD_BYTES)
            longest = len(encode(LONGEST)) + 2 + slots
            assert len(message) < longest + 512  # persistent messages have few lengths


@pytest.mark.parametrize(
    "arguments",
    [
        (b"t" * (TEXT_BYTES + 1),),
        (b"", b"f" * (FAILURE_BYTES + 1)),
        (b"", None, b"p" * (PAYLOAD_BYTES + 1)),
    ],
)
def test_what_has_no_room_is_refused_before_anything_is_sent(arguments):
    network = LocalNetwork(2)
    program = Opening(network.transports[0], 1).exchange(*arguments)
    with pytest.raises(ValueError, match="at most 400, 600 and 128 travel"):
        next(program)
    assert network.messages == 0


def test_the_longest_that_has_room():
    text, failure = b"t" * TEXT_BYTES, b"f" * FAILURE_BYTES
    said = [(text, failure), (b"u" * TEXT_BYTES, failure), (text, None)]
    payloads = [bytes([r]) * PAYLOAD_BYTES for r in range(3)]
    results, _ = exchange(said, payloads)
    assert results == [(summary_of(dict(enumerate(said))), payloads)] * 3
