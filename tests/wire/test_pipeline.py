"""The executor's second form gives the bits of the first, for every schedule and in every order of events."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.plan import Segments, ring_allreduce
from mpiring.plan.programs import rank_program
from mpiring.wire.arrays import NUMPY
from mpiring.wire.arrays.scratch import Scratch
from mpiring.wire.execute import pipeline
from mpiring.wire.execute.memory import in_chunks

from wire import executor
from wire.interleaving import protocols, seeds
from wire.schedules import ALL

pytestmark = pytest.mark.untraced

KINDS = [
    ("sum", "float32"),
    ("avg", "float16"),
    ("prod", "bfloat16"),
    ("max", "float16"),
]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("length, window", [(1, 1), (2, 2), (3, 4)])
def test_every_schedule_in_chunks(name, length, window):
    for size in range(1, 6):
        for op, dtype in KINDS:
            for rendezvous in (True, False):
                executor.check_in_chunks(
                    ALL[name](size), op, dtype, 23, size, length, window, rendezvous
                )


@examples(max_examples=250)
@given(
    name=st.sampled_from(sorted(ALL)),
    size=st.integers(1, 6),
    kind=st.sampled_from([*KINDS, ("avg", "complex64"), ("sum", "uint8")]),
    count=st.integers(0, 40),
    length=st.integers(1, 12),
    window=st.integers(1, 4),
    in_place=st.booleans(),
    seed=seeds,
    rendezvous=protocols,
)
def test_under_interleavings(
    name, size, kind, count, length, window, in_place, seed, rendezvous
):
    schedule = ALL[name](size)
    executor.check_in_chunks(
        schedule, *kind, count, seed, length, window, rendezvous, in_place
    )


# ---- each of these mistakes in it is caught ---------------------------------------------------------

MISTAKES = {
    "posts a step whose channel is not that far": (
        "            if (self._steps[channel][place], next_chunk) != (step, chunk):\n"
        "                return False\n",
        "",
    ),
    "posts a step before the chunk has done the one before it": (
        "        if self._next_step[chunk] != step:\n            return False\n",
        "",
    ),
    "does not wait for its messages": (
        "        return not self.requests\n",
        "        return True\n",
    ),
    "waits for the last message only": (
        "for request in self.requests if",
        "for request in self.requests[-1:] if",
    ),
    "gives landings back too early": (
        "        landings = self._landings.pop() if _needs_landing(step) else None\n",
        "        landings = self._landings[-1] if _needs_landing(step) else None\n",
    ),
    "forgets a step without messages": (
        "            self._finish_step(number, chunk, [])\n",
        "            self._next_step[chunk] = number + 1\n",
    ),
    "combines in another chunk": (
        "        step, memory = self._program.steps[number], self._memories[chunk]\n        in_use",
        "        step, memory = self._program.steps[number], self._memories[0]\n        in_use",
    ),
    "ends when the first chunk has": (
        "return min(self._next_step)",
        "return max(self._next_step)",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_each_mistake_is_caught(what, monkeypatch):
    right, wrong = MISTAKES[what]
    source = Path(pipeline.__file__).read_text()
    assert source.count(right) == 1, "the source has changed; write the mistake anew"
    broken = types.ModuleType("mpiring.wire.execute.pipeline_broken")
    broken.__package__ = pipeline.__package__
    monkeypatch.setitem(sys.modules, broken.__name__, broken)
    exec(compile(source.replace(right, wrong), "broken", "exec"), broken.__dict__)
    monkeypatch.setattr(executor, "pipeline", broken)
    with pytest.raises(Exception):
        for seed in range(3):
            for name in ALL:
                for protocol in (True, None):
                    for op, dtype in KINDS[:2]:
                        executor.check_in_chunks(
                            ALL[name](4), op, dtype, 23, seed, 2, 2, protocol
                        )


def test_the_memory_is_a_window_s():
    """However long the buffer, a ring has landings for what is on its way."""
    taken = []
    for count in (40, 4000):
        scratch = Scratch()
        in_chunks(
            NUMPY,
            rank_program(ring_allreduce(4), 0),
            Segments(count, 4),
            np.zeros(count),
            lambda cut: lambda segment: np.zeros(count)[cut[segment].slice],
            "sum",
            "float64",
            scratch,
            length=5,
            window=2,
        )
        taken.append(scratch.nbytes)
    assert taken == [2 * 64] * 2
