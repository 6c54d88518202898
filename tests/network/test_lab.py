"""The lab runs from end to end, and its picture and table are there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from expected import CASES
from launch import find_mpi, job_environment, run

LAB = Path(__file__).parents[2] / "lab"


def test_a_quick_run(tmp_path):
    command = [sys.executable, str(LAB / "lecture.py"), "--quick", "--out", tmp_path]
    job = run(
        [*map(str, command)], timeout=150, env=job_environment(find_mpi())
    ).check()
    found = json.loads((tmp_path / "lab.json").read_text())
    assert {row["case"] for row in found["rows"]} == set(CASES)
    for row in found["rows"]:
        # Nothing is faster than the bound, but for what the token bucket lets through at once.
        burst = (32 << 10) * 2 / found["links"][0]["payload_rate"]
        # A server's link carries pulls and pushes at once, if the workers are not in step.
        least = row["bound"] / (2 if "async" in row["case"] else 1)
        assert row["median"] > least - burst, row
        assert row["case"] in job.stdout
    assert [point["bytes"] for point in found["point_to_point"]] == [
        1 << 14,
        1 << 17,
        1 << 20,
    ]
    assert (tmp_path / "lab.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
