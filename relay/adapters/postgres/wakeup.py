"""Wake-up by LISTEN/NOTIFY: a hint that costs nothing under load (DESIGN §5).

A NOTIFY takes a lock of the whole database cluster at commit, so producers send one only while the
publisher has said that it sleeps. Polling is the guarantee; without this module everything still works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import psycopg

from relay.adapters.postgres.pool import Pool, connection, first_line
from relay.adapters.postgres.sql import statement

CHANNEL: Final = "relay_outbox"
_RECONNECT: Final = 1.0
#: How often the listening connection is probed, in seconds: a dead socket looks alive otherwise.
_PROBE: Final = 15.0


class Wakeup:
    """Asks whether anything is due, and listens for hints on a connection of its own."""

    def __init__(self, pool: Pool, url: str) -> None:
        self._pool = pool
        self._url = url
        self._task: asyncio.Task[None] | None = None
        self._sleeping: bool | None = None
        self.last_error: str | None = None

    async def due(self, limit: int) -> int:
        """How many events are waiting to be published, counted up to ``limit``. Raises DatabaseUnreachable."""
        async with connection(self._pool) as conn:
            cursor = await conn.execute(statement("outbox_due"), {"limit": limit})
            row = await cursor.fetchone()
        return int(row[0]) if row else 0

    async def set_sleeping(self, sleeping: bool) -> None:
        """Tell producers whether to send hints; does nothing when they were told already."""
        if sleeping != self._sleeping:
            async with connection(self._pool) as conn:
                await conn.execute("SET synchronous_commit = off")
                await conn.execute(statement("set_sleeping"), {"sleeping": sleeping})
                await conn.execute("RESET synchronous_commit")
            self._sleeping = sleeping

    def listen(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` for every hint, in the event loop, until `close`."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen(wake))

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _listen(self, wake: Callable[[], None]) -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, connect_timeout=3, application_name="jetrelay-wakeup"
                ) as conn:
                    await conn.execute(f"LISTEN {CHANNEL}")
                    # Another process may have told producers otherwise meanwhile.
                    self._sleeping = None
                    wake()
                    await self._hear(conn, wake)
            except psycopg.Error as error:
                self.last_error = first_line(error)
            await asyncio.sleep(_RECONNECT)

    async def _hear(self, conn: psycopg.AsyncConnection[object], wake: Callable[[], None]) -> None:
        while True:
            async for _ in conn.notifies(timeout=_PROBE):
                wake()
            await conn.execute("SELECT 1")
