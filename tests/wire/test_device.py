"""Device arrays in one process, on a CuPy whose device is host memory and does its work late (devices/deferred.py)."""

from __future__ import annotations

import ast
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpiring.errors import DeadlockError, RingError
from mpiring.wire.arrays import cupy as cupy_kind
from mpiring.wire.arrays import kind_of
from mpiring.wire.transport import device
from mpiring.wire.transport.protocol import Request, Transport

from devices import cases, local
from devices.cases import CASES
from devices.deferred import lazy, seeded

pytestmark = pytest.mark.untraced  # tests/ranks/test_device.py is traced

TRANSPORTS = ["direct", "staged"]
LONG = "b01_counts_against_ranks", 5  # so many counts that it takes half a minute
RUNS = [
    pytest.param(
        program,
        size,
        id=f"{name}-{size}",
        marks=[pytest.mark.slow] if (name, size) == LONG else [],
    )
    for name, (program, sizes) in CASES.items()
    for size in sizes
]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("case, size", RUNS)
def test_case_on_the_device(monkeypatch, case, size, transport):
    for seed, rendezvous in ((1, True), (2, False), (3, None)):
        cupy = local.install(monkeypatch, choose=seeded(seed))
        local.run(case, size, cupy, transport, seed, rendezvous)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("case, size", RUNS)
def test_case_on_the_device_in_chunks(monkeypatch, case, size, transport):
    """The executor's second form, with chunks as long as two elements or a quarter of a message."""
    cupy = local.install(monkeypatch, choose=seeded(size))
    local.run(case, size, cupy, transport, size, None, tuning={"chunk_bytes": 10})


@pytest.mark.parametrize("case, size", RUNS)
def test_case_on_the_host(monkeypatch, case, size):
    local.install(monkeypatch)
    local.run(case, size, cases.Numpy, "staged")


# ---- synchronisation: without any of it, numbers are wrong ----------------------------------------

# What is left out -> (file, what the source says, what the mistake says).
MISTAKES = {
    "ours does not wait for the user's stream": (
        cupy_kind,
        "        call._enter()\n        return call",
        "        return call",
    ),
    "ours does not wait for the pool that gave a result": (
        cupy_kind,
        "                array = self.cupy.empty(shape, as_dtype(dtype))\n            self._enter()\n",
        "                array = self.cupy.empty(shape, as_dtype(dtype))\n",
    ),
    "the user's stream does not wait for ours": (
        cupy_kind,
        "        self._leave()\n",
        "",
    ),
    "scratch comes in the user's order": (
        cupy_kind,
        "        with self._at_work():\n            return self.cupy.empty",
        "        if True:\n            return self.cupy.empty",
    ),
    "copies on the user's stream": (
        cupy_kind,
        "        with self._at_work():\n            is_of_the_host",
        "        if True:\n            is_of_the_host",
    ),
    "folds on the user's stream": (
        cupy_kind,
        "        with self._at_work():\n            device_kernels.fold",
        "        if True:\n            device_kernels.fold",
    ),
    "finishes on the user's stream": (
        cupy_kind,
        "        with self._at_work():\n            device_kernels.finish",
        "        if True:\n            device_kernels.finish",
    ),
    "fetches on the user's stream": (
        cupy_kind,
        "copy_to_host_async(host.ctypes.data, len(piece), self._ours)",
        "copy_to_host_async(host.ctypes.data, len(piece), self._theirs)",
    ),
    "stores on the user's stream": (
        cupy_kind,
        "copy_from_host_async(host.ctypes.data, len(piece), self._ours)",
        "copy_from_host_async(host.ctypes.data, len(piece), self._theirs)",
    ),
    "marks the user's stream": (
        cupy_kind,
        "return self._mark(self._ours)",
        "return self._mark(self._theirs)",
    ),
    "direct: sends before the device is done": (
        device,
        "if not (is_my_turn and self._event.done):",
        "if not (is_my_turn and (self.verb == 'send to' or self._event.done)):",
    ),
    "direct: receives before the device is done": (
        device,
        "if not (is_my_turn and self._event.done):",
        "if not (is_my_turn and (self.verb != 'send to' or self._event.done)):",
    ),
    "direct: forgets the messages": (
        device,
        "        self._messages = [m for m in self._messages if not m.test()]\n",
        "        self._messages = []\n",
    ),
    "staged: sends a chunk before it is copied": (
        device,
        "while is_my_turn and self._copies and self._copies[0][0].done:",
        "while is_my_turn and self._copies:",
    ),
    "staged: fills a chunk that is still sent": (
        device,
        "        while self._messages and self._messages[0][0].test():\n"
        "            chunks.give(self._messages.popleft()[1])\n",
        "        for m, chunk, _ in self._messages:\n            chunks.give(chunk)\n        self._messages.clear()\n",
    ),
    "staged: receives into a chunk that is still copied": (
        device,
        "chunks.give(chunk, kind.mark())",
        "chunks.give(chunk)",
    ),
    "staged: copies a chunk before it has arrived": (
        device,
        "        while self._messages and self._messages[0][0].test():\n            _, chunk",
        "        while self._messages:\n            _, chunk",
    ),
    "staged: takes a chunk whose copy is under way": (
        device,
        "                if event.done:\n",
        "                if True:\n",
    ),
    "a request moves only itself": (
        device,
        "            self.transport.progress()\n        return self._is_done",
        "            self.advance()\n        return self._is_done",
    ),
}
FAULTS = (AssertionError, RingError, DeadlockError, ValueError)
TELLING = [
    "schedules_written_by_hand",
    "work_still_queued",
    "b02_bookkeeping",
    "b08_half_precision",
    "groups_of_messages",
    "with_a_root",
    "b03_everybody_sends_first",
]


@pytest.mark.parametrize("what", MISTAKES)
def test_a_missing_synchronisation_is_seen(monkeypatch, what):
    """Each is caught by some case in some order; with all of them the same runs pass."""
    runs = [
        (name, transport, seed)
        for seed in range(6)
        for name in TELLING
        for transport in TRANSPORTS
        if ":" not in what or what.startswith(transport)
    ]
    with_mistake(monkeypatch, *MISTAKES[what])
    for name, transport, seed in runs:
        program, sizes = CASES[name]
        cupy = local.install(monkeypatch, choose=seeded(seed))
        try:
            local.run(program, sizes[-1], cupy, transport, seed, rendezvous=None)
        except Exception as error:  # wrong numbers, or what an MPI forbids
            assert isinstance(error, FAULTS), error
            return
    pytest.fail(f"nothing was wrong in {len(runs)} runs")


# ---- the messages of a channel keep their order ---------------------------------------------------

OUT_OF_TURN = {
    "direct": (
        device,
        "if not (is_my_turn and self._event.done):",
        "if not self._event.done:",
    ),
    "staged send": (
        device,
        "while is_my_turn and self._copies and self._copies[0][0].done:",
        "while self._copies and self._copies[0][0].done:",
    ),
    "staged receive": (
        device,
        "while is_my_turn and (chunk := self._taken(len(self._messages))) is not None:",
        "while (chunk := self._taken(len(self._messages))) is not None:",
    ),
}


class Posts(Transport):
    """Takes note of what is posted; nothing ever arrives."""

    def __init__(self):
        super().__init__(0, 2, 1 << 30)
        self.posted = []

    def post_send(self, buffer, dest, tag):
        self.posted.append(len(buffer))
        return Never()

    post_receive = post_send


class Never(Request):
    def test(self):
        return False


def posted_out_of_turn(monkeypatch, how, lengths=(20, 5, 4)):
    """Buffers of so many bytes, of which the first is ready last; what was posted before and after that."""
    cupy = local.install(monkeypatch, choose=lazy)
    array = cupy.asarray(np.arange(3))
    kind: Any = kind_of(array).bound(array)
    inner = Posts()
    events = [types.SimpleNamespace(done=place > 0) for place in range(3)]
    buffers = [kind.empty(n, "uint8") for n in lengths]
    started: list[Any] = []
    outer: Any = device.Direct(inner, kind, 100)
    if how != "direct":
        chunks = device.Chunks(6)
        chunks.reserve(kind, 6)
        outer = device.Staged(inner, kind, chunks)
    monkeypatch.setattr(type(kind), "mark", lambda self: events[len(started)])
    for buffer in buffers:
        start = outer.irecv if how == "staged receive" else outer.isend
        started.append(start(buffer, 1, 7))
    before = list(inner.posted)
    for event in events:
        event.done = True
    outer.progress()
    return before, inner.posted


WANTED = {
    "direct": ([], [20, 5, 4]),
    # Two chunks of the first buffer are on their way, and its other two before the second buffer.
    "staged send": ([], [6, 6]),
    "staged receive": ([6, 6], [6, 6]),
}


@pytest.mark.parametrize("how", OUT_OF_TURN)
def test_messages_are_posted_in_the_order_of_the_calls(monkeypatch, how):
    assert posted_out_of_turn(monkeypatch, how) == WANTED[how]


@pytest.mark.parametrize("how", OUT_OF_TURN)
def test_an_empty_buffer_passes_its_turn_on_when_it_has_it(monkeypatch, how):
    before, after = posted_out_of_turn(monkeypatch, how, lengths=(20, 0, 4))
    assert (before, after) == (WANTED[how][0], [n for n in WANTED[how][1] if n != 5])


@pytest.mark.parametrize("how", OUT_OF_TURN)
def test_posting_out_of_turn_is_seen(monkeypatch, how):
    with_mistake(monkeypatch, *OUT_OF_TURN[how])
    assert posted_out_of_turn(monkeypatch, how) != WANTED[how]


def with_mistake(monkeypatch, module, right, wrong):
    """Put the methods that the mistake changes into the module's classes."""
    source = Path(module.__file__).read_text()
    assert source.count(right) == 1, right
    namespace = {"__name__": module.__name__, "__package__": module.__package__}
    exec(compile(source.replace(right, wrong), module.__file__, "exec"), namespace)
    before, after = methods(source), methods(source.replace(right, wrong))
    changed = [place for place in before if before[place] != after[place]]
    assert len(changed) == 1
    for name, method in changed:
        function = vars(namespace[name])[method]
        monkeypatch.setattr(getattr(module, name), method, function)


def methods(source):
    """What each method of each class says."""
    return {
        (kind.name, method.name): ast.dump(method)
        for kind in ast.parse(source).body
        if isinstance(kind, ast.ClassDef)
        for method in kind.body
        if isinstance(method, ast.FunctionDef)
    }
