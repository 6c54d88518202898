"""GPUs: is there one, and can the loaded MPI take a pointer into its memory?

Rules: CUDA is never initialised here.  A GPU is known by its device files, an MPI by what it says
of itself: the sources and what each is worth are those of ``wire/gpu_aware/evidence.py``, by which a
ring decides.  Here ``ompi_info`` is asked besides, which says how Open MPI was built.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from mpiring.wire.gpu_aware.decision import VARIABLE, Found, agree
from mpiring.wire.gpu_aware.evidence import Facts, judge_ucx, weigh
from mpiring.wire.gpu_aware.probe_record import SETTINGS

from .finding import NOTE, OK, PROBLEM, Finding, name_ranks


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
    facts: Facts,
    built: Mapping[str, bool],
    environment: Mapping[str, str],
    gpu: bool,
) -> Finding:
    """Whether device arrays can be handed to MPI, and how that is known.

    Args:
        built: the answers of ``ask_ompi_info``.
        environment: of the process that has started MPI.
        gpu: whether there is a GPU.
    """
    name = "CUDA-aware MPI"
    clues = weigh(facts, environment)
    hows = [clue.words for clue in clues]
    hows += [f"{source} says {'yes' if yes else 'no'}" for source, yes in built.items()]
    settings = [f"{v}={environment[v]}" for v in SETTINGS if v in environment]
    hows += [words for words in settings if not any(words in how for how in hows)]
    how = "; ".join(hows) or "the library has no function that tells"
    said = {clue.says for clue in clues}
    if "yes" in said:
        return Finding(name, OK, "yes", how)
    if judge_ucx(facts.mapped):
        advice = (
            "nothing shows that this MPI takes device memory, but its UCX may carry it:"
            " mpiring doctor --probe-device finds out.  Until then rings go through host memory"
        )
        return Finding(name, NOTE, "unclear", how, advice)
    word = "no" if "no" in said else "unknown"
    if not gpu:
        return Finding(name, OK, f"{word}, and not needed: there is no GPU here", how)
    advice = "rings copy device arrays through host memory; an MPI that takes them spares that: "
    advice += CUDA_ADVICE.get(
        facts.library.family, "ask the site which of its MPI modules is CUDA-aware"
    )
    return Finding(name, NOTE, f"{word}, and there is a GPU", how, advice)


CUDA_ADVICE = {
    "Open MPI": "Open MPI configured with --with-cuda, or over a UCX that has CUDA",
    "MPICH": "MPICH configured with --with-cuda, and MPIR_CVAR_ENABLE_GPU=1",
    "Cray MPICH": "MPICH_GPU_SUPPORT_ENABLED=1, with the GPU transport library linked or preloaded",
    "Intel MPI": "Intel MPI with I_MPI_OFFLOAD=1",
    "MVAPICH": "MVAPICH built for GPUs, and MV2_USE_CUDA=1 (version 2)",
}


def judge_transport(ranks: Mapping[int, Found | str]) -> Finding | None:
    """How the device memory of a ring over these ranks would travel; None if no rank is known.

    Args:
        ranks: what each of them told, or why it could not make a ring.
    """
    name = "device transport"
    advice = (
        f"unset {VARIABLE}, or set it to the same on all ranks: auto, staged,"
        " or direct where that is known to work"
    )
    wrong = {rank: told for rank, told in ranks.items() if isinstance(told, str)}
    found = [told for _, told in sorted(ranks.items()) if isinstance(told, Found)]
    if not ranks:
        return None
    try:
        if wrong:
            rank, text = min(wrong.items())
            raise ValueError(f"rank {rank}: {text}")
        decision = agree(found)
    except ValueError as error:
        words = f"no ring can be made: {error}".replace("Ring: ", "")
        return Finding(name, PROBLEM, words, VARIABLE, advice)
    way = {
        "direct": "MPI is handed pointers into device memory",
        "staged": "device memory is copied through host memory",
    }
    words = f"{decision.transport}: {way[decision.transport]}"
    if found[0].asked == "auto":
        words = f"auto takes {words}"
    return Finding(name, OK, words, decision.why)
