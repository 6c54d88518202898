"""A program with every synchronisation is right in every order; without any one of them it is wrong in some."""

from __future__ import annotations

import numpy as np
import pytest

from devices.deferred import eager, lazy, reach, seeded
from devices.trials import device

CHOOSERS = [lambda: lazy, lambda: eager, *(lambda s=s: seeded(s) for s in range(40))]


class Host:
    """Waits and orders by name, but for the one that is left out."""

    def __init__(self, left_out):
        self._left_out = left_out
        self.names = []

    def order(self, name, first, second):
        self.names.append(name)
        if name != self._left_out:
            second.wait_event(first.record())

    def wait(self, name, event):
        self.names.append(name)
        if name != self._left_out:
            while not event.done:
                pass


def staged(cupy, host):
    """An array goes through pinned memory to another one, half by half, on a stream of its own."""
    user, own = cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    chunks = [cupy.cuda.alloc_pinned_memory(12) for _ in range(3)]
    *sent, arrived = (np.frombuffer(chunk, "f4", 3) for chunk in chunks)
    with user:
        x = cupy.asarray(np.arange(6, dtype="f4"))
        x += 1
        out = cupy.empty(6, "f4")
        host.order("the user's work and the allocation before ours", user, own)
        copied, taken = [], cupy.cuda.Event()
        for half in range(2):
            (x.data + 12 * half).copy_to_host_async(chunks[half].ptr, 12, own)
            copied.append(own.record())
        for half in range(2):
            host.wait("the copy before the message", copied[half])
            message = sent[half].copy()
            host.wait("the copy before the next message into the chunk", taken)
            arrived[...] = message
            (out.data + 12 * half).copy_from_host_async(chunks[2].ptr, 12, own)
            taken.record(own)
        host.order("our work before the user's", own, user)
        return (out * 2).get().tolist()


def direct(cupy, host):
    """A kernel's result is read by something that knows no streams, and then written by another kernel."""
    user, own = cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    with user:
        x = cupy.asarray(np.arange(6, dtype="f4") / 2)
        host.order("the user's work before ours", user, own)
        with own:
            x += x
        scratch = cupy.empty(6, "f4")
        host.order("the allocation before our work", user, own)
    with own:
        cupy.add(x, 1, out=scratch)
        host.wait("the kernel before the message", own.record())
        message = reach(scratch).copy()
        cupy.multiply(scratch, 2, out=scratch)
        cupy.multiply(scratch, 0.5, out=x)
        host.wait("the kernel before the next message into it", own.record())
        reach(scratch)[...] = message  # arrives
        cupy.add(x, scratch, out=x)
    host.order("our work before the user's", own, user)
    with user:
        return x.get().tolist()


WANT = [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]


def results(program, left_out):
    found, names = [], []
    for choose in CHOOSERS:
        with device(choose()) as cupy:
            host = Host(left_out)
            found.append(program(cupy, host))
            names = host.names
    return found, names


@pytest.mark.parametrize("program", [staged, direct])
def test_every_synchronisation_is_needed(program):
    right, names = results(program, None)
    assert all(result == WANT for result in right)
    assert len(set(names)) == {staged: 4, direct: 5}[program]
    for name in names:
        some, _ = results(program, name)
        assert any(result != WANT for result in some), name
