"""Parked keys as an operator sees and releases them (DESIGN §6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from psycopg.rows import class_row

from relay.adapters.postgres.incidents import IncidentWrites
from relay.adapters.postgres.source import Source
from relay.adapters.postgres.sql import statement
from relay.commands.parked import ParkedCandidate, ParkedKey


@dataclass(slots=True)
class _Change(IncidentWrites):
    """The keys of one operator's transaction."""

    candidates: Sequence[ParkedCandidate]

    async def release(self, keys: Sequence[ParkedCandidate]) -> None:
        parameters = {"subscriptions": [it.subscription for it in keys], "keys": [it.key for it in keys]}
        await self.conn.execute(statement("inbox/release_keys"), parameters)


class PostgresParkedKeys:
    """Changes rows only. The sweep finds the messages that may run then."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def list(self) -> Sequence[ParkedKey]:
        async with self._source() as conn, conn.cursor(row_factory=class_row(ParkedKey)) as cursor:
            await cursor.execute(statement("inbox/parked_keys"))
            return await cursor.fetchall()

    def change(self, keys: Sequence[str] | None, subscription: str | None) -> AbstractAsyncContextManager[_Change]:
        return self._change(keys, subscription)

    @asynccontextmanager
    async def _change(self, keys: Sequence[str] | None, subscription: str | None) -> AsyncIterator[_Change]:
        parameters = {"keys": None if keys is None else list(keys), "subscription": subscription}
        async with self._source() as conn, conn.transaction():
            async with conn.cursor(row_factory=class_row(ParkedCandidate)) as cursor:
                await cursor.execute(statement("inbox/lock_parked"), parameters)
                found = await cursor.fetchall()
            yield _Change(conn, found)
