"""Telling the event loop which messages and tasks the threads have finished."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

from relay.domain.errors import Outage

Claim = TypeVar("Claim")
_log = logging.getLogger("relay")

#: How long a finished row waits for others, in seconds. Alone, each would cost a statement and a write.
_PAUSE: Final = 0.005


class Finished(Generic[Claim]):
    """Hands finished rows to the event loop: all that were added since it last looked, in one go.

    ``mark`` marks rows as done, and returns those whose claim is still ours. ``finish`` does what follows for
    these. ``pause``: whether to wait a moment for more rows. That is right when nobody waits for the outcome.
    """

    def __init__(
        self,
        mark: Callable[[Sequence[Claim]], Awaitable[Sequence[Claim]]],
        finish: Callable[[Sequence[Claim]], Awaitable[None]],
        loop: asyncio.AbstractEventLoop,
        *,
        pause: bool,
    ) -> None:
        self._mark = mark
        self._finish = finish
        self._loop = loop
        self._pause = _PAUSE if pause else 0.0
        self._waiting: deque[tuple[Claim, bool]] = deque()
        self._called = False
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, claim: Claim, marked: bool) -> None:
        """Take a finished row, from any thread. ``marked``: the row is marked as done already."""
        self._waiting.append((claim, marked))
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._begin)

    async def drain(self) -> None:
        """Wait until the loop has handled all added rows. No thread may add any more."""
        while self._tasks or self._waiting:
            await asyncio.sleep(0)
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self) -> None:
        task = self._loop.create_task(self._run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        if self._pause:
            await asyncio.sleep(self._pause)
        # Reset first: a row that is added from now on calls again, and all earlier ones are taken here.
        self._called = False
        found = [self._waiting.popleft() for _ in range(len(self._waiting))]
        marked = [claim for claim, marked in found if marked]
        marked += await self._mark_those([claim for claim, marked in found if not marked])
        with suppress(Outage):
            await self._finish(marked)

    async def _mark_those(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Mark rows together. If that fails, mark each alone, so that one bad row spoils no other.

        A row that is not marked keeps its claim until the lease is over. Then the sweep brings it back.
        """
        try:
            return await self._mark(claims) if claims else []
        except Outage:
            return []
        except Exception:
            if len(claims) == 1:
                _log.exception("a row that is finished cannot be marked")
                return []
            return [claim for one in claims for claim in await self._mark_those([one])]
