"""What ``mpiring model`` is asked, and the answer as numbers.

Only formulas are evaluated (:mod:`mpiring.plan.formulas`), no schedule is built: 100,000 ranks take no longer than 4.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpiring.cli import UsageError
from mpiring.plan import (
    Choice,
    Fit,
    Model,
    algorithms,
    best_segments,
    bus_factor,
    choices,
    crossings,
    fit,
    lower_bound,
    server_form,
    winner,
)

# name: bytes of an element, and of one of a partial
DTYPES = {
    "int8": (1, 1),
    "float16": (2, 4),
    "bfloat16": (2, 4),
    "float32": (4, 4),
    "float64": (8, 8),
}
SIZES = tuple(10**power for power in range(3, 10))  # bytes, of the small table


@dataclass(frozen=True)
class Question:
    """All that decides the answer.

    Attributes:
        collective, size, nbytes, dtype: the call.
        model: the machine.
        segments: of the pipelined ones; 0 for the best number at each size.
        among: the algorithms to look at.
        fitted: where the model comes from, if it was measured.
    """

    collective: str
    size: int
    nbytes: int
    dtype: str
    model: Model
    segments: int
    among: tuple[str, ...]
    fitted: Fit | None

    def choices(self, nbytes: int) -> list[Choice]:
        """What each schedule costs for a buffer of so many bytes, in whole elements."""
        itemsize, partial = DTYPES[self.dtype]
        return choices(
            self.collective,
            self.size,
            nbytes // itemsize,
            itemsize,
            self.model,
            partial_itemsize=partial,
            segments=self.segments,
            among=self.among,
        )

    def servers(self) -> list[Choice]:
        """The parameter server in its two forms, for comparison; only where all of the all-reduce is asked for."""
        if self.collective != "allreduce" or self.among != algorithms("allreduce"):
            return []
        itemsize, partial = DTYPES[self.dtype]
        count = self.nbytes // itemsize
        pieces = self.segments or best_segments(
            "reduce",
            "ring",
            self.size,
            count,
            itemsize,
            self.model,
            partial_itemsize=partial,
        )
        return [
            Choice(
                f"server, {form}",
                segments,
                server_form(
                    form,
                    self.size,
                    count,
                    itemsize,
                    self.model,
                    partial_itemsize=partial,
                    segments=segments,
                ),
            )
            for form, segments in (("chain", pieces), ("star", 1))
        ]

    def crossings(self) -> list[tuple[int, str]]:
        """Which schedule wins from how many bytes on."""
        itemsize, partial = DTYPES[self.dtype]
        return crossings(
            self.collective,
            self.size,
            itemsize,
            self.model,
            partial_itemsize=partial,
            segments=self.segments,
            among=self.among,
        )

    def bound(self, nbytes: int) -> float:
        """The seconds that no schedule can beat."""
        return lower_bound(self.collective, self.size, nbytes, self.model).seconds

    def answer(self) -> dict[str, Any]:
        """Everything there is to say, in bytes and seconds, as JSON can hold it."""
        found = self.choices(self.nbytes)
        best, bound = winner(found).algorithm, self.bound(self.nbytes)
        fitted = self.fitted
        return {
            "collective": self.collective,
            "ranks": self.size,
            "bytes": self.nbytes,
            "dtype": self.dtype,
            "model": asdict(self.model),
            "fit": fitted
            and {
                "points": [
                    {"bytes": nbytes, "seconds": seconds, "error": error}
                    for (nbytes, seconds), error in zip(fitted.points, fitted.errors)
                ],
                "worst_error": fitted.worst,
            },
            "bound": {
                "bytes": bus_factor(self.collective, self.size) * self.nbytes,
                "seconds": bound,
            },
            "schedules": [
                {
                    "algorithm": algorithm,
                    "segments": segments,
                    "steps": form.exchanges,
                    "at_once": form.at_once,
                    "bytes": form.busiest_bytes,
                    "seconds": form.seconds,
                    "ratio": form.seconds / bound if bound else None,
                    "wins": algorithm == best,
                }
                for algorithm, segments, form in [*found, *self.servers()]
            ],
            "crossings": [
                {"from_bytes": nbytes, "algorithm": algorithm}
                for nbytes, algorithm in self.crossings()
            ],
            "sizes": [self._row(nbytes) for nbytes in SIZES],
        }

    def _row(self, nbytes: int) -> dict[str, Any]:
        found = self.choices(nbytes)
        return {
            "bytes": nbytes,
            "seconds": {choice.algorithm: choice.form.seconds for choice in found},
            "wins": winner(found).algorithm,
            "bound": self.bound(nbytes),
        }


def ask(args: argparse.Namespace) -> Question:
    """The question of a command line.

    Raises:
        UsageError: for numbers that make no sense, options that do not go together, or a file that cannot be used.
    """
    if args.ranks < 1:
        raise UsageError(f"--ranks {args.ranks}: expected 1 or more")
    if args.segments is not None and args.segments < 1:
        raise UsageError(f"--segments {args.segments}: expected 1 or more")
    known = algorithms(args.collective)
    for name in args.algorithm:
        if name not in known:
            raise UsageError(
                f"--algorithm {name}: {args.collective} has {', '.join(known)}"
            )
    itemsize = DTYPES[args.dtype][0]
    if args.bytes % itemsize:
        raise UsageError(
            f"--bytes: {args.bytes} bytes are no whole number of {args.dtype}, {itemsize} bytes each"
        )
    gamma = 1 / args.gamma if args.gamma else 0.0
    fitted = None
    if args.fit is not None:
        if args.alpha is not None or args.bandwidth is not None:
            raise UsageError(
                "--fit measures alpha and the bandwidth: leave out --alpha, --bandwidth"
            )
        fitted = read_fit(args.fit, gamma)
        model = fitted.model
    elif args.alpha is None or args.bandwidth is None:
        raise UsageError("give --alpha and --bandwidth, or --fit with a measured run")
    else:
        model = Model(args.alpha, 1 / args.bandwidth, gamma)
    return Question(
        args.collective,
        args.ranks,
        args.bytes,
        args.dtype,
        model,
        args.segments or 0,
        tuple(dict.fromkeys(args.algorithm)) or known,
        fitted,
    )


def read_fit(path: Path, gamma: float) -> Fit:
    """The machine of a measured run; ``mpiring model --help`` says what the file must have.

    Raises:
        UsageError: if it cannot be read, or has not what is needed.
    """
    expected = 'expected {"point_to_point": [{"bytes": 8, "seconds": 2.1e-05}, ...]}'
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))
        points = [
            (_number(point["bytes"]), _number(point["seconds"]))
            for point in measured["point_to_point"]
        ]
    except OSError as error:
        raise UsageError(f"--fit: {error}") from error
    except KeyError as error:
        raise UsageError(f"--fit {path}: there is no {error}; {expected}") from error
    except (TypeError, ValueError) as error:
        raise UsageError(f"--fit {path}: {error}; {expected}") from error
    try:
        return fit(((int(nbytes), seconds) for nbytes, seconds in points), gamma)
    except ValueError as error:
        raise UsageError(f"--fit {path}: {error}") from error


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return value
