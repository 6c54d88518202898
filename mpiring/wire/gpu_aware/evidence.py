"""What is known of an MPI and device memory, and what each source says.

Rules: nothing here touches CUDA, sends a message, or tries device memory; :func:`find_facts` gathers, and what is made
of it has no side effects; in doubt a source does not say yes.

Theory
    Open MPI before version 5 answers for its build; ``opal_cuda_support``, a variable of its own, for this run.  (The
    builds of conda-forge have CUDA and leave it switched off.)  Open MPI 5 answers for this run.  It may say no while
    the UCX below it takes device memory; that is for a probe to find out.

    An MPI need not list a memory kind that nobody asked for, so only the presence of one tells.  ``cuda`` means all of
    CUDA's memory, ``cuda:device`` that of a device; ``cuda:host`` and ``cuda:managed`` say nothing of device memory.

    Some MPIs take device pointers only after a variable has switched that on: ``MPICH_GPU_SUPPORT_ENABLED`` (HPE Cray
    MPICH), ``MV2_USE_CUDA`` (MVAPICH2), ``I_MPI_OFFLOAD`` (Intel MPI).  While it is off, no yes is believed.  That it
    is on is a yes of its own only where the build shows as well: Cray's transport library for CUDA is loaded (without
    one MPI would not have started), or MVAPICH2 states ``--enable-cuda``.  MPICH's query knows of its variable,
    ``MPIR_CVAR_ENABLE_GPU``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import loaded
from .loaded import Library

# Without these no device memory is taken, whatever the MPI says of its build.
NEEDED = {
    "Cray MPICH": "MPICH_GPU_SUPPORT_ENABLED",
    "Intel MPI": "I_MPI_OFFLOAD",
    "MVAPICH": "MV2_USE_CUDA",  # version 2; its successors have MPICH's query
}
OPEN_MPI_4 = ("OMPI_MCA_opal_cuda_support", "OMPI_MCA_mpi_cuda_support")


@dataclass(frozen=True)
class Clue:
    """What one source says: ``says`` is ``"yes"``, ``"no"`` or, if it does not tell, ``""``."""

    says: str
    words: str


@dataclass(frozen=True)
class Facts:
    """What is known of the MPI of this process.

    Attributes:
        answers: of ``loaded.ask_library``.
        switch: of ``loaded.read_switch``.
        alloc_kinds: ``mpi_memory_alloc_kinds`` of COMM_WORLD, ``""`` if it is not stated.
        mapped: the files mapped into this process.
    """

    library: Library
    answers: tuple[tuple[str, bool], ...] = ()
    switch: bool | None = None
    alloc_kinds: str = ""
    mapped: tuple[str, ...] = ()


def weigh(facts: Facts, environment: Mapping[str, str]) -> tuple[Clue, ...]:
    """What each source says, the stronger ones first."""
    off = find_switched_off(facts, environment)
    clues = [
        *(judge_answer(name, answer, facts.library) for name, answer in facts.answers),
        judge_kinds(facts.alloc_kinds),
        judge_environment(facts, environment),
        judge_ucx(facts.mapped),
    ]
    found = [clue for clue in clues if clue is not None]
    if not off:
        return tuple(found)
    # The switch is the reason, so it is told first.
    doubted = (Clue("" if c.says == "yes" else c.says, c.words) for c in found)
    return (Clue("no", off), *doubted)


def find_switched_off(facts: Facts, environment: Mapping[str, str]) -> str:
    """What keeps this MPI from taking device memory whatever it can, in words; ``""`` if nothing does."""
    library = facts.library
    if library.family == "Open MPI" and library.major < 5:
        if facts.switch is False:
            return f"{library.name} has its opal_cuda_support switched off"
        if facts.switch is None:
            for variable in OPEN_MPI_4:
                if variable in environment and not is_on(environment[variable]):
                    return f"{variable}={environment[variable]} switches it off"
    variable = needed_switch(library)
    if variable and not is_on(environment.get(variable, "0")):
        state = environment.get(variable, "not set")
        return f"{library.name} takes device memory only with {variable}=1, which is {state}"
    return ""


def needed_switch(library: Library) -> str:
    """The variable that has to be on for this MPI to take device memory; ``""`` if there is none."""
    if library.family == "MVAPICH" and library.major != 2:
        return ""
    return NEEDED.get(library.family, "")


def is_on(value: str) -> bool:
    """Whether a variable's value switches something on.

    >>> [is_on(value) for value in ("1", "TRUE", "on", "0", "false", "", "?")]
    [True, True, True, False, False, False, False]
    """
    value = value.strip().lower()
    if value.isdecimal():
        return int(value) > 0
    return value in ("true", "t", "yes", "y", "on", "enable", "enabled")


def judge_answer(function: str, answer: bool, library: Library) -> Clue:
    """What the MPI answered to one of its functions."""
    says = "yes" if answer else "no"
    return Clue(says, f"{function} of {library.name} says {says}")


def judge_kinds(alloc_kinds: str) -> Clue | None:
    """What COMM_WORLD states of memory kinds."""
    if not alloc_kinds:
        return None
    words = f"mpi_memory_alloc_kinds is {alloc_kinds!r}"
    for kind in alloc_kinds.split(","):
        name, *restrictors = kind.strip().split(":")
        if name == "cuda" and (not restrictors or "device" in restrictors):
            return Clue("yes", words)
    return Clue("", words)


def judge_environment(facts: Facts, environment: Mapping[str, str]) -> Clue | None:
    """What the variables of this MPI's family say, with the library that they made it load."""
    family = facts.library.family
    variable = needed_switch(facts.library)
    if variable and is_on(environment.get(variable, "0")):
        words = f"{variable}={environment[variable]}"
        gtl = [path for path in facts.mapped if "/libmpi_gtl_cuda" in path]
        if family == "Cray MPICH" and gtl:
            return Clue("yes", f"{words}, and {gtl[0]} is loaded")
        if family == "MVAPICH" and "--enable-cuda" in facts.library.text:
            return Clue("yes", f"{words}, and {facts.library.name} has --enable-cuda")
        return Clue("", words)
    switch = environment.get("MPIR_CVAR_ENABLE_GPU", "")
    if family == "MPICH" and switch:
        return Clue("" if is_on(switch) else "no", f"MPIR_CVAR_ENABLE_GPU={switch}")
    return None


def judge_ucx(mapped: Sequence[str]) -> Clue | None:
    """Whether UCX has loaded what it carries device memory with; whether MPI lets it, a probe can tell."""
    if any("/libuct_cuda" in path for path in mapped):
        return Clue("", "UCX has loaded its CUDA transport")
    return None


def find_facts() -> Facts:
    """What is known of the MPI of this process; it is not started, and asked only if it has been."""
    from mpi4py import MPI

    if MPI.Is_initialized() and not MPI.Is_finalized():
        return _find_facts()
    return Facts(loaded.find_library())


@functools.cache
def _find_facts() -> Facts:
    """Nothing of it changes while MPI is up."""
    from mpi4py import MPI

    library = loaded.find_library()
    path = next(iter(library.paths), None)
    info = MPI.COMM_WORLD.Get_info()
    kinds = info.get("mpi_memory_alloc_kinds") or ""
    info.Free()
    answers = tuple(loaded.ask_library(path).items())
    mapped = tuple(loaded.mapped_here())
    return Facts(library, answers, loaded.read_switch(path), kinds, mapped)
