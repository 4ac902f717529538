"""Wake-up by LISTEN/NOTIFY: a hint that costs nothing under load (DESIGN §5).

A NOTIFY takes a lock of the whole database cluster at commit, so producers send one only while the
publisher has said that it sleeps. Polling is the guarantee; without hints everything still works.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from psycopg.errors import QueryCanceled

from relay.adapters.postgres.pool import Pool, connection
from relay.adapters.postgres.sql import statement
from relay.adapters.postgres.tasks import GRACE
from relay.adapters.postgres.watch import Watch
from relay.domain.errors import DatabaseUnreachable
from relay.domain.ordering import LANES, Shard

CHANNEL: Final = "relay_outbox"
#: The payloads of hints: an event was recorded, a task was scheduled.
EVENTS: Final = ""
TASKS: Final = "tasks"
#: A question that takes longer, in seconds, is asked again after so many times that.
_SLOW: Final = 0.1
_REST: Final = 20
_ALL_LANES: Final = (1 << LANES) - 1


@dataclass(frozen=True, slots=True)
class Due:
    """How many events wait to be published, and the lanes of their keys, a bit each."""

    count: int
    lanes: int

    def concerns(self, shard: Shard) -> bool:
        """Whether any is in a lane of ``shard``."""
        return any(self.lanes >> lane & 1 for lane in shard.lanes)


class Wakeup:
    """Asks whether anything is due, and hears hints, on a connection of its own."""

    def __init__(self, pool: Pool, url: str) -> None:
        self._pool = pool
        self._watch = Watch(url, CHANNEL, self._hear)
        self._sleeping: bool | None = None
        self._rest_until = 0.0
        self._wakes: dict[str, Callable[[], None]] = {}

    async def due(self, limit: int) -> Due:
        """What waits to be published, counted up to ``limit``. Raises DatabaseUnreachable.

        Where the answer takes long, as after an hour under an old snapshot, it is seldom asked for: meanwhile, and
        where there is none in time, as many as can be may wait in any lane. An outage is no answer.
        """
        begun = time.monotonic()
        if begun < self._rest_until:
            return Due(limit, _ALL_LANES)
        try:
            [[count, lanes]] = await self._watch.ask("outbox_due", {"limit": limit})
            due = Due(int(count or 0), int(lanes or 0))
        except DatabaseUnreachable as error:
            if not isinstance(error.__cause__, QueryCanceled):
                raise
            due = Due(limit, _ALL_LANES)
        if (took := time.monotonic() - begun) > _SLOW:
            self._rest_until = begun + _REST * took
        return due

    async def tasks_due(self) -> bool:
        """Whether a task is waiting to be delivered. Raises DatabaseUnreachable."""
        return bool(await self._watch.ask("pending_task_queues"))

    async def tasks_overdue(self) -> bool:
        """Whether a delivered task should have begun by now. Raises DatabaseUnreachable."""
        return bool(await self._watch.ask("delivered_task_queues", {"grace": GRACE}))

    async def inbox_open(self, subscription: str) -> bool:
        """Whether any message of a subscription has not come to its end. Raises DatabaseUnreachable."""
        return bool(await self._watch.ask("inbox_open", {"subscription": subscription}))

    async def set_sleeping(self, sleeping: bool) -> None:
        """Tell producers whether to send hints; does nothing when they were told already."""
        if sleeping != self._sleeping:
            async with connection(self._pool) as conn, conn.transaction():
                await conn.execute("SET LOCAL synchronous_commit = off")
                await conn.execute(statement("set_sleeping"), {"sleeping": sleeping})
            self._sleeping = sleeping

    def listen(self, kind: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` for every hint of a kind, in the event loop, from the next look until `close`."""
        self._wakes[kind] = wake

    async def close(self) -> None:
        """Stop listening."""
        self._wakes.clear()
        await self._watch.close()

    def _hear(self, kind: str | None) -> None:
        if kind is None:
            # Another process may have told producers otherwise meanwhile.
            self._sleeping = None
            for wake in list(self._wakes.values()):
                wake()
        elif kind in self._wakes:
            self._wakes[kind]()
