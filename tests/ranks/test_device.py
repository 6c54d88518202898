"""The rank within the node: MPI's for a communicator, the launcher's for the job."""

from __future__ import annotations

import os

import pytest
from mpi4py import MPI

import mpiring
from mpiring import device

IS_OPEN_MPI = "Open MPI" in MPI.Get_library_version()


def by_split(comm):
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    rank = node.rank
    node.Free()
    return rank


def test_local_rank_of_a_communicator_is_mpis(comm):
    assert mpiring.local_rank(comm) == by_split(comm) == comm.rank  # one host


def test_local_rank_of_the_job_is_the_launchers(comm):
    rank = mpiring.local_rank()
    assert rank == device.find_local_rank(os.environ)
    # Open MPI numbers by place, so that with more ranks than cores its order is another one.
    assert rank == by_split(comm) or IS_OPEN_MPI
    assert sorted(comm.allgather(rank)) == list(range(comm.size))


def test_without_a_word_from_the_launcher_mpi_is_asked(comm, monkeypatch):
    for name in device.LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    assert mpiring.local_rank() == by_split(comm)


@pytest.mark.ranks(2, 3, 4, 5)
def test_local_rank_of_a_smaller_communicator(comm):
    half = comm.Split(comm.rank % 2, key=-comm.rank)
    assert mpiring.local_rank(half) == by_split(half) == half.rank
    half.Free()


def test_each_rank_takes_one(comm, monkeypatch):
    monkeypatch.setattr(device, "find_openable", lambda: [])
    for given in (comm, None):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
        taken = comm.allgather(mpiring.choose_device(given))
        assert sorted(taken) == sorted(str(4 + rank % 3) for rank in range(comm.size))
        assert os.environ["CUDA_VISIBLE_DEVICES"] == taken[comm.rank]


@pytest.mark.parametrize("comm_", [MPI.COMM_NULL, "world", 0])
def test_what_is_no_communicator_is_an_error(comm_):
    with pytest.raises(ValueError, match="expected an intra-communicator of mpi4py"):
        mpiring.local_rank(comm_)
