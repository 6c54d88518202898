"""The cases about what the environment holds, B47 and B54: rank 0's counts, and nobody waits for one that cannot go on.

A variable of the others' may hold anything, bytes that are no text included; of rank 0's, what cannot be understood is
an error on every rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from mpiring import Ring
from mpiring.wire.gpu_aware.decision import VARIABLE as DEVICE_TRANSPORT
from mpiring.wire.node.cross_memory import VARIABLE as PEER_MEMORY
from mpiring.wire.settings.profiles import VARIABLE as PROFILE

from ranks.reference import outcome

NO_TEXT = os.fsdecode(b"st\xffged")


@contextmanager
def variable(name: str, value: str | None) -> Iterator[None]:
    """This rank's variable has this value; None: is not there."""
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def made(comm):
    """What a new ring has taken from the environment, on all ranks, and whether it works; or the error."""
    found = []

    def make():
        with Ring(comm, timeout=20) as ring:
            why_not = ring._session.members[0].ways.peer_memory.why_not
            total = ring.allreduce(np.full(5000, 8.0**comm.rank))
            transport = ring.device_transport.transport
            found.append((transport, why_not != "not asked for", total[-1]))

    error = outcome(make)
    return comm.allgather(found[0] if found else error)


def fingerprint(comm):
    return float(int("1" * comm.size, base=8))


@pytest.mark.parametrize("name", [DEVICE_TRANSPORT, PEER_MEMORY, PROFILE])
@pytest.mark.parametrize("value", [NO_TEXT, "junk", "x" * 1000])
def test_b54_what_the_other_ranks_have_does_not_count(comm, name, value):
    default = "none" if name == PROFILE else None
    with variable(name, value if comm.rank else default):
        told = made(comm)
    assert told == [("staged", comm.size > 1, fingerprint(comm))] * comm.size


@pytest.mark.parametrize("name", [DEVICE_TRANSPORT, PEER_MEMORY, PROFILE])
@pytest.mark.parametrize(
    "value, shown", [(NO_TEXT, "st"), ("junk", "junk"), ("x" * 1000, "xxxxxxxxxx")]
)
def test_b54_what_rank_0_has_and_nobody_understands(comm, name, value, shown):
    default = "none" if name == PROFILE else None
    with variable(name, default if comm.rank else value):
        told = made(comm)
    assert told == [told[0]] * comm.size
    kind, text = told[0]
    assert kind == "ValueError" and text.startswith("Ring: rank 0: "), text
    assert shown in text and (name in text or len(value) > 100), text
    assert made(comm) == [("staged", comm.size > 1, fingerprint(comm))] * comm.size


@pytest.mark.parametrize("value", ["0", "no", "No", "off", "false", "FALSE"])
def test_b54_words_that_switch_the_peers_memory_off(comm, value):
    with variable(PEER_MEMORY, "1" if comm.rank else value):
        told = made(comm)
    assert told == [("staged", False, fingerprint(comm))] * comm.size


@pytest.mark.parametrize("value", ["", "1", "yes", "On", "true"])
def test_b54_words_that_leave_the_peers_memory_on(comm, value):
    with variable(PEER_MEMORY, "0" if comm.rank else value):
        told = made(comm)
    assert told == [("staged", comm.size > 1, fingerprint(comm))] * comm.size


def test_b54_no_home_is_known(comm, monkeypatch):
    for name in (PROFILE, "HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", _nobody)
    told = made(comm)
    assert told == [("staged", comm.size > 1, fingerprint(comm))] * comm.size


def _nobody(uid):
    raise KeyError(uid)
