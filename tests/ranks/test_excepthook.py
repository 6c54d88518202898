"""B37: the hook that ends a job when an exception ends a rank, with an abort that only takes note.

Whole jobs that end by it are in ``tests/jobs/test_a_rank_that_fails.py``.
"""

from __future__ import annotations

import io
import os
import sys
import time

import pytest
from mpi4py import MPI

from mpiring.wire.transport import mpi

pytestmark = pytest.mark.ranks(1, 2)


class Tee:
    """A stream that can only be written to."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


def broken(path=None):
    """A stream whose reader is gone, or whose disk is full, with something in its buffer."""
    if path is None:
        read, write = os.pipe()
        os.close(read)
    else:
        write = os.open(path, os.O_WRONLY)
    stream = os.fdopen(write, "w", closefd=False)
    stream.write("x")
    return stream


STREAMS = {
    "no flush": Tee,
    "none": lambda: None,
    "closed": closed,
    "broken pipe": broken,
    "full": lambda: broken("/dev/full"),
    "nothing at all": object,
}


@pytest.fixture
def die(monkeypatch):
    """A function: die of an exception while an earlier hook is this one; returns how often the job was aborted."""
    aborts = []
    monkeypatch.setattr(mpi, "_abort", lambda: aborts.append(1))
    monkeypatch.setattr(mpi, "_hooked_process", os.getpid())

    def die(hook=sys.__excepthook__):
        monkeypatch.setattr(mpi, "_previous_hook", hook)
        with pytest.raises(ValueError) as caught:
            raise ValueError("boom-37")
        mpi._abort_after_report(ValueError, caught.value, caught.value.__traceback__)
        return len(aborts)

    return die


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("made", STREAMS)
def test_b37_streams_that_take_nothing(die, monkeypatch, capfd, stream, made):
    mine = STREAMS[made]()
    with monkeypatch.context() as patch:
        patch.setattr(sys, stream, mine)
        assert die() == 1
    told = (
        mine.text
        if (stream, made) == ("stderr", "no flush")
        else capfd.readouterr().err
    )
    assert told.count("Traceback (most recent call last):") == 1
    assert told.endswith("\nValueError: boom-37\n")


def test_b37_an_earlier_hook_prints_what_it_likes(die, capfd):
    assert die(lambda kind, error, traceback: print("seen", kind, error)) == 1
    assert capfd.readouterr() == ("seen <class 'ValueError'> boom-37\n", "")


@pytest.mark.parametrize("status", [0, 3, None, "words"])
def test_b37_an_earlier_hook_exits(die, capfd, status):
    assert die(lambda *_: sys.exit(status)) == 1
    assert capfd.readouterr().err.endswith("\nValueError: boom-37\n")


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_b37_an_earlier_hook_raises(die, capfd, kind):
    def hook(*_):
        raise kind("of the hook")

    assert die(hook) == 1
    told = capfd.readouterr().err
    assert told.count("Traceback (most recent call last):") == 2
    assert f"{kind.__name__}: of the hook\n" in told
    assert told.endswith("\nValueError: boom-37\n")


def test_b37_neither_stream_nor_descriptor(die, monkeypatch):
    def refuse(*_):
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        patch.setattr(os, "write", refuse)
        assert die() == 1


def test_b37_a_forked_child_is_no_rank(die, monkeypatch, capfd):
    monkeypatch.setattr(mpi, "_hooked_process", os.getpid() + 1)
    assert die() == 0
    assert capfd.readouterr().err.endswith("\nValueError: boom-37\n")


def test_b37_what_interrupts_the_last_words_does_not_keep_the_job_alive(monkeypatch):
    aborts: list[int] = []

    def interrupted(seconds):
        raise KeyboardInterrupt

    class World:
        Abort = staticmethod(aborts.append)

    # Not for longer: what the tests run in sleeps too.
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(time, "sleep", interrupted)
        patch.setattr(MPI, "COMM_WORLD", World)
        mpi._abort()
    assert aborts == [1]
