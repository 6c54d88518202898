"""Numbers that users pass: what counts as one, and what to say of what does not.

Whole numbers are what ``operator.index`` takes, NumPy's among them, and seconds are real numbers of any library.
True and False are neither: who passes them has mixed up two arguments.  They are looked at before anything is sent.
"""

from __future__ import annotations

import math
import operator
from numbers import Complex, Number, Real
from typing import Any

from ...errors import harmless

_LONG_SECONDS = 1e9


def whole_number(what: str, value: Any, least: int, most: int | None = None) -> int:
    """``value`` as an int.

    Raises:
        ValueError: naming ``what``, if it is no whole number from ``least`` to ``most``, or of ``least`` or more.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    is_too_much = most is not None and number > most
    if isinstance(value, bool) or number < least or is_too_much:
        allowed = f"{least} or more" if most is None else f"{least} to {most}"
        raise harmless(ValueError(f"{what} must be {allowed}, got {value!r}"))
    return number


def seconds_of(timeout: Any) -> float | None:
    """A timeout as a float; None, and what is infinite, is none.

    Raises:
        ValueError: if it is no number of 0 or more.
    """
    if timeout is None:
        return None
    if type(timeout) in (int, float) and 0 <= timeout < _LONG_SECONDS:  # mostly
        return float(timeout)
    seconds = math.nan
    # Decimal is a number, and no complex one, but does not call itself real.
    is_number = isinstance(timeout, Number) and not isinstance(timeout, bool)
    if is_number and (isinstance(timeout, Real) or not isinstance(timeout, Complex)):
        try:
            seconds = float(timeout)
        except OverflowError:  # longer than anybody waits
            seconds = math.inf if timeout > 0 else -math.inf  # type: ignore[operator]
        except ValueError:  # a signalling NaN
            pass
    if not seconds >= 0:
        raise harmless(
            ValueError(
                f"timeout must be seconds of 0 or more, or None, got {timeout!r}"
            )
        )
    return None if math.isinf(seconds) else seconds
