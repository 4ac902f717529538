"""The header ``Retry-After`` (RFC 9110 §10.2.3): when a service wants to be called again."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from relay.domain.retry import LONGEST_DELAY

RETRY_AFTER: Final = "Retry-After"
#: A number of more digits is longer than the longest delay.
_MAX_DIGITS: Final = 9
#: No form of a date is longer.
_MAX_DATE_CHARS: Final = 60


def asked_wait(headers: Iterable[str], now: datetime) -> timedelta | None:
    """How long the headers ask to wait, at most seven days; None if none of them asks for a wait.

    Of several the longest counts. One that cannot be read, that is over or that says 0 asks for nothing.
    """
    waits = [wait for header in headers if (wait := _read(header.strip(), now)) is not None]
    longest = max(waits, default=timedelta(0))
    return min(longest, LONGEST_DELAY) if longest > timedelta(0) else None


def _read(text: str, now: datetime) -> timedelta | None:
    if len(text) > _MAX_DATE_CHARS and not text.isdecimal():
        return None
    if text.isascii() and text.isdecimal():
        digits = text.lstrip("0")
        return LONGEST_DELAY if len(digits) > _MAX_DIGITS else timedelta(seconds=int(digits or 0))
    try:
        moment = parsedate_to_datetime(text)
        # A date without a zone is in UTC, as every date of HTTP.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def header_of(delay: timedelta) -> str:
    """The value of the header for a wait: whole seconds, at least 1."""
    return str(max(1, math.ceil(delay.total_seconds())))
