"""A rehearsed opening exchange is an opening exchange: whoever makes which, all ranks end with the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiring.wire.opening import rehearsed
from mpiring.wire.opening.agree import Opening, Summary
from mpiring.wire.opening.rehearsed import Rehearsed
from mpiring.wire.transport.local import LocalNetwork

from wire.interleaving import chooser, seeds
from wire.test_agree import summary_of

LENGTHS = (0, 1, 7, 16, 61, 1100)  # of messages that go as short and as long ones


@st.composite
def calls(draw):
    """What each rank does in some calls: a text, a failure or none, a payload, and whether it rehearsed that."""
    size = draw(st.integers(2, 5))

    def rank(text, length):
        usual = st.just((text, None, b"\0" + bytes([draw(bytes_)]) * length, True))
        other = st.tuples(
            st.sampled_from([text, b"another text"]),
            st.sampled_from([None, None, b"oh"]),
            st.sampled_from([b"", b"\0" + b"x" * length, b"\1" + b"y" * length]),
            st.just(False),
        )
        return draw(st.one_of(usual, usual, usual, other))

    bytes_ = st.integers(0, 255)
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        text = draw(st.sampled_from([b"", b"a text", b"t" * 40]))
        length = draw(st.sampled_from(LENGTHS))
        rows.append([rank(text, length) for _ in range(size)])
    return rows


def run(rows, seed, rendezvous=None):
    """Make the calls; for each rank and call what the exchange gave."""
    size = len(rows[0])
    network = LocalNetwork(size, chooser(seed), rendezvous)

    def program(rank, transport):
        opening, known, seen = Opening(transport, 1, 1200), {}, []
        for row in rows:
            text, failure, payload, is_rehearsed = row[rank]
            if not is_rehearsed:
                seen.append((yield from opening.exchange(text, failure, payload)))
                continue
            key = text, len(payload)
            if key not in known:
                known[key] = Rehearsed(opening, rank, text, b"\0", len(payload) - 1)
            call = known[key]
            call.said[rank][:] = payload[1:]
            heard = yield from call.exchange()
            if heard is None:
                said = [b"\0" + bytes(one) for one in call.said]
                heard = Summary((0, text)), said
            seen.append(heard)
        return seen

    return network.run([program(r, t) for r, t in enumerate(network.transports)])


@given(calls(), seeds)
def test_it_gives_what_the_exchange_gives(rows, seed):
    for seen in run(rows, seed):
        for row, (summary, payloads) in zip(rows, seen):
            assert summary == summary_of({r: row[r][:2] for r in range(len(row))})
            assert payloads == [one[2] for one in row]


USUAL = (b"a text", None, b"\0abc", True)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "other",
    [
        (b"a text", None, b"\0ab", False),
        (b"a text", None, b"\1abc", False),
        (b"another text", None, b"\0abc", False),
        (b"a text", b"oh", b"\0abc", False),
    ],
)
def test_whoever_differs_is_heard_by_all(size, other):
    for who in range(size):
        row = [other if rank == who else USUAL for rank in range(size)]
        for [(summary, payloads)] in run([row], seed=who):
            assert summary == summary_of({r: row[r][:2] for r in range(size)})
            assert payloads == [one[2] for one in row]


def test_without_comparing_it_would_not_be_heard(monkeypatch):
    monkeypatch.setattr(rehearsed._Leg, "is_expected", lambda self: True)
    with pytest.raises(AssertionError):
        test_whoever_differs_is_heard_by_all(2, (b"other", None, b"\0abc", False))


@pytest.mark.parametrize("size", [2, 3, 8])
def test_payloads_are_aligned(size):
    opening = Opening(LocalNetwork(size).transports[1], 1)
    for length in LENGTHS[:4]:
        call = Rehearsed(opening, 1, b"t" * length, b"\0", length)
        for said in call.said:
            assert len(said) == length
            assert address(said) % 16 == 0 or not length


def address(view):
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]
