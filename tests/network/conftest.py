"""Fixtures of the tests between hosts: ``make test-network``, as root."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hosts import Hosts


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Four hosts with links of 100 Mbit/s, shared by the tests of a file."""
    with Hosts(4, rate="100mbit") as four:
        yield four
