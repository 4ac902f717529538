"""Durations, times and sizes in words, the same in the command line, the console and error texts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

#: From twice a unit on, a duration is told in it: 119 s, but 2 min.
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
_EXACT: Final = 9.95
_BYTES: Final = 1024


def duration(seconds: float | None) -> str:
    """Seconds as people say them: ``40 ms``, ``1.2 s``, ``3 min``, ``2.5 h``, ``12 d``; ``?`` if nobody knows."""
    if seconds is None:
        return "?"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    size, unit = next((it for it in _UNITS if round(seconds) >= 2 * it[0]), (1, "s"))
    many = seconds / size
    return f"{many:.1f}".removesuffix(".0") + f" {unit}" if many < _EXACT else f"{many:.0f} {unit}"


def ago(at: datetime, now: datetime | None = None) -> str:
    """How long ago a time was, or how soon it will be, in whole units: ``3 min ago``, ``in 20 s``, ``now``."""
    seconds = int(((now or datetime.now(UTC)) - at).total_seconds())
    if seconds == 0:
        return "now"
    size, unit = next((it for it in _UNITS if abs(seconds) >= 2 * it[0]), (1, "s"))
    return f"{seconds // size} {unit} ago" if seconds > 0 else f"in {-seconds // size} {unit}"


def size(value: float) -> str:
    """Bytes as people say them: ``1.2 MB``."""
    for unit in ("B", "KB", "MB", "GB"):
        if value < _BYTES:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= _BYTES
    return f"{value:.1f} TB"
