"""MPI as a transport passes the suite that the in-process one passes."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from mpiring.wire.transport.mpi import MPITransport

from wire.conformance import CASES

SIZE = MPI.COMM_WORLD.size


def drive(program):
    """Run a program to its end by polling, as a ring's blocking call does."""
    while True:
        try:
            next(program)
        except StopIteration as stop:
            return stop.value


@pytest.fixture
def own(comm):
    """A communicator that no other test's messages are on."""
    duplicate = comm.Dup()
    yield duplicate
    duplicate.Free()


FIT = [case for case in CASES if SIZE > 1 or 1 in case.sizes]


@pytest.mark.parametrize("case", FIT, ids=lambda case: case.name)
def test_conforms(own, case):
    transport = MPITransport(own, case.message_bytes)
    for _ in range(3):
        assert drive(case.program(transport)) == case.expected(own.rank, own.size)


def test_a_request_says_what_it_is_for(own):
    transport = MPITransport(own, 1 << 30)
    peer = own.rank
    receive = transport.irecv(bytearray(1), peer, 3)
    send = transport.isend(b"x", peer, 3)
    assert str(send) == f"send to rank {peer}"
    assert str(receive) == f"receive from rank {peer}"
    while not (send.test() and receive.test()):
        pass
