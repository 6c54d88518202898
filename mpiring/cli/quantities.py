"""Bytes, seconds and speeds as people write them: read strictly, written with four digits.

K, M, G, T are thousands, as on disks and networks; Ki, Mi, Gi, Ti are 1024s, as in memory.  A speed in bits says so:
``100Mbit/s`` is ``12.5MB/s``.  Nothing is guessed: a time or a speed without a unit is refused.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
_PREFIXES = {prefix: 1000**power for prefix, power in _POWERS.items()} | {
    f"{prefix}i": 1024**power for prefix, power in _POWERS.items() if prefix not in "k"
}
_BYTES = {
    prefix + unit: Fraction(factor)
    for prefix, factor in _PREFIXES.items()
    for unit in ("", "B")
}
_SECONDS = {
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ns": Fraction(1, 10**9),
}
_SPEEDS = {
    f"{prefix}{unit}/s": factor * part
    for prefix, factor in _PREFIXES.items()
    for unit, part in (("B", Fraction(1)), ("bit", Fraction(1, 8)))
}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([^\s0-9].*)?")


def as_bytes(text: str) -> int:
    """A whole number of bytes.

    >>> as_bytes("400M"), as_bytes("32KiB"), as_bytes("1.5kB"), as_bytes("0")
    (400000000, 32768, 1500, 0)
    """
    value = _read(text, _BYTES, "bytes", "400M, 32KiB or 1e6")
    if value.denominator != 1:
        raise ValueError(
            f"{text!r} is {float(value)} bytes, which is not a whole number"
        )
    return int(value)


def as_seconds(text: str) -> float:
    """A time in seconds.

    >>> as_seconds("5us"), as_seconds("0.25 ms")
    (5e-06, 0.00025)
    """
    return float(_read(text, _SECONDS, "a time", "5us or 0.1ms"))


def as_speed(text: str) -> float:
    """A speed in bytes a second, more than 0.

    >>> as_speed("25GB/s"), as_speed("100Mbit/s"), as_speed("1GiB/s")
    (25000000000.0, 12500000.0, 1073741824.0)
    """
    value = _read(text, _SPEEDS, "a speed", "25GB/s or 100Mbit/s")
    if not value:
        raise ValueError(f"{text!r}: a speed must be more than 0")
    return float(value)


def _read(
    text: str, units: Mapping[str, Fraction], what: str, examples: str
) -> Fraction:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or (match[2] or "").strip() not in units:
        raise ValueError(f"{text!r}: expected {what} such as {examples}")
    return Fraction(match[1]) * units[(match[2] or "").strip()]


def bytes_text(nbytes: float) -> str:
    """Bytes with a decimal prefix.

    >>> bytes_text(400_000_000), bytes_text(32768), bytes_text(12), bytes_text(999_999)
    ('400 MB', '32.77 kB', '12 B', '1 MB')
    """
    return _scaled(
        nbytes, (("B", 1), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))
    )


def seconds_text(seconds: float) -> str:
    """A time with its unit.

    >>> seconds_text(0.0315), seconds_text(5e-6), seconds_text(0), seconds_text(90)
    ('31.5 ms', '5 us', '0 s', '90 s')
    """
    if not seconds:
        return "0 s"
    return _scaled(seconds, (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1)))


def _scaled(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """In the largest unit of which it is 1 or more, once rounded to four digits."""
    rounded = float(f"{value:.4g}")
    name, factor = max(
        (unit for unit in units if rounded >= unit[1] * (1 - 1e-9)),
        key=lambda unit: unit[1],
        default=units[0],
    )
    number = f"{rounded / factor:.4g}"
    return f"{int(float(number)) if 'e' in number else number} {name}"


def speed_text(speed: float) -> str:
    """Bytes a second with a decimal prefix.

    >>> speed_text(25e9)
    '25 GB/s'
    """
    return bytes_text(speed) + "/s"


def argument(read: Callable[[str], float]) -> Callable[[str], float]:
    """A reader for argparse, which shows its complaint as it is."""

    def checked(text: str) -> float:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def size_text(nbytes: int) -> str:
    """The size of a buffer in memory, in powers of 1024 where it is a whole number of them.

    >>> size_text(4096), size_text(64 << 20), size_text(1000), size_text(8_000_000), size_text(3 << 19)
    ('4 KiB', '64 MiB', '1000 B', '8 MB', '1536 KiB')
    """
    for prefix, bits in (("G", 30), ("M", 20), ("K", 10)):
        if nbytes >= 1 << bits and nbytes % (1 << bits) == 0:
            return f"{nbytes >> bits} {prefix}iB"
    return f"{nbytes} B" if nbytes < 10_000 else bytes_text(nbytes)
