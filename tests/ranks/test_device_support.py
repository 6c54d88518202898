"""What a real MPI says of device memory, and that the ranks agree on what to make of it."""

from __future__ import annotations

import pytest

from mpiring.wire.gpu_aware import decision, evidence
from mpiring.wire.gpu_aware.decision import (
    VARIABLE,
    agree,
    decide,
    decode,
    encode,
    gather,
)
from mpiring.wire.gpu_aware.evidence import Clue, Facts


@pytest.fixture(autouse=True)
def no_request(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("MPIRING_CACHE", str(tmp_path))


def settle(comm, argument="auto"):
    return agree([decode(data) for data in comm.allgather(encode(gather(argument)))])


def outcome(comm, argument="auto"):
    try:
        return settle(comm, argument)
    except ValueError as error:
        return str(error)


def test_this_mpi_is_asked(comm):
    """The MPIs of PyPI are built without CUDA, and each has a function that says so."""
    facts = evidence.find_facts()
    assert facts.library.family in ("Open MPI", "MPICH", "Intel MPI")
    function = {"Open MPI": "MPIX_Query_cuda_support"}
    name = function.get(facts.library.family, "MPIX_GPU_query_support")
    assert facts.answers == ((name, False),)
    assert facts.alloc_kinds in ("", "mpi,system")
    assert facts.switch is (False if facts.library.family == "Open MPI" else None)
    decided = decide(gather())
    assert decided.transport == "staged"
    assert f"{name} of {facts.library.name} says no" in decided.evidence
    assert evidence.find_facts() is facts  # asked once


def test_all_ranks_take_the_same_way(comm):
    said = comm.allgather([settle(comm), settle(comm, "staged")])
    assert said == [said[0]] * comm.size
    assert [each.transport for each in said[0]] == ["staged", "staged"]


def test_direct_is_refused_on_all_ranks(comm):
    said = comm.allgather(outcome(comm, "direct"))
    assert said == [said[0]] * comm.size
    assert said[0].startswith(
        "Ring: device_transport='direct', but nothing shows that the MPI of rank 0 "
    )
    with pytest.raises(ValueError, match="no probe of this MPI has passed on"):
        decide(gather("direct"))


@pytest.mark.ranks(2, 3)
def test_one_rank_asks_for_something_else(comm, monkeypatch):
    if comm.rank == 1:
        monkeypatch.setenv(VARIABLE, "staged")
    said = comm.allgather(outcome(comm))
    assert said == [said[0]] * comm.size
    assert (
        "rank 1 asks for MPIRING_DEVICE_TRANSPORT=staged, rank 0 for device_transport='auto'"
        in said[0]
    )


@pytest.mark.ranks(2, 3)
def test_one_rank_cannot(comm, monkeypatch):
    def weigh(facts, environment):
        return (
            Clue("yes", "A says yes") if comm.rank != 1 else Clue("no", "B says no"),
        )

    monkeypatch.setattr(decision, "weigh", weigh)
    said = comm.allgather(outcome(comm))
    assert said == [said[0]] * comm.size
    assert (
        said[0].transport == "staged"
        and said[0].why.startswith("rank 1 cannot ")
        and said[0].why.endswith("B says no")
    )


def test_before_mpi_is_started_nothing_is_asked(monkeypatch):
    monkeypatch.setattr("mpi4py.MPI.Is_initialized", lambda: False)
    facts = evidence.find_facts()
    assert facts == Facts(facts.library) and facts.library.family != "unknown"
