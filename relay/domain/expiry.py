"""Until when a message is worth handling, on the wire and in the words of operators."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Final

from relay.domain.durations import duration

#: The header that says until when a message is worth handling: a time in UTC.
EXPIRES_AT: Final = "Relay-Expires-At"
#: The header by which JetStream removes a message itself, after so many seconds.
TTL: Final = "Nats-TTL"
#: What an operator gives instead of a new time: what is stale goes on for ever.
NEVER: Final = timedelta.max


def in_words(span: timedelta) -> str:
    """A new time as the audit log shows it."""
    return "never" if span == NEVER else duration(span.total_seconds())


def ttl_of(seconds: float) -> str:
    """The header of a message that is worth something for so long. A second more: the rows are compared first."""
    return str(ceil(seconds) + 1)


def is_over(expires_at: str | None) -> bool:
    """Whether the time of an archived row is over, by this machine's clock. One without end, or none, is not."""
    found = None if expires_at is None else read_expiry(expires_at)
    return found is not None and found <= datetime.now(UTC)


def read_expiry(text: str) -> datetime | None:
    """Read the header. None if it cannot be read: what nobody can read says nothing."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
