"""Profiles: files of settings that were measured, and which of them a ring takes.

A ring looks for a profile when it is made, on rank 0 only, whose environment counts:

1. ``MPIRING_PROFILE`` is a path; or ``none``, or empty, and then the defaults are taken;
2. else ``$XDG_CONFIG_HOME/mpiring/profile.json``, which is ``~/.config/mpiring/profile.json`` unless told otherwise.
   That it is not there is normal.

A profile is JSON::

    {
      "format": 1,
      "entries": [
        {
          "mpi": "Open MPI 5.0.11",
          "wire": "network",
          "ranks": 4,
          "tuning": {"chunk_bytes": 32768, "window": 2},
          "measured": {"date": "2026-02-03T04:05:06+00:00"}
        }
      ]
    }

``tuning`` has the settings of :class:`mpiring.wire.settings.tuning.Tuning`; those left out have the wire's defaults,
and ``"whole"`` stands for more bytes than any buffer has.  ``measured`` is for people, has what it likes, and may be
left out.

Rules:

* an entry counts for the very MPI and wire that it names: another version may have other limits.  It counts for twice
  and for half as many ranks too; but one for two ranks, who pass nothing on, for two only.  Of several the one is taken
  whose ranks are nearest, by their ratio; of two as near the one of fewer;
* a file with anything wrong or unknown in it is an error that names the file and the place, never half a profile;
* writing an entry leaves all others as they are.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from .files import read_small, write_whole
from .tuning import DEFAULTS, WIRES, Tuning, from_json

VARIABLE = "MPIRING_PROFILE"
NONE = "none"
FORMAT = 1
MOST_BYTES = 1 << 20  # thousands of entries
ADVICE = f"mend or remove that file, or set {VARIABLE}={NONE} to do without"
_READABLE = 0o644
_FAR = 2  # times as many ranks, for which an entry still counts


@dataclass(frozen=True)
class Entry:
    """What is right for one MPI, wire and number of ranks.

    Attributes:
        mpi: name and version, as :attr:`mpiring.wire.gpu_aware.loaded.Library.name` has them.
        wire: one of ``WIRES``.
        ranks: of the ring it was measured on.
        tuning: the settings.
        measured: when, where and how.
    """

    mpi: str
    wire: str
    ranks: int
    tuning: Tuning
    measured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int]:
        """What a profile has one entry for."""
        return self.mpi, self.wire, self.ranks

    def __str__(self) -> str:
        return f"{self.mpi}, {self.wire}, {self.ranks} rank{'s' * (self.ranks > 1)}"


@dataclass(frozen=True)
class Found:
    """What a ring takes.

    Attributes:
        tuning: the settings.
        path: the profile that was read, None if there is none.
        entry: the one of its entries that was taken, None if none of them fits.
    """

    tuning: Tuning
    path: Path | None = None
    entry: Entry | None = None


def find(environment: Mapping[str, str], mpi: str, wire: str, ranks: int) -> Found:
    """The settings of a ring.

    Raises:
        ValueError: for a profile that cannot be read or is wrong; the message says how to do without.
    """
    path, is_asked_for = find_path(environment)
    # Where a home may not be looked into, nobody has put a profile.
    if path is None or not (is_asked_for or os.path.exists(path)):
        return Found(DEFAULTS[wire])
    try:
        entries = parsed(read_small(path, MOST_BYTES))
    except (OSError, ValueError) as error:
        told = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ValueError(f"profile {path}: {told}; {ADVICE}") from error
    entry = nearest(entries, mpi, wire, ranks)
    return Found(DEFAULTS[wire] if entry is None else entry.tuning, path, entry)


def find_path(environment: Mapping[str, str]) -> tuple[Path | None, bool]:
    """Where the profile is, None for nowhere; and whether the user has named it."""
    if VARIABLE in environment:
        asked = environment[VARIABLE]
        return (None if asked in ("", NONE) else Path(asked)), True
    base = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: to be ignored
        base = os.path.expanduser("~/.config")
    is_known = os.path.isabs(base)
    return (Path(base, "mpiring", "profile.json") if is_known else None), False


def nearest(entries: Sequence[Entry], mpi: str, wire: str, ranks: int) -> Entry | None:
    """The entry that counts for a ring, None if none does."""

    def ratio(entry: Entry) -> Fraction:
        return Fraction(max(entry.ranks, ranks), min(entry.ranks, ranks))

    fit = [
        entry
        for entry in entries
        if (entry.mpi, entry.wire) == (mpi, wire)
        and (entry.ranks == ranks or entry.ranks > 2 and ratio(entry) <= _FAR)
    ]
    return min(fit, key=lambda entry: (ratio(entry), entry.ranks), default=None)


# ---- reading ----------------------------------------------------------------------------------------


def parsed(text: str) -> list[Entry]:
    """The entries of a profile's text.

    Raises:
        ValueError: naming the place, if it is anything else.
    """
    entries = [_entry(value, f"entries[{i}]") for i, value in enumerate(_loaded(text))]
    places: dict[tuple[str, str, int], int] = {}
    for place, entry in enumerate(entries):
        other = places.setdefault(entry.key, place)
        if other != place:
            raise ValueError(f"entries[{other}] and entries[{place}] are both: {entry}")
    return entries


def _loaded(text: str) -> list[Any]:
    """The entries as JSON has them."""
    try:
        content = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no profile in JSON: {error}") from error
    _check_names(content, "it", needed=("format", "entries"))
    if content["format"] != FORMAT or isinstance(content["format"], bool):
        raise ValueError(
            f"its format is {_shown(content['format'])}, this version knows {FORMAT}"
        )
    if not isinstance(content["entries"], list):
        raise ValueError(f"entries is {_shown(content['entries'])}, expected a list")
    entries: list[Any] = content["entries"]
    return entries


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice in one object")
    return found


def _entry(value: Any, place: str) -> Entry:
    _check_names(value, place, ("mpi", "wire", "ranks", "tuning"), ("measured",))
    mpi, wire, ranks = value["mpi"], value["wire"], value["ranks"]
    measured = value.get("measured", {})
    wrong = ""
    if not isinstance(mpi, str) or not mpi:
        wrong = f'mpi is {_shown(mpi)}, expected a name such as "Open MPI 5.0.11"'
    elif wire not in WIRES:
        wrong = f"wire is {_shown(wire)}, expected {' or '.join(WIRES)}"
    elif isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        wrong = f"ranks is {_shown(ranks)}, expected a whole number, 1 or more"
    elif not isinstance(measured, dict):
        wrong = f"measured is {_shown(measured)}, expected an object"
    if wrong:
        raise ValueError(f"{place}: {wrong}")
    try:
        tuning = from_json(value["tuning"], DEFAULTS[wire])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: tuning: {error}") from error
    return Entry(mpi, wire, ranks, tuning, measured)


def _check_names(
    value: Any, place: str, needed: Sequence[str], others: Sequence[str] = ()
) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{place} is {_shown(value)}, expected an object")
    missing = [name for name in needed if name not in value]
    unknown = [name for name in value if name not in (*needed, *others)]
    if missing:
        raise ValueError(f"{place} has no {missing[0]!r}")
    if unknown:
        known = ", ".join((*needed, *others))
        raise ValueError(f"{place} has an unknown {unknown[0]!r}; known are {known}")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# ---- writing ----------------------------------------------------------------------------------------


def write_entry(path: Path, entry: Entry) -> None:
    """Put an entry into a profile, in the place of an older one for the same; makes the file if there is none.

    Raises:
        OSError: if it cannot be written.
        ValueError: if the file that is there is wrong.  It is left as it is, here and before.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        before, mode = None, _READABLE
        with suppress(FileNotFoundError):
            before = read_small(path, MOST_BYTES)
            mode = stat.S_IMODE(path.stat().st_mode)
        write_whole(path, merged(before, entry), mode)


def merged(before: str | None, entry: Entry) -> str:
    """The text of a profile with an entry more, or another one in its place; the others are as they were."""
    raw = [] if before is None else _loaded(before)
    keys = [] if before is None else [each.key for each in parsed(before)]
    new = {
        "mpi": entry.mpi,
        "wire": entry.wire,
        "ranks": entry.ranks,
        "tuning": entry.tuning.as_json(),
        "measured": dict(entry.measured),
    }
    if entry.key in keys:
        raw[keys.index(entry.key)] = new
    else:
        raw.append(new)
    return json.dumps({"format": FORMAT, "entries": raw}, indent=2) + "\n"


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """While no other process is in here, as far as the file system can keep one out."""
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems know no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
