"""Hints: something was committed that is due now, so a tick does not wait for its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from relay.domain.facts import FactSink, OutageSeen

#: A tick that takes longer is given up, in seconds.
TICK_LIMIT: Final = 5.0
#: How often and how soon to look again while a job is outstanding, in seconds.
_LOOKS: Final = 10
_LOOK_AGAIN: Final = 0.01


class Hints:
    """Polls for each hint; those that come while one is answered are answered together.

    ``poll`` returns whether something is due and left to a job that is outstanding. That job may be just ending
    and have looked too early for what is new, so it is looked again, until a tick would come anyway.
    """

    def __init__(self, context: str, poll: Callable[[], Awaitable[bool]], facts: FactSink) -> None:
        self._context, self._poll, self._facts = context, poll, facts
        self._hinted = False
        self._hearing: asyncio.Task[None] | None = None

    def __call__(self) -> None:
        """Take a hint, in the event loop."""
        self._hinted = True
        if self._hearing is None or self._hearing.done():
            self._hearing = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        while self._hinted:
            self._hinted = False
            for _ in range(_LOOKS):
                if not await self._poll_in_time():
                    break
                await asyncio.sleep(_LOOK_AGAIN)

    async def _poll_in_time(self) -> bool:
        """Poll under the limit of a tick: one that hangs would keep the ticks themselves from polling."""
        try:
            async with asyncio.timeout(TICK_LIMIT):
                return await self._poll()
        except TimeoutError:
            error = f"no answer within {TICK_LIMIT:g} s"
            self._facts(OutageSeen(context=self._context, server="postgresql", error=error))
            return False
