"""The record of a device probe: that this MPI, on this host, has carried device memory between two processes.

``mpiring doctor --probe-device`` writes it.  A ring reads it and never probes by itself: where MPI cannot take a
pointer into device memory the answer is a segmentation fault, which would be the end of the job.

Rules:

* a record counts for the very library file, host and settings it was made with, and for nothing else;
* whatever is wrong with a record is a sentence and never an exception.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..settings.files import read_small, write_whole
from .loaded import Library, mapped_here

FORMAT = 1
MOST_BYTES = 1 << 16  # a record has less than a hundredth of this

# What decides by which way an MPI moves device memory: under other settings a probe has shown nothing.
SETTINGS = (
    "I_MPI_OFFLOAD",
    "MPICH_GPU_SUPPORT_ENABLED",
    "MPIR_CVAR_ENABLE_GPU",
    "MV2_USE_CUDA",
    "OMPI_MCA_accelerator",
    "OMPI_MCA_btl",
    "OMPI_MCA_mpi_cuda_support",
    "OMPI_MCA_opal_cuda_support",
    "OMPI_MCA_pml",
    "UCX_MEMTYPE_CACHE",
    "UCX_TLS",
)


@dataclass(frozen=True)
class Subject:
    """What a probe is about.

    Attributes:
        library: what ``MPI_Get_library_version`` says.
        path, mtime_ns: the file it comes from, links followed, and when that was last changed.
        host: this host's name.
        settings: those of ``SETTINGS`` that are set, as ``NAME=value``, and the UCX that is loaded, with spaces
            between.
    """

    library: str
    path: str
    mtime_ns: int
    host: str
    settings: str


def find_subject(library: Library, environment: Mapping[str, str]) -> Subject | None:
    """This MPI on this host; None where its file is not known, so that no record can be about it."""
    if not library.paths:
        return None
    path = os.path.realpath(library.paths[0])
    try:
        changed = os.stat(path).st_mtime_ns
    except OSError:  # replaced since it was loaded
        return None
    settings = " ".join(f"{v}={environment[v]}" for v in SETTINGS if v in environment)
    # The same MPI moves device memory over one UCX and crashes over another.
    for ucx in sorted(p for p in mapped_here() if "/libucp" in p):
        settings = f"{settings} {os.path.realpath(ucx)}".strip()
    return Subject(library.text, path, changed, socket.gethostname(), settings)


def find_cache(environment: Mapping[str, str]) -> Path | None:
    """``$MPIRING_CACHE``, else ``$XDG_CACHE_HOME/mpiring``, else ``~/.cache/mpiring``; None without any of them."""
    if environment.get("MPIRING_CACHE"):
        return Path(environment["MPIRING_CACHE"])
    base = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: to be ignored
        base = os.path.expanduser("~/.cache")
    return Path(base, "mpiring") if os.path.isabs(base) else None


def record_path(cache: Path, subject: Subject) -> Path:
    """Where the record about ``subject`` is."""
    text = json.dumps(asdict(subject), sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
    return cache / f"device-probe-{digest}.json"


def write_record(cache: Path, subject: Subject, facts: Mapping[str, Any]) -> Path:
    """Note that a probe about ``subject`` has passed, with whatever else is worth knowing; returns the file.

    A reader sees all of it or nothing, also if two write at the same time.
    """
    cache.mkdir(parents=True, exist_ok=True)
    path = record_path(cache, subject)
    content = {**facts, "format": FORMAT, "passed": True, **asdict(subject)}
    write_whole(path, json.dumps(content, indent=2) + "\n")
    return path


def forget_record(cache: Path, subject: Subject) -> None:
    """Remove the record about ``subject``, if there is one: a later probe has failed."""
    record_path(cache, subject).unlink(missing_ok=True)


def read_record(cache: Path | None, subject: Subject | None) -> tuple[bool, str]:
    """Whether a probe about ``subject`` has passed, and the sentence that tells."""
    if subject is None:
        return False, "no probe can be known of: the file of this MPI is not known here"
    if cache is None:
        return False, "no probe is known of: there is no cache directory for its record"
    path = record_path(cache, subject)
    try:
        content = json.loads(read_small(path, MOST_BYTES))
        fault = _fault(content, subject)
    except FileNotFoundError:
        return False, f"no probe of this MPI has passed on {subject.host} ({path})"
    except (OSError, ValueError, RecursionError) as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        return False, f"{path} is ignored, it is no record of this MPI: {fault}"
    return True, f"a probe has passed on {subject.host} ({path})"


def _fault(content: Any, subject: Subject) -> str:
    """Why this is no record about ``subject``; "" if it is one."""
    if not isinstance(content, dict):
        return f"a {type(content).__name__}, not an object"
    wanted = {"format": FORMAT, "passed": True, **asdict(subject)}
    for name, value in wanted.items():
        got = content.get(name)
        if type(got) is not type(value) or got != value:
            return f"its {name} is {str(got)[:60]!r}, expected {str(value)[:60]!r}"
    return ""
