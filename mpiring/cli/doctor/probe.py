"""Starts MPI in a process of its own, and tells what happened even if that process does not live.

An MPI under the wrong launcher, or with half of its files, may abort, crash or wait for ever, and
no ``except`` catches that.  So the command itself never starts MPI.  It starts ``child``, which
inherits all that the launcher gave (environment and open files) and so takes the command's place
in the job.  The child sends each fact through a pipe as soon as it knows it; the command reads
until the child is done or its time is up, and so knows how far it came.
"""

from __future__ import annotations

import io
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from mpiring.wire.gpu_aware.evidence import Facts
from mpiring.wire.gpu_aware.loaded import Library

from .child import NodeFacts, RankFacts, main


@dataclass
class Probe:
    """What is known of MPI after the attempt.

    Attributes:
        stage: what was being done last.
        failure: why it got no further, ``""`` if it was done.
        output: what the process wrote to stdout and stderr.
        facts: what this MPI says of device memory, once it was asked.
        ranks, nodes: of each rank that answered; on rank 0 only.
    """

    stage: str = "starting a process"
    failure: str = ""
    output: str = ""
    library: Library | None = None
    rank: int | None = None
    size: int | None = None
    facts: Facts | None = None
    ranks: dict[int, RankFacts] = field(default_factory=dict)
    nodes: dict[int, NodeFacts] = field(default_factory=dict)


def start_probe(timeout: float) -> Probe:
    """Run the child for at most ``timeout`` seconds and collect what it says."""
    probe = Probe()
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    # Not -m: the classes of a __main__ would be pickled under that name.
    start = f"from {main.__module__} import main; raise SystemExit(main({writer}, {timeout}))"
    command = [sys.executable, "-c", start]
    with tempfile.TemporaryFile() as output, open(reader, "rb") as pipe:
        # close_fds=False: a launcher may have handed us an open connection (PMI_FD).
        child = subprocess.Popen(command, close_fds=False, stdout=output, stderr=output)
        os.close(writer)
        try:
            data = read_until(pipe, child, time.monotonic() + timeout)
        finally:
            late = child.poll() is None
            child.kill()
            code = child.wait()
        for fact, value in unpack(data):
            setattr(probe, fact, value)
        output.seek(0)
        probe.output = output.read().decode(errors="replace")
    if probe.failure:
        return probe
    if late:
        probe.failure = f"{probe.stage} did not return within {timeout:g} s"
    elif code < 0:
        probe.failure = f"{probe.stage} was ended by {signal.Signals(-code).name}"
    elif code > 0:
        probe.failure = f"{probe.stage} ended the process with exit code {code}"
    elif probe.stage != "done":
        probe.failure = f"{probe.stage} ended the process"
    return probe


def read_until(
    pipe: IO[bytes], child: subprocess.Popen[bytes], deadline: float
) -> bytes:
    """All bytes up to the child's end or the deadline, whichever is first.

    The end of the pipe alone would not do: a daemon that the MPI left behind may hold it open.
    """
    data = b""
    while True:
        ended = child.poll() is not None  # asked first, so that no byte is missed
        wait = 0.0 if ended else min(0.05, max(0.0, deadline - time.monotonic()))
        if select.select([pipe], [], [], wait)[0]:
            part = os.read(pipe.fileno(), 1 << 16)
            data += part
            if part:
                continue
            # The pipe is closed, so all is said; the interpreter is on its way out.
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            return data
        if ended or time.monotonic() >= deadline:
            return data


def unpack(data: bytes) -> Iterator[tuple[str, Any]]:
    """The messages in the child's bytes; one that was cut short ends them."""
    stream = io.BytesIO(data)
    while True:
        try:
            yield pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            return
