"""The read models behind `relay.queries` (SDS-047 §5), one per context's database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import psycopg
from psycopg.errors import UndefinedColumn, UndefinedTable
from psycopg.rows import class_row

from relay.adapters.postgres.pool import Connection, Pool, connection
from relay.adapters.postgres.sql import statement
from relay.adapters.postgres.unreachable import reaching, reason
from relay.domain.errors import DatabaseUnreachable
from relay.queries import InboxBacklog, OutboxBacklog, SchemaMissing

Row = TypeVar("Row", OutboxBacklog, InboxBacklog)


class PostgresBacklogReader:
    """BacklogReader on a pool, which may be shared, or on one connection, which must not be in use elsewhere."""

    def __init__(self, source: Pool | Connection) -> None:
        self._source = source

    async def outbox_backlog(self) -> OutboxBacklog:
        """QRY-050."""
        return await self._read("outbox_backlog", OutboxBacklog)

    async def inbox_backlog(self) -> InboxBacklog:
        """QRY-051."""
        return await self._read("inbox_backlog", InboxBacklog)

    async def _read(self, name: str, result: type[Row]) -> Row:
        try:
            async with self._connection() as conn, conn.cursor(row_factory=class_row(result)) as cursor:
                await cursor.execute(statement(name))
                row = await cursor.fetchone()
        except (UndefinedTable, UndefinedColumn) as error:
            raise SchemaMissing("the database lacks tables of the relay", hint="run: relay db upgrade") from error
        assert row is not None  # an aggregate has exactly one row
        return row

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


@asynccontextmanager
async def open_backlog_reader(url: str) -> AsyncIterator[PostgresBacklogReader]:
    """Open a reader on a connection of its own, for a command that reads once. Raises DatabaseUnreachable."""
    with reaching():
        conn = await psycopg.AsyncConnection.connect(
            url, autocommit=True, connect_timeout=5, application_name="jetrelay-backlog"
        )
    async with conn:
        yield PostgresBacklogReader(conn)
