"""Python and the packages: what the core needs, and what the extras would add.

Rules: nothing is imported to find out whether it is there; importing torch or cupy may start CUDA.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata, util

from mpiring.wire.settings.packages import CUPY, install

from .finding import OK, PROBLEM, Finding


@dataclass(frozen=True)
class Package:
    """A package that mpiring can use.

    Attributes:
        distributions: the names under which it is installed; the first is the plain one.
        requirement: what pip installs it by.
        purpose: what it is used for.
    """

    module: str
    distributions: tuple[str, ...]
    requirement: str
    purpose: str


CUPIES = ("cupy", "cupy-cuda12x", "cupy-cuda13x", "cupy-cuda11x", "cupy-rocm-5-0")

OPTIONAL = (
    Package("ml_dtypes", ("ml_dtypes",), "ml_dtypes", "bfloat16 arrays in NumPy"),
    Package("llvmlite", ("llvmlite",), "llvmlite", "fast reductions of 16-bit floats"),
    Package("cupy", CUPIES, CUPY["13"], "arrays on NVIDIA GPUs"),
    Package("torch", ("torch",), "torch", "torch tensors"),
    Package("jax", ("jax",), "jax", "JAX arrays"),
)


def find_version(distribution: str) -> str | None:
    """The version of an installed distribution, None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def find_packages(
    packages: Iterable[Package] = OPTIONAL,
    version: Callable[[str], str | None] = find_version,
    module: Callable[[str], object] = util.find_spec,
) -> dict[str, str | None]:
    """The version of each package by module name, None for those that cannot be imported."""
    found: dict[str, str | None] = {}
    for package in packages:
        known = (version(distribution) for distribution in package.distributions)
        there = module(package.module) is not None
        found[package.module] = (
            next(filter(None, known), "of unknown version") if there else None
        )
    return found


def judge_python() -> Finding:
    """The interpreter."""
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    return Finding("Python", OK, found, "sys.executable, platform")


def judge_needed(module: str, version: str | None) -> Finding:
    """A package without which nothing runs."""
    how = "importlib.metadata"
    if version is None:
        advice = f"pip install {module}, into the environment of {sys.executable}"
        return Finding(module, PROBLEM, "not installed", how, advice)
    return Finding(module, OK, version, how)


def judge_optional(versions: Mapping[str, str | None]) -> Finding:
    """The packages that add something, those here and those not."""
    here = [f"{module} {version}" for module, version in versions.items() if version]
    missing = [package for package in OPTIONAL if versions.get(package.module) is None]
    found = ", ".join(here) or "none"
    if missing:
        found += "; not installed: " + ", ".join(p.module for p in missing)
    advice = "; ".join(f"for {p.purpose}: {install(p.requirement)}" for p in missing)
    how = "importlib.util.find_spec and importlib.metadata; nothing was imported"
    return Finding("optional", OK, found, how, advice)
