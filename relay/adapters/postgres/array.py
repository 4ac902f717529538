"""PostgreSQL arrays as text. Faster than the driver, which checks whether each element needs quotes.

Thousands of rows go to the server in one statement, with an array for each column. The driver needs longer to
write these arrays than the server needs to insert the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Final

#: Bytes in hexadecimal digits. In an array, the backslash must be doubled.
_HEX: Final = r'"\\x%s"'


def of_plain(elements: Iterable[Any]) -> str:
    """Return an array of numbers, ids, truth values or names: values that need no quotes and are not empty."""
    return f"{{{','.join(['NULL' if it is None else str(it) for it in elements])}}}"


def of_moments(elements: Iterable[datetime | None]) -> str:
    """Return an array of moments with a time zone."""
    return f"{{{','.join(['NULL' if it is None else it.isoformat() for it in elements])}}}"


def of_spans(elements: Iterable[timedelta | None]) -> str:
    """Return an array of lengths of time, whatever style the session has for them."""
    return of_texts(None if it is None else f"{it // timedelta(microseconds=1)} microseconds" for it in elements)


def of_texts(elements: Iterable[str | None]) -> str:
    """Return an array of any texts."""
    return f"{{{','.join(['NULL' if it is None else _quoted(it) for it in elements])}}}"


def of_bytes(elements: Iterable[bytes]) -> str:
    """Return an array of any bytes."""
    return f"{{{','.join([_HEX % it.hex() for it in elements])}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
