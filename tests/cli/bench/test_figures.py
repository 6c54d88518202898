"""The benchmark without MPI: settings, tasks, measuring, and how it is told."""

from __future__ import annotations

import argparse
import doctest
import itertools
import json
from typing import Any

import numpy as np
import pytest

from mpiring.cli import UsageError
from mpiring.cli.bench import measure, plot, record, settings, table
from mpiring.cli.bench.inputs import Numbers
from mpiring.cli.bench.measure import Row, ratios
from mpiring.cli.bench.task import Buffers, Task
from mpiring.plan import COLLECTIVES, busbw

# ---- settings ---------------------------------------------------------------------------------------

DEFAULTS = {
    "collectives": ["allreduce"],
    "begin": 4096,
    "end": 65536,
    "factor": 4,
    "dtype": "float32",
    "op": "sum",
    "algorithm": "auto",
    "order": "ring",
    "memory": "ordinary",
    "peers": "all",
    "rounds": 5,
    "time": 1.0,
    "json": None,
    "plot": None,
}


def ask(**changed):
    return settings.ask(argparse.Namespace(**{**DEFAULTS, **changed}))


def test_sizes_begin_and_end_where_they_are_told():
    assert ask().sizes == [4096, 16384, 65536]
    assert ask(end=65535).sizes == [4096, 16384]
    assert ask(begin=7, end=7).sizes == [7]


def test_what_makes_no_sense_together_is_left_out_and_alone_is_an_error():
    found = ask(collectives=["all"], dtype="bool,float32", op="all").kinds
    assert {collective for collective, _, _ in found} == set(COLLECTIVES)
    assert ("allgather", "bool", None) in found and len(found) == len(set(found))
    ops = [op for collective, dtype, op in found if (collective, dtype) == ("reduce", "bool")]  # fmt: skip
    assert ops == ["min", "max"]
    with pytest.raises(UsageError, match="'sum' of bool has two meanings"):
        ask(dtype="bool")


def test_peers():
    assert ask().peers == settings.PEER_NAMES
    assert ask(peers="none").peers == ()
    assert ask(peers="copy,mpi,copy").peers == ("copy", "mpi")


@pytest.mark.parametrize(
    "changed, complaint",
    [
        ({"begin": 0}, "expected 1 byte or more"),
        ({"end": 100}, "an end that is not before"),
        ({"factor": 1}, "--factor 1: expected 2 or more"),
        ({"rounds": 2}, "--rounds 2: expected 3 or more"),
        ({"time": 0.0}, "--time 0s: expected more than 0"),
        ({"collectives": ["gossip"]}, "collective 'gossip': known are allreduce, "),
        ({"dtype": "float8"}, "--dtype 'float8': known are "),
        ({"op": ","}, "--op '': known are sum, "),
        ({"peers": "nccl"}, "--peers 'nccl': known are mpi, "),
    ],
)
def test_what_cannot_be_measured(changed, complaint):
    with pytest.raises(UsageError, match=complaint):
        ask(**changed)


def test_files_need_a_folder(tmp_path):
    assert ask(json=tmp_path / "a.json").json == tmp_path / "a.json"
    with pytest.raises(UsageError, match="--json .*there is no folder"):
        ask(json=tmp_path / "no" / "a.json")


# ---- tasks ------------------------------------------------------------------------------------------


def by_hand(tasks, inputs):
    """What a collective gives each rank, by the simplest loops."""
    first = tasks[0]
    if first.collective == "allgather":
        return [np.concatenate(inputs)] * first.size
    if first.collective == "broadcast":
        return [inputs[0]] * first.size
    total = sum(inputs)
    if first.collective == "reduce_scatter":
        return [total[task.mine] for task in tasks]
    return [total if task.collective == "allreduce" or task.is_root else None for task in tasks]  # fmt: skip


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size, count", [(2, 4), (3, 2000), (4, 1021), (5, 3)])
def test_the_right_result_is_right_and_every_wrong_element_counts(
    collective, size, count, in_place
):
    op = "sum" if collective in ("allreduce", "reduce_scatter", "reduce") else None
    numbers = Numbers(op, "int32", size)
    tasks = [Task(collective, "int32", op, 4 * count, rank, size, numbers) for rank in range(size)]  # fmt: skip
    ranks = [Buffers.ordinary(task) for task in tasks]
    for buffers in ranks:
        buffers.ready(in_place)
        if not in_place:  # nothing is right before the call
            assert buffers.task.wrong(buffers.target) == (
                buffers.target.size if collective != "reduce" or buffers.task.is_root else 0
            )  # fmt: skip
    results = by_hand(tasks, [buffers.source(in_place).copy() for buffers in ranks])
    for task, result in zip(tasks, results):
        assert task.wrong(result) == 0
        if result is not None and result.size:
            changed = result.copy()
            changed[[0, -1]] += 1
            assert task.wrong(changed) == min(2, result.size)
            assert task.wrong(result[:-1]) == result.size
            assert task.wrong(None) == result.size


def test_in_place_every_part_that_is_no_input_is_spoiled():
    numbers = Numbers(None, "float32", 4)
    for collective, wrong in (("allgather", 75), ("broadcast", 100)):
        task = Task(collective, "float32", None, 400, 3, 4, numbers)
        buffers = Buffers.ordinary(task)
        buffers.ready(True)
        assert task.wrong(buffers.got) == wrong


# ---- measuring --------------------------------------------------------------------------------------


class OneRank:
    """A communicator of one rank, whose clock stands in for MPI's."""

    rank, size = 0, 1

    def bcast(self, value):
        return value

    def allreduce(self, value):
        return value


class Steps:
    """A clock on which each contestant takes what the script says."""

    comm = OneRank()

    def __init__(self, script):
        self.script, self.calls = script, []

    def elapsed(self, call, calls=1):
        call()
        self.calls.append(call.__name__)
        return next(self.script[call.__name__])


def cases(**names):
    task = Task("allreduce", "float32", "sum", 40, 0, 1, Numbers("sum", "float32", 1))
    buffers = Buffers.ordinary(task)
    for name, error in names.items():

        def call(error=error):
            buffers.got[...] = buffers.given
            buffers.got[:error] += 1
            return buffers.got

        call.__name__ = name
        row = Row(name, name, "allreduce", "float32", "sum", None, 40, 10, False)
        yield measure.Case(row, buffers, call)


def test_rounds_are_interleaved_and_wrong_results_are_counted():
    script = {"mpiring": itertools.count(1), "mpi": itertools.count(10)}
    clock: Any = Steps(script)
    rows = measure.measure(clock, list(cases(mpiring=0, mpi=3)), 4, 1e9)
    warming = ["mpiring", "mpiring", "mpi", "mpi"]
    assert clock.calls == [*warming, *["mpiring", "mpi", "mpi", "mpiring"] * 2]
    assert [row.seconds for row in rows] == [[3, 4, 5, 6], [12, 13, 14, 15]]
    assert [row.wrong for row in rows] == [0, 6]  # in the first and in the last call


def test_everybody_makes_as_many_calls_but_for_the_very_slow():
    """However long the first one took; and the first of a sample is not timed."""
    script = {
        "mpiring": iter([5.0, 1e-4, *[1e-4] * 3]),
        "mpi": iter([2e-4, 3e-4, *[2e-4] * 3]),
        "gloo": iter([1.0, 1e-2, *[1e-2] * 3]),
    }
    made = []
    clock: Any = Steps(script)
    contestants = list(cases(mpiring=0, mpi=0, gloo=0))
    for each in contestants:

        def counted(call=each.call):
            made.append(call.__name__)
            return call()

        counted.__name__ = each.call.__name__
        each.call = counted
    rows = measure.measure(clock, contestants, 3, 1e9)
    assert [row.calls for row in rows] == [10, 10, 2]
    # Two looks, two to warm up; in each round one that is not timed, and what this clock makes one of.
    assert [made.count(row.who) for row in rows] == [2 + 2 + 3 * 2] * 3


def test_time_is_a_budget_but_three_rounds_are_made():
    clock: Any = Steps({"mpiring": itertools.repeat(1.0)})
    (row,) = measure.measure(clock, list(cases(mpiring=0)), 100, 1e-9)
    assert len(row.seconds) == 3


def a_row(who, in_place, seconds, nbytes=1 << 20, wrong=0, op="sum", count=1 << 18):
    name = {"mpi": "Some MPI", "copy": "memory copy"}.get(who, who)
    row = Row(who, name, "allreduce", "float32", op, None, nbytes, count, in_place)
    row.seconds, row.wrong = seconds, wrong
    return row


def rows(nbytes=1 << 20):
    return [
        a_row("mpiring", False, [1e-3, 2e-3, 4e-3], nbytes),
        a_row("mpiring", True, [1e-3, 1e-3, 1e-3], nbytes),
        a_row("mpi", False, [3e-3, 4e-3, 4e-3], nbytes),
        a_row("mpi", True, [4e-3, 5e-3, 6e-3], nbytes, wrong=7),
        a_row("copy", False, [1e-3, 1e-3, 1e-3], nbytes, wrong=None),
    ]


def test_ratios_are_those_of_the_rounds():
    assert ratios(rows()) == {
        ("mpi", False): 2.0,  # the median of 3, 2, 1; that of the medians is 2, too
        ("mpi", True): 5.0,
        ("copy", False): 0.5,
        ("copy", True): 1.0,
    }


def test_json_has_every_time_and_the_extremes():
    found = json.loads(json.dumps(rows()[0].as_json(4)))
    assert found["seconds"] == [1e-3, 2e-3, 4e-3]
    assert (found["min"], found["median"], found["max"]) == (1e-3, 2e-3, 4e-3)
    assert found["algbw"] == (1 << 20) / 2e-3
    assert found["busbw"] == busbw("allreduce", 4, 1 << 20, 2e-3)


# ---- telling ----------------------------------------------------------------------------------------


def test_the_line_has_nccl_tests_columns():
    out_of_place, in_place = table.ours(rows())
    words = table.line(out_of_place, in_place, 4).split()
    assert words[:5] == ["1048576", "262144", "float32", "sum", "-1"]
    assert words[5:9] == ["2000.0", "0.52", "0.79", "0"]
    assert words[9:] == ["1000.0", "1.05", "1.57", "0"]
    head = list(table.head("allreduce", "float32", "sum"))
    assert head[0] == "# allreduce float32 sum"
    columns = ["time", "algbw", "busbw", "#wrong"]
    assert head[2][1:].split() == [*"size count type redop root".split(), *columns * 2]
    # Under each other.
    line = table.line(out_of_place, in_place, 4)
    assert head[2].index("busbw") + 5 == line.index("0.79") + 4


def test_peers_stand_beside_with_their_ratio():
    text = "\n".join(table.beside([rows(), rows(4 << 20)]))
    assert "# out of place" in text and "# in place" in text
    assert "Some MPI" in text and "memory copy" in text
    assert "4000.0 (2.00x)" in text and "5000.0 (5.00x, 7 wrong)" in text
    assert "1 MiB" in text and "4 MiB" in text
    assert list(table.beside([rows()[:2]])) == []


def test_a_peer_that_cannot_do_a_size_is_a_dash():
    text = list(table.beside([rows()[:2], rows(4 << 20)]))
    (line,) = [line for line in text if "1 MiB" in line and "1000.0" in line]
    assert line.split()[-2:] == ["-", "-"]


def test_the_record_is_complete():
    found = record.machine()
    assert found["cores"] >= 1 and found["memory"] > 1 << 28 and found["cpu"]
    known = record.versions()
    assert {"python", "mpiring", "numpy", "mpi4py"} <= set(known)
    assert len(record.load()) == 3
    told = {"I_MPI_PIN": "1", "I_MPI_INFO_NP": "1", "HOME": "/", "OMP_NUM_THREADS": "1"}
    assert record.settings(told, "Intel MPI") == {"I_MPI_PIN": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip
    assert record.settings(told, "MPICH") == {"OMP_NUM_THREADS": "1"}


def a_run():
    return {
        "machine": {"cores": 2},
        "mpi": "Some MPI 1.0",
        "ranks": 2,
        "hosts": 1,
        "date": "2026-01-31T12:00:00+00:00",
        "rows": [
            row.as_json(2) for nbytes in (1 << 20, 4 << 20) for row in rows(nbytes)
        ],
    }


def test_the_plot_has_a_line_for_each_contestant(tmp_path):
    pytest.importorskip("matplotlib")
    found = a_run()
    found["rows"] += [{**row, "op": "max"} for row in found["rows"]]
    found["rows"] += [{**row, "op": "min"} for row in found["rows"][:10]]
    figure = plot.figure_of(found)
    assert len(figure.axes) == 3
    for axes in figure.axes:
        assert [each.get_label() for each in axes.lines] == ["mpiring", "Some MPI", "memory copy"]  # fmt: skip
        assert list(axes.lines[0].get_xdata()) == [1 << 20, 4 << 20]
        assert axes.get_xscale() == axes.get_yscale() == "log"
    assert figure.axes[0].lines[1].get_ydata()[0] == (1 << 20) / 5e-3 / 1e9
    plot.write_plot(found, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(UsageError, match="--plot: "):
        plot.write_plot(found, tmp_path / "a.what")


@pytest.mark.parametrize("module", [settings, measure, table, record])
def test_doctests(module):
    failed, tried = doctest.testmod(module)
    assert failed == 0 and tried > 0
