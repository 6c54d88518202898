"""GPUs and CUDA-aware or not, on made-up answers; and that nothing here starts CUDA."""

from __future__ import annotations

import pytest

from mpiring.cli.doctor import devices

NO, YES = {"MPIX_Query_cuda_support": False}, {"MPIX_Query_cuda_support": True}

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


def judge(answers=NO, kinds="", mapped=(), environment=(), gpu=True, family="MPICH"):
    return devices.judge_cuda(answers, kinds, mapped, dict(environment), gpu, family)


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize(
    "sources",
    [
        {"answers": YES},
        {"answers": {**NO, "MPIX_GPU_query_support": True}},
        {"answers": {}, "kinds": "mpi,system,cuda:device"},
        {"answers": NO, "kinds": "system,cuda"},
    ],
)
def test_aware(sources, gpu):
    finding = judge(**sources, gpu=gpu)
    assert (finding.status, finding.found) == ("ok", "yes")


@pytest.mark.parametrize(
    "answers, word",
    [(NO, "no"), ({}, "unknown"), ({**NO, "ompi_info: built with CUDA": True}, "no")],
)
def test_not_aware(answers, word):
    finding = judge(answers, kinds="mpi,system,cudaish")
    assert (finding.status, finding.found) == ("note", f"{word}, and there is a GPU")
    finding = judge(answers, gpu=False)
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


def test_every_source_is_named():
    finding = judge(
        {**NO, "ompi_info: built with CUDA": True},
        kinds="mpi,system",
        mapped=["/x/libuct_cuda.so"],
        environment={"UCX_TLS": "cuda,sm", "I_MPI_OFFLOAD": "1", "HOME": "/root"},
    )
    assert finding.how == (
        "MPIX_Query_cuda_support says no; ompi_info: built with CUDA says yes;"
        " mpi_memory_alloc_kinds is 'mpi,system'; UCX has loaded its CUDA transport;"
        " I_MPI_OFFLOAD=1; UCX_TLS=cuda,sm"
    )
    assert judge({}).how == "the library has no function that tells"


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
