"""Outbox events as an operator sees and changes them (building block 2.5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from psycopg.rows import dict_row

from relay.adapters.postgres.audit import Audit
from relay.adapters.postgres.source import Source
from relay.adapters.postgres.sql import statement
from relay.commands.operate import EventState
from relay.queries import EventFilter, OutboxEventDetail, OutboxEventView, Page

_STATUSES: Final = ("published", "dead", "failing", "waiting")


@dataclass(slots=True)
class _Change(Audit):
    """The events of one operator's transaction."""

    events: Sequence[EventState]

    async def retry(self, ids: Sequence[str]) -> None:
        await self.conn.execute(statement("outbox/retry"), {"ids": list(ids)})

    async def replay(self, ids: Sequence[str]) -> None:
        await self.conn.execute(statement("outbox/replay"), {"ids": list(ids)})


class PostgresOutboxOperations:
    """Changes rows only. The relay's publishers do the rest, with their locks and retries."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def find(self, wanted: EventFilter, limit: int) -> Page[OutboxEventView]:
        """See the reader."""
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement("outbox/events"), _parameters(wanted, limit))
            rows = await cursor.fetchall()
        return Page([_view(row) for row in rows], rows[0]["total"] if rows else 0)

    async def get(self, id: UUID) -> OutboxEventDetail | None:
        """See the reader."""
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement("outbox/event"), {"id": id})
            row = await cursor.fetchone()
            await cursor.execute(statement("outbox/history"), {"id": str(id)})
            history = await cursor.fetchall()
        return None if row is None else OutboxEventDetail(_view(row), row["headers"], row["payload"], history)

    def change(self, ids: Sequence[UUID]) -> AbstractAsyncContextManager[_Change]:
        return self._change(ids)

    @asynccontextmanager
    async def _change(self, ids: Sequence[UUID]) -> AsyncIterator[_Change]:
        async with self._source() as conn, conn.transaction():
            cursor = await conn.execute(statement("outbox/lock"), {"ids": list(ids)})
            yield _Change(conn, [EventState(*row) for row in await cursor.fetchall()])


def _parameters(wanted: EventFilter, limit: int) -> dict[str, Any]:
    return {
        **{status: status in wanted.statuses for status in _STATUSES},
        "ids": None if wanted.ids is None else list(wanted.ids),
        "event_type": wanted.event_type,
        "aggregate_type": wanted.aggregate_type,
        "aggregate_id": wanted.aggregate_id,
        "correlation_id": wanted.correlation_id,
        "since": wanted.since,
        "until": wanted.until,
        "error": wanted.error,
        "limit": limit,
    }


def _view(row: Mapping[str, Any]) -> OutboxEventView:
    return OutboxEventView(**{name: row[name] for name in OutboxEventView.__dataclass_fields__})
