"""1024 ranks are proven within a gibibyte; how long it takes is shown at the end of the run."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, time
from mpiring.plan import schedule, verify
begin = time.perf_counter()
proof = verify(schedule("allreduce", {size}, algorithm={algorithm!r}), count=1024 * 1000)
print(time.perf_counter() - begin, time.process_time())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
print(set(proof.sent) == {{2 * ({size} - 1) * 1024 * 1000 // {size}}})
"""
GIBIBYTE = 1 << 30


@pytest.mark.untraced
@pytest.mark.parametrize(
    "algorithm", ["ring", pytest.param("direct", marks=pytest.mark.slow)]
)
def test_1024_ranks(algorithm, capsys):
    program = PROGRAM.format(size=1024, algorithm=algorithm)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    assert done.returncode == 0, done.stderr
    seconds, cpu, peak, optimal = done.stdout.split()
    with capsys.disabled():
        print(
            f"\nverify({algorithm} allreduce of 1024 ranks): {float(seconds):.1f} s "
            f"({float(cpu):.1f} s of a core), "
            f"{int(peak) >> 20} MiB"
        )
    assert int(peak) <= GIBIBYTE
    assert optimal == "True"
