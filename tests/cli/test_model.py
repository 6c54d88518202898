"""mpiring model: what is asked, what is answered, in words, as JSON and as a picture."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mpiring.cli import main
from mpiring.plan import Model, choices, closed_form, crossings, fit, server_form

ROOT = Path(__file__).parents[2]
ISSUE = "allreduce --ranks 64 --bytes 400M --alpha 5us --bandwidth 25GB/s".split()
BROADCAST = "broadcast --ranks 8 --bytes 4M --alpha 50us --bandwidth 1Gbit/s".split()


def said(capsys, *words):
    """What the command prints when all is well."""
    assert main(["model", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def answered(capsys, *words):
    return json.loads(said(capsys, *words, "--json"))


# ---- the page


def test_the_page_of_an_allreduce(capsys):
    assert said(capsys, *ISSUE) == """\
allreduce of 400 MB (100,000,000 float32) on 64 ranks
alpha 5 us, bandwidth 25 GB/s, reducing in no time

schedule       segments  steps  at once     bytes  predicted  to bound
ring                       126        1  787.5 MB   32.13 ms      1.02
direct                       2       63  787.5 MB   31.51 ms         1  wins
server, chain       445  1,014        1    800 MB   41.53 ms     1.318
server, star          1      2       63   25.2 GB    2.016 s     63.99
bound                                    787.5 MB    31.5 ms
bytes: through the busiest rank's link, one way; at once: its messages in one step
server: the lecture's parameter server, a reduce and then a broadcast, for comparison

direct wins at every size
(By this model the ring is never faster than direct: latencies of messages at once overlap, links do not
contend.  The ring sends one message at a time and needs room for one segment.)

bytes       ring    direct     bound  wins
1 kB    630.1 us  10.08 us  5.079 us  direct
10 kB   630.8 us  10.81 us  5.788 us  direct
100 kB  637.9 us  17.88 us  12.88 us  direct
1 MB    708.8 us  88.77 us  83.75 us  direct
10 MB   1.418 ms  797.5 us  792.5 us  direct
100 MB  8.505 ms  7.885 ms   7.88 ms  direct
1 GB    79.38 ms  78.76 ms  78.76 ms  direct
"""


def test_the_page_of_a_broadcast(capsys):
    page = said(capsys, *BROADCAST)
    assert page.startswith("""\
broadcast of 4 MB (1,000,000 float32) on 8 ranks
alpha 50 us, bandwidth 125 MB/s, reducing in no time

schedule   segments  steps  at once  bytes  predicted  to bound
naive             1      7        1   4 MB   224.3 ms         7
pipelined        62     68        1   4 MB    38.5 ms     1.201  wins
direct            1      1        7  28 MB     224 ms     6.991
bound                                 4 MB   32.05 ms
bytes: through the busiest rank's link, one way; at once: its messages in one step

direct wins up to 12.5 kB, then pipelined

""")
    assert "server" not in page and "overlap" not in page


def test_two_schedules_without_segments(capsys):
    page = said(capsys, *ISSUE, "--algorithm", "ring", "--gamma", "10GB/s")
    assert "bandwidth 25 GB/s, reducing 10 GB/s\n" in page
    assert "\nring is the only one looked at\n" in page
    assert "segments" not in page and "direct" not in page and "server" not in page
    assert "\nschedule  steps  at once " in page


def test_a_single_rank(capsys):
    page = said(
        capsys, *"reduce --ranks 1 --bytes 0 --alpha 0s --bandwidth 1B/s".split()
    )
    assert page.startswith("reduce of 0 B (0 float32) on 1 rank\nalpha 0 s, ")
    assert """
schedule  segments  steps  at once  bytes  predicted  to bound
ring             1      0        0    0 B        0 s            wins
direct           1      0        0    0 B        0 s
bound                                 0 B        0 s
""" in page
    assert "\none rank has nothing to send\n" in page


# ---- JSON


@pytest.mark.parametrize("collective", ["reduce", "allgather"])
@pytest.mark.parametrize("dtype, widths", [("float16", (2, 4)), ("float64", (8, 8))])
def test_json_is_what_the_formulas_say(collective, dtype, widths, capsys):
    words = (
        "--ranks 6 --bytes 24k --alpha 8us --bandwidth 125MB/s --gamma 1GB/s".split()
    )
    answer = answered(capsys, collective, *words, "--dtype", dtype)
    itemsize, partial = widths
    model = Model(8e-6, 1 / 125e6, 1e-9)
    assert Model(**answer["model"]) == model and answer["fit"] is None
    found = choices(
        collective, 6, 24_000 // itemsize, itemsize, model, partial_itemsize=partial
    )
    assert [
        (s["algorithm"], s["segments"], s["steps"], s["bytes"], s["seconds"])
        for s in answer["schedules"]
    ] == [
        (name, pieces, form.exchanges, form.busiest_bytes, form.seconds)
        for name, pieces, form in found
    ]
    bound = answer["bound"]["seconds"]
    assert all(s["ratio"] == s["seconds"] / bound for s in answer["schedules"])
    assert sum(s["wins"] for s in answer["schedules"]) == 1
    assert [tuple(c.values()) for c in answer["crossings"]] == crossings(
        collective, 6, itemsize, model, partial_itemsize=partial
    )
    assert [row["bytes"] for row in answer["sizes"]] == [10**n for n in range(3, 10)]
    assert all(min(r["seconds"].values()) >= r["bound"] for r in answer["sizes"])


def test_the_server_of_an_allreduce(capsys):
    answer = answered(capsys, *ISSUE, "--segments", "7")
    chain, star = answer["schedules"][2:]
    model = Model(5e-6, 1 / 25e9)
    assert chain["segments"] == 7 and star["segments"] == 1
    for item in (chain, star):
        form = server_form(
            item["algorithm"].removeprefix("server, "),
            64,
            10**8,
            4,
            model,
            segments=item["segments"],
        )
        assert (item["seconds"], item["steps"]) == (form.seconds, form.exchanges)
    assert star["bytes"] == 63 * 400 * 10**6


def test_segments_are_those_given(capsys):
    found = answered(capsys, *BROADCAST, "--segments", "5")["schedules"]
    assert [s["segments"] for s in found] == [1, 5, 1]
    expected = closed_form(
        "broadcast", "pipelined", 8, 10**6, 4, Model(5e-5, 8e-9), segments=5
    )
    assert found[1]["seconds"] == expected.seconds


def test_the_algorithms_given_once_each(capsys):
    words = ["--algorithm", "direct", "--algorithm", "naive", "--algorithm", "direct"]
    found = answered(capsys, *BROADCAST, *words)
    assert [s["algorithm"] for s in found["schedules"]] == ["direct", "naive"]
    assert set(found["sizes"][0]["seconds"]) == {"direct", "naive"}


def test_a_hundred_thousand_ranks_take_a_second(capsys):
    begun = time.perf_counter()
    for collective in (
        "allreduce",
        "reduce_scatter",
        "allgather",
        "broadcast",
        "reduce",
    ):
        words = [collective, *ISSUE[1:], "--ranks", "100000"]
        assert answered(capsys, *words)["ranks"] == 100_000
    assert time.perf_counter() - begun < 1


def test_neither_numpy_nor_mpi_nor_matplotlib_is_loaded():
    code = (
        "import sys; from mpiring.cli import main\n"
        f"assert main(['model', *{ISSUE!r}]) == 0\n"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'mpi4py', 'matplotlib')))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == 0
    command[-1] = f"import numpy\n{code}"
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == 1  # the test above can fail


# ---- a measured run

POINTS: list[dict[str, Any]] = [
    {"bytes": n, "seconds": 2.0**-15 + n * 2.0**-27} for n in (8, 4096, 1 << 20)
]


@pytest.fixture
def measured(tmp_path):
    """Write a measured run: the points, and whatever else its maker kept in it."""

    def write(points=POINTS, **more):
        path = tmp_path / "measured.json"
        path.write_text(json.dumps({**more, "point_to_point": points}))
        return str(path)

    return write


def test_fit(measured, capsys):
    words = ["broadcast", "--ranks", "8", "--bytes", "4M", "--fit"]
    answer = answered(capsys, *words, measured(hosts=["a", "b"]), "--gamma", "2GB/s")
    assert Model(**answer["model"]) == Model(2.0**-15, 2.0**-27, 5e-10)
    assert answer["fit"]["worst_error"] == 0
    assert [p["bytes"] for p in answer["fit"]["points"]] == [8, 4096, 1 << 20]
    page = said(capsys, *words, measured())
    assert "alpha 30.52 us, bandwidth 134.2 MB/s, reducing in no time\n" in page
    assert """
measured   seconds    fitted  error
8 B       30.58 us  30.58 us  +0.0%
4.096 kB  61.04 us  61.04 us  +0.0%
1.049 MB  7.843 ms  7.843 ms  +0.0%
3 points, all within 0.0%
""" in page


def test_a_fit_says_where_it_is_off(measured, capsys):
    points = [*POINTS, {"bytes": 2048, "seconds": 1e-4}]
    page = said(capsys, *ISSUE[:5], "--fit", measured(points))
    found = fit([(p["bytes"], p["seconds"]) for p in points])
    (line,) = (line for line in page.splitlines() if line.startswith("2.048 kB"))
    assert line.endswith(f"{found.errors[3]:+.1%}  more than 20%")
    off = sum(abs(error) > 0.2 for error in found.errors)
    assert (
        f"4 points, {off} of them off by more than 20%, up to {found.worst:.1%}" in page
    )


def test_of_many_points_a_dozen_are_shown(measured, capsys):
    points = [{"bytes": n, "seconds": 1e-5 + n * 1e-9} for n in range(100)]
    page = said(capsys, *ISSUE[:5], "--fit", measured(points))
    table = page.split("\n\n")[1].splitlines()
    assert len(table) == 1 + 12 + 1 and table[-1].endswith("; 88 not shown")
    assert table[1].startswith("0 B ") and table[-2].startswith("99 B ")


def test_a_fit_without_small_messages_says_so(measured, capsys):
    points = [{"bytes": 10**n, "seconds": 10.0 ** (n - 9)} for n in (5, 6, 7)]
    points[0]["seconds"] *= 0.9
    page = said(capsys, *ISSUE[:5], "--fit", measured(points))
    assert page.startswith("allreduce of 400 MB") and "\nalpha 0 s, " in page
    assert "\nalpha comes out as 0: with messages of a few bytes among" in page
    assert "comes out" not in said(capsys, *ISSUE[:5], "--fit", measured())


def test_a_bandwidth_without_limit(measured, capsys):
    points = [{"bytes": 1, "seconds": 4}, {"bytes": 2, "seconds": 1}]
    page = said(capsys, *ISSUE[:5], "--fit", measured(points))
    assert ", bandwidth unlimited, " in page


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("{", "Expecting property name"),
        ("{}", "there is no 'point_to_point'; expected {"),
        ("[]", "list indices must be integers"),
        ('{"point_to_point": [{"bytes": 8}]}', "there is no 'seconds'; expected"),
        ('{"point_to_point": [{"bytes": "8", "seconds": 1}]}', "'8' is not a number"),
        ('{"point_to_point": [{"bytes": 8, "seconds": true}]}', "True is not a num"),
        ('{"point_to_point": 5}', "'int' object is not iterable; expected"),
        ('{"point_to_point": []}', "fit: 0 points of 0 sizes"),
        ('{"point_to_point": [{"bytes": 8, "seconds": NaN}]}', "fit: 8 bytes in nan"),
    ],
)
def test_a_file_that_cannot_be_used(text, complaint, tmp_path, capsys):
    path = tmp_path / "measured.json"
    path.write_text(text)
    assert main(["model", *ISSUE[:5], "--fit", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"mpiring model: --fit {path}: {complaint}")


# ---- a wrong line


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["gather", *ISSUE[1:]], "argument COLLECTIVE: invalid choice: 'gather'"),
        (ISSUE[:3], "the following arguments are required: --bytes"),
        (ISSUE[:5], "give --alpha and --bandwidth, or --fit with a measured run"),
        (ISSUE[:7], "give --alpha and --bandwidth, or --fit with a measured run"),
        ([*ISSUE, "--ranks", "0"], "--ranks 0: expected 1 or more"),
        ([*ISSUE, "--ranks", "many"], "argument --ranks: invalid int value: 'many'"),
        ([*ISSUE, "--segments", "0"], "--segments 0: expected 1 or more"),
        ([*ISSUE, "--bytes", "400m"], "argument --bytes: '400m': expected bytes such"),
        ([*ISSUE, "--bytes", "30"], "--bytes: 30 bytes are no whole number of float32"),
        (
            [*ISSUE, "--alpha", "5"],
            "argument --alpha: '5': expected a time such as 5us",
        ),
        (
            [*ISSUE, "--bandwidth", "25Gb/s"],
            "argument --bandwidth: '25Gb/s': expected a speed such as 25GB/s",
        ),
        (
            [*ISSUE, "--gamma", "0GB/s"],
            "argument --gamma: '0GB/s': a speed must be more",
        ),
        (
            [*ISSUE, "--algorithm", "tree"],
            "--algorithm tree: allreduce has ring, direct",
        ),
        ([*ISSUE, "--dtype", "int4"], "argument --dtype: invalid choice: 'int4'"),
        ([*ISSUE, "--fit", "x.json"], "--fit measures alpha and the bandwidth: leave"),
        ([*ISSUE[:5], "--fit", "/nonexistent.json"], "--fit: [Errno 2] No such file"),
    ],
)
def test_a_wrong_line_is_one_line(words, complaint, capsys):
    assert main(["model", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"mpiring model: {complaint}")


# ---- the plot

PNG = b"\x89PNG\r\n\x1a\n"


def test_plot(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="the plot is matplotlib's")
    path = tmp_path / "broadcast.png"
    page = said(capsys, *BROADCAST, "--plot", str(path))
    assert page.endswith(f"\nplot: {path}\n") and path.read_bytes().startswith(PNG)
    answered(capsys, *ISSUE, "--plot", str(path))  # nothing but JSON


def test_what_the_plot_shows(tmp_path, monkeypatch, capsys):
    """A line for each schedule and the bound, both axes in logarithms, the crossing marked."""
    pytest.importorskip("matplotlib", reason="the plot is matplotlib's")
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.append(self))
    said(capsys, *BROADCAST, "--plot", str(tmp_path / "x.png"))
    (axes,) = drawn[0].axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_title() == "broadcast on 8 ranks: alpha 50 us, bandwidth 125 MB/s"
    lines = {line.get_label(): line for line in axes.get_lines()}
    model = Model(5e-5, 8e-9)
    for name, pieces in (("naive", 1), ("direct", 1)):
        sizes, seconds = lines[name].get_data()
        assert len(sizes) == 321 and sizes[0] == 100 and sizes[-1] == 10**10
        for nbytes, found in zip(sizes, seconds):
            form = closed_form("broadcast", name, 8, int(nbytes) // 4, 4, model)
            assert found == form.seconds
    bound = lines["lower bound"].get_ydata()
    assert all(b <= t for b, t in zip(bound, lines["pipelined"].get_ydata()))
    assert [text.get_text() for text in axes.texts] == ["12.5 kB"]


@pytest.mark.parametrize(
    "name, complaint",
    [
        ("/nonexistent/x.png", "--plot: [Errno 2] No such file"),
        ("x.docx", "--plot: Format 'docx' is not supported"),
    ],
)
def test_a_plot_that_cannot_be_written(name, complaint, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="the plot is matplotlib's")
    monkeypatch.chdir(tmp_path)
    assert main(["model", *ISSUE, "--plot", name]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"mpiring model: {complaint}") and err.count("\n") == 1


def test_a_plot_without_matplotlib(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    assert main(["model", *ISSUE, "--plot", str(tmp_path / "x.png")]) == 2
    assert capsys.readouterr().err == (
        "mpiring model: --plot needs matplotlib, which is not installed: pip install matplotlib\n"
    )
