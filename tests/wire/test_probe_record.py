"""Records of device probes: what one counts for, and that a broken one is a sentence and no exception."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from mpiring.wire.gpu_aware import probe_record
from mpiring.wire.gpu_aware.loaded import Library
from mpiring.wire.gpu_aware.probe_record import (
    MOST_BYTES,
    SETTINGS,
    Subject,
    find_cache,
    find_subject,
    forget_record,
    read_record,
    record_path,
    write_record,
)

SUBJECT = Subject("Open MPI v5.0.11\n", "/opt/lib/libmpi.so.40", 1, "a", "UCX_TLS=all")


def test_what_is_written_is_read(tmp_path):
    cache = tmp_path / "not" / "there"
    assert read_record(cache, SUBJECT) == (
        False,
        f"no probe of this MPI has passed on a ({record_path(cache, SUBJECT)})",
    )
    path = write_record(cache, SUBJECT, {"sizes": [8], "passed": False})
    assert path == record_path(cache, SUBJECT)
    assert read_record(cache, SUBJECT) == (True, f"a probe has passed on a ({path})")
    assert json.loads(path.read_text())["sizes"] == [8]
    write_record(cache, SUBJECT, {})  # once more, over it
    assert read_record(cache, SUBJECT)[0] and os.listdir(cache) == [path.name]
    forget_record(cache, SUBJECT)
    assert not read_record(cache, SUBJECT)[0]
    forget_record(cache, SUBJECT)


OTHERS: dict[str, Any] = {
    "library": "Open MPI v5.0.12\n",
    "path": "/usr/lib/libmpi.so.40",
    "mtime_ns": 2,
    "host": "b",
    "settings": "",
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_record_counts_for_its_subject_only(tmp_path, name):
    other = dataclasses.replace(SUBJECT, **{name: OTHERS[name]})
    path = write_record(tmp_path, SUBJECT, {})
    assert read_record(tmp_path, other)[0] is False
    # Nor if it lies where the other's would.
    path.rename(record_path(tmp_path, other))
    passed, words = read_record(tmp_path, other)
    assert not passed and f"is no record of this MPI: its {name} is" in words


def test_every_field_of_a_subject_is_tried():
    assert set(OTHERS) == {field.name for field in dataclasses.fields(Subject)}


def change(**fields):
    def changed(path):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, **fields}))

    return changed


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def folder(path):
    path.unlink()
    path.mkdir()


def loop(path):
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize(
    "damage, why",
    [
        (lambda path: path.write_text(""), "JSONDecodeError"),
        (lambda path: path.write_text(path.read_text()[:-20]), "JSONDecodeError"),
        (lambda path: path.write_bytes(b"\xff\xfe{}"), "UnicodeDecodeError"),
        (lambda path: path.write_text("[]"), "a list, not an object"),
        (lambda path: path.write_text("7"), "a int, not an object"),
        (lambda path: path.write_text("{}"), "its format is 'None', expected '1'"),
        (lambda path: path.write_text("[" * 50_000), "Error"),
        (lambda path: path.write_text(" " * MOST_BYTES + "{}"), "longer than"),
        (change(passed=False), "its passed is 'False'"),
        (change(passed=1), "its passed is '1'"),
        (change(format=True), "its format is 'True'"),
        (change(format=2), "its format is '2'"),
        (change(mtime_ns=1.0), "its mtime_ns is '1.0'"),
        (change(host=["a"]), "its host is"),
        (pipe, "not an ordinary file"),
        (folder, "Error"),
        (loop, "Too many levels"),
    ],
)
def test_a_damaged_record_is_ignored_with_a_sentence(tmp_path, damage, why):
    path = write_record(tmp_path, SUBJECT, {})
    damage(path)
    passed, words = read_record(tmp_path, SUBJECT)
    assert not passed
    assert words.startswith(f"{path} is ignored, it is no record of this MPI: ")
    assert why in words


def test_without_a_file_or_a_cache_there_is_a_sentence(tmp_path):
    assert read_record(None, SUBJECT)[0] is False
    assert read_record(tmp_path, None)[0] is False


def test_the_subject_of_a_library(tmp_path, monkeypatch):
    mapped: list[str] = []
    monkeypatch.setattr(probe_record, "mapped_here", lambda: mapped)
    real, link = tmp_path / "libmpi.so.40.1", tmp_path / "libmpi.so.40"
    real.touch()
    link.symlink_to(real)
    library = Library("Some MPI 1.0", (3, 1), (str(link),))
    environment = {"UCX_TLS": "sm,cuda", "OMPI_MCA_pml": "ucx", "HOME": "/root"}
    assert find_subject(library, environment) == Subject(
        "Some MPI 1.0",
        str(real),
        real.stat().st_mtime_ns,
        socket.gethostname(),
        "OMPI_MCA_pml=ucx UCX_TLS=sm,cuda",
    )
    # Over another UCX it is another subject.
    mapped += ["/opt/ucx/lib/libucp.so.0.0.0", "/opt/ucx/lib/libuct.so.0"]
    with_ucx = find_subject(library, {"UCX_TLS": "sm,cuda"})
    assert with_ucx is not None
    assert with_ucx.settings == "UCX_TLS=sm,cuda /opt/ucx/lib/libucp.so.0.0.0"
    real.unlink()
    assert find_subject(library, environment) is None
    assert find_subject(Library("Some MPI 1.0", (3, 1)), environment) is None
    assert list(SETTINGS) == sorted(SETTINGS)


@pytest.mark.parametrize(
    "environment, cache",
    [
        ({"MPIRING_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "/c"),
        ({"MPIRING_CACHE": "", "XDG_CACHE_HOME": "/x"}, "/x/mpiring"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/mpiring"),
        ({}, "/home/me/.cache/mpiring"),
    ],
)
def test_the_cache_directory(monkeypatch, environment, cache):
    monkeypatch.setenv("HOME", "/home/me")
    assert find_cache(environment) == Path(cache)


def test_no_home_no_cache(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert find_cache({}) is None
    assert find_cache({"MPIRING_CACHE": "here"}) == Path("here")


def test_a_write_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        write_record(tmp_path, SUBJECT, {"facts": object()})
    assert os.listdir(tmp_path) == []
