"""The history of a context, written by the scheduler that leads it, once a minute."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from relay.adapters.postgres.history import Minute
from relay.domain.history import Level

#: How often to look at the time. It costs nothing between two minutes.
EVERY: Final = timedelta(seconds=5)


class Pages(Protocol):
    """Where the history is written. All raise DatabaseUnreachable."""

    async def minute(self) -> Minute:
        """The last whole minute."""

    async def record(self, at: datetime, levels: Sequence[Level], releases: Mapping[str, int]) -> bool:
        """Record a minute, once."""

    async def roll_up(self, at: datetime) -> int:
        """Make hours of minutes, and delete what is old."""


class HistoryTick:
    """Records each minute some seconds after its end. The database's clock says which, and whether another did.

    ``levels``: reads what waits. ``releases``: how many workers run each release now.
    """

    def __init__(
        self,
        pages: Pages,
        levels: Callable[[], Awaitable[Sequence[Level]]],
        releases: Callable[[], Awaitable[Mapping[str, int]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pages, self._levels, self._releases, self._clock = pages, levels, releases, clock
        self.take_over()

    def take_over(self) -> None:
        """This process leads from now on: look at once."""
        self._next = 0.0
        self._hour: datetime | None = None

    async def tick(self) -> None:
        """Record the last whole minute if it is time, and make hours of minutes once an hour."""
        if self._clock() < self._next:
            return
        minute = await self._pages.minute()
        if not minute.recorded:
            await self._pages.record(minute.at, await self._levels(), await self._releases())
        hour = (minute.at.astimezone(UTC) + timedelta(minutes=1)).replace(minute=0)
        if hour != self._hour:
            await self._pages.roll_up(minute.at)
            self._hour = hour
        self._next = self._clock() + max(0.0, minute.next_in_seconds)
