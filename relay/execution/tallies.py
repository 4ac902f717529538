"""What a worker counts for the history of its contexts: how long calls took, and how many attempts failed.

A call costs one addition to a ring of numbers. Everything else is done once a minute. How many rows are done is
not counted here: the rows themselves say it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, Protocol

from relay.concurrency import end, is_cancelled
from relay.domain.errors import RelayError
from relay.domain.history import Of, Told, bucketed

#: So many calls of a minute are kept of each handler and process, the latest. Percentiles need no more.
SAMPLES: Final = 2_000
_MINUTE_S: Final = 60.0


class Tally:
    """The calls of one handler. ``took``: notes how many seconds a call took, in any thread."""

    __slots__ = ("_seconds", "failed", "took")

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=SAMPLES)
        self.took = self._seconds.append
        #: How many attempts failed. Only the event loop counts them.
        self.failed = 0

    def take(self, of: Of, name: str) -> Told | None:
        """Return what was counted, and begin again; None for nothing."""
        seconds = [self._seconds.popleft() for _ in range(len(self._seconds))]
        failed, self.failed = self.failed, 0
        return Told(of, name, failed, bucketed(seconds)) if seconds or failed else None


class ByName(dict[str, Tally]):
    """Tallies by name, each made when it is first asked for."""

    def __missing__(self, name: str) -> Tally:
        return self.setdefault(name, Tally())


class Ear(Protocol):
    """Who is told. Raises RelayError if it cannot be told."""

    async def tell(self, told: Sequence[Told], *, ago: timedelta = ...) -> None:
        """Keep what was counted. ``ago``: how long ago the middle of that time was, about."""


class Tallies:
    """The tallies of a process. Once a minute, at its end, each context's database is told what was counted.

    What cannot be told is forgotten: the history then has no times of that minute.
    """

    def __init__(self, ear: Callable[[str], Ear], clock: Callable[[], float] = time.time) -> None:
        self._ear, self._clock = ear, clock
        self._of: dict[tuple[str, Of], ByName] = {}
        self._task: asyncio.Task[None] | None = None

    def of(self, context: str, of: Of) -> ByName:
        """The tallies of a context's subscriptions, or of its types of tasks."""
        return self._of.setdefault((context, of), ByName())

    async def start(self) -> None:
        """Tell from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Tell what is left."""
        if self._task is not None:
            await end(self._task)
            await self.tell(timedelta())

    async def tell(self, ago: timedelta) -> None:
        """Tell all databases what was counted."""
        found: dict[str, list[Told]] = {}
        for (context, of), tallies in [*self._of.items()]:
            for name, tally in [*tallies.items()]:
                if (told := tally.take(of, name)) is not None:
                    found.setdefault(context, []).append(told)
        tells: list[Awaitable[None]] = [self._tell(context, told, ago) for context, told in found.items()]
        await asyncio.gather(*tells)

    async def _tell(self, context: str, told: Sequence[Told], ago: timedelta) -> None:
        with suppress(RelayError):
            await self._ear(context).tell(told, ago=ago)

    async def _run(self) -> None:
        while not is_cancelled():
            await asyncio.sleep(_MINUTE_S - self._clock() % _MINUTE_S)
            await self.tell(timedelta(seconds=_MINUTE_S / 2))
