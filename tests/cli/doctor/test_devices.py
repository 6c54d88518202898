"""GPUs and CUDA-aware or not, on made-up answers; and that nothing here starts CUDA."""

from __future__ import annotations

import pytest

from mpiring.cli.doctor import devices
from mpiring.wire.gpu_aware.decision import VARIABLE, Found
from mpiring.wire.gpu_aware.evidence import Facts
from mpiring.wire.gpu_aware.loaded import Library

NO, YES = {"MPIX_Query_cuda_support": False}, {"MPIX_Query_cuda_support": True}

TEXTS = {
    "Open MPI": "Open MPI v5.0.11",
    "MPICH": "MPICH Version:      5.0.2",
    "Cray MPICH": "CRAY MPICH version 8.1.25",
    "Intel MPI": "Intel(R) MPI Library 2021.18.1",
    "MVAPICH": "MVAPICH2 Version : 2.3.7",
    "unknown": "Some MPI 1.0",
}

OMPI_INFO = """\
mca:accelerator:null:version:"mca:2.1.0"
mca:opal:base:param:opal_built_with_cuda_support:value:{answer}
mca:opal:base:param:opal_built_with_cuda_support:source:default
mca:opal:base:param:opal_built_with_cuda_support:help:Whether CUDA GPU buffer support is built
mca:opal:base:param:opal_cuda_support:value:false
"""


def test_gpus():
    hosts = {0: "a", 1: "a", 2: "b"}
    none = devices.judge_gpus({0: [], 1: [], 2: []}, hosts)
    assert (none.status, none.found) == ("ok", "none: arrays live in host memory")
    everywhere = devices.judge_gpus({0: ["/dev/nvidia0"], 2: ["/dev/nvidia0"]}, hosts)
    assert everywhere.found == "a: /dev/nvidia0; b: /dev/nvidia0"
    assert everywhere.status == "ok"
    some = devices.judge_gpus({0: ["/dev/nvidia0"], 1: ["/dev/nvidia0"], 2: []}, hosts)
    assert some.status == "note" and some.found.endswith("none seen by rank 2")


def facts(family="MPICH", answers=NO, kinds="", mapped=()):
    library = Library(TEXTS[family], (3, 1))
    return Facts(library, tuple(answers.items()), None, kinds, tuple(mapped))


def judge(built=(), environment=(), gpu=True, **known):
    return devices.judge_cuda(facts(**known), dict(built), dict(environment), gpu)


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize(
    "sources",
    [
        {"answers": YES},
        {"answers": {**NO, "MPIX_GPU_query_support": True}},
        {"answers": {}, "kinds": "mpi,system,cuda:device"},
        {"answers": NO, "kinds": "system,cuda"},
        {"family": "Intel MPI", "answers": YES, "environment": {"I_MPI_OFFLOAD": "1"}},
    ],
)
def test_aware(sources, gpu):
    finding = judge(**sources, gpu=gpu)
    assert (finding.status, finding.found) == ("ok", "yes")


@pytest.mark.parametrize(
    "sources, word",
    [
        ({}, "no"),
        ({"answers": {}}, "unknown"),
        ({"built": {"ompi_info: built with CUDA": True}}, "no"),
        ({"answers": YES, "family": "Intel MPI"}, "no"),  # its switch is off
    ],
)
def test_not_aware(sources, word):
    finding = judge(**sources, kinds="mpi,system,cudaish")
    assert (finding.status, finding.found) == ("note", f"{word}, and there is a GPU")
    finding = judge(**sources, gpu=False)
    assert finding.status == "ok" and finding.found.startswith(
        f"{word}, and not needed"
    )


@pytest.mark.parametrize(
    "family, advice",
    [
        ("Open MPI", "--with-cuda"),
        ("MPICH", "MPIR_CVAR_ENABLE_GPU=1"),
        ("Cray MPICH", "MPICH_GPU_SUPPORT_ENABLED=1"),
        ("Intel MPI", "I_MPI_OFFLOAD=1"),
        ("MVAPICH", "MV2_USE_CUDA=1"),
        ("unknown", "ask the site"),
    ],
)
def test_advice_is_that_mpis_own(family, advice):
    assert advice in judge(family=family).advice


def test_a_ucx_with_cuda_under_an_mpi_without_is_unclear():
    finding = judge(mapped=["/x/libuct.so.0", "/x/ucx/libuct_cuda.so.0"])
    assert (finding.status, finding.found) == ("note", "unclear")
    assert "--probe-device" in finding.advice


def test_every_source_is_named():
    finding = judge(
        {"ompi_info: built with CUDA": True},
        {"UCX_TLS": "cuda,sm", "MPIR_CVAR_ENABLE_GPU": "1", "HOME": "/root"},
        kinds="mpi,system",
        mapped=["/x/libuct_cuda.so"],
    )
    assert finding.how == (
        "MPIX_Query_cuda_support of MPICH 5.0.2 says no; mpi_memory_alloc_kinds is 'mpi,system';"
        " MPIR_CVAR_ENABLE_GPU=1; UCX has loaded its CUDA transport;"
        " ompi_info: built with CUDA says yes; UCX_TLS=cuda,sm"
    )
    assert judge(answers={}).how == "the library has no function that tells"


# ---- the way that device memory takes ---------------------------------------------------------------

DIRECT = Found("auto", "default", "direct", "A says yes")
STAGED = Found("auto", "default", "staged", "B says no")
ASKED = Found("staged", "environment", "staged", f"{VARIABLE}=staged asks for it")
REFUSED = Found("direct", "environment", "refused", "B says no")


@pytest.mark.parametrize(
    "ranks, found, how",
    [
        ({0: DIRECT}, "auto takes direct: MPI is handed pointers", "A says yes"),
        ({0: STAGED, 1: STAGED}, "auto takes staged: device memory is", "B says no"),
        (
            {0: DIRECT, 1: STAGED},
            "auto takes staged: device memory is copied",
            "rank 1 cannot take part in direct transport: B says no",
        ),
        (
            {0: ASKED},
            "staged: device memory is copied",
            f"{VARIABLE}=staged asks for it",
        ),
    ],
)
def test_what_is_chosen_and_why(ranks, found, how):
    finding = devices.judge_transport(ranks)
    assert finding is not None and finding.status == "ok"
    assert finding.found.startswith(found) and finding.how == how


@pytest.mark.parametrize(
    "ranks, words",
    [
        (
            {0: DIRECT, 1: ASKED},
            f"no ring can be made: rank 1 asks for {VARIABLE}=staged,",
        ),
        ({0: REFUSED}, f"no ring can be made: {VARIABLE}=direct, but nothing shows"),
        (
            {0: STAGED, 1: f"{VARIABLE}=no: unknown; known: auto"},
            f"no ring can be made: rank 1: {VARIABLE}=no: unknown",
        ),
    ],
)
def test_where_no_ring_can_be_made_it_is_a_problem(ranks, words):
    finding = devices.judge_transport(ranks)
    assert finding is not None and finding.status == "problem"
    assert finding.found.startswith(words) and f"unset {VARIABLE}" in finding.advice


def test_without_ranks_there_is_nothing_to_say():
    assert devices.judge_transport({}) is None


@pytest.mark.parametrize("answer", [True, False])
def test_ompi_info(answer):
    text = OMPI_INFO.format(answer=str(answer).lower())
    assert devices.read_ompi_info(text) == {"ompi_info: built with CUDA": answer}
    text += 'mca:accelerator:cuda:version:"mca:2.1.0"\n'
    assert devices.read_ompi_info(text)["ompi_info: accelerator cuda"] is True


def test_ompi_info_that_does_not_run(tmp_path):
    assert devices.ask_ompi_info(str(tmp_path / "ompi_info")) == {}
    program = tmp_path / "ompi_info"
    program.write_text(f"#!/bin/sh\ncat <<'E'\n{OMPI_INFO.format(answer='true')}E\n")
    program.chmod(0o755)
    assert devices.ask_ompi_info(str(program)) == {"ompi_info: built with CUDA": True}
