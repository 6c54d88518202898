"""Programs on the pretended device, run in each of the ways that CUDA allows."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from devices import deferred
from devices.deferred import lazy, reach


@contextmanager
def device(choose=lazy, **more):
    """A device outside of a test's own: for Hypothesis, and for several in one test."""
    with pytest.MonkeyPatch.context() as patch:
        yield deferred.install(patch, choose, **more)


def every_way(program, **more):
    """The results of ``program(cupy)`` under every sequence of answers that ``choose`` may give."""
    results = []
    script: list[int] = []
    while True:
        asked: list[tuple[int, int]] = []  # answer, options

        def choose(options):
            answer = script[len(asked)] if len(asked) < len(script) else 0
            asked.append((answer, options))
            return answer

        with device(choose, **more) as cupy:
            results.append(program(cupy))
        while asked and asked[-1][0] == asked[-1][1] - 1:
            asked.pop()
        if not asked:
            return results
        script = [answer for answer, _ in asked]
        script[-1] += 1


def outcomes(program):
    """The different numbers that come out of ``program(cupy)``, a small one; what noise says is "noise"."""
    some = every_way(program, spontaneous=False)
    return {"noise" if x not in (0, 1, 2, 3) else x for x in some}


def settled(cupy, value):
    """An array of two that everybody may use."""
    x = cupy.full(2, value, "f4")
    finish_all(cupy)
    return x


def number(cupy, x):
    """What is in it when all is done."""
    finish_all(cupy)
    return float(reach(x)[0])


def finish_all(cupy):
    for device_id in range(cupy.cuda.runtime.getDeviceCount()):
        cupy.cuda.Device(device_id).synchronize()


def free_stream(cupy):
    return cupy.cuda.Stream(non_blocking=True)


def wait_for_it(cupy, first, second):
    """The second stream waits for what the first has been given."""
    event = cupy.cuda.Event(disable_timing=True)
    event.record(first)
    second.wait_event(event)
