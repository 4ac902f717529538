"""Times that others wrote. PostgreSQL has more than Python: ``infinity``, years before 1 and after 9999."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

#: What lies outside becomes the nearest of these. One day inside of Python's limits: so each can be shown in any
#: time zone.
EARLIEST: Final = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
LATEST: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


def moment(text: str) -> datetime:
    """Read a time in ISO form, as PostgreSQL writes it. Outside of Python's limits: the nearest inside."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return outside(text)
    return nearest(found if found.tzinfo else found.replace(tzinfo=UTC))


def outside(text: str) -> datetime:
    """The nearest time to one that Python cannot hold."""
    return EARLIEST if text.startswith("-") or text.endswith("BC") else LATEST


def nearest(time: datetime) -> datetime:
    """The time itself, or the nearest that can be shown everywhere."""
    return min(max(time, EARLIEST), LATEST)
