"""show and verify: the words around what mpiring.plan draws and proves."""

from __future__ import annotations

import doctest
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

from mpiring.cli import main, plans
from mpiring.cli import verify as verify_command
from mpiring.plan import (
    Action,
    Form,
    Receive,
    Send,
    Step,
    chain_broadcast,
    chain_reduce,
    direct_allreduce,
    from_steps,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    star_broadcast,
    star_reduce,
    table,
    verify,
)

ROOT = Path(__file__).parents[2]

# A chain that hands rank 0's buffer on, and one that forgets its last rank.
CHAIN = """
from mpiring.plan import Action, Form, Receive, Send, Step, from_steps

def make(size, skip=0):
    def steps(rank):
        receive = Receive(rank - 1, 0, Action.STORE, Form.RESULT)
        if 0 < rank < size - skip:
            yield Step(receives=(receive,))
        if rank < size - 1 - skip:
            yield Step((Send(rank + 1, 0, Form.RESULT),))
    every = [steps(rank) for rank in range(size)]
    return from_steps("broadcast", every, algorithm="chain", root=0, segments=1)

def forgetful(size):
    return make(size, skip=1)

def fails(size):
    return 1 / 0

def wrong(size):
    return make(size + 1)

def nothing(size):
    pass
"""


@pytest.fixture
def chain(tmp_path):
    path = tmp_path / "chain.py"
    path.write_text(CHAIN)
    return path


def said(capsys, *words):
    """What a command that goes well prints."""
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_examples_in_docstrings():
    result = doctest.testmod(plans)
    assert result.failed == 0 and result.attempted == 6


# ---- show


@pytest.mark.parametrize(
    "words, schedule, summary",
    [
        (
            ["allreduce"],
            ring_allreduce(4),
            "steps: 6\n"
            "bytes: each rank sends and receives 1.5 N bytes, the least possible\n"
            "order: segment 0: ((x1 op x2) op x3) op x0; in each next segment every rank one"
            " further\n",
        ),
        (
            ["allreduce", "--ranks", "4", "--offset", "1"],
            ring_allreduce(4, 1),
            "steps: 6\n"
            "bytes: each rank sends and receives 1.5 N bytes, the least possible\n"
            "order: segment 0: ((x0 op x1) op x2) op x3; in each next segment every rank one"
            " further\n",
        ),
        (
            ["allreduce", "--ranks", "3", "--algorithm", "direct", "--order", "rank"],
            direct_allreduce(3, "rank"),
            "steps: 2\n"
            "bytes: each rank sends and receives 1.333 N bytes, the least possible\n"
            "order: every segment: (x0 op x1) op x2\n",
        ),
        (
            ["reduce_scatter", "--ranks", "2"],
            ring_reduce_scatter(2),
            "steps: 1\n"
            "bytes: each rank sends and receives 0.5 N bytes, the least possible\n"
            "order: segment 0: x1 op x0; in each next segment every rank one further\n",
        ),
        (
            ["allgather", "--ranks", "5"],
            ring_allgather(5),
            "steps: 4\n"
            "bytes: each rank sends and receives 0.8 N bytes, the least possible\n",
        ),
        (
            ["allreduce", "--ranks", "1"],
            ring_allreduce(1),
            "steps: 0\n"
            "bytes: each rank sends and receives 0 N bytes, the least possible\n"
            "order: segment 0: x0\n",
        ),
    ],
)
def test_show(words, schedule, summary, capsys):
    assert said(capsys, "show", *words) == f"{table(schedule)}\n\n{summary}"


@pytest.mark.parametrize(
    "words, schedule, summary",
    [
        (
            ["broadcast", "--segments", "3", "--root", "1"],
            chain_broadcast(4, 1, 3),
            "steps: 5\n"
            "bytes: the busiest rank sends and receives 1 N bytes, the least possible\n",
        ),
        (
            ["broadcast", "--ranks", "3"],
            chain_broadcast(3, 0, 8),
            "steps: 9\n"
            "bytes: the busiest rank sends and receives 1 N bytes, the least possible\n",
        ),
        (
            ["broadcast", "--algorithm", "naive"],
            chain_broadcast(4),
            "steps: 3\n"
            "bytes: the busiest rank sends and receives 1 N bytes, the least possible\n",
        ),
        (
            ["broadcast", "--algorithm", "direct", "--root", "2"],
            star_broadcast(4, 2),
            "steps: 1\n"
            "bytes: the busiest rank sends 3 N bytes and receives 1 N; the least possible is 1 N\n",
        ),
        (
            ["reduce", "--ranks", "3", "--segments", "2", "--root", "1"],
            chain_reduce(3, 1, 2),
            "steps: 3\n"
            "bytes: the busiest rank sends and receives 1 N bytes, the least possible\n"
            "order: every segment: (x2 op x0) op x1\n",
        ),
        (
            ["reduce", "--algorithm", "direct", "--order", "rank", "--root", "2"],
            star_reduce(4, 2, 1, "rank"),
            "steps: 1\n"
            "bytes: the busiest rank sends 1 N bytes and receives 3 N; the least possible is 1 N\n"
            "order: segment 0: ((x0 op x1) op x2) op x3\n",
        ),
    ],
)
def test_show_with_a_root(words, schedule, summary, capsys):
    assert said(capsys, "show", *words) == f"{table(schedule)}\n\n{summary}"


def test_show_the_lectures_table(capsys):
    """Offset 1, four ranks: after three steps rank 3 holds the whole sum of segment 0."""
    page = said(capsys, "show", "reduce_scatter", "--offset", "1")
    assert "rank 3  a0+b0+c0+d0*" in page.partition("step 3")[2]


def test_show_writes_a_picture(tmp_path, capsys):
    path = tmp_path / "ring.svg"
    assert said(capsys, "show", "allreduce", "--svg", str(path)).endswith(
        f"\npicture: {path}\n"
    )
    picture = xml.etree.ElementTree.parse(path).getroot()
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"


def test_show_one_of_your_own(chain, capsys):
    page = said(capsys, "show", f"{chain}:make", "--ranks", "3")
    assert page.startswith("chain broadcast, 3 ranks, root 0\n")
    assert page.endswith(
        "steps: 2\nbytes: the busiest rank sends and receives 1 N bytes, the least possible\n"
    )


# ---- verify


def test_verify(capsys):
    first, *rest = said(capsys, "verify", "allreduce", "--ranks", "64").splitlines()
    assert first.startswith("ring allreduce, 64 ranks: proven in ") and first.endswith(
        " s"
    )
    assert [line[2:] for line in rest] == [
        "complete     every rank ends with the result of every segment, each contribution in it"
        " exactly once",
        "order        segment 0: ((x1 op x2) op x3) op ... op x0; in each next segment every rank"
        " one further",
        "             the same on every rank, so that bits agree",
        "no deadlock  in any order of progress, even when every send waits for its receive",
        "steps        126",
        "bytes        each rank sends and receives 1.969 N bytes, the least possible",
    ]


def test_verify_a_range(capsys):
    out = said(
        capsys, "verify", "allreduce", "--ranks", "2-32", "--algorithm", "direct"
    )
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:31]] == [
        str(size) for size in range(2, 33)
    ]
    assert all(
        " 2 steps: " in line and "the least possible" in line for line in lines[:31]
    )
    assert lines[31].startswith("direct allreduce, 2 to 32 ranks: proven in ")
    assert "around the ring" in lines[33]


def test_verify_one_rank(capsys):
    out = said(capsys, "verify", "allreduce", "--ranks", "1")
    assert out.startswith("ring allreduce, 1 rank: proven in ")


def test_verify_an_allgather_says_nothing_of_order(capsys):
    out = said(capsys, "verify", "allgather", "--ranks", "3")
    assert "order" not in out.replace("in any order of progress", "")
    assert "every rank ends with every segment\n" in out


@pytest.mark.parametrize(
    "count, moved",
    [
        (
            "12",
            "the busiest rank sends and receives 1.667 N bytes; the least possible is 1.6 N",
        ),
        ("15", "each rank sends and receives 1.6 N bytes, the least possible"),
        ("0", "each rank sends and receives 0 N bytes, the least possible"),
    ],
)
def test_verify_counts_the_bytes_of_uneven_segments(count, moved, capsys):
    out = said(capsys, "verify", "allreduce", "--ranks", "5", "--count", count)
    assert out.endswith(f"  bytes        {moved}\n")


def test_verify_with_a_root(capsys):
    out = said(capsys, "verify", "reduce", "--ranks", "5", "--root", "3")
    assert out.splitlines()[1:] == [
        "  complete     the root ends with the result of every segment, each contribution in it exactly once",
        "  order        segment 0: (((x4 op x0) op x1) op x2) op x3",
        "  no deadlock  in any order of progress, even when every send waits for its receive",
        "  steps        4",
        "  bytes        the busiest rank sends and receives 1 N bytes, the least possible",
    ]


def test_verify_a_range_with_a_root(capsys):
    words = ["--ranks", "2-9", "--root", "1", "--segments", "16"]
    lines = said(capsys, "verify", "reduce", *words).splitlines()
    steps = [line.split(",")[1].split(":")[0].strip() for line in lines[:8]]
    assert steps == [f"{size + 14} steps" for size in range(2, 10)]
    assert lines[8].startswith("chain reduce, 2 to 9 ranks: proven in ")
    assert lines[10].endswith("the root last: x[root+1] op ... op x[root]")
    assert len(lines) == 12
    lines = said(capsys, "verify", "broadcast", *words).splitlines()
    assert lines[9].endswith("every rank ends with every segment of the root")


@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_schedule_that_is_refused_is_bad_news(command, chain, capsys):
    assert main([command, f"{chain}:forgetful", "--ranks", "3"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"mpiring {command}: ")
    assert "rank 2 does not hold the result of segment 0" in err


def test_a_range_stops_at_the_first_refused(chain, capsys):
    assert main(["verify", f"{chain}:forgetful", "--ranks", "1-4"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("    1 rank,      0 steps: ") and out.count("\n") == 1
    assert "chain broadcast of 2 ranks" in err


@pytest.mark.parametrize(
    "words, complaint",
    [
        (
            ["bcast"],
            "unknown collective 'bcast'; known: allreduce, reduce_scatter, allgather, broadcast,",
        ),
        (
            ["allreduce", "--ranks", "0"],
            "argument --ranks: '0': expected a number of ranks",
        ),
        (
            ["allreduce", "--ranks", "4-2"],
            "argument --ranks: '4-2': expected a number of ranks",
        ),
        (["allreduce", "--ranks", "-3"], "argument --ranks: "),
        (
            ["allreduce", "--ranks", "some"],
            "argument --ranks: 'some': expected a number",
        ),
        (["allreduce", "--order", "rank"], "--order rank needs --algorithm direct"),
        (
            ["allreduce", "--algorithm", "direct", "--offset", "1"],
            "--offset is the ring's",
        ),
        (
            ["allreduce", "--algorithm", "tree"],
            "argument --algorithm: invalid choice: 'tree'",
        ),
        (["allreduce", "--offset", "2"], "argument --offset: invalid choice: 2"),
        (["reduce", "--offset", "1"], "--offset is the ring's: ring reduce has no"),
        (
            ["broadcast", "--algorithm", "ring"],
            "--algorithm ring: broadcast has naive, pipelined, direct",
        ),
        (["reduce", "--order", "rank"], "--order rank needs --algorithm direct"),
        (
            ["allreduce", "--root", "0"],
            "--root is for broadcast and reduce: allreduce has no such choice",
        ),
        (
            ["allgather", "--segments", "2"],
            "--segments is for broadcast and reduce: allgather has no such choice",
        ),
        (["reduce", "--root", "4"], "--root 4: expected 0 to 3"),
        (["broadcast", "--root", "-1"], "--root -1: expected 0 to 3"),
        (["broadcast", "--segments", "0"], "--segments 0: expected 1 or more"),
        (
            ["broadcast", "--algorithm", "naive", "--segments", "2"],
            "--segments: a naive broadcast has one; try --algorithm pipelined",
        ),
        (
            ["{chain}:make", "--root", "0"],
            "{chain}:make is what it is: leave out --algorithm, --order, --offset, --root, --segments",
        ),
        (["{chain}:none"], "{chain} has no function 'none'"),
        (["/nonexistent.py:f"], "/nonexistent.py:f: FileNotFoundError: "),
        (
            ["{chain}:fails"],
            "{chain}:fails: ZeroDivisionError: division by zero (line 18 of ",
        ),
        (
            ["{chain}:wrong"],
            "{chain}:wrong: wrong(4) must return a Schedule for 4 ranks, got a sc",
        ),
        (
            ["{chain}:nothing"],
            "{chain}:nothing: nothing(4) must return a Schedule for 4 ranks, got",
        ),
        (
            ["{chain}:make", "--order", "ring"],
            "{chain}:make is what it is: leave out --algorithm",
        ),
    ],
)
@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_wrong_line_is_one_line(command, words, complaint, chain, capsys):
    assert main([command, *(word.format(chain=chain) for word in words)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"mpiring {command}: {complaint.format(chain=chain)}")


@pytest.mark.parametrize(
    "words, complaint",
    [
        (
            ["show", "allreduce", "--ranks", "2-3"],
            "--ranks: one number of ranks fits on a page",
        ),
        (
            ["show", "allreduce", "--ranks", "17"],
            "frames: 17 segments do not fit on a page",
        ),
        (
            ["show", "allreduce", "--svg", "/nonexistent/x.svg"],
            "--svg: [Errno 2] No such file",
        ),
        (
            ["verify", "allreduce", "--count", "-1"],
            "--count -1: expected 0 or more elements",
        ),
    ],
)
def test_a_wrong_line_of_one_of_them(words, complaint, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"mpiring {words[0]}: {complaint}")


# ---- the words


def uneven(size=3):
    """Broadcast from rank 0 to everyone, one by one: rank 0 sends more than it must."""
    message = Form.RESULT
    steps = [[Step((Send(peer, 0, message),)) for peer in range(1, size)]]
    steps += [
        [Step(receives=(Receive(0, 0, Action.STORE, message),))] for _ in range(1, size)
    ]
    return from_steps("broadcast", steps, root=0, segments=1)


def test_traffic_beyond_the_least():
    assert plans.traffic_text(verify(uneven())) == (
        "the busiest rank sends 2 N bytes and receives 1 N; the least possible is 1 N"
    )


def two_orders():
    """Two segments whose orders are neither equal nor each other's rotation."""
    give = Step(tuple(Send(0, s, Form.CONTRIBUTION) for s in range(2)))
    take = Step(
        receives=(
            Receive(1, 0, Action.REDUCE, Form.CONTRIBUTION),
            Receive(1, 1, Action.REDUCE, Form.CONTRIBUTION),
            Receive(2, 0, Action.REDUCE, Form.CONTRIBUTION),
            Receive(2, 1, Action.REDUCE_AFTER, Form.CONTRIBUTION),
        ),
        finishes=(0, 1),
    )
    return from_steps("reduce", [[take], [give], [give]], root=0, segments=2)


def test_orders_of_no_pattern_are_listed():
    assert plans.order_text(verify(two_orders())) == (
        "segment 0: (x1 op x2) op x0; segment 1: (x1 op x0) op x2"
    )


def test_the_order_of_a_single_segment():
    give = Step((Send(0, 0, Form.CONTRIBUTION),))
    take = Step(
        receives=(Receive(1, 0, Action.REDUCE, Form.CONTRIBUTION),), finishes=(0,)
    )
    one = from_steps("reduce", [[take], [give]], root=0, segments=1)
    assert plans.order_text(verify(one)) == "segment 0: x1 op x0"


def test_formulas_with_brackets_are_not_cut():
    formula = "(x0 op x1) op (x2 op x3) op (x4 op x5)"
    assert plans.shorten(formula) == formula
    assert (
        plans.shorten("(((x0 op x1) op x2) op x3) op x4")
        == "(((x0 op x1) op x2) op x3) op x4"
    )


@pytest.mark.parametrize("text", ["0", "-1", "3-", "-", "", "2-1", "1.5", "two"])
def test_ranks_that_are_none(text):
    with pytest.raises(ValueError):
        plans.parse_ranks(text)


# ---- what is loaded, and progress


@pytest.mark.parametrize("command", ["show", "verify"])
@pytest.mark.parametrize(
    "missing, status", [(("numpy", "mpi4py"), 0), (("argparse",), 1)]
)
def test_plans_need_neither_mpi_nor_numpy(command, missing, status):
    """The second case shows that a module made missing is missed."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
        f"from mpiring.cli import main; sys.exit(main([{command!r}, 'allreduce']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60
    )
    assert done.returncode == status


def test_the_watched_schedule_is_the_same():
    with verify_command.watch(ring_allreduce(5)) as watched:
        assert watched == ring_allreduce(5)


def test_progress_without_a_terminal_is_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(verify_command, "PLAIN", 0.0)
    monkeypatch.setattr(verify_command, "BATCH", 5)
    with verify_command.watch(ring_allreduce(10)) as watched:
        verify(watched)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "mpiring verify: 10 ranks: 100% of the steps"
    assert len(lines) == 40  # each rank has 19 steps: 5, 5, 5 and 4


@pytest.mark.parametrize("installed", [True, False])
def test_progress_on_a_terminal_is_a_bar_if_tqdm_is_there(installed, monkeypatch):
    shown = []

    class Bar:
        def __init__(self, **options):
            shown.append(options["total"])

        def __enter__(self):
            return self

        def __exit__(self, *error):
            shown.append("closed")

        def update(self, more):
            shown.append(more)

    module = type(sys)("tqdm")
    module.tqdm = Bar  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tqdm", module if installed else None)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with verify_command.watch(ring_allreduce(2)) as watched:
        verify(watched)
    assert shown == ([6, 3, 3, "closed"] if installed else [])
