"""The sessions and connections of applications, through which rows are written in an open transaction.

Rows that are added to a psycopg connection are written at once; for those of SQLAlchemy see `sqlalchemy_targets`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from relay.adapters.postgres import sqlalchemy_targets
from relay.adapters.postgres.enqueue import Ready, Row, Write, refusals, statements
from relay.domain.errors import NoTransaction, UnsupportedTarget

SyncTarget: TypeAlias = Session | scoped_session[Any] | Connection | psycopg.Connection[Any]
AsyncTarget: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any]
Value = TypeVar("Value")
Other = TypeVar("Other")


def _insert(connection: psycopg.Connection[Any], rows: Sequence[Row]) -> None:
    """Write ``rows``. Raises NoTransaction and what `refusals` raises."""
    if not rows:
        return
    _check(connection)
    # A plain cursor, because the connection's own cursor class may use another parameter style.
    with refusals(), psycopg.Cursor(connection) as cursor:
        for sql, parameters in statements(rows):
            cursor.execute(sql, parameters)


async def _insert_async(connection: psycopg.AsyncConnection[Any], rows: Sequence[Row]) -> None:
    """Write ``rows``. Raises NoTransaction and what `refusals` raises."""
    if not rows:
        return
    _check(connection)
    with refusals():
        async with psycopg.AsyncCursor(connection) as cursor:
            for sql, parameters in statements(rows):
                await cursor.execute(sql, parameters)


def _check(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a connection that would commit the row by itself."""
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    if connection.autocommit and idle:
        raise NoTransaction(
            "the connection is in autocommit mode and no transaction is open",
            field="target",
            hint="use `with connection.transaction():` around the change and the event",
        )


_WRITERS: Final[Mapping[type, Write]] = {
    **sqlalchemy_targets.WRITERS,
    psycopg.Connection: _insert,
    psycopg.AsyncConnection: _insert_async,
}


def write(target: SyncTarget | AsyncTarget, rows: Sequence[Row], answer: Value) -> Value | Awaitable[Value]:
    """Record ``rows`` in the open transaction of ``target`` and return ``answer``, awaitable for an async target.

    A session keeps the rows until it commits. A connection writes them at once, in one statement for each kind of
    row. Raises UnsupportedTarget and NoTransaction.
    """

    def answering(_: None) -> Value:
        return answer

    for base in type(target).__mro__:
        if base in _WRITERS:
            written = _WRITERS[base](target, rows)
            return answer if written is None else then(written, answering)
    raise UnsupportedTarget(
        f"{type(target).__name__} is not a session or connection",
        field="target",
        hint="pass a SQLAlchemy Session, AsyncSession, Connection, AsyncConnection or a psycopg connection",
    )


def then(value: Value | Awaitable[Value], change: Callable[[Value], Other]) -> Other | Awaitable[Other]:
    """Apply ``change`` to what `write` returned."""
    if isinstance(value, Ready):
        return Ready(change(value.value))
    if isinstance(value, Awaitable):
        return _change(value, change)
    return change(value)


async def _change(value: Awaitable[Value], change: Callable[[Value], Other]) -> Other:
    return change(await value)
