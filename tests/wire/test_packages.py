"""What a message tells to install: what pip finds, and what the extras bring too."""

from __future__ import annotations

import configparser
import doctest
import re
from pathlib import Path

import pytest

import mpiring
from mpiring.cli.doctor.packages import OPTIONAL
from mpiring.wire.settings import packages

ROOT = Path(mpiring.__file__).parents[1]
MADE = (
    "performance"  # docs/performance.md and what it was made from are records of runs
)


def extras() -> set[str]:
    """All that the extras bring, without versions and conditions."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = "\n".join(setup["options.extras_require"].values()).split("\n")
    return {re.split(r"[><=; ]", line)[0] for line in lines if line}


def test_doctests():
    outcome = doctest.testmod(packages)
    assert outcome.attempted > 0 and outcome.failed == 0


@pytest.mark.parametrize(
    "requirement",
    [*packages.MPIS, *packages.CUPY.values(), *(p.requirement for p in OPTIONAL)],
)
def test_what_is_told_is_what_the_extras_bring(requirement):
    assert requirement in extras()


def needs_an_index(text: str) -> list[str]:
    """The commands that want mpiring from a package index, which has none."""
    return re.findall(r"pip install [^`\n]*\bmpiring\b.*", text)


def test_no_message_and_no_document_wants_mpiring_from_an_index():
    sources = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    for folder in ("mpiring", "examples", "lab"):
        sources += (ROOT / folder).rglob("*.py")
    assert len(sources) > 100
    found = {str(path): needs_an_index(path.read_text()) for path in sources}
    assert {p: lines for p, lines in found.items() if lines and MADE not in p} == {}


def test_such_a_command_would_be_seen():
    for text in ("pip install 'mpiring[fast]'", "run `pip install mpiring` first"):
        assert len(needs_an_index(text)) == 1
    assert needs_an_index("pip install '.[fast]', then\nuse mpiring") == []
