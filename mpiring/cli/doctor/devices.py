"""GPUs: is there one, and can the loaded MPI take a pointer into its memory?

Rules: CUDA is never initialised here.  A GPU is known by its device files, an MPI by what it says
of itself.  No single source knows, so each is asked and named:

- ``MPIX_Query_cuda_support`` (Open MPI, MPICH, Intel MPI) and ``MPIX_GPU_query_support`` (MPICH's
  kin) answer for this run; they are extensions, so the loaded library is asked whether it has
  them;
- ``mpi_memory_alloc_kinds`` on COMM_WORLD (MPI 4.1) names the kinds of memory that may be passed;
  a kind that was not asked for may be absent, so only its presence tells;
- ``ompi_info`` says how Open MPI was built;
- a mapped ``libuct_cuda`` is UCX's CUDA transport;
- environment variables switch support on in MPIs that were built for it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence

from .finding import NOTE, OK, Finding, name_ranks

SWITCHES = (
    "MPICH_GPU_SUPPORT_ENABLED",  # HPE Cray MPICH
    "MPIR_CVAR_ENABLE_GPU",  # MPICH
    "I_MPI_OFFLOAD",  # Intel MPI
    "MV2_USE_CUDA",  # MVAPICH2
    "OMPI_MCA_opal_cuda_support",  # Open MPI
    "OMPI_MCA_accelerator",  # Open MPI 5
    "UCX_TLS",
)


def judge_gpus(gpus: Mapping[int, Sequence[str]], hosts: Mapping[int, str]) -> Finding:
    """The GPUs of each host, from the device files that each rank sees."""
    name, how = (
        "GPU",
        "device files (/dev/nvidia*, /dev/kfd, /dev/dxg); CUDA was not started",
    )
    by_host = {hosts[rank]: files for rank, files in sorted(gpus.items())}
    seen = {host: files for host, files in by_host.items() if files}
    if not seen:
        return Finding(name, OK, "none: arrays live in host memory", how)
    found = "; ".join(f"{host}: {', '.join(files)}" for host, files in seen.items())
    without = [rank for rank, files in gpus.items() if not files]
    if without:
        advice = (
            "ranks without a GPU cannot take part with device arrays: ask the scheduler for one on"
            " each host, or pass the device into the container (docker run --gpus all)"
        )
        found += f"; none seen by {name_ranks(without)}"
        return Finding(name, NOTE, found, how, advice)
    return Finding(name, OK, found, how)


def ask_ompi_info(program: str) -> dict[str, bool]:
    """What ``ompi_info`` says of CUDA; empty if it says nothing."""
    try:
        done = subprocess.run(
            [program, "--parsable", "--all"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return read_ompi_info(done.stdout)


def read_ompi_info(text: str) -> dict[str, bool]:
    """Whether Open MPI was built with CUDA, from the output of ``ompi_info --parsable --all``."""
    answers = {}
    for line in text.splitlines():
        head, _, value = line.rpartition(":")
        if head.endswith("_built_with_cuda_support:value"):
            answers["ompi_info: built with CUDA"] = value == "true"
        elif line.startswith("mca:accelerator:cuda:"):
            answers["ompi_info: accelerator cuda"] = True
    return answers


def judge_cuda(
    answers: Mapping[str, bool],
    alloc_kinds: str,
    mapped: Iterable[str],
    environment: Mapping[str, str],
    gpu: bool,
    family: str,
) -> Finding:
    """Whether device arrays can be handed to MPI, and how that is known.

    Args:
        answers: of ``ask_library`` and ``ask_ompi_info``.
        alloc_kinds: ``mpi_memory_alloc_kinds`` of COMM_WORLD, ``""`` if it is not stated.
        mapped: the files mapped into a process that has started MPI.
        environment: its environment.
        gpu: whether there is a GPU.
        family: of the MPI, for the advice.
    """
    name = "CUDA-aware MPI"
    hows = [
        f"{source} says {'yes' if answer else 'no'}"
        for source, answer in answers.items()
    ]
    if alloc_kinds:
        hows.append(f"mpi_memory_alloc_kinds is {alloc_kinds!r}")
    ucx = any("/libuct_cuda" in path for path in mapped)
    hows += ["UCX has loaded its CUDA transport"] if ucx else []
    hows += [f"{v}={environment[v]}" for v in SWITCHES if v in environment]
    how = "; ".join(hows) or "the library has no function that tells"
    kinds = [kind.partition(":")[0] for kind in alloc_kinds.split(",")]
    runtime = [
        answer for source, answer in answers.items() if source.startswith("MPIX")
    ]
    if any(runtime) or "cuda" in kinds:
        return Finding(name, OK, "yes", how)
    if ucx:
        advice = (
            "the MPI itself says no, but its UCX may carry device buffers: try it with a small"
            " program before trusting it, or copy to the host (cupy.asnumpy)"
        )
        return Finding(name, NOTE, "unclear", how, advice)
    word = "no" if answers else "unknown"
    if not gpu:
        return Finding(name, OK, f"{word}, and not needed: there is no GPU here", how)
    advice = (
        "pass host arrays (cupy.asnumpy), or use an MPI that takes device buffers: "
    )
    advice += CUDA_ADVICE.get(
        family, "ask the site which of its MPI modules is CUDA-aware"
    )
    return Finding(name, NOTE, f"{word}, and there is a GPU", how, advice)


CUDA_ADVICE = {
    "Open MPI": "Open MPI configured with --with-cuda, or over a UCX that has CUDA",
    "MPICH": "MPICH configured with --with-cuda, and MPIR_CVAR_ENABLE_GPU=1",
    "Cray MPICH": "MPICH_GPU_SUPPORT_ENABLED=1, with the GPU transport library linked or preloaded",
    "Intel MPI": "Intel MPI with I_MPI_OFFLOAD=1",
    "MVAPICH": "MVAPICH built for GPUs, and MV2_USE_CUDA=1 (version 2)",
}
