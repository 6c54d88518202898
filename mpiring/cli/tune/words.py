"""Settings as people say them."""

from __future__ import annotations

from mpiring.cli.quantities import size_text
from mpiring.wire.settings.tuning import WHOLE, WHOLE_TEXT, Tuning


def value_text(setting: str, value: int) -> str:
    """The value of one.

    >>> value_text("window", 3), value_text("chunk_bytes", 32768), value_text("piece_bytes", 1 << 62)
    ('3', '32 KiB', 'whole')
    """
    if setting == "window":
        return str(value)
    return WHOLE_TEXT if value == WHOLE else size_text(value)


def settings_text(tuning: Tuning) -> str:
    """All of them in a line."""
    values = ((name, getattr(tuning, name)) for name in tuning.as_json())
    return ", ".join(f"{name} {value_text(name, value)}" for name, value in values)
