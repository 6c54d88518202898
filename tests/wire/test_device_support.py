"""The decision between direct and staged: every combination of requests, clues and probes, on one rank and several."""

from __future__ import annotations

import ast
import inspect
import os
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiring.wire.gpu_aware import decision, evidence, probe_record
from mpiring.wire.gpu_aware.decision import (
    CHOICES,
    FOUND_BYTES,
    VARIABLE,
    Decision,
    Evidence,
    Found,
    agree,
    decide,
    decode,
    encode,
    read_request,
)
from mpiring.wire.gpu_aware.evidence import Clue, Facts
from mpiring.wire.gpu_aware.loaded import Library
from mpiring.wire.opening.agree import FAILURE_BYTES, PAYLOAD_BYTES
from mpiring.wire.opening.calls import Call

YES, NO, SILENT = Clue("yes", "A says yes"), Clue("no", "B says no"), Clue("", "C is 3")
PASSED, NONE = Clue("yes", "a probe has passed"), Clue("", "no probe")


def gathered(asked="auto", clues=(), probe=NONE, by="argument", library="MPI 7"):
    return Evidence(asked, by, library, tuple(clues), probe)


# ---- one rank ---------------------------------------------------------------------------------------

COMBINATIONS = [
    gathered(asked, clues, probe, by)
    for asked in CHOICES
    for count in range(4)
    for clues in product((YES, NO, SILENT), repeat=count)
    for probe in (PASSED, NONE)
    for by in ("argument", "environment", "default")
]


@pytest.mark.parametrize("asked", CHOICES)
def test_every_combination(asked):
    tried = 0
    for e in COMBINATIONS:
        if e.asked != asked:
            continue
        tried += 1
        yes, passed = YES in e.clues, e.probe == PASSED
        if asked == "direct" and not yes and not passed:
            with pytest.raises(ValueError, match="nothing shows that MPI 7 takes"):
                decide(e)
            continue
        decision = decide(e)
        can = yes or (asked == "direct" and passed)
        want = "direct" if can and asked != "staged" else "staged"
        assert decision.transport == want, e
        assert decision.evidence == (*(c.words for c in e.clues), e.probe.words)
    assert tried == 40 * 6


@pytest.mark.parametrize(
    "e, transport, why",
    [
        (gathered("auto", [NO, YES]), "direct", "A says yes"),
        (gathered("direct", [NO, YES]), "direct", "A says yes"),
        (gathered("auto", [SILENT, NO]), "staged", "B says no"),
        (gathered("auto", [NO], PASSED), "staged", "B says no"),
        (
            gathered("auto", [SILENT]),
            "staged",
            "nothing says that MPI 7 takes pointers into device memory",
        ),
        (
            gathered("direct", [NO], PASSED),
            "direct",
            "device_transport='direct' asks for it, and a probe has passed",
        ),
        (gathered("staged", [YES]), "staged", "device_transport='staged' asks for it"),
        (
            gathered("staged", [YES], by="environment"),
            "staged",
            "MPIRING_DEVICE_TRANSPORT=staged asks for it",
        ),
    ],
)
def test_the_reason_names_what_it_was_decided_on(e, transport, why):
    decision = decide(e)
    assert (decision.transport, decision.why) == (transport, why)


def test_the_error_says_what_was_found_and_what_to_do():
    with pytest.raises(ValueError) as raised:
        decide(gathered("direct", [NO, SILENT]))
    assert str(raised.value) == (
        "device_transport='direct', but nothing shows that MPI 7 takes pointers into device memory;"
        ' use "auto" or "staged", or an MPI that takes device memory (CUDA-aware);'
        " if you know that this one does, let `mpiring doctor --probe-device` show it."
        "  Found: B says no; C is 3; no probe"
    )
    with pytest.raises(ValueError, match=f"^{VARIABLE}=direct, but nothing"):
        decide(gathered("direct", by="environment"))


def test_the_advice_of_the_error_fits_into_the_opening_exchange():
    call = Call("Ring")
    facts = Facts(
        Library("Open MPI v4.1.4", (3, 1)),
        (("MPIX_Query_cuda_support", True),),
        False,
        "mpi,system",
    )
    found = evidence.weigh(facts, {})
    with call.local():
        decide(gathered("direct", found, Clue("", "x" * 300), library="Open MPI 4.1.4"))
    told = call.failure_text(127)
    assert told is not None and len(told) <= FAILURE_BYTES
    assert (
        b"show it.  Found: Open MPI 4.1.4 has its opal_cuda_support switched off"
        in told
    )


# ---- what is asked for --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argument, variable, request_",
    [
        ("auto", None, ("auto", "default")),
        ("auto", "", ("auto", "default")),
        ("auto", "auto", ("auto", "environment")),
        ("auto", "direct", ("direct", "environment")),
        ("auto", "staged", ("staged", "environment")),
        ("direct", "staged", ("direct", "argument")),
        ("staged", "direct", ("staged", "argument")),
        ("staged", "nonsense", ("staged", "argument")),
    ],
)
def test_the_argument_counts_before_the_environment(argument, variable, request_):
    environment = {} if variable is None else {VARIABLE: variable}
    assert read_request(argument, environment) == request_


@pytest.mark.parametrize("argument", ["", "Direct", "cuda", None, 1, ["auto"], True])
def test_an_unknown_argument_is_an_error(argument):
    with pytest.raises(ValueError, match="known: auto, direct, staged"):
        read_request(argument, {})


@pytest.mark.parametrize("value", ["Direct", "1", " direct"])
def test_an_unknown_value_of_the_variable_is_an_error(value):
    with pytest.raises(ValueError, match=f"^{VARIABLE}={value}: unknown; known: auto"):
        read_request("auto", {VARIABLE: value})


# ---- what travels -------------------------------------------------------------------------------------


@given(st.sampled_from(COMBINATIONS), st.text(max_size=200))
def test_what_travels_is_short_and_comes_back(e, words):
    clues = tuple(Clue(clue.says, words or "a") for clue in e.clues)
    e = Evidence(e.asked, e.by, e.library, clues, e.probe)
    data = encode(e)
    assert len(data) <= FOUND_BYTES <= PAYLOAD_BYTES
    found = decode(data)
    assert (found.asked, found.by) == (e.asked, e.by)
    try:
        decision = decide(e)
    except ValueError:
        assert found.transport == "refused"
        return
    assert found.transport == decision.transport
    if len(decision.why.encode(errors="backslashreplace")) <= FOUND_BYTES - 3:
        assert found.why == decision.why.encode(errors="backslashreplace").decode()
    else:
        assert found.why.endswith("...") and decision.why.startswith(found.why[:40])


def test_a_long_reason_is_cut_between_characters():
    found = decode(encode(gathered("auto", [Clue("no", "ä" * 200)])))
    assert found.why == "ä" * 47 + "..."


# ---- several ranks ------------------------------------------------------------------------------------


def found(asked="auto", transport="staged", why="B says no", by="default"):
    return Found(asked, by, transport, why)


DIRECT = found(transport="direct", why="A says yes")
FOUND = [
    Found(asked, by, transport, why)
    for asked, transport in [
        ("auto", "direct"),
        ("auto", "staged"),
        ("direct", "direct"),
        ("direct", "refused"),
        ("staged", "staged"),
    ]
    for by in ("argument", "environment", "default")
    for why in ("A says yes", "B says no")
]


def outcome(ranks):
    try:
        return agree(ranks)
    except ValueError as error:
        return str(error)


@given(st.lists(st.sampled_from(FOUND), min_size=1, max_size=5))
def test_direct_only_if_every_rank_found_that(ranks):
    got = outcome(ranks)
    asked = {rank.asked for rank in ranks}
    if len(asked) > 1:
        assert "pass the same device_transport on every rank" in got
    elif any(rank.transport == "refused" for rank in ranks):
        assert "`mpiring doctor --probe-device`" in got
    else:
        every = all(rank.transport == "direct" for rank in ranks)
        assert got.transport == ("direct" if every else "staged")
        assert got.why and got.evidence


def test_all_alike():
    assert agree([DIRECT] * 3) == Decision(
        "direct", "A says yes", ("rank 0: A says yes",)
    )
    assert agree([found()] * 3) == Decision(
        "staged", "B says no", ("rank 0: B says no",)
    )


def test_the_rank_that_keeps_the_others_from_direct_is_named():
    decision = agree([DIRECT, DIRECT, found(), DIRECT])
    assert decision.transport == "staged"
    assert decision.why == "rank 2 cannot take part in direct transport: B says no"
    assert decision.evidence == ("rank 0: A says yes", "rank 2: B says no")


def test_different_requests_are_an_error_with_both():
    ranks = [
        found("staged", by="argument"),
        found("staged"),
        found("auto", by="environment"),
    ]
    with pytest.raises(ValueError) as raised:
        agree(ranks)
    assert str(raised.value) == (
        "Ring: rank 2 asks for MPIRING_DEVICE_TRANSPORT=auto, rank 0 for device_transport='staged';"
        " pass the same device_transport on every rank, and set MPIRING_DEVICE_TRANSPORT for all of them or none"
    )


def test_the_same_request_in_two_ways_is_the_same():
    ranks = [found("staged", by="argument"), found("staged", by="environment")]
    assert agree(ranks).transport == "staged"


def test_a_rank_that_refuses_is_an_error_on_all():
    ranks = [
        found("direct", "direct", by="argument"),
        found("direct", "refused", by="argument"),
    ]
    with pytest.raises(ValueError) as raised:
        agree(ranks)
    assert str(raised.value).startswith(
        "Ring: device_transport='direct', but nothing shows that the MPI of rank 1 takes pointers"
    )
    assert str(raised.value).endswith("Found: B says no")


# ---- gathering ----------------------------------------------------------------------------------------


def test_a_record_is_looked_for_only_where_it_counts(monkeypatch, tmp_path):
    path = tmp_path / "libmpi.so.40"
    path.touch()
    library = Library("Open MPI v5.0.11", (3, 1), (str(path),))
    monkeypatch.setattr(decision, "find_facts", lambda: Facts(library))
    monkeypatch.setenv("MPIRING_CACHE", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    subject = probe_record.find_subject(library, os.environ)
    assert subject is not None
    with pytest.raises(ValueError):
        decide(decision.gather("direct"))
    probe_record.write_record(tmp_path, subject, {})
    assert decide(decision.gather("direct")).transport == "direct"
    monkeypatch.setenv(VARIABLE, "direct")
    assert decide(decision.gather()).transport == "direct"
    assert decide(decision.gather("staged")).transport == "staged"
    monkeypatch.setenv(VARIABLE, "auto")
    got = decision.gather()
    assert got.probe == Clue("", "no probe was looked for")
    assert decide(got).transport == "staged"


def modules_named(source):
    """All modules that a source imports, wherever it does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("module", [decision, evidence, probe_record])
def test_no_array_library_is_imported(module):
    assert not {"cupy", "numba", "torch", "jax"} & set(
        modules_named(inspect.getsource(module))
    )
