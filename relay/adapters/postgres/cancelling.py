"""Cancels events in the caller's transaction, through every target that may write them.

What the caller has added and not written yet is written first: it may be what is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from relay.adapters.postgres import captured_rows, on_asyncpg, on_django, on_psycopg
from relay.adapters.postgres.enqueue import numbered, refusals
from relay.adapters.postgres.targets import AsyncTarget, SyncTarget, check_connection, write, write_now
from relay.domain.errors import UnsupportedTarget

Found = Sequence[UUID]


def cancel(  # noqa: PLR0911 - one for each target
    target: SyncTarget | AsyncTarget, sql: str, parameters: dict[str, Any]
) -> Found | Awaitable[Found]:
    """Run the statement and return the ids that it answers. Raises UnsupportedTarget and NoTransaction."""
    given: Any = target
    if isinstance(given, scoped_session | async_scoped_session):
        given = given()
    if captured_rows.capture() is not None:
        raise UnsupportedTarget("there is no database to cancel in", field="target")
    write(given, [], None)  # refuses what is no target
    if isinstance(given, Session):
        write_now(given)
        return _by_sqlalchemy(given.connection(), sql, parameters)
    if isinstance(given, Connection):
        return _by_sqlalchemy(given, sql, parameters)
    if isinstance(given, AsyncSession | AsyncConnection):
        return _by_sqlalchemy_async(given, sql, parameters)
    if isinstance(given, psycopg.AsyncConnection):
        return _by_psycopg_async(given, sql, parameters)
    if isinstance(given, psycopg.Connection):
        return _by_psycopg(given, sql, parameters)
    if hasattr(given, "is_in_transaction"):
        return _by_asyncpg(given, sql, parameters)
    return on_django.do(given, lambda driver: _by_psycopg(driver, sql, parameters))


def _by_sqlalchemy(connection: Connection, sql: str, parameters: dict[str, Any]) -> Found:
    check_connection(connection)
    with refusals(connection.connection.driver_connection):
        if connection.dialect.driver == "asyncpg":
            found = connection.exec_driver_sql(*numbered(sql, parameters))
        else:
            found = connection.exec_driver_sql(sql, parameters)
        return [id for (id,) in found]


async def _by_sqlalchemy_async(target: AsyncSession | AsyncConnection, sql: str, parameters: Any) -> Found:
    def run(given: Any) -> Found:
        if isinstance(given, Session):
            write_now(given)
            given = given.connection()
        return _by_sqlalchemy(given, sql, parameters)

    return await target.run_sync(run)


def _by_psycopg(connection: psycopg.Connection[Any], sql: str, parameters: dict[str, Any]) -> Found:
    on_psycopg.check(connection)
    with refusals(connection), psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        return [id for (id,) in cursor.execute(sql.encode(), parameters).fetchall()]


async def _by_psycopg_async(connection: psycopg.AsyncConnection[Any], sql: str, parameters: Any) -> Found:
    on_psycopg.check(connection)
    with refusals(connection):
        async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(sql.encode(), parameters)
            return [id for (id,) in await cursor.fetchall()]


async def _by_asyncpg(target: Any, sql: str, parameters: dict[str, Any]) -> Found:
    on_asyncpg.check(target)
    await target.execute("SELECT")  # writes what was not awaited
    with refusals(getattr(target, "_con", target)):
        text, values = numbered(sql, parameters)
        return [UUID(str(row[0])) for row in await target.fetch(text, *values)]
