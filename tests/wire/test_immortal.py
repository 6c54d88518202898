"""What is kept until the end of the process is not taken away by the end of modules, or by the garbage collector."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys
from mpiring.wire.ring import immortal

class Thing:
    def __del__(self):
        sys.__stdout__.write("gone ")

holder = sys.modules["holder"] = type(sys)("holder")
holder.things = []
thing = Thing()
thing.itself = thing
{keep}
del thing
gc.collect()
print("end", end=" ", flush=True)
"""


@pytest.mark.parametrize(
    "keep, said",
    [
        ("immortal.keep_alive(thing)", "end "),
        ("holder.things.append(thing)", "end gone "),  # a global of a module
        ("immortal.keep_alive(thing); immortal.let_go(thing)", "gone end "),
        ("immortal.let_go(thing)", "gone end "),
    ],
)
def test_what_is_kept(keep, said):
    program = PROGRAM.replace("{keep}", keep)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, said), done.stderr
