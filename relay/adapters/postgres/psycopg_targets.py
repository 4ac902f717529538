"""Events and tasks added to a psycopg connection are written at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg
import psycopg.pq

from relay.adapters.postgres.enqueue import Row, Write, statements
from relay.adapters.postgres.refusals import refusals
from relay.domain.errors import NoTransaction


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
    idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    if connection.autocommit and idle:
        raise NoTransaction(
            "the connection is in autocommit mode and no transaction is open",
            field="target",
            hint="use `with connection.transaction():` around the change and the event",
        )


WRITERS: Final[Mapping[type, Write]] = {psycopg.Connection: _insert, psycopg.AsyncConnection: _insert_async}
