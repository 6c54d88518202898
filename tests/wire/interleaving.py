"""Answers to a LocalNetwork's questions, for tests that search for the interleaving that breaks a program.

Hypothesis draws a seed, and a random generator made from it answers the questions of one run.  Drawing every
answer with ``data.draw`` was tried: a ring all-reduce of three ranks asks a hundred questions, which took 9 ms so
and 1.5 ms with a seed, and the search for a smaller failing example took minutes.  ``test_local.py`` draws the answers
of its shortest programs one by one, everything else uses seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import strategies as st

Choose = Callable[[int], int]


def chooser(seed: int) -> Choose:
    """A ``choose`` that answers at random, the same way for the same seed."""
    uniform = Random(seed).random
    return lambda options: int(uniform() * options)


seeds = st.integers(0, 2**32 - 1)
protocols = st.sampled_from([True, False, None])  # rendezvous, eager, a mixture
