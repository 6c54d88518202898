"""The constants of a machine from measured messages.

A point is ``n`` bytes and the ``t`` seconds from a message's start to its arrival; the line ``t = alpha + n beta``
is laid through the points.  Plain least squares would be decided by the largest messages alone, whose error in
seconds is a thousand times the smallest's whole time, and alpha would be anything.  So each point counts by its
*relative* error: the sum of ``((alpha + n beta) / t - 1)**2`` is made least, a weight of ``1 / t**2``.

Both constants are kept at 0 or above: where the best line has a negative one, it is 0 and the other alone is
fitted, which is the best within those bounds, since the sum is convex.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

from .cost import Model


@dataclass(frozen=True)
class Fit:
    """A line through measured points.

    Attributes:
        model: alpha and beta, and the gamma that was given.
        points: what was fitted: (bytes, seconds).
        errors: for each point, how much the line is above it, as a part of its time.
    """

    model: Model
    points: tuple[tuple[int, float], ...]
    errors: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The largest error, above or below, as a part of the point's time."""
        return max(abs(error) for error in self.errors)


def fit(points: Iterable[tuple[int, float]], gamma: float = 0.0) -> Fit:
    """Alpha and beta of the line that fits best, by relative error.

    >>> fit([(0, 5.0), (10, 7.0), (1000, 205.0)]).model
    Model(alpha=5.0, beta=0.2, gamma=0.0)
    >>> found = fit([(0, 4.0), (0, 6.0), (1000, 1000.0)])
    >>> round(found.model.alpha, 3), round(found.worst, 3)
    (4.615, 0.231)

    Args:
        points: bytes of a message and the seconds it took, of two sizes at least.
        gamma: seconds to reduce a byte, which messages do not tell.

    Raises:
        ValueError: for a point that cannot be, or if all have one size.
    """
    given = tuple((nbytes, float(seconds)) for nbytes, seconds in points)
    for nbytes, seconds in given:
        if nbytes < 0 or not isfinite(seconds) or seconds <= 0:
            raise ValueError(
                f"fit: {nbytes} bytes in {seconds} seconds; expected 0 or more bytes in more than 0 seconds"
            )
    if len({nbytes for nbytes, _ in given}) < 2:
        raise ValueError(
            f"fit: {len(given)} points of {len({nbytes for nbytes, _ in given})} sizes; a latency and a "
            "bandwidth need messages of two sizes or more"
        )
    # The unknowns' factors in a point's relative error are u = 1/t and v = n/t.  In fractions, since the
    # sums differ by more orders of magnitude than a float has digits.
    rows = [(1 / Fraction(t), n / Fraction(t)) for n, t in given]
    uu = sum(u * u for u, _ in rows)
    uv = sum(u * v for u, v in rows)
    vv = sum(v * v for _, v in rows)
    u1, v1 = sum(u for u, _ in rows), sum(v for _, v in rows)
    determinant = uu * vv - uv * uv
    alpha = (u1 * vv - v1 * uv) / determinant
    beta = (v1 * uu - u1 * uv) / determinant
    if alpha < 0:
        alpha, beta = Fraction(0), v1 / vv
    elif beta < 0:
        alpha, beta = u1 / uu, Fraction(0)
    errors = tuple(float(alpha * u + beta * v - 1) for u, v in rows)
    return Fit(Model(float(alpha), float(beta), gamma), given, errors)
