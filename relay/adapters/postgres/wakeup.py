"""Wake-up by LISTEN/NOTIFY: a hint that costs nothing under load (DESIGN §5).

A NOTIFY takes a lock of the whole database cluster at commit. So producers send one only while the publisher has
said that it sleeps. Hints only save time: polling finds all work without them.
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
#: A question that takes longer than _SLOW_S is asked again only after _PAUSE_FACTOR times as long.
_SLOW_S: Final = 0.1
_PAUSE_FACTOR: Final = 20
_ALL_LANES: Final = (1 << LANES) - 1


@dataclass(frozen=True, slots=True)
class Due:
    """How many events wait to be published, and the lanes of their keys: one bit for each lane."""

    count: int
    lanes: int

    def concerns(self, shard: Shard) -> bool:
        """Whether any of the events is in a lane of ``shard``."""
        return any(self.lanes >> lane & 1 for lane in shard.lanes)


class Wakeup:
    """Asks whether anything is due, and receives hints, on a connection of its own."""

    def __init__(self, pool: Pool, url: str) -> None:
        self._pool = pool
        self._watch = Watch(url, CHANNEL, self._hear)
        self._sleeping: bool | None = None
        self._rest_until = 0.0
        self._wakes: dict[str, Callable[[], None]] = {}

    async def due(self, limit: int) -> Due:
        """Return what waits to be published, counted up to ``limit``. Raises DatabaseUnreachable, SchemaMissing.

        When the answer takes long, for example after an hour under an old snapshot, this asks seldom. Between two
        questions, and after a time-out, it returns ``limit`` and all lanes. An outage raises.
        """
        begun = time.monotonic()
        if begun < self._rest_until:
            return Due(limit, _ALL_LANES)
        try:
            [row] = await self._watch.ask("outbox/due", {"limit": limit})
            count, lanes = row.values()
            due = Due(int(count or 0), lanes or 0)
        except DatabaseUnreachable as error:
            if not isinstance(error.__cause__, QueryCanceled):
                raise
            due = Due(limit, _ALL_LANES)
        if (took := time.monotonic() - begun) > _SLOW_S:
            self._rest_until = begun + _PAUSE_FACTOR * took
        return due

    async def tasks_due(self) -> bool:
        """Whether a task is waiting to be delivered. Raises DatabaseUnreachable."""
        return bool(await self._watch.ask("tasks/pending_queues"))

    async def tasks_overdue(self) -> bool:
        """Whether a delivered task should have begun by now. Raises DatabaseUnreachable."""
        return bool(await self._watch.ask("tasks/delivered_queues", {"grace": GRACE}))

    async def inbox_open(self, subscription: str) -> bool:
        """Whether a subscription has any unfinished message. Raises DatabaseUnreachable."""
        return bool(await self._watch.ask("inbox/open", {"subscription": subscription}))

    async def set_sleeping(self, sleeping: bool) -> None:
        """Tell producers whether to send hints. Does nothing if they know already."""
        if sleeping != self._sleeping:
            async with connection(self._pool) as conn, conn.transaction():
                await conn.execute("SET LOCAL synchronous_commit = off")
                await conn.execute(statement("schedule/set_sleeping"), {"sleeping": sleeping})
            self._sleeping = sleeping

    def listen(self, kind: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` for every hint of a kind, in the event loop, from the next question until `close`."""
        self._wakes[kind] = wake

    async def close(self) -> None:
        """Stop listening."""
        self._wakes.clear()
        await self._watch.close()

    def _hear(self, kind: str | None) -> None:
        if kind is None:
            # Another process may have told producers something else meanwhile.
            self._sleeping = None
            for wake in list(self._wakes.values()):
                wake()
        elif kind in self._wakes:
            self._wakes[kind]()
