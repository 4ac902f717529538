"""Hints: a producer has committed something that is due now, so it is polled for before the next tick."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from relay.adapters.postgres.wakeup import Wakeup
from relay.domain.errors import DatabaseUnreachable
from relay.domain.facts import FactSink, OutageSeen

#: The time limit of a tick, in seconds.
TICK_TIMEOUT_S: Final = 5.0
#: How many times to look again while a job is outstanding, and the seconds in between.
_MAX_LOOKS: Final = 10
_LOOK_INTERVAL_S: Final = 0.01


class Hints:
    """Polls at each tick, and at once after each hint. Hints that arrive during a poll share the next poll.

    ``poll`` returns whether something is due but left to an outstanding job. That job may be about to end and may
    have looked before the new rows came. So after a hint the poll is repeated, until about the next tick.
    """

    def __init__(
        self, context: str, wakeup: Wakeup, kind: str, poll: Callable[[], Awaitable[bool]], facts: FactSink
    ) -> None:
        self._context, self._wakeup, self._kind, self._poll, self._facts = context, wakeup, kind, poll, facts
        #: How many hints came since the last tick.
        self.count = 0
        self._hinted = False
        self._hearing: asyncio.Task[None] | None = None

    async def tick(self) -> None:
        """Poll once, and listen for hints from now on. Raises DatabaseUnreachable."""
        self._wakeup.listen(self._kind, self._hint)
        await self._poll()
        self.count = 0

    def _hint(self) -> None:
        self.count += 1
        self._hinted = True
        if self._hearing is None or self._hearing.done():
            self._hearing = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        while self._hinted:
            self._hinted = False
            for _ in range(_MAX_LOOKS):
                if not await self._poll_in_time():
                    break
                await asyncio.sleep(_LOOK_INTERVAL_S)

    async def _poll_in_time(self) -> bool:
        """Poll within the time limit of a tick. Otherwise a poll that hangs would block the ticks' own polls."""
        try:
            async with asyncio.timeout(TICK_TIMEOUT_S):
                return await self._poll()
        except (DatabaseUnreachable, TimeoutError) as error:
            self._facts(outage(self._context, error))
            return False


def outage(context: str, error: DatabaseUnreachable | TimeoutError) -> OutageSeen:
    """Return the fact that the database of a context is unreachable or silent."""
    text = f"no answer within {TICK_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else error.message
    return OutageSeen(context=context, server="postgresql", error=text)
