"""Bytes, seconds and speeds: read strictly, written short."""

from __future__ import annotations

import argparse
import doctest

import pytest

from mpiring.cli import quantities
from mpiring.cli.quantities import (
    argument,
    as_bytes,
    as_seconds,
    as_speed,
    bytes_text,
    seconds_text,
    speed_text,
)


def test_examples_in_docstrings():
    result = doctest.testmod(quantities)
    assert result.failed == 0 and result.attempted == 7


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("17", 17),
        ("17B", 17),
        ("400M", 400 * 10**6),
        ("400MB", 400 * 10**6),
        (" 400 MB ", 400 * 10**6),
        ("32KiB", 32 << 10),
        ("32Ki", 32 << 10),
        ("1k", 1000),
        ("1K", 1000),
        ("1.5kB", 1500),
        ("0.5Ki", 512),
        ("3GiB", 3 << 30),
        ("2T", 2 * 10**12),
        ("2TiB", 2 << 40),
        ("1e6", 10**6),
        ("1.5e+3", 1500),
        ("1e-3M", 1000),
    ],
)
def test_bytes(text, value):
    assert as_bytes(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "M", "-1", "+1", "4 M B", "4m", "4MiBs", "4Mb", "4kiB", "1,000", "0x10", "nan"]
    + ["inf", "1e", "1..2", "4M/s", "5 5", "５"],
)
def test_no_bytes(text):
    with pytest.raises(ValueError, match="expected bytes such as 400M, 32KiB or 1e6"):
        as_bytes(text)


def test_a_part_of_a_byte():
    with pytest.raises(ValueError, match="'1.5' is 1.5 bytes, which is not a whole"):
        as_bytes("1.5")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5us", 5e-6),
        ("5µs", 5e-6),
        ("0.25 ms", 2.5e-4),
        ("1.5s", 1.5),
        ("700ns", 7e-7),
        ("0s", 0),
        ("1e-6s", 1e-6),
    ],
)
def test_seconds(text, value):
    assert as_seconds(text) == value


@pytest.mark.parametrize("text", ["5", "0", "us", "5 usec", "5m", "-5us", "5us/s"])
def test_no_seconds(text):
    with pytest.raises(ValueError, match="expected a time such as 5us or 0.1ms"):
        as_seconds(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("25GB/s", 25e9),
        ("100Mbit/s", 12.5e6),
        ("1GiB/s", 2.0**30),
        ("8Kibit/s", 1024),
        ("1 kB/s", 1000),
        ("3B/s", 3),
    ],
)
def test_speeds(text, value):
    assert as_speed(text) == value


@pytest.mark.parametrize("text", ["25", "25GB", "25Gb/s", "25Gbps", "25G/s", "-1B/s"])
def test_no_speeds(text):
    with pytest.raises(ValueError, match="expected a speed such as 25GB/s or 100Mbit"):
        as_speed(text)


def test_no_speed_at_all():
    with pytest.raises(ValueError, match="must be more than 0"):
        as_speed("0GB/s")


def test_argparse_shows_the_complaint():
    read = argument(as_bytes)
    assert read("4k") == 4000
    with pytest.raises(argparse.ArgumentTypeError, match="'4m': expected bytes"):
        read("4m")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (0.25, "0.25 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1 MB"),
        (787_500_000, "787.5 MB"),
        (10**15, "1000 TB"),
        (12345 * 10**14, "1234000 TB"),
    ],
)
def test_bytes_text(nbytes, text):
    assert bytes_text(nbytes) == text
    assert speed_text(nbytes) == f"{text}/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1e-10, "0.1 ns"),
        (1e-9, "1 ns"),
        (9.99949e-4, "999.9 us"),
        (9.9995e-4, "1 ms"),
        (0.03213, "32.13 ms"),
        (1, "1 s"),
        (8000, "8000 s"),
        (123456, "123500 s"),
    ],
)
def test_seconds_text(seconds, text):
    assert seconds_text(seconds) == text
