"""``mpiring bench`` under mpirun: it measures, sees wrong results, and a complaint comes once and ends all ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from mpiring.cli.bench.settings import PEER_NAMES
from mpiring.plan import COLLECTIVES

from launch import find_mpi, launch

PROGRAM = ["-m", "mpiring", "bench"]
TINY = ["-b", "1000", "-e", "1000", "--rounds", "3", "--time", "10ms"]


def has(module):
    return importlib.util.find_spec(module) is not None


def figures(size, *words, folder, more="", status=0):
    """Run it; its figures and what it said."""
    path = folder / "figures.json"
    command = ["bench", *words, "--json", str(path)]
    code = (
        f"{more}\nimport sys; from mpiring.cli import main; sys.exit(main({command!r}))"
    )
    job = launch(size, ["-c", code])
    assert job.returncode == status, str(job)
    return json.loads(path.read_text()), job.stdout


@pytest.mark.smoke
def test_everything_at_once_on_three_ranks(tmp_path):
    words = ["all", *TINY, "--dtype", "float32,uint8", "--op", "sum,max"]
    words += ["--peers", "mpi,ring,lecture,copy"]
    found, told = figures(3, *words, folder=tmp_path)
    assert {row["collective"] for row in found["rows"]} == set(COLLECTIVES)
    kind = ("who", "collective", "dtype", "op", "in_place")
    seen = {tuple(row[key] for key in kind) for row in found["rows"]}
    assert len(seen) == len(found["rows"])
    for who in ("mpiring", "mpi", "lecture"):
        for collective in COLLECTIVES:
            if who == "lecture" and collective in ("broadcast", "reduce"):
                continue
            moves = collective in ("allgather", "broadcast")
            for op in (None,) if moves else ("sum", "max"):
                for dtype in ("float32", "uint8"):
                    for in_place in (False, True):
                        assert (who, collective, dtype, op, in_place) in seen
    for row in found["rows"]:
        assert row["wrong"] == (None if row["who"] == "copy" else 0), row
        assert len(row["seconds"]) >= 3 and min(row["seconds"]) > 0
        assert row["min"] <= row["median"] <= row["max"]
        assert row["count"] == (250 if row["dtype"] == "float32" else 1000)
        assert row["root"] == (0 if row["collective"] in ("broadcast", "reduce") else None)  # fmt: skip
    assert found["ranks"] == 3 and found["hosts"] == 1
    assert {"machine", "mpi", "versions", "settings", "command", "date"} <= set(found)
    assert len(found["load_at_start"]) == len(found["load_at_end"]) == 3
    assert "#wrong: none" in told
    assert told.count("# allreduce float32 sum") == 1  # one rank speaks


@pytest.mark.slow
def test_halves_averages_and_slices_on_two_ranks(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "figures.png"
    words = ["allreduce", "-b", "1000", "-e", "128000", "-f", "128", "--rounds", "3"]
    words += ["--dtype", "float64,float16,bfloat16", "--op", "avg", "--order", "rank"]
    words += ["--plot", str(picture), "--peers", "mpi,sliced,lecture,copy"]
    found, told = figures(2, *words, folder=tmp_path)
    assert all(row["wrong"] in (0, None) for row in found["rows"])
    assert {row["dtype"] for row in found["rows"]} == {"float64", "float16", "bfloat16"}
    sliced = {(row["dtype"], row["nbytes"]) for row in found["rows"] if row["who"] == "sliced"}  # fmt: skip
    assert sliced == {("float64", 128_000)}
    assert [each["chosen"] for each in found["slices"]] == [65536]
    assert "# slices of 125 KiB for" in told and "64 KiB slices" in told
    ratio = {(each["who"], each["nbytes"]) for each in found["ratios"]}
    assert ("mpi", 128_000) in ratio and ("copy", 1000) in ratio
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


RINGS = """
import numpy as np
from mpi4py import MPI
from mpiring.cli.bench import forced
comm = MPI.COMM_WORLD
before, (peer, why), after = comm.Dup(), forced.start(comm), comm.Dup()
if peer is None:
    print(why)
else:
    x = np.random.default_rng(comm.rank).standard_normal(100_001).astype(np.float32)
    results = []
    for each in (before, after, peer.comm):
        results.append(np.empty_like(x))
        each.Allreduce(x, results[-1])
    same, other = (int((results[0] != result).sum()) for result in results[1:])
    print(same, other)
"""


@pytest.mark.slow
def test_open_mpis_ring_is_forced_on_one_communicator_alone():
    told = set(launch(4, ["-c", RINGS]).check().stdout.splitlines())
    if find_mpi().name != "openmpi":
        assert len(told) == 1 and "only of Open MPI a way is known" in told.pop()
        return
    # Four floats in another order: a third of the sums have other bits.
    (counted,) = told
    same, other = map(int, counted.split())
    assert same == 0 and other > 10_000


WRONG = """
import mpiring
allreduce = mpiring.Ring.allreduce
def wrong(self, x, op="sum", *, out=None, **more):
    result = allreduce(self, x, op, out=out, **more)
    if self.rank == 1 and x is out:
        out[[3, 17]] += 1
    return result
mpiring.Ring.allreduce = wrong
"""


def test_a_wrong_result_is_counted_and_ends_with_status_1(tmp_path):
    words = ["allreduce", *TINY, "--peers", "copy"]
    found, told = figures(2, *words, folder=tmp_path, more=WRONG, status=1)
    counted = {(row["who"], row["in_place"]): row["wrong"] for row in found["rows"]}
    # Two elements on one rank, in the first and in the last call.
    assert counted == {("mpiring", False): 0, ("mpiring", True): 4, ("copy", False): None}  # fmt: skip
    assert "#wrong: 4" in told


NEW_MEMORY = """
import mpiring, numpy
def empty(self, shape, dtype="float32"):
    assert self.size == 2
    made.append(numpy.empty(shape, dtype))
    return made[-1]
made = []
mpiring.Ring.empty = empty
allreduce = mpiring.Ring.allreduce
def checked(self, x, *words, out=None, **more):
    assert any(out is array for array in made)
    return allreduce(self, x, *words, out=out, **more)
mpiring.Ring.allreduce = checked
"""
NO_MEMORY = """
import mpiring
if hasattr(mpiring.Ring, "empty"):
    del mpiring.Ring.empty
"""


def test_shared_memory_is_the_rings(tmp_path):
    words = ["allreduce", *TINY, "--memory", "shared", "--peers", "mpi,copy"]
    found, _ = figures(2, *words, folder=tmp_path, more=NEW_MEMORY)
    assert found["memory"] == "shared"
    assert all(row["wrong"] in (0, None) for row in found["rows"])


@pytest.mark.slow
def test_without_such_memory_it_says_so(tmp_path):
    words = [*PROGRAM, "allreduce", *TINY, "--memory", "shared", "--peers", "none"]
    code = f"{NO_MEMORY}\nimport sys; from mpiring.cli import main; sys.exit(main({words[2:]!r}))"
    job = launch(2, ["-c", code])
    assert job.returncode == 2
    assert job.stderr.count("this version of mpiring has no Ring.empty") == 1


@pytest.mark.slow
@pytest.mark.skipif(not has("torch"), reason="torch is not installed")
def test_gloo(tmp_path):
    words = ["all", "-b", "1200", "-e", "1200", "--rounds", "3", "--peers", "gloo"]
    words += ["--dtype", "float32,bfloat16", "--op", "sum,avg"]
    found, _ = figures(2, *words, folder=tmp_path)
    gloo = [row for row in found["rows"] if row["who"] == "gloo"]
    kinds = {(row["collective"], row["dtype"]) for row in gloo}
    assert {collective for collective, _ in kinds} == set(COLLECTIVES) - {"reduce_scatter"}  # fmt: skip
    assert {dtype for _, dtype in kinds} == {"float32", "bfloat16"}
    assert [row for row in gloo if row["wrong"]] == []
    assert found["left_out"] == {}


@pytest.mark.skipif(has("torch"), reason="torch is installed")
def test_without_torch_gloo_is_left_out_with_the_reason(tmp_path):
    found, told = figures(2, "allreduce", *TINY, "--peers", "gloo", folder=tmp_path)
    assert "torch is not installed" in found["left_out"]["gloo"]
    assert "# not measured: gloo: torch is not installed" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, complaint",
    [
        (["allreduce", "--factor", "x"], "mpiring bench: argument -f/--factor: invalid"),
        (["allreduce", "--factor", "1"], "mpiring bench: --factor 1: expected 2 or more"),
        (["allreduce", *TINY, "--algorithm", "magic", "--peers", "none"], "unknown algorithm 'magic'"),
        (["allreduce", "--json", os.devnull + "/x"], "mpiring bench: --json "),
    ],
)  # fmt: skip
@pytest.mark.parametrize("module", [False, True])
def test_a_complaint_comes_once_and_ends_all_ranks(words, complaint, module):
    job = launch(2, [*PROGRAM, *words], module=module)
    assert job.returncode == 2
    assert job.stderr.count(complaint) == 1 == job.stderr.count("mpiring bench:")
    assert "Traceback" not in job.stderr


def test_help_comes_once_and_says_what_there_is():
    job = launch(2, [*PROGRAM, "--help"]).check()
    assert job.stdout.count("usage:") == 1
    for name in (*COLLECTIVES, *PEER_NAMES, "bfloat16", "--order", "--plot", "busbw"):
        assert name in job.stdout
    assert len(job.stdout.splitlines()) < 80


def test_one_rank_is_told_how_to_be_more():
    words = [*PROGRAM, "allreduce", "-b", "8"]
    alone = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=60
    )
    for done in (alone, launch(1, words)):
        assert done.returncode == 2
        assert "this is one rank" in done.stderr and done.stdout == ""
        assert "mpirun -n 4 mpiring bench allreduce -b 8" in done.stderr
    assert alone.stderr.count("\n") == 1
