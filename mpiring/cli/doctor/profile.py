"""Which profile of ``mpiring tune`` a ring of these ranks takes."""

from __future__ import annotations

from collections.abc import Mapping

from mpiring.cli.tune.words import settings_text
from mpiring.wire.settings.profiles import ADVICE, NONE, VARIABLE, find, find_path
from mpiring.wire.settings.tuning import NETWORK, NODE

from .finding import NOTE, OK, PROBLEM, Finding, count

NAME = "profile"


def judge_profile(
    environment: Mapping[str, str], mpi: str, hosts: int, ranks: int
) -> Finding:
    """The profile, and its entry for a ring of so many ranks of this MPI on so many hosts.

    Args:
        environment: of rank 0, whose profile counts.
    """
    path, is_named = find_path(environment)
    how = f"{VARIABLE}, else the user's configuration" if is_named else "no " + VARIABLE
    if path is None:
        why = f"{VARIABLE}={environment[VARIABLE]}" if is_named else "no home is known"
        return Finding(NAME, OK, "none: rings take the defaults", why)
    wire = NODE if hosts == 1 else NETWORK
    try:
        found = find(environment, mpi, wire, ranks)
    except ValueError as error:
        told = str(error).removesuffix(f"; {ADVICE}")
        return Finding(NAME, PROBLEM, f"no ring can be made: {told}", how, ADVICE)
    if found.path is None:
        why = f"{path} is not there; `mpiring tune` makes it"
        return Finding(NAME, OK, "none: rings take the defaults", why)
    where = f"{mpi}, {wire}, {count(ranks, 'rank')}"
    if found.entry is not None:
        settings = settings_text(found.tuning)
        text = f"the entry for {found.entry} in {path}: {settings}"
        return Finding(NAME, OK, text, how)
    text = f"{path} has no entry for {where}: rings take the defaults"
    if ranks == 1:
        return Finding(NAME, OK, text, how)
    advice = f"mpirun -n {ranks} mpiring tune, or {VARIABLE}={NONE}"
    return Finding(NAME, NOTE, text, how, advice)
