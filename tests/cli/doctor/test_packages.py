"""Packages: found without being imported."""

from __future__ import annotations

import sys

import pytest

from mpiring.cli.doctor import packages
from mpiring.cli.doctor.packages import (
    OPTIONAL,
    find_packages,
    judge_needed,
    judge_optional,
)


def find(installed, importable):
    return find_packages(
        OPTIONAL, installed.get, lambda m: object() if m in importable else None
    )


def test_packages_are_found_by_any_of_their_names():
    found = find({"cupy-cuda12x": "14.0", "torch": "2.13"}, {"cupy", "torch", "jax"})
    assert found == {
        "ml_dtypes": None,
        "llvmlite": None,
        "cupy": "14.0",
        "torch": "2.13",
        "jax": "of unknown version",
    }


def test_a_distribution_whose_module_is_gone_is_not_there():
    assert find({"torch": "2.13"}, set())["torch"] is None


def test_optional():
    finding = judge_optional(
        {"ml_dtypes": "0.6.0", "llvmlite": None, "cupy": None, "torch": "2"}
    )
    assert finding.status == "ok"
    assert (
        finding.found == "ml_dtypes 0.6.0, torch 2; not installed: llvmlite, cupy, jax"
    )
    assert finding.advice == (
        "for fast reductions of 16-bit floats: pip install llvmlite; for arrays on NVIDIA GPUs: "
        "pip install 'cupy-cuda13x[ctk]'; for JAX arrays: pip install jax"
    )
    everything = {package.module: "1" for package in OPTIONAL}
    assert judge_optional(everything).advice == ""
    assert judge_optional({}).found.startswith("none; not installed: ml_dtypes,")


def test_needed():
    assert judge_needed("numpy", "2.4.6").status == "ok"
    finding = judge_needed("mpi4py", None)
    assert finding.status == "problem" and "pip install mpi4py" in finding.advice


def test_versions_of_what_is_here():
    assert packages.find_version("pytest") == pytest.__version__
    assert packages.find_version("no-such-distribution-as-this") is None
    assert packages.judge_python().found.endswith(sys.executable)
