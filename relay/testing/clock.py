"""The time of the adapters in memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class Clock:
    """Stands still until a test moves it. Adapters that share a clock share their time."""

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.now = now

    def move(self, by: timedelta) -> None:
        """Let time pass: leases end, back-offs are over."""
        self.now += by
