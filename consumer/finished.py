"""What follows a message that is processed, for many messages at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from consumer.process import ProcessInboxMessage
from relay.domain.errors import Outage
from relay.ports import ClaimedMessage

#: How long an acknowledgement waits for others, in seconds: each by itself would cost a write and a wake-up.
_ACK_PAUSE: Final = 0.005


class Finished:
    """Hands what is finished to the event loop, all that has come together since it last looked.

    ``pause``: how long it waits for more, in seconds, where nobody waits for what it does.
    """

    def __init__(
        self,
        finish: Callable[[Sequence[ClaimedMessage]], Awaitable[None]],
        loop: asyncio.AbstractEventLoop,
        pause: float = 0.0,
    ) -> None:
        self._finish = finish
        self._loop = loop
        self._pause = pause
        self._waiting: deque[ClaimedMessage] = deque()
        self._called = False
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, claim: ClaimedMessage) -> None:
        """Take a finished message, from any thread."""
        self._waiting.append(claim)
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
        claims = [self._waiting.popleft() for _ in range(len(self._waiting))]
        with suppress(Outage):
            await self._finish(claims)


def finished(one: ProcessInboxMessage, loop: asyncio.AbstractEventLoop) -> Finished:
    """Finish many messages of a subscription at a time."""
    # In an ordered subscription the next message of the key waits for it.
    return Finished(one.finish, loop, 0.0 if one.ordered else _ACK_PAUSE)
