"""Times that others wrote. PostgreSQL has more than Python: ``infinity``, years before 1 and after 9999."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

#: What lies outside becomes the nearest of these. One day inside of Python's limits: so each can be shown in any
#: time zone.
EARLIEST: Final = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
LATEST: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


#: Stands for a time that cannot be read, where there must be one. Compare it by identity.
UNREADABLE: Final = LATEST + timedelta(hours=1)
_OUTSIDE: Final = re.compile("-?infinity|[0-9]{4,6}-[0-9]{2}-[0-9]{2}[T ][-+0-9:.]*( BC)?")


def moment(text: object) -> datetime:
    """Read a time in ISO form, as PostgreSQL writes it. Outside of Python's limits: the nearest inside.

    Returns UNREADABLE if it is no such time.
    """
    if not isinstance(text, str):
        return UNREADABLE
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return outside(text) if _OUTSIDE.fullmatch(text) else UNREADABLE
    return nearest(found if found.tzinfo else found.replace(tzinfo=UTC))


def outside(text: str) -> datetime:
    """The nearest time to one that Python cannot hold."""
    return EARLIEST if text.startswith("-") or text.endswith("BC") else LATEST


#: A time as an age, which stays right in a bookmark.
AGE: Final = re.compile(r"([0-9]{1,5})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def absolute(text: str) -> str:
    """An age, such as ``6h``, as a time; a time without a zone is UTC; other text as it is."""
    if (found := AGE.fullmatch(text)) is None:
        with suppress(ValueError):
            at = datetime.fromisoformat(text)
            return at.isoformat() if at.tzinfo else at.replace(tzinfo=UTC).isoformat()
        return text
    # To the second: all who ask within one ask the same.
    now = datetime.now(UTC).replace(microsecond=0)
    return (now - timedelta(**{_UNITS[found[2]]: int(found[1])})).isoformat()


def before(time: datetime, seconds: float) -> datetime:
    """The time so many seconds before, or the nearest that can be shown everywhere."""
    if seconds >= (time - EARLIEST).total_seconds():
        return EARLIEST
    return LATEST if seconds <= (time - LATEST).total_seconds() else nearest(time - timedelta(seconds=seconds))


def readable(time: datetime | None) -> datetime | None:
    """The time, if it could be read."""
    return None if time is UNREADABLE else time


def nearest(time: datetime) -> datetime:
    """The time itself, or the nearest that can be shown everywhere."""
    return time if EARLIEST <= time <= LATEST else min(max(time, EARLIEST), LATEST)
