"""Starts two processes that send each other device memory, and notes it if all bytes arrive.

Where an MPI cannot take a pointer into device memory it crashes, hangs, or sends other bytes, and none of that may
happen inside a job.  So it is tried here, in a job of its own, and the record of a pass is what lets
``Ring(device_transport="direct")`` go on where the MPI itself does not say yes.

Rules: only a job of which both processes say that all was well, and that ends with exit code 0, has
passed; one that fails removes an older record of what it tried.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import util
from pathlib import Path
from typing import Any

from mpiring import __version__
from mpiring.device import find_gpus
from mpiring.wire.gpu_aware.probe_record import (
    Subject,
    find_cache,
    forget_record,
    write_record,
)
from mpiring.wire.settings.packages import CUPY, install

from .finding import OK, PROBLEM, Finding
from .pair import MARK, SIZES, describe, main

NAME = "device probe"
ARRAYS = "cupy"
GRACE = 5.0  # seconds for a launcher to end its processes

FAILED = (
    'leave device_transport at "auto", or set it to "staged": device memory then goes through host'
    " memory.  Direct transport needs an MPI that takes device memory (CUDA-aware)"
)


@dataclass
class Outcome:
    """What became of the two processes.

    Attributes:
        failure: why they did not pass, ``""`` if they did.
        facts: what each of them said of itself, by rank.
        subjects: what a record of it is about: one for each host.
        output: what they wrote besides.
    """

    failure: str
    facts: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: list[Subject] = field(default_factory=list)
    output: str = ""


def examine(
    launcher: Sequence[str],
    timeout: float,
    environment: Mapping[str, str],
    arrays: str = ARRAYS,
) -> Finding:
    """Probe, keep or remove the record, and report.

    Args:
        launcher: the words that start two processes, such as ``["mpirun", "-n", "2"]``.
        timeout: seconds that the job may take.
        environment: where to look for the cache directory.
        arrays: the module whose arrays are sent.
    """
    lacking = find_lacking(arrays)
    if lacking:
        return lacking
    outcome = probe_pair(launcher, timeout, arrays)
    how = f"{' '.join(launcher)}, two processes that send each other {arrays} arrays"
    try:
        where = keep_record(outcome, environment, arrays)
    except OSError as error:
        advice = "name a directory that can be written to: MPIRING_CACHE=/path"
        return Finding(NAME, PROBLEM, f"no record was kept: {error}", how, advice)
    if outcome.failure:
        said = outcome.output.strip().splitlines()
        told = "\n".join([outcome.failure, *said[-6:]])
        return Finding(NAME, PROBLEM, told, how, FAILED)
    if not where:
        words = "passed, but not kept: the file of this MPI is not known on this system"
        return Finding(NAME, PROBLEM, words, how, FAILED)
    sizes = ", ".join(describe(nbytes) for nbytes in SIZES)
    devices = " and ".join(
        f"{'a GPU' if told['device'] is None else 'GPU ' + told['device']} of {told['host']}"
        for _, told in sorted(outcome.facts.items())
    )
    words = (
        f"passed: {sizes}, to the byte, between {devices}; noted in {', '.join(where)}"
    )
    advice = 'Ring(device_transport="direct") and MPIRING_DEVICE_TRANSPORT=direct are accepted here now'
    return Finding(NAME, OK, words, how, advice)


def find_lacking(arrays: str = ARRAYS) -> Finding | None:
    """What is missing for a probe, if something is; nothing is imported."""
    if arrays != ARRAYS:
        return None
    if not find_gpus():
        advice = "run it where the GPUs are: on a compute node, or with docker run --gpus all"
        return Finding(NAME, PROBLEM, "no GPU here: not tried", "device files", advice)
    if util.find_spec(arrays) is None:
        advice = f"{install(CUPY['13'])}, or for an older driver {install(CUPY['12'])}"
        words = "CuPy is not installed: not tried"
        return Finding(NAME, PROBLEM, words, "importlib.util.find_spec", advice)
    return None


def probe_pair(launcher: Sequence[str], timeout: float, arrays: str) -> Outcome:
    """Run the two processes for at most ``timeout`` seconds, and tell what became of them."""
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryDirectory(
            prefix="mpiring-pair-", ignore_cleanup_errors=True
        ) as directory,
    ):
        # Processes that are late end themselves before the launcher has to, and say where they were.
        call = f"main({arrays!r}, {0.8 * timeout}, {directory!r})"
        code = f"from {main.__module__} import main; raise SystemExit({call})"
        try:
            job = subprocess.Popen(
                [*launcher, sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return Outcome(f"{launcher[0]} cannot be started: {error}")
        late = False
        try:
            job.wait(timeout)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            end_job(job)
        output.seek(0)
        texts = [output.read(), *(p.read_bytes() for p in Path(directory).iterdir())]
    text = "\n".join(part.decode(errors="replace") for part in texts)
    return judge_pair(text, None if late else job.returncode, timeout)


def end_job(job: subprocess.Popen[bytes]) -> None:
    """Ask the launcher to end its processes, then end it."""
    if job.poll() is not None:
        return
    job.terminate()
    try:
        job.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def judge_pair(text: str, code: int | None, timeout: float) -> Outcome:
    """What the output and the exit code of the job say; ``code`` is None if it did not end in time."""
    outcome = Outcome("")
    stages: dict[int | None, str] = {}
    passed, failures, other = set[int](), list[str](), list[str]()
    for line in text.splitlines():
        mark, told = read_line(line)
        if told is None:
            other.append(line)
            continue
        if mark:  # two lines ran together
            other.append(mark)
        rank = told["rank"]
        if "stage" in told:
            stages[rank] = told["stage"]
        if "failure" in told:
            failures.append(told["failure"])
        if "passed" in told:
            passed.add(rank)
        if "subject" in told:
            outcome.facts[rank] = told
            if told["subject"] is not None:
                subject = Subject(**told["subject"])
                if subject not in outcome.subjects:
                    outcome.subjects.append(subject)
    outcome.output = "\n".join(other)
    places = "; ".join(
        f"{'a process' if rank is None else f'rank {rank}'} was {stage}"
        for rank, stage in stages.items()
        if rank is not None or len(stages) == 1
    )
    places = f" ({places})" if places else ""
    libraries = {told["library"] for told in outcome.facts.values()}
    if failures:
        outcome.failure = failures[0]
    elif code is None:
        outcome.failure = f"no end within {timeout:g} s{places}"
    elif code != 0:
        outcome.failure = f"the job ended with exit code {code}{places}"
    elif passed != {0, 1}:
        outcome.failure = f"the job ended early{places}"
    elif len(libraries) > 1:
        outcome.failure = (
            f"the processes have different MPIs: {', '.join(sorted(libraries))}"
        )
    return outcome


def read_line(line: str) -> tuple[str, dict[str, Any] | None]:
    """What a line holds before an announcement, and the announcement; None if it is none."""
    before, mark, rest = line.partition(MARK)
    if not mark:
        return line, None
    try:
        told = json.loads(rest)
    except ValueError:
        return line, None
    return before, told if isinstance(told, dict) else None


def keep_record(
    outcome: Outcome, environment: Mapping[str, str], arrays: str
) -> list[str]:
    """Write the records of a pass, or remove those of the same subjects; returns the files written."""
    cache = find_cache(environment)
    if cache is None:
        if outcome.failure:
            return []
        raise OSError("there is no cache directory")
    if outcome.failure:
        for subject in outcome.subjects:
            forget_record(cache, subject)
        return []
    facts = {
        "mpiring": __version__,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "arrays": outcome.facts[0]["arrays"] if outcome.facts else arrays,
        "sizes": list(SIZES),
        "hosts": sorted({told["host"] for told in outcome.facts.values()}),
    }
    return [str(write_record(cache, subject, facts)) for subject in outcome.subjects]
