"""For all tests: a calm Hypothesis, no profile of the user's, and a way out that cleans up.

The profile ``steady`` draws the same examples in each run and has no deadline, since the machine
may be shared; ``HYPOTHESIS_PROFILE=explore`` draws new ones, and many more.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=2000)

# What runs of tests/ranks reported, by outer test: shown at the end, slow tests included.
INNER = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
    config.stash[INNER] = {}
    # The user's own profile is no part of a test; what a test starts inherits this.
    os.environ["MPIRING_PROFILE"] = "none"
    # An end by `timeout` or a CI's stop button must run the `finally` of who started processes.
    signal.signal(signal.SIGTERM, _leave)


# What is proven, and what runs in one process, is the same whatever MPI is installed.
WITHOUT_MPI = ("plan", "devices", "wire")
BUT = ("test_loaded.py", "test_device_evidence.py", "test_device_support.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            folder, *_ = item.path.relative_to(here).parts
            if folder in WITHOUT_MPI and item.path.name not in BUT:
                item.add_marker(pytest.mark.no_mpi)


def _leave(signum: int, frame: object) -> NoReturn:
    pytest.exit("terminated by SIGTERM", returncode=128 + signum)


@pytest.fixture
def show_at_end(request: pytest.FixtureRequest):
    """``show_at_end(text)``: pytest prints it after its own report, in any case."""

    def keep(text: str) -> None:
        request.config.stash[INNER][request.node.name] = text

    return keep


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for name, text in config.stash[INNER].items():
        terminalreporter.section(name)
        terminalreporter.write_line(text)
