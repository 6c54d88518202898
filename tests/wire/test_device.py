"""Device arrays in one process, on a CuPy whose device is host memory and does its work late (devices/deferred.py)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mpiring.errors import DeadlockError, RingError
from mpiring.wire import device_transport
from mpiring.wire.arrays import cupy as cupy_kind

from devices import cases, local
from devices.cases import CASES
from devices.deferred import seeded

TRANSPORTS = ["direct", "staged"]
RUNS = [
    pytest.param(program, size, id=f"{name}-{size}")
    for name, (program, sizes) in CASES.items()
    for size in sizes
]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("case, size", RUNS)
def test_case_on_the_device(monkeypatch, case, size, transport):
    for seed, rendezvous in ((1, True), (2, False), (3, None)):
        cupy = local.install(monkeypatch, choose=seeded(seed))
        local.run(case, size, cupy, transport, seed, rendezvous)


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
        "        with self._at_work():\n            out[...] = source",
        "        if True:\n            out[...] = source",
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
        device_transport,
        "if not (is_my_turn and self._event.done):",
        "if not (is_my_turn and (self.verb == 'send to' or self._event.done)):",
    ),
    "direct: receives before the device is done": (
        device_transport,
        "if not (is_my_turn and self._event.done):",
        "if not (is_my_turn and (self.verb != 'send to' or self._event.done)):",
    ),
    "direct: posts whichever is ready first": (
        device_transport,
        "if not (is_my_turn and self._event.done):",
        "if not self._event.done:",
    ),
    "direct: forgets the messages": (
        device_transport,
        "        self._messages = [m for m in self._messages if not m.test()]\n",
        "        self._messages = []\n",
    ),
    "staged: sends a chunk before it is copied": (
        device_transport,
        "while is_my_turn and self._copies and self._copies[0][0].done:",
        "while is_my_turn and self._copies:",
    ),
    "staged: sends whichever is ready first": (
        device_transport,
        "while is_my_turn and self._copies and self._copies[0][0].done:",
        "while self._copies and self._copies[0][0].done:",
    ),
    "staged: receives whichever comes first": (
        device_transport,
        "while is_my_turn and (chunk := self._taken(len(self._messages))) is not None:",
        "while (chunk := self._taken(len(self._messages))) is not None:",
    ),
    "staged: fills a chunk that is still sent": (
        device_transport,
        "        while self._messages and self._messages[0][0].test():\n            chunks.give(self._messages.popleft()[1])\n",
        "        for m, chunk, _ in self._messages:\n            chunks.give(chunk)\n        self._messages.clear()\n",
    ),
    "staged: receives into a chunk that is still copied": (
        device_transport,
        "chunks.give(chunk, kind.mark())",
        "chunks.give(chunk)",
    ),
    "staged: copies a chunk before it has arrived": (
        device_transport,
        "        while self._messages and self._messages[0][0].test():\n            _, chunk",
        "        while self._messages:\n            _, chunk",
    ),
    "staged: takes a chunk whose copy is under way": (
        device_transport,
        "                if event.done:\n",
        "                if True:\n",
    ),
    "a request moves only itself": (
        device_transport,
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
    # Two buffers of one channel are on their way at a time in few steps, and seldom ready in the wrong order.
    names, seeds = (TELLING[:1], 60) if "first" in what else (TELLING, 6)
    runs = [
        (name, transport, seed)
        for seed in range(seeds)
        for name in names
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
