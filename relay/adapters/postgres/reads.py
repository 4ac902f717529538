"""The read models behind `relay.queries` (SDS-047 §5), one per context's database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import psycopg
from psycopg.rows import class_row

from relay.adapters.postgres.pool import Connection, Pool, connection
from relay.adapters.postgres.source import migrated
from relay.adapters.postgres.sql import statement
from relay.adapters.postgres.unreachable import reaching, reason
from relay.domain.backlogs import (
    Backlogs,
    InboxBacklog,
    OutboxBacklog,
    Overdue,
    SubscriptionBacklog,
    TaskBacklog,
    Waiting,
)
from relay.domain.errors import DatabaseUnreachable

Row = TypeVar("Row")


class PostgresBacklogReader:
    """BacklogReader on a pool, which others may share, or on a connection that nobody else uses."""

    def __init__(self, source: Pool | Connection) -> None:
        self._source = source

    async def outbox_backlog(self) -> OutboxBacklog:
        """QRY-050."""
        async with self._reading() as conn:
            return await _one(conn, "outbox/backlog", OutboxBacklog)

    async def inbox_backlog(self) -> InboxBacklog:
        """QRY-051."""
        async with self._reading() as conn:
            return await _one(conn, "inbox/backlog", InboxBacklog)

    async def backlogs(self) -> Backlogs:
        """Return the backlogs for the metrics."""
        async with self._reading() as conn:
            return Backlogs(
                outbox=await _one(conn, "outbox/backlog", OutboxBacklog),
                overdue=await _one(conn, "outbox/overdue", Overdue),
                inbox=await _all(conn, "inbox/backlogs", SubscriptionBacklog),
                tasks=await _one(conn, "tasks/backlog", TaskBacklog),
                incidents=await _all(conn, "incidents/open", Waiting),
                parked=await _all(conn, "inbox/parked_backlog", Waiting),
            )

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Connection]:
        with migrated():
            async with self._connection() as conn:
                yield conn

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        if not isinstance(self._source, psycopg.AsyncConnection):
            async with connection(self._source) as conn:
                yield conn
            return
        try:
            yield self._source
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise DatabaseUnreachable(reason(error)) from error


async def _all(conn: Connection, name: str, result: type[Row]) -> Sequence[Row]:
    async with conn.cursor(row_factory=class_row(result)) as cursor:
        await cursor.execute(statement(name))
        return await cursor.fetchall()


async def _one(conn: Connection, name: str, result: type[Row]) -> Row:
    [row] = await _all(conn, name, result)  # an aggregate has exactly one row
    return row


@asynccontextmanager
async def open_backlog_reader(url: str) -> AsyncIterator[PostgresBacklogReader]:
    """Open a reader on a connection of its own, for a command that reads once. Raises DatabaseUnreachable."""
    with reaching():
        conn = await psycopg.AsyncConnection.connect(
            url, autocommit=True, connect_timeout=5, application_name="jetrelay-backlog"
        )
    async with conn:
        yield PostgresBacklogReader(conn)
