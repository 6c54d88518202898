"""The rule by which a setting is chosen: the default stays, unless another value is faster by more than noise.

All candidates of a setting do the same tasks, in rounds: in a round each does a task once, one after the other.  So
what disturbs the machine for a while disturbs all, and candidates are compared within rounds.

The rule
    In a round, the *gain* of a candidate is how many times as fast as the default it is: the geometric mean over the
    tasks that it does in another way.  It *beats* the default if the median of its gains is ``LEAST_GAIN`` or more and
    it was faster in ``LEAST_SHARE`` of the rounds.  Of those that beat the default the one is taken that saves most
    over all tasks, in the median of the rounds; if none does the default stays.

    Choices that are good alone may be bad together.  So at the end all of them are measured against the defaults, and
    they stay only if they are as fast or faster, in the median of the rounds.

So a profile has a reason for each value that is no default, none is written that was seen to be slower than no profile,
and a second run on a quiet machine chooses the same or one as good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median

LEAST_GAIN = 1.05
LEAST_SHARE = 0.75

# For each candidate: of each task the seconds in each round.
Times = Mapping[int, Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Verdict:
    """A candidate against the default.

    Attributes:
        gain: the median over the rounds of how many times as fast it is.
        share: of the rounds in which it is faster.
        saved: the median over the rounds of the logarithms of its ratios, added up over all tasks.
    """

    gain: float = 1.0
    share: float = 0.0
    saved: float = 0.0

    @property
    def beats(self) -> bool:
        """Whether it is faster by more than noise."""
        return self.gain >= LEAST_GAIN and self.share >= LEAST_SHARE


def judge(times: Times, default: int) -> dict[int, Verdict]:
    """Every candidate against the default.

    >>> found = judge({1: [[2.0, 4.0, 2.0]], 2: [[1.0, 2.0, 1.0]]}, 1)[2]
    >>> round(found.gain, 9), found.share, found.beats
    (2.0, 1.0, True)
    """
    return {
        candidate: (
            _verdict(times[default], tasks) if candidate != default else Verdict()
        )
        for candidate, tasks in times.items()
    }


def choose(times: Times, default: int) -> int:
    """The candidate that the rule takes."""
    verdicts = judge(times, default)
    better = [candidate for candidate, found in verdicts.items() if found.beats]
    return max(better, key=lambda each: verdicts[each].saved, default=default)


def stays(times: Times, default: int, chosen: int) -> bool:
    """Whether what was chosen, all together, is not slower than the default.

    >>> stays({0: [[2.0, 2.0]], 1: [[2.0, 1.9]]}, 0, 1), stays({0: [[2.0, 2.0]], 1: [[2.1, 2.0]]}, 0, 1)
    (True, False)
    """
    return judge(times, default)[chosen].gain >= 1.0


def _verdict(
    defaults: Sequence[Sequence[float]], tasks: Sequence[Sequence[float]]
) -> Verdict:
    pairs = [(old, new) for old, new in zip(defaults, tasks) if old != new]
    if not pairs:
        return Verdict()
    rounds = min(min(len(old), len(new)) for old, new in pairs)
    sums = [sum(log(old[r] / new[r]) for old, new in pairs) for r in range(rounds)]
    middle = median(sums)
    gain = exp(middle / len(pairs))
    return Verdict(gain, sum(each > 0 for each in sums) / rounds, middle)


def by_limit(
    sizes: Sequence[int],
    up_to: Sequence[Sequence[float]],
    above: Sequence[Sequence[float]],
) -> dict[int, list[Sequence[float]]]:
    """The times of candidates that are limits: one way is taken up to the limit, another one above it.

    Args:
        sizes: in bytes, of each task.
        up_to, above: of each task the seconds in each round, on the one way and on the other.

    Returns:
        for no bytes and each of the sizes as the limit, what the tasks take then.

    >>> by_limit([10, 20], [[1.0], [3.0]], [[2.0], [2.5]])
    {0: [[2.0], [2.5]], 10: [[1.0], [2.5]], 20: [[1.0], [3.0]]}
    """
    return {
        limit: [
            one if nbytes <= limit else other
            for nbytes, one, other in zip(sizes, up_to, above)
        ]
        for limit in (0, *sorted(set(sizes)))
    }
