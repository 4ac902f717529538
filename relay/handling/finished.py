"""What has been done with messages and tasks in threads, told to the event loop."""

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

#: How long a row waits for others here, in seconds: each by itself would cost a statement and a write.
_PAUSE: Final = 0.005


class Finished(Generic[Claim]):
    """Hands what is finished to the event loop, all that has come together since it last looked.

    ``mark`` says of rows that they are done, and returns those of which that is ours to say; ``finish`` does what
    follows. ``pause``: whether it waits a moment for more, as nobody waits for what it does.
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
        """Take a finished row, from any thread; ``marked``: its row says so already."""
        self._waiting.append((claim, marked))
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._begin)

    async def drain(self) -> None:
        """Wait until the loop is done with what was added. No thread may add any more."""
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
        # In this order: what comes from now on calls again, what came before is among those taken here.
        self._called = False
        found = [self._waiting.popleft() for _ in range(len(self._waiting))]
        marked = [claim for claim, marked in found if marked]
        marked += await self._mark_those([claim for claim, marked in found if not marked])
        with suppress(Outage):
            await self._finish(marked)

    async def _mark_those(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Mark rows together; one that cannot be marked takes no other with it.

        What is not marked keeps its claim until the lease is over; the sweep brings it back.
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
