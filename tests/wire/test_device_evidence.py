"""What each source says of device memory, family by family, on made-up facts; and that in doubt it is not a yes."""

from __future__ import annotations

import doctest
from itertools import product

import pytest

from mpiring.wire.gpu_aware import evidence
from mpiring.wire.gpu_aware.evidence import (
    NEEDED,
    Clue,
    Facts,
    is_on,
    judge_kinds,
    weigh,
)
from mpiring.wire.gpu_aware.loaded import Library

OPEN_MPI_5 = Library("Open MPI v5.0.11, package: x", (3, 1))
OPEN_MPI_4 = Library("Open MPI v4.1.4, package: x", (3, 1))
MPICH = Library("MPICH Version:      5.0.2", (5, 0))
INTEL = Library("Intel(R) MPI Library 2021.18.1 for Linux* OS", (4, 1))
CRAY = Library("MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)", (3, 1))
MVAPICH_2 = Library(
    "MVAPICH2-GDR Version : 2.3.7\nMVAPICH2 configure: --enable-cuda", (3, 1)
)
MVAPICH_4 = Library("MVAPICH Version : 4.0", (4, 1))
OTHER = Library("Some MPI 1.0", (3, 1))
FAMILIES = [OPEN_MPI_5, OPEN_MPI_4, MPICH, INTEL, CRAY, MVAPICH_2, MVAPICH_4, OTHER]

QUERY, GPU_QUERY = "MPIX_Query_cuda_support", "MPIX_GPU_query_support"
GTL = "/opt/cray/pe/mpich/8.1.25/gtl/lib/libmpi_gtl_cuda.so.0"
ALL_ON = {variable: "1" for variable in NEEDED.values()} | {"MPIR_CVAR_ENABLE_GPU": "1"}


def says(facts, environment=()):
    """ "yes" if there is one, else "no" if there is one, else ""."""
    said = {clue.says for clue in weigh(facts, dict(environment))}
    return "yes" if "yes" in said else "no" if "no" in said else ""


def test_doctests():
    outcome = doctest.testmod(evidence)
    assert outcome.attempted > 0 and outcome.failed == 0


@pytest.mark.parametrize("library", FAMILIES, ids=lambda library: library.name)
def test_no_mpi_is_believed_to_take_device_memory_without_a_word(library):
    assert says(Facts(library)) in ("", "no")
    # Not even if every switch of every vendor is on: it may be set and mean nothing to this build.
    if library != MVAPICH_2:
        assert says(Facts(library, mapped=("/lib/libuct_cuda.so",)), ALL_ON) == ""


@pytest.mark.parametrize("library", FAMILIES, ids=lambda library: library.name)
@pytest.mark.parametrize("function", [QUERY, GPU_QUERY])
@pytest.mark.parametrize("answer", [True, False])
def test_the_answer_of_the_mpi(library, function, answer):
    facts = Facts(library, ((function, answer),), True)
    clues = weigh(facts, ALL_ON)
    said = "yes" if answer else "no"
    assert clues[0] == Clue(said, f"{function} of {library.name} says {said}")


@pytest.mark.parametrize(
    "library", [CRAY, INTEL, MVAPICH_2], ids=lambda library: library.name
)
@pytest.mark.parametrize("value", [None, "0", "off", ""])
def test_a_yes_is_not_believed_while_the_switch_is_off(library, value):
    variable = NEEDED[library.family]
    environment = {**ALL_ON, variable: value} if value is not None else {}
    facts = Facts(library, ((GPU_QUERY, True),), None, "mpi,system,cuda:device", (GTL,))
    clues = weigh(facts, environment)
    state = "not set" if value is None else value
    words = (
        f"{library.name} takes device memory only with {variable}=1, which is {state}"
    )
    assert clues[0] == Clue("no", words)
    assert says(facts, environment) == "no"
    assert f"{GPU_QUERY} of {library.name} says yes" in [clue.words for clue in clues]
    assert says(facts, {variable: "1"}) == "yes"


@pytest.mark.parametrize(
    "library", [MPICH, MVAPICH_4, OPEN_MPI_5, OTHER], ids=lambda library: library.name
)
def test_other_vendors_variables_do_not_count(library):
    off = {variable: "0" for variable in ALL_ON if variable != "MPIR_CVAR_ENABLE_GPU"}
    assert says(Facts(library, ((QUERY, True),)), off) == "yes"


@pytest.mark.parametrize(
    "switch, environment, said",
    [
        (True, {}, "yes"),
        (False, {}, "no"),
        (
            False,
            {"OMPI_MCA_opal_cuda_support": "1"},
            "no",
        ),  # the variable itself counts
        (True, {"OMPI_MCA_opal_cuda_support": "0"}, "yes"),
        (None, {}, "yes"),
        (None, {"OMPI_MCA_opal_cuda_support": "true"}, "yes"),
        (None, {"OMPI_MCA_opal_cuda_support": "0"}, "no"),
        (None, {"OMPI_MCA_mpi_cuda_support": "false"}, "no"),
    ],
)
def test_open_mpi_4_answers_for_its_build(switch, environment, said):
    assert says(Facts(OPEN_MPI_4, ((QUERY, True),), switch), environment) == said
    assert says(Facts(OPEN_MPI_4, ((QUERY, False),), switch), environment) == "no"


@pytest.mark.parametrize("switch", [True, False, None])
def test_open_mpi_5_answers_for_this_run(switch):
    assert says(Facts(OPEN_MPI_5, ((QUERY, True),), switch)) == "yes"
    assert says(Facts(OPEN_MPI_5, ((QUERY, False),), switch)) == "no"


@pytest.mark.parametrize(
    "kinds, said",
    [
        ("cuda", "yes"),
        ("mpi,system,cuda:device", "yes"),
        ("mpi,system, cuda:host:device", "yes"),
        ("cuda:host,cuda:device,cuda:managed", "yes"),
        ("cuda:host", ""),
        ("cuda:managed,cuda:host", ""),
        ("mpi,system", ""),
        ("mpi:device", ""),
        ("rocm:device,level_zero", ""),
        ("cudaish,cud", ""),
        ("device:cuda", ""),
    ],
)
def test_memory_kinds(kinds, said):
    assert judge_kinds(kinds) == Clue(said, f"mpi_memory_alloc_kinds is {kinds!r}")


def test_memory_kinds_that_are_not_stated():
    assert judge_kinds("") is None


def test_cray_says_yes_by_its_switch_and_its_library():
    on, off = {"MPICH_GPU_SUPPORT_ENABLED": "1"}, {"MPICH_GPU_SUPPORT_ENABLED": "0"}
    hsa = "/opt/cray/pe/mpich/8.1.25/gtl/lib/libmpi_gtl_hsa.so.0"
    table = {
        (True, GTL): "yes",
        (True, hsa): "",  # AMD's
        (True, "/lib/libcuda.so.1"): "",
        (False, GTL): "no",
        (False, hsa): "no",
    }
    for (switch, path), said in table.items():
        facts = Facts(CRAY, mapped=("/usr/bin/python3", path))
        assert says(facts, on if switch else off) == said, (switch, path)
    facts = Facts(CRAY, ((GPU_QUERY, False),), mapped=(GTL,))
    assert [clue.says for clue in weigh(facts, on)] == ["no", "yes"]


def test_mvapich_2_says_yes_by_its_switch_and_its_build():
    plain = Library(MVAPICH_2.text.replace("cuda", "rocm"), (3, 1))
    for library, value in product((MVAPICH_2, plain), ("1", "0")):
        said = says(Facts(library), {"MV2_USE_CUDA": value})
        assert said == ("no" if value == "0" else "yes" if library is MVAPICH_2 else "")


def test_mpichs_variable_can_say_no_only():
    assert says(Facts(MPICH), {"MPIR_CVAR_ENABLE_GPU": "0"}) == "no"
    assert says(Facts(MPICH), {"MPIR_CVAR_ENABLE_GPU": "1"}) == ""
    assert says(Facts(OPEN_MPI_5), {"MPIR_CVAR_ENABLE_GPU": "0"}) == ""


def test_a_ucx_with_cuda_is_told_and_is_no_yes():
    clues = weigh(
        Facts(OPEN_MPI_5, mapped=("/x/libuct.so.0", "/x/ucx/libuct_cuda.so.0")), {}
    )
    assert clues == (Clue("", "UCX has loaded its CUDA transport"),)


@pytest.mark.parametrize("value", ["1", "2", "true", "YES", " on ", "Enabled", "٣"])
def test_on(value):
    assert is_on(value)


@pytest.mark.parametrize(
    "value", ["0", "00", "", "-1", "no", "off", "disable", "²", "x"]
)
def test_off(value):
    assert not is_on(value)
