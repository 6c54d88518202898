"""What Open MPI's mpirun refuses unless told otherwise: to be started by root, and more ranks than cores.

Both are normal in a container and on a laptop, and both are the first thing that somebody meets there who has just
installed it.  So one process finds it, before there is a job, and tells the lines to type.

Rules: a ``find_...`` looks, and only looks; a ``judge_...`` takes what was found.  What is accepted here was tried with
the wheel's mpirun: of the variables for root only Open MPI's own, only with the value 1; and of a setting the variable
before the user's file, and that before the installation's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from mpiring.wire.gpu_aware.loaded import Library

from .finding import NOTE, OK, Finding, count

ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
ROOT_LINE = "export " + " ".join(f"{variable}=1" for variable in ROOT_VARIABLES)

RANKS = 4  # of README's first program


def judge_root(
    uid: int,
    environment: Mapping[str, str],
    family: str,
    script: str = "",
    in_job: bool = False,
) -> Finding:
    """Whether root may start jobs.

    Args:
        uid: of this process.
        family: of the MPI.
        script: the text of its mpirun, where that is a script: it may say what is needed.
        in_job: whether this is one of several ranks, so that somebody has started them.
    """
    name, how = "user", f"geteuid is {uid}"
    if uid != 0:
        return Finding(name, OK, "not root", how)
    accepted = "root; this MPI's mpirun accepts that"
    if family != "Open MPI":
        return Finding(name, OK, accepted, how)
    if all(environment.get(variable) == "1" for variable in ROOT_VARIABLES):
        return Finding(name, OK, accepted, f"{how}; {', '.join(ROOT_VARIABLES)} are 1")
    if all(f"{variable}=1" in script for variable in ROOT_VARIABLES):
        how += "; mpirun is a script that says that root is meant"
        return Finding(name, OK, accepted, how)
    if in_job:
        return Finding(name, OK, "root, and this job has started", how)
    advice = f"in a container:\n{ROOT_LINE}\n(or mpirun --allow-run-as-root); elsewhere: use another account"
    return Finding(
        name, NOTE, "root, and Open MPI's mpirun refuses to run as root", how, advice
    )


class Setting:
    """The setting that lets ranks share cores, by the version of Open MPI."""

    def __init__(self, major: int) -> None:
        is_old = 0 < major < 5
        self.name = (
            "rmaps_base_oversubscribe" if is_old else "rmaps_default_mapping_policy"
        )
        self.variable = f"{'OMPI' if is_old else 'PRTE'}_MCA_{self.name}"
        self.value = "1" if is_old else ":oversubscribe"
        self.files = "openmpi-mca-params.conf" if is_old else "prte-mca-params.conf"
        self.folder = ".openmpi" if is_old else ".prte"
        # A policy and its modifiers, which may be cut short.
        self._allows = r"1|t.*|y.*" if is_old else r"[^:]*:(.*[:,])?\s*overs\w*\b.*"

    def allows(self, value: str) -> bool:
        """Whether this value of it lets ranks share cores."""
        return bool(re.fullmatch(self._allows, value.strip(), re.IGNORECASE))

    def find_files(self, library: Library, home: Path) -> dict[str, str]:
        """The texts of the files that may set it, by path; the first that does counts."""
        prefixes = Path(library.paths[0]).parents[1:5] if library.paths else []
        places = [home / self.folder / "mca-params.conf"]
        places += [prefix / "etc" / self.files for prefix in prefixes]
        return {str(path): text for path in places if (text := read(path))}

    def find_value(self, texts: Iterable[str]) -> str | None:
        """What the first of the texts that has it says; None if none has."""
        for text in texts:
            lines = re.findall(rf"(?m)^\s*{self.name}\s*=(.*)$", text)
            if lines:
                return str(lines[-1])
        return None


def read(path: Path, most: int = 1 << 16) -> str:
    """The beginning of a file as text, ``""`` if there is none."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""


def find_script(program: str) -> str:
    """The text of a program that is a script, else ``""``."""
    text = read(Path(program)) if program else ""
    return text if text.startswith("#!") else ""


def count_cores(
    allowed: Iterable[int], root: Path = Path("/sys/devices/system/cpu")
) -> int:
    """How many cores are behind the processors that a process may use: mpirun counts cores, which may be two each."""
    cores = set()
    for number in allowed:
        siblings = root / f"cpu{number}" / "topology" / "thread_siblings_list"
        cores.add(read(siblings).strip() or str(number))
    return len(cores)


def judge_slots(
    cores: int,
    environment: Mapping[str, str],
    files: Mapping[str, str],
    library: Library,
) -> Finding:
    """How many ranks Open MPI's mpirun starts on this host.

    Args:
        cores: of this host.
        files: the texts of those that may set it, by path, the first one first.
    """
    name, setting = "slots", Setting(library.major)
    how = f"the cores of this process's affinity; {setting.variable}"
    values = {}
    if setting.variable in environment:
        values[setting.variable] = environment[setting.variable]
    else:
        found = ((path, setting.find_value([text])) for path, text in files.items())
        values.update((path, value) for path, value in found if value is not None)
        how = ", ".join([how, *files])
    where, value = next(iter(values.items()), ("", ""))
    if setting.allows(value):
        words = "mpirun starts as many ranks as it is told to"
        return Finding(name, OK, words, f"{where} has {value.strip()}")
    words = f"mpirun starts {count(cores, 'rank')} at most on this host, which has {count(cores, 'core')}"
    if cores >= RANKS:
        return Finding(name, OK, words, how)
    advice = (
        f"to try things out on more ranks than cores:\nexport {setting.variable}={setting.value}\n"
        "(or mpirun --map-by :oversubscribe)"
    )
    return Finding(name, NOTE, words, how, advice)
