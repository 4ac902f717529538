"""Arrays as PostgreSQL reads them, written without the driver's look at each element for what needs quotes.

Thousands of rows go to the server in one statement, an array for each column; the driver takes longer to
write those than the server takes to insert the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any


def of_plain(elements: Iterable[Any]) -> str:
    """An array of numbers, ids, truth values or names: of what is written without quotes and is not empty."""
    return f"{{{','.join(['NULL' if it is None else str(it) for it in elements])}}}"


def of_moments(elements: Iterable[datetime | None]) -> str:
    """An array of moments that know their time zone."""
    return f"{{{','.join(['NULL' if it is None else it.isoformat() for it in elements])}}}"


def of_texts(elements: Iterable[str | None]) -> str:
    """An array of any texts."""
    return f"{{{','.join(['NULL' if it is None else _quoted(it) for it in elements])}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
