"""May device pointers be handed to MPI?  The decision, and the evidence for it.

A ring moves device memory in one of two ways: ``direct`` hands MPI the pointer, ``staged`` copies through the host.
Where MPI cannot take the pointer, ``direct`` is a segmentation fault and not an exception, so it needs evidence:

1. what the user asks for: ``Ring(device_transport=...)``, or ``MPIRING_DEVICE_TRANSPORT`` where that is ``"auto"``,
   as rank 0 has it;
2. what the MPI says of itself: ``MPIX_GPU_query_support`` or ``MPIX_Query_cuda_support``;
3. the memory kinds that COMM_WORLD states (``mpi_memory_alloc_kinds``, MPI 4.1);
4. the vendor's environment, and the library that it makes MPI load.

One yes among 2 to 4 is enough, for ``"auto"`` and ``"direct"`` alike.  ``"direct"`` without any yes needs a record of a
probe that has passed (``mpiring doctor --probe-device``); ``"auto"`` takes no notice of such records.

Rules: nothing here touches CUDA, sends a message, or probes.  What is decided is decided by functions without side
effects, from gathered evidence; in doubt the answer is not yes.  What each source says: ``device_evidence``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import harmless
from . import probe_record
from .evidence import Clue, find_facts, weigh
from .loaded import Library

CHOICES = ("auto", "direct", "staged")
VARIABLE = "MPIRING_DEVICE_TRANSPORT"
FOUND_BYTES = 100  # longest of what a rank tells the others

ADVICE = (
    'use "auto" or "staged", or an MPI that takes device memory (CUDA-aware); if you know that this one does, let'
    " `mpiring doctor --probe-device` show it"
)


@dataclass(frozen=True)
class Evidence:
    """All that a decision depends on.

    Attributes:
        asked: one of ``CHOICES``.
        by: who asked: ``"argument"``, ``"environment"``, or nobody: ``"default"``.
        library: the name of the MPI.
        clues: what the sources say, the stronger ones first.
        probe: whether a probe has passed here.
    """

    asked: str
    by: str
    library: str
    clues: tuple[Clue, ...]
    probe: Clue


@dataclass(frozen=True)
class Decision:
    """How device memory travels.

    Attributes:
        transport: ``"direct"`` or ``"staged"``.
        why: one sentence, naming what it was decided on.
        evidence: what each source said.
    """

    transport: str
    why: str
    evidence: tuple[str, ...] = ()


# ---- deciding ---------------------------------------------------------------------------------------


def decide(evidence: Evidence) -> Decision:
    """How device memory travels, by this rank's evidence.

    Raises:
        ValueError: ``"direct"`` is asked for, and nothing shows that this MPI can.
    """
    request = describe_request(evidence.asked, evidence.by)
    told = tuple(clue.words for clue in (*evidence.clues, evidence.probe))
    if evidence.asked == "staged":
        return Decision("staged", f"{request} asks for it", told)
    for clue in evidence.clues:
        if clue.says == "yes":
            return Decision("direct", clue.words, told)
    if evidence.asked == "direct":
        if evidence.probe.says == "yes":
            why = f"{request} asks for it, and {evidence.probe.words}"
            return Decision("direct", why, told)
        raise ValueError(
            f"{request}, but nothing shows that {evidence.library} takes pointers into device memory;"
            f" {ADVICE}.  Found: {'; '.join(told)}"
        )
    silent = f"nothing says that {evidence.library} takes pointers into device memory"
    refusals = [clue.words for clue in evidence.clues if clue.says == "no"]
    return Decision("staged", refusals[0] if refusals else silent, told)


def describe_request(asked: str, by: str) -> str:
    """Who asks for what, in words."""
    if by == "environment":
        return f"{VARIABLE}={asked}"
    return f"device_transport={asked!r}"


# ---- agreeing ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What a rank tells the others: its request, and what it decided, ``"refused"`` if that was an error."""

    asked: str
    by: str
    transport: str
    why: str


_ASKED = {"a": "auto", "d": "direct", "s": "staged"}
_BY = {"a": "argument", "e": "environment", "d": "default"}
_TRANSPORT = {"d": "direct", "s": "staged", "r": "refused"}


def encode(evidence: Evidence) -> bytes:
    """What a rank found, in at most ``FOUND_BYTES``: long reasons are cut."""
    try:
        decision = decide(evidence)
        transport, why = decision.transport, decision.why
    except ValueError:
        transport = "refused"
        why = "; ".join(clue.words for clue in evidence.clues if clue.says == "no")
        why = why or f"nothing says that {evidence.library} can"
    data = why.encode(errors="backslashreplace")
    room = FOUND_BYTES - 3
    if len(data) > room:
        data = data[: room - 3].decode(errors="ignore").encode() + b"..."
    return (evidence.asked[0] + evidence.by[0] + transport[0]).encode() + data


def decode(data: bytes) -> Found:
    """What :func:`encode` was given, its reason perhaps cut."""
    head, why = data[:3].decode(), data[3:].decode(errors="replace")
    return Found(_ASKED[head[0]], _BY[head[1]], _TRANSPORT[head[2]], why)


def agree(found: Sequence[Found]) -> Decision:
    """The one way that all ranks take, from what each of them found, in rank order; the same on every rank.

    ``direct`` only if that is what every rank found.

    Raises:
        ValueError: the ranks ask for different things, or for ``"direct"`` where one of them cannot.
    """
    first = found[0]
    request = describe_request(first.asked, first.by)
    for rank, other in enumerate(found):
        if other.asked != first.asked:
            raise harmless(
                ValueError(
                    f"Ring: rank {rank} asks for {describe_request(other.asked, other.by)}, rank 0 for {request};"
                    f" pass the same device_transport on every rank, and set {VARIABLE} for all of them or none"
                )
            )
    refused = [rank for rank, other in enumerate(found) if other.transport == "refused"]
    if refused:
        raise harmless(
            ValueError(
                f"Ring: {request}, but nothing shows that the MPI of rank {refused[0]} takes pointers into device "
                f"memory; {ADVICE}.  Found: {found[refused[0]].why}"
            )
        )
    reasons: dict[str, int] = {}
    for rank, other in enumerate(found):
        reasons.setdefault(other.why, rank)
    told = tuple(f"rank {rank}: {why}" for why, rank in reasons.items())
    staged = [rank for rank, other in enumerate(found) if other.transport == "staged"]
    if not staged:
        return Decision("direct", first.why, told)
    if len(staged) == len(found):
        return Decision("staged", first.why, told)
    why = (
        f"rank {staged[0]} cannot take part in direct transport: {found[staged[0]].why}"
    )
    return Decision("staged", why, told)


# ---- gathering --------------------------------------------------------------------------------------


def gather(argument: str = "auto", variable: str | None = None) -> Evidence:
    """This rank's evidence; local, and cheap after the first time.

    MPI must have been started, or nothing can be asked and the answer is never a yes.

    Args:
        argument: what the user passes as ``device_transport``.
        variable: what the environment says on rank 0, "" if nothing; None: what it says here.

    Raises:
        ValueError: the argument, or the environment variable in its place, is none of ``CHOICES``.
    """
    environment = os.environ
    said = environment if variable is None else {VARIABLE: variable}
    asked, by = read_request(argument, said)
    facts = find_facts()
    probe = Clue("", "no probe was looked for")
    if asked == "direct":
        probe = find_probe(facts.library, environment)
    return Evidence(asked, by, facts.library.name, weigh(facts, environment), probe)


def read_request(argument: object, environment: Mapping[str, str]) -> tuple[str, str]:
    """What is asked for, and by whom.

    Raises:
        ValueError: it is none of ``CHOICES``.
    """
    known = ", ".join(CHOICES)
    if not isinstance(argument, str) or argument not in CHOICES:
        raise ValueError(f"device_transport={argument!r}: unknown; known: {known}")
    if argument != "auto":
        return argument, "argument"
    value = environment.get(VARIABLE, "")
    if not value:
        return "auto", "default"
    if value not in CHOICES:
        raise ValueError(f"{VARIABLE}={value}: unknown; known: {known}")
    return value, "environment"


def find_probe(library: Library, environment: Mapping[str, str]) -> Clue:
    """Whether a probe of this MPI has passed here."""
    subject = probe_record.find_subject(library, environment)
    cache = probe_record.find_cache(environment)
    passed, words = probe_record.read_record(cache, subject)
    return Clue("yes" if passed else "", words)
