"""The command line of ``mpiring tune``: what it refuses, where it writes, what it tries."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from mpiring.cli import main, make_parser
from mpiring.cli.tune.settings import LENGTHS, WINDOWS, ask, trouble
from mpiring.wire.settings.tuning import WHOLE


def asked(*words):
    return ask(make_parser().parse_args(["tune", *words]))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("MPIRING_PROFILE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["--max-bytes", "1K"], "--max-bytes 1000: expected 65536 or more"),
        (["--max-bytes", "some"], "argument --max-bytes: 'some': expected bytes"),
        (["--timeout", "0s"], "--timeout 0s: expected more than 0"),
        (["--timeout", "10"], "argument --timeout: '10': expected a time"),
        (["--plot", "no/such/folder/x.png"], "--plot"),
        (["allreduce"], "unrecognized arguments: allreduce"),
    ],
)
def test_a_wrong_line_is_one_line_and_exit_code_2(words, complaint, capsys):
    assert main(["tune", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and complaint in err and err.count("\n") == 1


def test_one_rank_is_told_how_to_start_more(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/bin/mpiring", "tune", "--quick"])
    assert main(["tune", "--quick"]) == 2
    err = capsys.readouterr().err
    assert "this is one rank" in err and "mpirun -n 4 /bin/mpiring tune --quick" in err


def test_where_it_writes(home, monkeypatch, capsys):
    assert asked().path == home / "mpiring" / "profile.json"
    monkeypatch.setenv("MPIRING_PROFILE", "named.json")
    assert asked().path == Path("named.json")
    assert asked("-o", "other.json").path == Path("other.json")
    for off in ("none", ""):
        monkeypatch.setenv("MPIRING_PROFILE", off)
        assert main(["tune"]) == 2
        assert "MPIRING_PROFILE says that there is none" in capsys.readouterr().err
        assert asked("-o", "other.json").path == Path("other.json")


def test_a_folder_that_was_asked_for_has_to_be_there(home):
    path = home / "not" / "there.json"
    told = f"{path}: there is no folder {home / 'not'}; make it, or give another file: --output FILE"
    assert trouble(asked("-o", str(path))) == told
    assert os.listdir(home) == []


def test_a_folder_that_the_variable_names_has_to_be_there(home, monkeypatch):
    monkeypatch.setenv("MPIRING_PROFILE", str(home / "not" / "there.json"))
    assert "there is no folder" in trouble(asked())
    assert os.listdir(home) == []


def test_the_usual_folder_is_not_made_before_there_is_something_for_it(home):
    settings = asked("--plot", str(home / "figure.png"))
    assert not settings.path.parent.exists()
    assert trouble(settings) == "" and os.listdir(home) == []


def test_where_the_usual_folder_cannot_be_made(home):
    (home / "mpiring").write_text("")
    assert "Not a directory" in trouble(asked())


def test_a_plot_that_cannot_be_written(home):
    assert f"--plot {home}: Is a directory" == trouble(asked("--plot", str(home)))


def test_a_plot_that_is_there_stays_until_there_is_another(home):
    (home / "figure.png").write_text("old")
    assert trouble(asked("--plot", str(home / "figure.png"))) == ""
    assert (home / "figure.png").read_text() == "old"


def test_what_is_tried():
    full, quick = asked(), asked("--quick", "--max-bytes", "1Mi")
    assert full.lengths == LENGTHS and LENGTHS[0] == 4 << 10
    assert LENGTHS[-2:] == (4 << 20, WHOLE)
    assert full.windows == WINDOWS == (1, 2, 3, 4)
    for name in ("lengths", "windows", "small_sizes", "direct_sizes"):
        fewer, all_of_them = getattr(quick, name), getattr(full, name)
        assert set(fewer) < set(all_of_them)
    assert 64 << 10 in full.direct_sizes and 4 << 10 in full.small_sizes
    assert quick.rounds < full.rounds and quick.seconds < full.seconds
    assert (quick.most_bytes, full.most_bytes) == (1 << 20, 16 << 20)


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is not None, reason="matplotlib is here"
)
def test_no_picture_without_matplotlib(capsys):
    assert main(["tune", "--plot", "x.png"]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
