"""Promise 5, of profiles: rank 0's counts, and what is wrong with it raises on every rank."""

from __future__ import annotations

import shutil
from contextlib import nullcontext

import numpy as np
import pytest
from mpi4py import MPI

from mpiring import Ring
from mpiring.wire.collectives import small
from mpiring.wire.settings.profiles import VARIABLE
from mpiring.wire.settings.tuning import DEFAULTS, NODE, WHOLE

from ranks.reference import outcome, random_array, reduced, same_bits
from ranks.tuned import PROFILES, profile, tuned, variable_on_rank_0

SIZE, RANK = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank


def made(comm):
    """The wire and settings of a new ring, on all ranks, and whether it works."""
    with Ring(comm) as ring:
        works = ring.allreduce(np.ones(3000)).tolist() == [SIZE] * 3000
        return comm.allgather((ring.wire, ring.tuning, works))


def test_without_a_profile_the_defaults(comm):
    with variable_on_rank_0("none"):
        assert made(comm) == [(NODE, DEFAULTS[NODE], True)] * SIZE
    with variable_on_rank_0(""):
        assert made(comm) == [(NODE, DEFAULTS[NODE], True)] * SIZE


@pytest.mark.parametrize("name", PROFILES)
def test_the_profile_of_rank_0_counts_and_no_other(comm, name):
    """On the other ranks the variable names what is no profile."""
    with tuned(PROFILES[name]):
        (_, tuning, _), *others = made(comm)
    assert {field: getattr(tuning, field) for field in PROFILES[name]} == PROFILES[name]
    assert others == [(NODE, tuning, True)] * (SIZE - 1)
    assert tuning.chunk_bytes == PROFILES[name].get("chunk_bytes", WHOLE)


def test_the_file_in_the_users_configuration(comm, tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert made(comm) == [(NODE, DEFAULTS[NODE], True)] * SIZE
    if RANK == 0:
        (tmp_path / "mpiring").mkdir()
        shutil.move(profile(tmp_path, {"window": 9}), tmp_path / "mpiring")
    assert [tuning.window for _, tuning, _ in made(comm)] == [9] * SIZE


def test_arrays_as_long_as_the_opening_exchange_has_room_for(comm):
    """And one element longer, which has to take another way."""
    with tuned(PROFILES["all at once"]), Ring(comm) as ring:
        room = small.most_bytes(ring.tuning.small_bytes, SIZE) // 4
        inputs = [random_array("float32", room + 1, r, 8) for r in range(SIZE)]
        results = [ring.allreduce(inputs[RANK][:n]) for n in (room - 1, room, room + 1)]
    for result in results:
        same_bits(result, reduced([x[: result.size] for x in inputs]))


BROKEN = {
    "{": "no profile in JSON",
    "[]": "it is [], expected an object",
    '{"format": 2, "entries": []}': "its format is 2",
    '{"format": 1, "entries": [{"mpi": "x", "wire": "node", "ranks": 2, "tuning": {"window": 0}}]}': (
        "entries[0]: tuning: window is 0, expected a whole number, 1 to 64"
    ),
}


@pytest.mark.parametrize("text", [None, *BROKEN])
@pytest.mark.parametrize("way", ["variable", "user"])
def test_a_wrong_profile_on_rank_0_raises_on_all(
    comm, tmp_path, monkeypatch, text, way
):
    path = tmp_path / "mpiring" / "profile.json"
    path.parent.mkdir()
    if text is not None:
        path.write_text(text)
    if way == "user":
        if text is None:
            path.mkdir()  # there, and cannot be read
        if RANK == 0:
            monkeypatch.delenv(VARIABLE)
            monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with variable_on_rank_0(str(path)) if way == "variable" else nullcontext():
        everyone = comm.allgather(outcome(lambda: Ring(comm).close()))
    assert set(everyone) == {everyone[0]}
    kind, told = everyone[0]
    assert kind == "ValueError" and told.startswith("Ring: rank 0: profile /"), told
    assert told.endswith(
        "mend or remove that file, or set MPIRING_PROFILE=none to do without"
    )
    if text is None:
        assert "No such file" in told or "Is a directory" in told
    else:
        assert BROKEN[text] in told
    with variable_on_rank_0("none"):
        assert made(comm) == [(NODE, DEFAULTS[NODE], True)] * SIZE


def test_members_count_as_ranks(comm, tmp_path):
    """The entry for as many ranks as the ring has, not as there are processes."""
    profile(tmp_path, {"window": 5})
    path = profile(tmp_path, {"window": 6}, ranks=2 * SIZE)
    with variable_on_rank_0(str(path)):
        with Ring(comm) as ring, Ring(comm, members=2) as two:
            windows = ring.tuning.window, two.tuning.window
    assert comm.allgather(windows) == [(5, 6)] * SIZE
