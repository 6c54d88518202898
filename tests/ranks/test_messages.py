"""Send, receive and groups, over MPI: B03 and B06, and what a rank alone may get wrong."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from mpiring import Ring, RingTimeout, average_gradients

from ranks.reference import DTYPES, outcome, random_array, same_bits
from ranks.test_cases import raised_everywhere
from ranks.test_promise_6_no_silent_hang import meet, timed_out

LARGE = 1 << 22  # elements of float32: no MPI sends 16 MiB eagerly


def works(comm, ring) -> None:
    """The ring serves collectives and messages."""
    total = ring.allreduce(8**comm.rank)
    out = np.zeros(3, int)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with ring.group():
        ring.send(np.full(3, 8**comm.rank), right)
        ring.recv(out, left)
    assert total == int("1" * comm.size, base=8)
    assert out.tolist() == [8**left] * 3


@pytest.mark.ranks(2, 3, 4)
def test_b03_everybody_sends_first(comm, ring):
    x = np.full(LARGE, comm.rank + 1, "f4")
    size, out = comm.size, np.zeros_like(x)
    right, left = (comm.rank + 1) % size, (comm.rank - 1) % size
    with ring.group():
        ring.send(x, right)
        ring.recv(out, left)
    total = ring.allreduce(x)
    part = ring.reduce_scatter(x)
    joined = ring.allgather(x)
    sent = ring.broadcast(x if comm.rank == size - 1 else None, size - 1)
    reduced = ring.reduce(x, root=size - 1)
    everyone = size * (size + 1) / 2
    assert (out == left + 1).all()
    assert (total == everyone).all() and (part == everyone).all()
    assert (joined.reshape(size, -1) == np.arange(1, size + 1)[:, None]).all()
    assert (sent == size).all()
    assert reduced is None or (reduced == everyone).all()


def test_everybody_to_everybody_and_to_oneself(comm, ring):
    """Several messages to one peer, in order; tags told apart; sends first, receives from behind."""
    size, me = comm.size, comm.rank
    outs = {}
    with ring.group():
        for peer in range(size):
            for number in range(3):
                ring.send(np.array([me, peer, number]), peer)
            ring.send(np.array([me, peer, 16383]), peer, tag=16383)
        for peer in reversed(range(size)):
            outs[peer, 16383] = np.zeros(3, int)
            assert ring.recv(outs[peer, 16383], peer, 16383) is outs[peer, 16383]
            for number in range(3):
                outs[peer, number] = np.zeros(3, int)
                ring.recv(outs[peer, number], peer)
    for (peer, number), out in outs.items():
        assert out.tolist() == [peer, me, number]


@pytest.mark.ranks(2, 3, 5)
def test_one_after_the_other_without_a_group(comm, ring):
    """Around the ring, each rank adding its digit; then the same with blocking calls of any dtype."""
    token = np.zeros(2, int)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank == 0:
        ring.send(token + 1, right, 5)
    assert ring.recv(token, left, 5) is token
    if comm.rank:
        ring.send(token + 8**comm.rank, right, 5)
    here = comm.size if comm.rank == 0 else comm.rank
    assert token.tolist() == [int("1" * here, base=8)] * 2
    for dtype in DTYPES:
        for shape in ((), (0,), (2, 5)):
            x = random_array(dtype, shape, left if comm.rank else 0)
            out = np.zeros((*shape, 2), x.dtype)[..., 1]
            if comm.rank == 0:
                ring.send(x, 1)
            elif comm.rank == 1:
                ring.recv(out, 0)
                same_bits(np.ascontiguousarray(out).reshape(shape), x, dtype)


@pytest.mark.ranks(2, 3)
def test_the_shape_is_the_receiver_s_affair(comm, ring):
    out = np.zeros((3, 2), order="F")
    with ring.group():
        if comm.rank == 0:
            ring.send(np.arange(6.0)[::-1], 1)
        if comm.rank == 1:
            ring.recv(out, 0)
    if comm.rank == 1:
        assert out.tolist() == [[5, 4], [3, 2], [1, 0]]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("message_bytes", [7, 1000, 4096])
def test_split_messages(comm, message_bytes):
    with Ring(comm, message_bytes=message_bytes) as ring:
        x = np.arange(1037) * 8**comm.rank
        outs = [np.zeros_like(x) for _ in range(2)]
        with ring.group():
            for tag in (0, 1):
                ring.send(x + tag, 1 - comm.rank, tag)
            for tag in (1, 0):
                ring.recv(outs[tag], 1 - comm.rank, tag)
    for tag in (0, 1):
        assert (outs[tag] == np.arange(1037) * 8 ** (1 - comm.rank) + tag).all()


# ---- nothing starts before the group ends ---------------------------------------------------------


@pytest.mark.ranks(2, 3)
def test_an_exception_inside_drops_the_group(comm, ring):
    """What was listed before it never travels: the peer waits in vain, and the data of later arrive."""
    out = np.zeros(3)
    if comm.rank == 0:
        with pytest.raises(ZeroDivisionError):
            with ring.group():
                ring.send(np.full(3, 17.0), 1)
                ring.recv(out, 1, 3)
                1 / 0
        assert out.tolist() == [0, 0, 0]
        ring.send(np.full(3, 18.0), 1)
    elif comm.rank == 1:
        ring.recv(out, 0)
        assert out.tolist() == [18, 18, 18]
    works(comm, ring)


@pytest.mark.ranks(2, 3)
def test_a_message_is_sent_when_the_group_ends(comm, ring):
    """What the array holds then is what arrives; before, nothing does."""
    x, out = np.zeros(3), np.zeros(3)
    if comm.rank == 0:
        with ring.group():
            ring.send(x, 1)
            meet(comm)
            x[:] = 5
    else:
        if comm.rank == 1:
            with ring.group():
                ring.recv(out, 0)
                assert out.tolist() == [0, 0, 0]
                meet(comm)
            assert out.tolist() == [5, 5, 5]
        else:
            meet(comm)
    works(comm, ring)


@pytest.mark.ranks(2, 3, 4)
def test_a_receive_that_nobody_answers(comm):
    ring = Ring(comm)
    ring.allreduce(1)
    if comm.rank == 0:
        error, _ = timed_out(lambda: ring.recv(np.zeros(3), 1, timeout=0.1))
        silent = tuple(range(1, comm.size))
        assert error.silent == silent
        assert str(error).startswith(
            "recv: rank 0 waited 0.1 s, in recv (after call 1 on this ring; messages, "
            "waiting to receive from rank 1); in no call of this ring: rank 1"
        ), str(error)
        assert outcome(lambda: ring.send(np.ones(3), 1))[0] == "RingError"
    meet(comm)
    ring.close()


@pytest.mark.ranks(3)
def test_messages_do_not_count_as_calls(comm):
    """Rank 0 sends a lot, and all time out in one collective: nobody is said to be in another call."""
    ring = Ring(comm)
    for _ in range(5):
        if comm.rank == 0:
            ring.send(np.ones(3), 1)
        elif comm.rank == 1:
            ring.recv(np.zeros(3), 0)
    if comm.rank < 2:
        error, _ = timed_out(lambda: ring.barrier(timeout=0.1))
        assert error.silent == (2,)
        assert "in another call" not in str(error), str(error)
        assert f"given up too: rank {1 - comm.rank}, barrier (call 1" in str(error)
    meet(comm)
    ring.close()


# ---- what does not fit ----------------------------------------------------------------------------


@pytest.mark.ranks(2, 3)
def test_another_dtype_or_count_raises_at_the_receiver(comm, ring):
    told = []
    for sent in (np.ones(4, "f4"), np.ones(5), np.ones(0), np.ones(LARGE, "f4")):
        out = np.full(4, -1.0)
        if comm.rank == 0:
            ring.send(sent, 1)
        elif comm.rank == 1:
            told.append((sent, out, outcome(lambda: ring.recv(out, 0))))
    for sent, out, (kind, text) in told:
        assert kind == "ValueError"
        assert text == (
            f"recv: rank 1 passed float64[4], but rank 0 sent {sent.size} elements of "
            f"{sent.dtype}; dtype and count must be the sender's"
        )
        assert out.tolist() == [-1] * 4
    works(comm, ring)


def test_wrong_arguments_raise_here_alone(comm, ring):
    x, size, me = np.ones(3), comm.size, f"rank {comm.rank}"
    read_only = np.ones(3)
    read_only.flags.writeable = False
    other = (comm.rank + 1) % size
    wrong: list[tuple[Any, str, str]] = [
        (lambda: ring.send(x, size), "ValueError", f"got {size}"),
        (lambda: ring.recv(x, -1), "ValueError", "source must be 0 to"),
        (lambda: ring.send(x, 1.0), "ValueError", "got 1.0"),
        (lambda: ring.send(x, comm.rank), "ValueError", "this rank itself"),
        (lambda: ring.recv(x, comm.rank), "ValueError", "this rank itself"),
    ]
    if size > 1:
        wrong += [
            (lambda: ring.send(x, other, -1), "ValueError", "tag must be 0 to 16383"),
            (lambda: ring.recv(x, other, 16384), "ValueError", "got 16384"),
            (lambda: ring.recv(read_only, other), "ValueError", "read-only"),
            (lambda: ring.send([1.0], other), "TypeError", "list"),
        ]
    for call, kind, words in wrong:
        found, text = outcome(call)
        assert found == kind and words in text and me in text, text

        def in_group() -> None:
            with ring.group():
                ring.send(x, comm.rank)
                ring.recv(np.zeros(3), comm.rank)
                call()

        if "itself" not in words:  # none of the group has started
            assert outcome(in_group) == (found, text)
    assert "timeout" in outcome(lambda: ring.send(x, other, timeout=-1))[1]
    works(comm, ring)


@pytest.mark.ranks(2, 3)
def test_collectives_inside_a_group_raise_everywhere(comm, ring):
    x = np.ones(3)
    inside = [
        lambda: ring.allreduce(x),
        lambda: ring.broadcast(x),
        lambda: ring.barrier(),
        lambda: average_gradients([x], ring),
    ]
    for odd in (0, None):  # on one rank, the others making the call outside; on all
        for call in inside:

            def in_group() -> None:
                if odd is None or comm.rank == odd:
                    with ring.group():
                        ring.send(x, comm.rank)
                        call()
                else:
                    call()

            raised_everywhere(comm, ring, in_group, "RingError", "inside group()")
    works(comm, ring)


def test_groups_do_not_nest(comm, ring):
    def nested() -> None:
        with ring.group():
            with ring.group():
                pass

    kind, text = outcome(nested)
    assert kind == "RingError" and "do not nest" in text
    with ring.group():
        pass
    works(comm, ring)


@pytest.mark.ranks(2, 3)
def test_messages_and_collectives_do_not_meet(comm, ring):
    """A message waits for its receive while collectives pass by, whatever its tag."""
    out = np.zeros(2, int)
    tags = (0, 1, 16383)
    if comm.rank == 0:
        for tag in tags:
            ring.send(np.array([tag, 7]), 1, tag)  # small: MPI takes it at once
    total = ring.allreduce(np.full(2, 8**comm.rank))
    sent = ring.broadcast(total, comm.size - 1)
    if comm.rank == 1:
        for tag in reversed(tags):
            assert ring.recv(out, 0, tag).tolist() == [tag, 7]
    assert sent.tolist() == [int("1" * comm.size, base=8)] * 2


@pytest.mark.ranks(2)
def test_a_group_waits_for_what_was_started_before(comm, ring):
    work = ring.allreduce(np.full(3, 8**comm.rank), async_op=True)
    out = np.zeros(3)
    with ring.group():
        ring.send(np.full(3, comm.rank + 1.0), 1 - comm.rank)
        ring.recv(out, 1 - comm.rank)
    assert work.test() and work.result().tolist() == [0o11] * 3
    assert out.tolist() == [2.0 - comm.rank] * 3


@pytest.mark.ranks(2)
def test_b13_a_group_whose_peer_has_left(comm):
    ring = Ring(comm, timeout=0.2)
    if comm.rank == 0:
        began = time.monotonic()
        with pytest.raises(RingTimeout) as caught:
            with ring.group():
                ring.send(np.ones(LARGE, "f4"), 1)
                ring.recv(np.zeros(LARGE, "f4"), 1)
        assert caught.value.silent == (1,) and time.monotonic() - began < 10
        assert str(caught.value).startswith("group: rank 0 waited 0.2 s")
    meet(comm)
    ring.close()
