"""The in-process network: it conforms, it explains a deadlock, and it catches what MPI forbids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.errors import DeadlockError, RingError
from mpiring.wire.transport.local import LocalNetwork, first
from mpiring.wire.transport.protocol import wait

from wire.conformance import CASES
from wire.interleaving import chooser, protocols, seeds

RUNS = [
    pytest.param(case, size, id=f"{case.name}-{size}")
    for case in CASES
    for size in case.sizes
]


def run(case, size, choose, rendezvous):
    network = LocalNetwork(size, choose, rendezvous, case.message_bytes)
    seen = network.run([case.program(transport) for transport in network.transports])
    assert seen == [case.expected(rank, size) for rank in range(size)]


# ---- it conforms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case, size", RUNS)
def test_conforms(case, size):
    @examples(max_examples=4 if case.name.startswith("large") else 15)
    @given(seed=seeds, rendezvous=protocols)
    def search(seed, rendezvous):
        run(case, size, chooser(seed), rendezvous)

    run(case, size, first, True)
    search()


@examples(max_examples=25)
@given(data=st.data(), rendezvous=protocols)
def test_conforms_whatever_hypothesis_answers(data, rendezvous):
    short = [
        c for c in CASES if c.name in ("tags_are_independent", "long_buffers_are_split")
    ]
    case = data.draw(st.sampled_from(short))
    run(case, 2, lambda n: data.draw(st.integers(0, n - 1)), rendezvous)


def test_the_same_answers_give_the_same_run():
    def trace(seed):
        questions = []
        answer = chooser(seed)

        def choose(options):
            questions.append(options)
            return answer(options)

        case = next(c for c in CASES if c.name == "sources_are_independent")
        run(case, 4, choose, None)
        return questions

    assert trace(5) == trace(5)
    assert len({tuple(trace(seed)) for seed in range(20)}) > 15


# ---- a deadlock is explained ----------------------------------------------------------------------


def receives_from(peer, tag=0):
    def program(transport):
        yield from wait(transport.irecv(bytearray(1), peer, tag))

    return program


def sends_to(peer, tag=0):
    def program(transport):
        yield from wait(transport.isend(b"x", peer, tag))

    return program


def ends(transport):
    return
    yield


def deadlock(*programs, choose=first, rendezvous=True):
    network = LocalNetwork(len(programs), choose, rendezvous)
    with pytest.raises(DeadlockError) as caught:
        network.run([p(t) for p, t in zip(programs, network.transports)])
    return caught.value


@given(seed=seeds)
@examples(max_examples=10)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_everybody_receives_first(size, seed):
    ring = [receives_from((rank - 1) % size) for rank in range(size)]
    error = deadlock(*ring, choose=chooser(seed))
    assert error.cycle == tuple(-i % size for i in range(size))
    lines = [
        f"rank {r} waits to receive from rank {(r - 1) % size}" for r in error.cycle
    ]
    assert str(error) == f"nobody can go on: {'; '.join(lines)}"


@pytest.mark.parametrize("size", [2, 3, 4])
def test_everybody_sends_first_and_waits(size):
    def program(transport):
        rank = transport.rank
        yield from wait(transport.isend(b"x", (rank + 1) % size, 0))
        yield from wait(transport.irecv(bytearray(1), (rank - 1) % size, 0))

    error = deadlock(*[program] * size)
    assert error.cycle == tuple(range(size))
    assert str(error).startswith("nobody can go on: rank 0 waits to send to rank 1;")
    network = LocalNetwork(size, rendezvous=False)  # eager sends hide it
    network.run([program(transport) for transport in network.transports])


def test_the_innocent_are_not_in_the_cycle():
    # 0 waits for 1, 1 for 2; only 2 and 3 wait for each other.
    error = deadlock(receives_from(1), sends_to(2), receives_from(3), receives_from(2))
    assert error.cycle == (2, 3)
    assert "rank 0" not in str(error) and "rank 1" not in str(error)


def test_a_cycle_is_told_before_a_chain_whose_end_has_ended():
    error = deadlock(receives_from(1), ends, receives_from(3), receives_from(2))
    assert error.cycle == (2, 3)


def test_two_who_wait_on_different_tags():
    error = deadlock(sends_to(1, tag=7), receives_from(0, tag=8))
    assert error.cycle == (0, 1)


def test_a_rank_that_waits_for_itself():
    error = deadlock(sends_to(1), receives_from(0), receives_from(2))
    assert error.cycle == (2,)
    assert str(error) == "nobody can go on: rank 2 waits to receive from rank 2"


def test_a_chain_whose_end_has_ended():
    error = deadlock(receives_from(1), sends_to(2), ends)
    assert error.cycle == ()
    assert str(error) == (
        "nobody can go on: rank 0 waits to receive from rank 1; "
        "rank 1 waits to send to rank 2, whose program has ended"
    )


def test_a_deadlock_inside_a_split_buffer():
    def program(transport):
        peer = 1 - transport.rank
        yield from wait(transport.isend(bytes(10 + 3 * transport.rank), peer, 0))
        yield from wait(transport.irecv(bytearray(10), peer, 0))

    network = LocalNetwork(2, message_bytes=3)
    with pytest.raises(DeadlockError) as caught:
        network.run([program(transport) for transport in network.transports])
    assert caught.value.cycle == (0, 1)


# ---- errors ---------------------------------------------------------------------------------------


def test_an_exception_in_a_program_is_raised_after_the_others_have_gone_on():
    gone_on = []

    def fails(transport):
        yield from wait(transport.isend(b"x", 1, 0))
        raise KeyError("boom-17")

    def works(transport):
        yield from wait(transport.irecv(bytearray(1), 0, 0))
        gone_on.append(transport.rank)

    network = LocalNetwork(2)
    with pytest.raises(KeyError, match="boom-17"):
        network.run([fails(network.transports[0]), works(network.transports[1])])
    assert gone_on == [1]


def misuse(*programs, rendezvous=True, choose=first):
    network = LocalNetwork(len(programs), choose, rendezvous)
    with pytest.raises(RingError) as caught:
        network.run([p(t) for p, t in zip(programs, network.transports)])
    return str(caught.value)


@pytest.mark.parametrize("rendezvous", [True, False])
def test_a_send_buffer_that_is_changed_too_early(rendezvous):
    def impatient(transport):
        buffer = bytearray(b"mine")
        send = transport.isend(buffer, 1, 0)
        buffer[0] = 0
        yield from wait(send)

    def receives(transport):
        yield from wait(transport.irecv(bytearray(4), 0, 0))

    told = misuse(impatient, receives, rendezvous=rendezvous)
    assert told == "rank 0 changed a buffer during its send to rank 1"


def test_a_receive_buffer_that_is_written_too_early():
    def impatient(transport):
        room = bytearray(4)
        receive = transport.irecv(room, 0, 0)
        room[3] = 0
        yield from wait(receive)

    told = misuse(sends_to(1), impatient)
    assert told == "rank 1 changed a buffer during its receive from rank 0"


def test_two_receives_into_one_buffer():
    def sends(transport):
        for _ in range(2):
            yield from wait(transport.isend(b"x", 1, 0))

    def careless(transport):
        room = bytearray(1)
        for request in [transport.irecv(room, 0, 0) for _ in range(2)]:
            yield from wait(request)

    assert "rank 1 changed a buffer during its receive" in misuse(sends, careless)


@pytest.mark.parametrize("rendezvous", [True, False])
def test_a_send_that_nobody_waits_for(rendezvous):
    def forgets(transport):
        transport.isend(b"x", 1, 0)
        return
        yield

    told = misuse(forgets, receives_from(0), rendezvous=rendezvous)
    assert told == "rank 0 ended without waiting for its send to rank 1"


def test_a_receive_that_nobody_waits_for():
    def forgets(transport):
        transport.irecv(bytearray(1), 0, 0)
        return
        yield

    told = misuse(ends, forgets)
    assert told == "rank 1 ended without waiting for its receive from rank 0"


def test_a_message_that_nobody_receives():
    told = misuse(sends_to(1, tag=5), ends, rendezvous=False)
    assert told == "rank 1 never received what rank 0 sent with tag 5"


def test_a_message_that_is_too_long():
    def sends(transport):
        yield from wait(transport.post_send(b"four", 1, 0))

    def has_little_room(transport):
        yield from wait(transport.post_receive(bytearray(3), 0, 0))

    network = LocalNetwork(2)
    with pytest.raises(ValueError, match="send to rank 1: 4 bytes, but .* room for 3"):
        network.run(
            [sends(network.transports[0]), has_little_room(network.transports[1])]
        )


# ---- it is unkind ---------------------------------------------------------------------------------


def seen_by_rank_1(program, size=2):
    """What a program that goes on too early may see, over many interleavings."""

    def sends(transport):
        requests = [transport.isend(bytes([i]), 1, 0) for i in (1, 2)]
        for request in requests:
            yield from wait(request)

    seen = set()
    for seed in range(60):
        network = LocalNetwork(2, chooser(seed), None)
        try:
            result = network.run(
                [sends(network.transports[0]), program(network.transports[1])]
            )
        except RingError:  # it ended before the first had come
            continue
        seen.add(result[1])
    return seen


def test_a_buffer_that_is_read_too_early_has_noise_in_it():
    def impatient(transport):
        rooms = bytearray(1), bytearray(1)
        receives = [transport.irecv(room, 0, 0) for room in rooms]
        early = rooms[0][0]
        for receive in receives:
            yield from wait(receive)
        return early, rooms[0][0]

    assert seen_by_rank_1(impatient) == {(0xA5, 1)}


def test_a_later_message_may_come_before_an_earlier_one():
    def waits_for_the_second(transport):
        rooms = bytearray(1), bytearray(1)
        receives = [transport.irecv(room, 0, 0) for room in rooms]
        yield from wait(receives[1])
        early = rooms[0][0]
        yield from wait(receives[0])
        return early, rooms[0][0], rooms[1][0]

    assert seen_by_rank_1(waits_for_the_second) == {(0xA5, 1, 2), (1, 1, 2)}


def test_either_end_may_hear_first():
    def order(seed):
        heard = []

        def sends(transport):
            yield from wait(transport.isend(b"x", 1, 0))
            heard.append("sender")

        def receives(transport):
            yield from wait(transport.irecv(bytearray(1), 0, 0))
            heard.append("receiver")

        network = LocalNetwork(2, chooser(seed), True)
        network.run([sends(network.transports[0]), receives(network.transports[1])])
        return tuple(heard)

    assert {order(seed) for seed in range(40)} == {
        ("sender", "receiver"),
        ("receiver", "sender"),
    }


def test_a_waiting_rank_is_polled():
    """As an operation of a ring is: a program that takes a poll for completion is wrong."""
    polls = []

    def takes_a_poll_for_completion(transport):
        request = transport.irecv(bytearray(1), 0, 0)
        yield request
        polls.append(request.test())
        yield from wait(request)

    for seed in range(20):
        network = LocalNetwork(2, chooser(seed), True)
        programs = sends_to(1), takes_a_poll_for_completion
        network.run([p(t) for p, t in zip(programs, network.transports)])
    assert set(polls) == {True, False}
