"""``mpiring tune`` under mpirun: it measures, writes a profile that rings take, and loses nothing that was there."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from dataclasses import replace

import pytest

from mpiring.wire.gpu_aware.loaded import find_library
from mpiring.wire.settings.profiles import Entry, parsed, write_entry
from mpiring.wire.settings.tuning import DEFAULTS, NODE, from_json

from launch import launch

QUICK = ["-m", "mpiring", "tune", "--quick", "--max-bytes", "64Ki"]

OTHER = Entry("An MPI 1.0", NODE, 3, DEFAULTS[NODE], {"note": "mine"})

TAKEN = """
import json
from mpi4py import MPI
import mpiring
with mpiring.Ring() as ring:
    told = MPI.COMM_WORLD.gather((ring.wire, ring.tuning.as_json()))
if ring.rank == 0:
    print(json.dumps(told))
"""


def test_what_is_measured_is_what_later_rings_take(tmp_path):
    path = tmp_path / "new" / "profile.json"
    write_entry(path, OTHER)
    job = launch(3, [*QUICK, "--output", path]).check()
    other, entry = parsed(path.read_text())
    assert other == OTHER
    assert (entry.wire, entry.ranks) == (NODE, 3)
    assert {"date", "host", "cpu", "mpiring"} <= set(entry.measured)
    titles = [f"# {name}: " for name in DEFAULTS[NODE].as_json()]
    assert all(job.stdout.count(title) == 1 for title in titles)  # one rank speaks
    # Whatever was chosen is told, and is what the profile has.
    told = re.search(rf"^# {re.escape(str(entry))}: (.*)$", job.stdout, re.MULTILINE)
    assert told is not None
    assert f"window {entry.tuning.window}," in told[1]
    for name, value in entry.tuning.as_json().items():
        if value != DEFAULTS[NODE].as_json()[name]:
            assert "#   chosen: " in job.stdout
    # A ring takes it, on every rank; with another number of ranks far away it does not.
    env = {"MPIRING_PROFILE": str(path)}
    told = json.loads(launch(3, ["-c", TAKEN], env=env).check().stdout)
    assert told == [[NODE, entry.tuning.as_json()]] * 3


@pytest.mark.slow
def test_a_bench_says_by_which_profile(tmp_path):
    path = tmp_path / "profile.json"
    bench = ["-m", "mpiring", "bench", "allreduce", "-b", "1000", "-e", "1000"]
    bench += ["--rounds", "3", "--time", "10ms", "--peers", "none"]
    tuning = replace(DEFAULTS[NODE], window=1)
    write_entry(path, Entry(find_library().name, NODE, 2, tuning))
    tuned = launch(2, bench, env={"MPIRING_PROFILE": str(path)}).check()
    assert "# by a profile of mpiring tune: chunk_bytes whole, " in tuned.stdout
    assert "window 1, " in tuned.stdout


# What is measured is made up: half the time with chunks of 16 KiB, with windows of 1, and in pieces of 128 KiB.
MADE_UP = """
import sys
from mpiring.cli import main
from mpiring.cli.tune import contests
real = contests.measure
def measure(clock, cases, rounds, seconds):
    rows = real(clock, cases, 3, 0.0)
    for row in rows:
        row.seconds = [2.0, 2.1, 1.9]
        if row.who == "mpiring" and row.name in FAST:
            row.seconds = [1.0, 1.1, 0.9]
        if row.who == "mpiring" and row.name in SLOW:
            row.seconds = [2.06, 2.16, 1.96]
        row.wrong += WRONG
    return rows
contests.measure = measure
contests.HOPELESS = 1e9
sys.exit(main(["tune", "--quick", "--max-bytes", "256Ki", "--output", sys.argv[1]]))
"""


def made_up(path, fast, wrong=0, status=0, slow=()):
    code = MADE_UP.replace("FAST", repr(fast)).replace("WRONG", str(wrong))
    code = code.replace("SLOW", repr(slow))
    job = launch(2, ["-c", code, path])
    assert job.returncode == status, str(job)
    return job


def test_what_is_faster_is_chosen(tmp_path):
    path = tmp_path / "profile.json"
    # 16 KiB chunks; of 1 and 3, window 1; 16 KiB pieces; of two ways the first is 0; all together is 1
    job = made_up(path, ["16384", "1"])
    (entry,) = parsed(path.read_text())
    found = entry.tuning.as_json()
    assert (found["chunk_bytes"], found["piece_bytes"]) == (16384, 16384)
    assert found["window"] == 1
    assert found["direct_bytes"] == 0 and found["small_bytes"] == 0
    assert entry.measured["gain"] == 2.0
    assert "chosen: 16 KiB, 2.00x as fast as the default, whole" in job.stdout
    assert "taken: 2.00x as fast" in job.stdout


@pytest.mark.slow
def test_choices_that_are_slower_together_are_not_taken(tmp_path):
    path = tmp_path / "profile.json"
    job = made_up(path, ["16384", "0"])
    (entry,) = parsed(path.read_text())
    assert entry.tuning == DEFAULTS[NODE]
    assert "not taken: 0.50x as fast together" in job.stdout
    assert "gain" not in entry.measured


@pytest.mark.slow
def test_choices_that_are_a_little_slower_together_are_not_taken(tmp_path):
    """No profile is known to be slower than none: what was chosen has to prove itself, and not the defaults."""
    path = tmp_path / "profile.json"
    job = made_up(path, ["16384"], slow=["1"])
    (entry,) = parsed(path.read_text())
    assert "chosen: 16 KiB, 2.00x as fast as the default, whole" in job.stdout
    assert "not taken: 0.97x as fast together" in job.stdout
    assert entry.tuning == DEFAULTS[NODE]


@pytest.mark.slow
def test_noise_writes_the_defaults(tmp_path):
    path = tmp_path / "profile.json"
    job = made_up(path, [])
    (entry,) = parsed(path.read_text())
    assert entry.tuning == DEFAULTS[NODE]
    assert "#   chosen: " not in job.stdout and "# all: " not in job.stdout
    assert from_json({}, DEFAULTS[NODE]) == entry.tuning


@pytest.mark.slow
def test_wrong_results_are_bad_news_and_nothing_is_written(tmp_path):
    path = tmp_path / "profile.json"
    write_entry(path, OTHER)
    before = path.read_text()
    job = made_up(path, ["16384"], wrong=1, status=1)
    assert "elements of results were wrong: nothing is written" in job.stdout
    assert path.read_text() == before


def test_a_broken_profile_is_told_of_before_anything_is_measured(tmp_path):
    path = tmp_path / "profile.json"
    text = '{"format": 1, "entries": [{"mpi": "x"}]}'
    path.write_text(text)
    job = launch(2, [*QUICK, "--output", path])
    assert job.returncode == 2
    told = f"mpiring tune: {path} is no profile that an entry could be added to: "
    assert job.stderr.count(told) == 1 and "chunk_bytes" not in job.stdout
    assert path.read_text() == text


@pytest.mark.slow
def test_a_folder_that_is_not_there(tmp_path):
    path = tmp_path / "not" / "there" / "profile.json"
    job = launch(2, [*QUICK, "--output", path])
    assert job.returncode == 2 and "chunk_bytes" not in job.stdout
    told = f"mpiring tune: {path}: there is no folder {path.parent}; make it, "
    assert job.stderr.count(told) == 1 and os.listdir(tmp_path) == []


def test_a_wrong_line_is_said_once(tmp_path):
    job = launch(3, [*QUICK, "--timeout", "0s", "--output", tmp_path / "x"])
    assert job.returncode == 2
    assert job.stderr.count("--timeout 0s: expected more than 0") == 1


SILENT = """
import sys, time
from mpi4py import MPI
from mpiring.cli import main
from mpiring.wire.collectives import reductions
calls = 0
allreduce = reductions.Collectives.allreduce
def silent(self, *args):
    global calls
    calls += 1
    if calls == 5 and MPI.COMM_WORLD.rank == 1:
        time.sleep(60)
    return allreduce(self, *args)
reductions.Collectives.allreduce = silent
sys.exit(main(["tune", "--quick", "--timeout", "1s", "--output", sys.argv[1]]))
"""


@pytest.mark.slow
def test_a_call_that_outlives_the_timeout_ends_the_job(tmp_path):
    path = tmp_path / "profile.json"
    job = launch(2, ["-c", SILENT, path], timeout=40)
    assert job.returncode != 0
    assert "mpiring tune: allreduce: rank 0 waited 1 s" in job.stderr
    assert "in no call of this ring: rank 1" in job.stderr
    assert not path.exists()


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="draws with matplotlib"
)
def test_the_picture(tmp_path):
    path, picture = tmp_path / "profile.json", tmp_path / "figure.png"
    launch(2, [*QUICK, "--output", path, "--plot", picture]).check()
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
