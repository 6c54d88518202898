"""The process that starts MPI: whatever becomes of it, the command learns how far it came."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from mpiring.cli.doctor import child
from mpiring.cli.doctor.child import LEVELS
from mpiring.cli.doctor.probe import read_until, start_probe, unpack

SEND = "import os, pickle\ndef send(*fact): os.write({writer}, pickle.dumps(fact))\n"


@pytest.fixture
def stand_in(monkeypatch):
    """Let other code stand in for the child's; it can ``send(fact, value)``."""
    real = subprocess.Popen

    def install(code):
        def popen(command, **options):
            writer = command[-1].rpartition("main(")[2].partition(",")[0]
            return real(
                [sys.executable, "-c", SEND.format(writer=writer) + code], **options
            )

        monkeypatch.setattr(subprocess, "Popen", popen)

    return install


def test_a_child_that_is_done(stand_in):
    stand_in("send('rank', 0); send('size', 3); print('hello'); send('stage', 'done')")
    found = start_probe(30)
    assert (found.failure, found.rank, found.size) == ("", 0, 3)
    assert found.output == "hello\n"


@pytest.mark.parametrize(
    "code, failure",
    [
        ("os._exit(16)", "MPI_Init_thread ended the process with exit code 16"),
        ("os.kill(os.getpid(), 11)", "MPI_Init_thread was ended by SIGSEGV"),
        ("os._exit(0)", "MPI_Init_thread ended the process"),
        ("send('failure', 'ImportError: no'); os._exit(1)", "ImportError: no"),
    ],
)
def test_a_child_that_dies(stand_in, code, failure):
    stand_in(
        f"import sys; sys.stderr.write('last words'); sys.stderr.flush()\n"
        f"send('stage', 'MPI_Init_thread'); {code}"
    )
    found = start_probe(30)
    assert found.failure == failure
    assert found.output == "last words"


def test_a_child_that_hangs_is_ended(stand_in, tmp_path):
    pid = tmp_path / "pid"
    stand_in(
        f"open({str(pid)!r}, 'w').write(str(os.getpid())); send('stage', 'MPI_Init_thread')\n"
        "import signal; signal.pause()"
    )
    found = start_probe(2)
    assert found.failure == "MPI_Init_thread did not return within 2 s"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_message_cut_short_is_left_out():
    data = pickle.dumps(("rank", 1)) + pickle.dumps(("mapped", ["x" * 100]))[:-5]
    assert list(unpack(data)) == [("rank", 1)]
    assert list(unpack(b"")) == []


def test_a_daemon_that_holds_the_pipe_does_not_hold_us():
    reader, writer = os.pipe()
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    os.write(writer, b"all")
    with open(reader, "rb") as pipe:
        assert (
            read_until(pipe, done, float("inf")) == b"all"
        )  # though writer is still open
    os.close(writer)


def test_mpi_itself_is_started_and_asked():
    """The real child, alone: a job of one rank."""
    found = start_probe(60)
    assert found.failure == "" and (found.rank, found.size) == (0, 1)
    assert found.library is not None and found.library.family != "unknown"
    assert list(found.ranks) == [0] and found.nodes[0].group == (0,)
    assert found.ranks[0].library == found.library.name
    assert LEVELS[found.ranks[0].threads] == "MPI_THREAD_MULTIPLE"
    assert found.ranks[0].pid != os.getpid()


def test_no_mpi_library(monkeypatch):
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nonexistent/libmpi.so")
    found = start_probe(60)
    assert found.stage == "importing mpi4py.MPI" and found.library is None
    assert found.failure.startswith(
        "RuntimeError: cannot load MPI library\n/nonexistent"
    )


def test_the_command_itself_never_loads_mpi():
    code = (
        "import sys; from mpiring.cli import main; main(['doctor', '--json']);"
        "sys.exit(7 if {'mpi4py', 'numpy', 'cupy', 'torch'} & set(sys.modules) else 0)"
    )
    root = Path(__file__).parents[3]
    for before, status in (("", 0), ("import numpy; ", 7)):
        done = subprocess.run(
            [sys.executable, "-c", before + code],
            cwd=root,
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == status, done.stderr


def test_names_of_thread_levels():
    class Mpi:
        THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = (
            10,
            20,
            30,
            40,
        )

    assert child.threads_name(Mpi, 30) == "MPI_THREAD_SERIALIZED"
