"""What is made of the driver's answers: there is none here, so it is made up."""

from __future__ import annotations

import ctypes
import doctest

import pytest

import cards


class MadeUp:
    """A driver's library with these answers."""

    def __init__(self, version, init=0, count=1, status=0):
        self._version, self._init, self._count = version, init, count
        self._status = status

    def cuDriverGetVersion(self, out):
        out._obj.value = self._version
        return self._status

    def cuInit(self, flags):
        assert flags == 0
        return self._init

    def cuDeviceGetCount(self, out):
        out._obj.value = self._count
        return 0


@pytest.mark.parametrize(
    "version, cuda, extra",
    [(12020, (12, 2), "cuda12x"), (13010, (13, 1), "cuda13x"), (14000, (14, 0), "cuda13x")],
)  # fmt: skip
def test_a_card(version, cuda, extra):
    driver = cards.ask(MadeUp(version, count=2))
    assert (driver.problem, driver.cuda, driver.cards) == ("", cuda, 2)
    assert driver.extra == extra


@pytest.mark.parametrize(
    "library, problem",
    [
        (MadeUp(13000, init=100), "sees no GPU (error 100)"),
        (MadeUp(13000, count=0), "sees no GPU"),
        (MadeUp(13000, init=999), "does not start (error 999)"),
        (MadeUp(11080), "speaks CUDA 11.8, CuPy needs 12"),
        (MadeUp(0, status=3), "does not answer (error 3)"),
    ],
)
def test_none(library, problem):
    driver = cards.ask(library)
    assert driver.problem == f"the NVIDIA driver {problem}"


def test_no_driver(monkeypatch, capsys):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert cards.ask().problem.startswith("no NVIDIA driver here (libcuda.so.1: ")
    assert cards.main() == 1
    told = capsys.readouterr()
    assert told.out == "" and "no NVIDIA driver here" in told.err


def test_what_the_makefile_reads(monkeypatch, capsys):
    monkeypatch.setattr(cards, "ask", lambda: cards.Driver("", (12, 4), 1))
    assert cards.main() == 0
    assert capsys.readouterr() == ("cuda12x\n", "")


def test_doctests():
    assert doctest.testmod(cards) == (0, 1)
