"""What the doctor says of the profile that rings would take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiring.cli.doctor.profile import judge_profile
from mpiring.wire.settings.profiles import Entry, write_entry
from mpiring.wire.settings.tuning import DEFAULTS, NETWORK

MPI = "Open MPI 5.0.11"


@pytest.fixture
def named(tmp_path):
    """An environment that names a profile with one entry, and the file."""
    path = tmp_path / "mine.json"
    tuning = replace(DEFAULTS[NETWORK], window=2)
    write_entry(path, Entry(MPI, NETWORK, 4, tuning))
    return {"MPIRING_PROFILE": str(path)}, path


def test_there_is_none(tmp_path):
    there = judge_profile({"XDG_CONFIG_HOME": str(tmp_path)}, MPI, 1, 4)
    assert there.status == "ok" and there.found == "none: rings take the defaults"
    assert str(tmp_path / "mpiring" / "profile.json") in there.how
    assert "`mpiring tune`" in there.how
    off = judge_profile({"MPIRING_PROFILE": "none"}, MPI, 1, 4)
    assert (off.status, off.how) == ("ok", "MPIRING_PROFILE=none")


def test_the_entry_that_counts_is_told(named):
    environment, path = named
    found = judge_profile(environment, MPI, 2, 6)
    assert found.status == "ok" and "MPIRING_PROFILE" in found.how
    assert f"the entry for {MPI}, network, 4 ranks in {path}: " in found.found
    assert "chunk_bytes 16 KiB" in found.found and "window 2" in found.found


@pytest.mark.parametrize("mpi, hosts, ranks", [("MPICH 5.0.2", 2, 4), (MPI, 1, 4), (MPI, 2, 9)])  # fmt: skip
def test_no_entry_counts(named, mpi, hosts, ranks):
    environment, path = named
    found = judge_profile(environment, mpi, hosts, ranks)
    assert found.status == "note" and f"{path} has no entry for {mpi}, " in found.found
    assert f"mpirun -n {ranks} mpiring tune" in found.advice
    assert judge_profile(environment, mpi, hosts, 1).status == "ok"  # alone


def test_what_is_wrong_is_a_problem_before_a_ring_has_it(named):
    environment, path = named
    path.write_text('{"format": 1}')
    found = judge_profile(environment, MPI, 2, 4)
    assert found.status == "problem"
    assert f"no ring can be made: profile {path}: it has no 'entries'" == found.found
    assert "MPIRING_PROFILE=none" in found.advice
