"""Tests that run inside MPI: ``mpirun -n 3 python -m mpi4py -m pytest tests/ranks``.

Every rank runs pytest on the same files, so a test function here is an SPMD program.  The rules:

- After each phase of a test (setup, call, teardown) the ranks agree on its verdict before anyone
  goes on.  A failure on one rank is a failure on all, with that rank named; nobody runs ahead.
- Nothing hangs.  A test that is still running after its limit (60 s, or
  ``@pytest.mark.limit(seconds)``) ends the job, with what each rank was doing.  If a rank has
  failed and the others do not come to the verdict within 10 s, they are waiting for it inside the
  test: it tells its failure and ends the job.
- ``@pytest.mark.ranks(2, 3)`` says for which sizes a test is; with another one it is deselected.
- Only rank 0 reports.  The ranks must collect the same tests, or the job ends.
- Hypothesis draws the same examples on all ranks.  In a ``@given`` test, put what may fail on some
  ranks only into ``with agreed():``, or the ranks part: a failing rank searches for a smaller
  example while the others go on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings
from mpi4py import MPI

LIMIT = 60.0  # seconds for a test
STRAY = 10.0  # seconds a failed rank waits for the others
FAREWELL = 2.0  # seconds for every rank to say what it was doing, before the first one ends the job

WORLD = MPI.COMM_WORLD
VERDICTS = WORLD.Dup()  # so that no message of ours meets one of a test
ME = f"rank {WORLD.rank} of {WORLD.size}"

settings.register_profile(
    "ranks",
    derandomize=True,
    database=None,
    deadline=None,
    # Most of them watch the clock, which differs between ranks.
    suppress_health_check=list(HealthCheck),
)


class Watchdog:
    """A thread that ends the job when the main thread has not moved on in time."""

    def __init__(self) -> None:
        self.stderr = 2
        self.note = ""  # what this rank has to tell should the job end now
        self._what = "starting"
        self._deadline = time.monotonic() + LIMIT
        self._moved = threading.Condition()

    def start(self) -> None:
        """Begin to watch; to be called while pytest does not catch what is written to 2."""
        self.stderr = os.dup(2)
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def expect(self, what: str, seconds: float) -> None:
        """From now, ``what`` may take ``seconds``."""
        with self._moved:
            self._what, self.note = what, ""
            self._deadline = time.monotonic() + seconds
            self._moved.notify()
        # For a main thread stuck in C code that lets no other thread run.
        faulthandler.dump_traceback_later(
            seconds + 5 * FAREWELL, exit=True, file=self.stderr
        )

    def end_job(self, reason: str) -> NoReturn:
        """Say ``reason`` and what all threads are doing, let others do the same, and abort."""
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            stacks = file.read().decode(errors="replace")
        lines = f"{reason}\n{self.note}\n{stacks}".splitlines()
        told = "".join(f"[{ME}] {line}\n" for line in lines if line)
        os.write(self.stderr, told.encode())
        time.sleep(FAREWELL)
        MPI.COMM_WORLD.Abort(3)
        os._exit(3)  # an Abort from another thread may return on some MPIs

    def _watch(self) -> None:
        with self._moved:
            while (left := self._deadline - time.monotonic()) > 0:
                self._moved.wait(left)
        self.end_job(f"watchdog: {self._what}: no end after its limit; ending the job")


watchdog = Watchdog()


def exchange(mine: Any, failure: str = "") -> list[Any]:
    """What every rank has for the same moment; `failure` is told if the others do not come.

    None is cheap: only if some rank has something else are objects sent.
    """
    told = bytearray(WORLD.size)
    arrival = VERDICTS.Iallgather(
        [bytes([mine is not None]), MPI.BYTE], [told, MPI.BYTE]
    )
    patience = time.monotonic() + STRAY
    watchdog.note = failure
    while not arrival.Test():
        if failure and time.monotonic() > patience:
            watchdog.end_job(
                f"failed, and after {STRAY:.0f} s some other rank is still inside the test"
            )
        time.sleep(0.0001)  # leave the core to a rank that has work
    return VERDICTS.allgather(mine) if any(told) else [None] * WORLD.size


@pytest.fixture(scope="session")
def comm() -> MPI.Intracomm:
    """COMM_WORLD."""
    return WORLD


@pytest.fixture
def ring(comm: MPI.Intracomm) -> Iterator[Any]:
    """A new ring over COMM_WORLD."""
    from mpiring import Ring

    ring = Ring(comm)
    yield ring
    ring.close()


@pytest.fixture(scope="session")
def agreed() -> Callable[[], AbstractContextManager[None]]:
    """``with agreed(): assert ...``: if that raises on some rank, it fails on every rank."""
    return _agreed


@contextlib.contextmanager
def _agreed() -> Iterator[None]:
    mine = None
    try:
        yield
    except Exception:
        mine = traceback.format_exc()
    told = exchange(mine, failure=mine or "")
    failures = [f"rank {rank}:\n{text}" for rank, text in enumerate(told) if text]
    # Raised at the same place on every rank, so that Hypothesis goes on in step everywhere.
    assert not failures, "\n".join(failures)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    watchdog.start()
    config.addinivalue_line("markers", "ranks(*sizes): run with these sizes only")
    config.addinivalue_line("markers", f"limit(seconds): may take longer than {LIMIT}")
    settings.load_profile("ranks")
    if WORLD.rank > 0:  # the report and the cache are rank 0's
        plugins = config.pluginmanager
        for name in ("terminalreporter", "lfplugin", "nfplugin"):
            if plugin := plugins.get_plugin(name):
                plugins.unregister(plugin)
        silent = pytest.TerminalReporter(config, open(os.devnull, "w"))
        plugins.register(silent, "terminalreporter")


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    fits: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        mark = item.get_closest_marker("ranks")
        fits[mark is None or WORLD.size in mark.args].append(item)
    if fits[False]:
        config.hook.pytest_deselected(items=fits[False])
        items[:] = fits[True]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _collection_failures.append(f"{report.nodeid}:\n{report.longreprtext}")


_collection_failures: list[str] = []


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """End the job if the ranks have collected different tests: they would wait for ever."""
    watchdog.expect("collecting", LIMIT)
    mine = (
        tuple(item.nodeid for item in session.items),
        "\n".join(_collection_failures),
    )
    told = exchange(mine, failure=mine[1])
    for rank, (nodes, failures) in enumerate(told):
        if (nodes, failures) != told[0]:
            counts = f"{len(told[0][0])} and {len(nodes)}"
            differ = sorted(set(nodes) ^ set(told[0][0]))[:5]
            _end_in_step(
                f"rank 0 and rank {rank} collected different tests, {counts}; "
                f"only one of them has {differ};\n"
                f"on rank 0: {told[0][1] or 'no failure'}\n"
                f"on rank {rank}: {failures or 'no failure'}"
            )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    mark = item.get_closest_marker("limit")
    watchdog.expect(item.nodeid, float(mark.args[0]) if mark else LIMIT)
    result = yield
    watchdog.expect(f"after {item.nodeid}", LIMIT)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace this rank's verdict by that of all ranks."""
    report = yield
    mine = None if report.passed else (report.outcome, _account(report))
    told = exchange(mine, failure=mine[1] if mine and report.failed else "")
    told = [verdict or ("passed", "") for verdict in told]
    outcomes = [outcome for outcome, _ in told]
    if "failed" in outcomes or len(set(outcomes)) > 1:
        report.outcome = "failed"
        report.longrepr = "\n".join(
            f"---- rank {rank} of {WORLD.size} {outcome} in {report.when}\n{account}"
            for rank, (outcome, account) in enumerate(told)
            if outcome == "failed" or "failed" not in outcomes
        )
        report.sections = []
    return report


def _account(report: pytest.TestReport) -> str:
    sections = (f"{title}:\n{text}" for title, text in report.sections if text.strip())
    return "\n".join([report.longreprtext or str(report.longrepr), *sections])


def pytest_internalerror(excrepr: Any) -> None:
    watchdog.end_job(f"pytest itself failed:\n{excrepr}")


def pytest_keyboard_interrupt(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    watchdog.end_job(f"interrupted: {excinfo.exconly()}")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave together: a rank that leaves with a failure ends the job, and rank 0 reports."""
    sys.stdout.flush()
    watchdog.expect("leaving", LIMIT)
    exchange(None)
    faulthandler.cancel_dump_traceback_later()


def _end_in_step(reason: str) -> NoReturn:
    if WORLD.rank == 0:
        os.write(watchdog.stderr, f"{reason}\n".encode())
    WORLD.Barrier()
    WORLD.Abort(2)
    os._exit(2)
