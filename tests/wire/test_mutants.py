"""The tests of the executor can fail: each of these mistakes in it is caught by what test_execute.py does.

A mistake is a change of the source of ``execute.py`` or ``memory.py``.  At the end the network is changed instead: one
that is kinder than MPI would miss mistakes, so that its unkindness is needed.
"""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from mpiring.wire.execute import memory, steps
from mpiring.wire.transport import local

from wire import executor
from wire.executor import Machine
from wire.schedules import ALL

pytestmark = pytest.mark.untraced

WAIT_SEND = """\
        for send_req, send in zip(send_reqs, step.sends):
            position.segment = send.segment
            yield from wait(send_req)
"""
WAIT_RECEIVE = """\
        for recv_req, receive in zip(recv_reqs, step.receives):
            position.segment = receive.segment
            yield from wait(recv_req)
"""
FORGET = "        memory.forget(program.dead[number], except_for=in_use)\n"
COMBINE = "        memory.combine(step.receives, buffers)\n"
FINISH = "        memory.finish(step.finishes)\n"
FORGET_AT_END = "        memory.forget(program.dead[number])\n"
POST = "        buffers = memory.incoming(step.receives)\n"

# name -> (module, what the source says, what the mistake says)
MISTAKES = {
    "does not wait for sends": (steps, WAIT_SEND, ""),
    "does not wait for receives": (steps, WAIT_RECEIVE, ""),
    "waits for the last receive only": (
        steps,
        "zip(recv_reqs, step.receives)",
        "list(zip(recv_reqs, step.receives))[-1:]",
    ),
    "waits for the first send only": (
        steps,
        "zip(send_reqs, step.sends)",
        "list(zip(send_reqs, step.sends))[:1]",
    ),
    "combines before the sends are complete": (
        steps,
        WAIT_SEND + WAIT_RECEIVE,
        WAIT_RECEIVE + COMBINE + WAIT_SEND,
    ),
    "combines before the receives are complete": (
        steps,
        WAIT_RECEIVE,
        COMBINE + WAIT_RECEIVE,
    ),
    "waits for a send in the next step": (
        steps,
        WAIT_SEND,
        WAIT_SEND.replace("send_reqs, step", "late, step").replace(
            "        for", "        late, last = last, send_reqs\n        for", 1
        ),
    ),
    "takes a poll for completion": (
        steps,
        "yield from wait(recv_req)",
        "yield recv_req",
    ),
    "finishes before it combines": (steps, COMBINE + FINISH, FINISH + COMBINE),
    "does not combine": (steps, COMBINE, ""),
    "does not finish": (steps, FINISH, ""),
    "skips the last step": (
        steps,
        "enumerate(program.steps)",
        "enumerate(program.steps[:-1])",
    ),
    "keeps what nobody uses": (steps, FORGET_AT_END, ""),
    "frees what was sent too late": (steps, FORGET, ""),
    "frees what it is about to combine": (steps, ", except_for=in_use", ""),
    "frees slots at the start of a step": (steps, POST, FORGET_AT_END + POST),
    "folds from the right": (
        memory,
        "        total = self._place(segment, self._partial_dtype)\n",
        "        total = self._place(segment, self._partial_dtype)\n"
        "        operands = operands[::-1]\n",
    ),
    "folds its own value first": (
        memory,
        "operands += self._own(segment)\n",
        "operands = self._own(segment) + operands\n",
    ),
    "reduces after as before": (
        memory,
        "if action is Action.REDUCE]",
        "if action is not Action.STORE]",
    ),
    "has one landing": (memory, "next(rooms)", "self._landings[0]"),
    "rounds at each hop": (
        memory,
        "accumulator(op, dtype)",
        "dtype",
    ),
    "adds up in the input": (
        memory,
        "        total = self._place(segment, self._partial_dtype)\n",
        "        total = self._value(segment)\n",
    ),
    "stores in a slot what is kept": (
        memory,
        "return self._slot(segment, dtype) if place is None else place",
        "return self._slot(segment, dtype)",
    ),
    "does not widen what it sends": (
        memory,
        "if send.form is not Form.PARTIAL or",
        "if True or",
    ),
    "widens what travels as it is": (
        memory,
        "if send.form is not Form.PARTIAL or",
        "if",
    ),
    "forgets what it combined": (memory, "        self._values[segment] = value\n", ""),
    "gives a slot back while it is used": (
        memory,
        "            if dtype != held or self._result_in(segment, dtype) is not None:\n",
        "            if True:\n",
    ),
    "keeps the slots of older values": (
        memory,
        "            if dtype != held or self._result_in(segment, dtype) is not None:\n",
        "            if False:\n",
    ),
    "divides by one more": (memory, "self._size = program.schedule.size", "self._size = 9"),
}  # fmt: skip


KINDS = (("sum", "float32"), ("avg", "float16"))


def broken(module, old, new):
    """A copy of a module with a change in its source."""
    source = Path(module.__file__).read_text()
    assert source.count(old) >= 1, "the source has changed; write the mistake anew"
    copy = types.ModuleType(module.__name__ + "_broken")
    copy.__package__ = module.__package__
    changed = source.replace(old, new)
    if "last = last" in new:
        changed = changed.replace("    for number,", "    last = []\n    for number,")
    exec(compile(changed, f"<{module.__name__}, broken>", "exec"), copy.__dict__)
    return copy


def search(machine, names=tuple(ALL), kinds=KINDS):
    """What test_execute.py does, in a few hundred runs; ends with an exception if something is wrong."""
    for seed in range(2):
        for name in names:
            for protocol in (True, None, False):
                for size in (3, 4):
                    for op, dtype in kinds:
                        in_place = seed % 2 == 1
                        schedule = ALL[name](size)
                        executor.check(
                            schedule, op, dtype, 9, seed, protocol, in_place, machine
                        )


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_caught(name):
    module, old, new = MISTAKES[name]
    copy = broken(module, old, new)
    parts = {module.__name__.rpartition(".")[2]: copy}
    machine = Machine(
        execute=parts.get("steps", steps).execute,
        memory=parts.get("memory", memory).Memory,
    )
    with pytest.raises(Exception):
        search(machine)


def test_without_a_mistake_nothing_is_caught():
    search(
        Machine(
            broken(steps, "step", "step").execute,
            broken(memory, "slot", "slot").Memory,
        )
    )


# ---- only an unkind network catches ---------------------------------------------------------------

# name -> (mistake, what makes the network kinder)
KINDER = {
    "one that does not mind requests that nobody waits for": (
        "does not wait for sends",
        "self._faults += [",
        "[] + [",
    ),
    "one that polls nobody who waits": (
        "takes a poll for completion",
        "options + bool(waiting)",
        "options",
    ),
}


@pytest.mark.parametrize("name", KINDER)
def test_a_kinder_network_misses(name, monkeypatch):
    mistake, old, new = KINDER[name]
    module, right, wrong = MISTAKES[mistake]
    machine = Machine(execute=broken(module, right, wrong).execute)
    sought = ["ring allreduce, order ring"], [("sum", "float32")]

    monkeypatch.setattr(executor, "LocalNetwork", broken(local, old, new).LocalNetwork)
    search(machine, *sought)
    monkeypatch.undo()
    with pytest.raises(Exception):
        search(machine, *sought)
