"""Profiles: which is found, which entry counts, what is refused, and that writing one loses nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import stat
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiring.wire.settings import profiles
from mpiring.wire.settings.profiles import (
    Entry,
    find,
    find_path,
    merged,
    nearest,
    parsed,
)
from mpiring.wire.settings.tuning import DEFAULTS, NETWORK, NODE, WIRES

MPIS = ("Open MPI 5.0.11", "Open MPI 5.0.12", "MPICH 5.0.2")


def entry(mpi=MPIS[0], wire=NODE, ranks=2, window=3, **measured):
    return Entry(mpi, wire, ranks, replace(DEFAULTS[wire], window=window), measured)


entries = st.builds(
    entry,
    st.sampled_from(MPIS),
    st.sampled_from(WIRES),
    st.integers(1, 6),
    st.integers(1, 64),
    note=st.text(max_size=5),
)


# ---- writing ----------------------------------------------------------------------------------------


@given(st.lists(entries, max_size=8))
def test_the_last_entry_of_a_key_is_there_and_all_others_are_as_they_were(written):
    text, expected = None, {}
    for each in written:
        before: list[Any] = [] if text is None else json.loads(text)["entries"]
        text = merged(text, each)
        after = json.loads(text)["entries"]
        expected[each.key] = each
        others = [raw for raw, e in zip(after, parsed(text)) if e.key != each.key]
        assert others == [
            raw for raw in before if (raw["mpi"], raw["wire"], raw["ranks"]) != each.key
        ]
    assert text is None or parsed(text) == list(expected.values())


def test_settings_left_out_stay_left_out():
    """So that they follow the defaults of a later version, as their author meant it."""
    raw = {"mpi": "x", "wire": "node", "ranks": 3, "tuning": {"window": 2}}
    text = json.dumps({"format": 1, "entries": [raw]})
    assert json.loads(merged(text, entry()))["entries"][0] == raw


def test_a_file_is_made_with_its_folder_and_replaced_at_once(tmp_path):
    path = tmp_path / "not" / "there" / "profile.json"
    profiles.write_entry(path, entry(window=4))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.chmod(0o640)
    old = path.open()
    profiles.write_entry(path, entry(window=5))
    profiles.write_entry(path, entry(ranks=7, date="today"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [e.tuning.window for e in parsed(path.read_text())] == [5, 3]
    assert parsed(path.read_text())[1].measured == {"date": "today"}
    with old:  # who had opened it reads what it was
        assert [e.tuning.window for e in parsed(old.read())] == [4]
    assert os.listdir(path.parent) == [path.name]


def test_a_link_stays_one(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    profiles.write_entry(link, entry())
    assert link.is_symlink() and len(parsed(real.read_text())) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1, "entries": [{}]}'])
def test_a_broken_file_is_left_as_it_is(tmp_path, text):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ValueError):
        profiles.write_entry(path, entry())
    assert path.read_text() == text and os.listdir(tmp_path) == [path.name]


def test_a_failure_while_writing_leaves_the_older_file(tmp_path, monkeypatch):
    path = tmp_path / "profile.json"
    profiles.write_entry(path, entry(window=4))
    before = path.read_text()

    def full(descriptor):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        profiles.write_entry(path, entry(window=5))
    assert path.read_text() == before and os.listdir(tmp_path) == [path.name]


def write_many(path, ranks):
    for window in range(1, 21):
        profiles.write_entry(path, entry(ranks=ranks, window=window))


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    path = tmp_path / "profile.json"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(path, r)) for r in (1, 2, 3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    found = {e.ranks: e.tuning.window for e in parsed(path.read_text())}
    assert found == {1: 20, 2: 20, 3: 20}


# ---- reading ----------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "mpi": MPIS[0],
    "wire": "node",
    "ranks": 2,
    "tuning": {},
    "measured": {},
}

WRONG: dict[str, tuple[Any, str]] = {
    "empty": ("", "no profile in JSON: "),
    "half": ('{"format": 1, "entr', "no profile in JSON: "),
    "deep": ("[" * 100_000, "no profile in JSON: "),
    "a list": ([], "it is [], expected an object"),
    "no entries": ({"format": 1}, "it has no 'entries'"),
    "no format": ({"entries": []}, "it has no 'format'"),
    "of later": ({"format": 2, "entries": []}, "its format is 2, this version knows 1"),
    "true": ({"format": True, "entries": []}, "its format is true"),
    "unknown": ({"format": 1, "entries": [], "x": 0}, "it has an unknown 'x'"),
    "object": ({"format": 1, "entries": {}}, "entries is {}, expected a list"),
    "number": ({"format": 1, "entries": [7]}, "entries[0] is 7, expected an object"),
    "twice": ('{"format": 1, "format": 1, "entries": []}', "'format' is there twice"),
}

WRONG_ENTRIES: dict[str, tuple[dict[str, Any], str]] = {
    "mpi": ({"mpi": 5}, 'mpi is 5, expected a name such as "Open MPI 5.0.11"'),
    "nobody": ({"mpi": ""}, 'mpi is "", expected a name'),
    "wire": ({"wire": "air"}, 'wire is "air", expected node or network'),
    "wires": ({"wire": ["node"]}, 'wire is ["node"], expected'),
    "no ranks": ({"ranks": 0}, "ranks is 0, expected a whole number, 1 or more"),
    "half": ({"ranks": 2.5}, "ranks is 2.5, expected a whole number"),
    "true": ({"ranks": True}, "ranks is true, expected a whole number"),
    "words": ({"measured": "today"}, 'measured is "today", expected an object'),
    "unknown": ({"rank": 2}, "has an unknown 'rank'; known are mpi, wire, ranks"),
    "tuning": ({"tuning": 3}, "tuning: settings are '3', expected an object"),
    "window": ({"tuning": {"window": 65}}, "tuning: window is 65, expected"),
    "setting": ({"tuning": {"speed": 1}}, "tuning: there is no setting 'speed'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_profile_is_refused(name):
    content, told = WRONG[name]
    text = content if isinstance(content, str) else json.dumps(content)
    with pytest.raises(ValueError) as error:
        parsed(text)
    assert told in str(error.value)


@pytest.mark.parametrize("name", WRONG_ENTRIES)
def test_what_is_no_entry_is_refused_and_its_place_named(name):
    wrong, told = WRONG_ENTRIES[name]
    both = [GOOD | {"ranks": 9}, GOOD | wrong]
    with pytest.raises(ValueError, match=r"^entries\[1\]") as error:
        parsed(json.dumps({"format": 1, "entries": both}))
    assert told in str(error.value)


@pytest.mark.parametrize("name", ["mpi", "wire", "ranks", "tuning"])
def test_an_entry_that_lacks_something(name):
    less = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(ValueError, match=rf"^entries\[0\] has no '{name}'"):
        parsed(json.dumps({"format": 1, "entries": [less]}))
    assert parsed(json.dumps({"format": 1, "entries": [GOOD]})) == [entry()]


def test_two_entries_for_the_same():
    text = json.dumps({"format": 1, "entries": [GOOD, GOOD | {"ranks": 1}, GOOD]})
    with pytest.raises(ValueError, match=r"entries\[0\] and entries\[2\] are both: "):
        parsed(text)


# ---- which counts -----------------------------------------------------------------------------------


@given(st.lists(entries, unique_by=lambda e: e.key), entries)
def test_the_nearest_entry_of_this_mpi_and_wire(found, wanted):
    def ratio(e):
        return Fraction(max(e.ranks, wanted.ranks), min(e.ranks, wanted.ranks))

    chosen = nearest(found, *wanted.key)
    fit = [e for e in found if e.key[:2] == wanted.key[:2]]
    fit = [e for e in fit if e.key == wanted.key or ratio(e) <= 2 < e.ranks]
    if chosen is None:
        assert not fit
        return
    assert chosen in fit
    assert all((ratio(chosen), chosen.ranks) <= (ratio(e), e.ranks) for e in fit)


def test_of_two_as_near_the_fewer_ranks():
    four, nine = entry(ranks=4), entry(ranks=9)
    for order in ([four, nine], [nine, four]):
        assert nearest(order, MPIS[0], NODE, 6) is four
        assert nearest(order, MPIS[0], NODE, 7) is nine


def test_what_is_far_does_not_count():
    """Two ranks pass nothing on, so that pieces for a chain look useless there."""
    two, four = entry(ranks=2), entry(ranks=4)

    def counts(only, ranks):
        return nearest([only], MPIS[0], NODE, ranks) is only

    assert nearest([two, four], MPIS[0], NODE, 2) is two
    assert [ranks for ranks in range(1, 20) if counts(two, ranks)] == [2]
    assert [ranks for ranks in range(1, 20) if counts(four, ranks)] == [*range(2, 9)]


def test_where_a_profile_is_looked_for(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    users = Path("/home/me/.config/mpiring/profile.json")
    assert find_path({}) == (users, False)
    assert find_path({"XDG_CONFIG_HOME": "relative"}) == (users, False)
    there = Path("/etc/x/mpiring/profile.json")
    assert find_path({"XDG_CONFIG_HOME": "/etc/x"}) == (there, False)
    variable = {"XDG_CONFIG_HOME": "/etc/x", "MPIRING_PROFILE": "a/b"}
    assert find_path(variable) == (Path("a/b"), True)
    for nothing in ("", "none"):
        assert find_path({"MPIRING_PROFILE": nothing}) == (None, True)


def test_what_a_ring_takes(tmp_path):
    path = tmp_path / "mpiring" / "profile.json"
    user = {"XDG_CONFIG_HOME": str(tmp_path)}
    ring = MPIS[0], NETWORK, 4
    assert find(user, *ring) == profiles.Found(DEFAULTS[NETWORK])
    profiles.write_entry(path, entry(wire=NODE, window=7))
    assert find(user, *ring) == profiles.Found(DEFAULTS[NETWORK], path)
    profiles.write_entry(path, entry(wire=NETWORK, ranks=3, window=8))
    found = find(user, *ring)
    assert (found.tuning.window, found.path) == (8, path)
    assert found.entry is not None and found.entry.ranks == 3
    assert find({"MPIRING_PROFILE": "none", **user}, *ring).path is None


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "binary", "long"])
def test_what_cannot_be_read(tmp_path, kind):
    path = tmp_path / "profile"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe")
    elif kind == "long":
        path.write_text(" " * (profiles.MOST_BYTES + 1))
    with pytest.raises(ValueError) as error:
        find({"MPIRING_PROFILE": str(path)}, MPIS[0], NODE, 2)
    assert str(error.value).startswith(f"profile {path}: ")
    assert str(error.value).endswith("or set MPIRING_PROFILE=none to do without")


def test_a_home_that_may_not_be_looked_into_has_no_profile(tmp_path):
    (tmp_path / "file").write_text("")
    nowhere = {"XDG_CONFIG_HOME": str(tmp_path / "file")}
    assert find(nowhere, MPIS[0], NODE, 2) == profiles.Found(DEFAULTS[NODE])


# ---- files that are none ----------------------------------------------------------------------------


def open_descriptors():
    return sorted(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts in /proc")
@pytest.mark.parametrize("kind", ["directory", "pipe", "device", "socket", "too long"])
def test_b54_what_is_no_file_leaves_no_descriptor_open(tmp_path, kind):
    path = tmp_path / "profile.json"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    else:
        path.write_bytes(bytes(profiles.MOST_BYTES + 1))
    before = open_descriptors()
    for _ in range(3):
        with pytest.raises(ValueError, match=f"profile {path}: "):
            find({profiles.VARIABLE: str(path)}, MPIS[0], NODE, 2)
    assert open_descriptors() == before


def test_b54_a_name_that_is_no_text_is_one_like_any_other(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff.json")
    profiles.write_entry(path, entry(window=7))
    found = find({profiles.VARIABLE: str(path)}, MPIS[0], NODE, 2)
    assert found.tuning.window == 7
