"""Where a query gets its connection: from a shared pool, or one that is opened for a single command."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TypeAlias

import psycopg
from psycopg.errors import UndefinedColumn, UndefinedFunction, UndefinedTable

from relay.adapters.postgres.pool import AsyncConnection, Connection, Pool, connection
from relay.adapters.postgres.unreachable import reaching, reason
from relay.domain.errors import DatabaseUnreachable
from relay.queries import SchemaMissing

#: Lends a connection for the length of a block. Raises DatabaseUnreachable and SchemaMissing.
Source: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]


def pooled(pool: Pool) -> Source:
    """Lend connections of a pool."""

    @asynccontextmanager
    async def lend() -> AsyncIterator[Connection]:
        with migrated():
            async with connection(pool) as conn:
                yield conn

    return lend


@asynccontextmanager
async def connected(url: str, name: str) -> AsyncIterator[Source]:
    """Open one connection for a command and lend it. Raises DatabaseUnreachable."""
    with reaching():
        conn = await AsyncConnection.connect(
            url, autocommit=True, connect_timeout=5, application_name=f"jetrelay-{name}"
        )

    @asynccontextmanager
    async def lend() -> AsyncIterator[Connection]:
        with migrated():
            try:
                yield conn
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                raise DatabaseUnreachable(reason(error)) from error

    async with conn:
        yield lend


@contextmanager
def migrated() -> Iterator[None]:
    """Turn PostgreSQL's errors about missing tables, columns or functions into SchemaMissing."""
    try:
        yield
    except (UndefinedTable, UndefinedColumn, UndefinedFunction) as error:
        raise SchemaMissing(
            "the database lacks tables or functions of the relay", hint="run: relay db upgrade"
        ) from error
