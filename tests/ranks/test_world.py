"""The world the other tests here stand in: every rank takes part, once, in order."""

from __future__ import annotations


def test_every_rank_takes_part_once(comm):
    assert comm.allreduce(8**comm.rank) == int("1" * comm.size, base=8)


def test_ranks_are_in_order(comm):
    assert comm.allgather(comm.rank) == list(range(comm.size))
