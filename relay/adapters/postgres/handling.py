"""The transaction of a Python function: its writes and the end of its row commit together, or not at all.

psycopg's own transaction block is the outermost, and SQLAlchemy rides on it: inside the block psycopg
refuses a commit, so a handler cannot commit its half alone. A session works in a savepoint of its own;
its commit and rollback act on that savepoint.
"""

from __future__ import annotations

import select
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, TypeAlias
from uuid import UUID

import psycopg
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy import event as listen
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from relay.adapters.postgres.lazy import LazyAsyncConnection, LazyConnection
from relay.adapters.postgres.pool import CONNECTION
from relay.adapters.postgres.shared import AsyncSharedTransaction, AsyncTransaction, SharedTransaction, Transaction
from relay.adapters.postgres.sql import statement
from relay.domain.errors import ClaimLost
from relay.failpoints import reach

_DIALECT: Final = "postgresql+psycopg://"

_Begun: TypeAlias = tuple[Connection, LazyConnection, psycopg.Cursor[Any]]
_BegunAsync: TypeAlias = tuple[AsyncConnection, LazyAsyncConnection, psycopg.AsyncCursor[Any]]


@dataclass(frozen=True, slots=True)
class Settlement:
    """The statement that ends the claimed row of a transaction, fenced by the token it carries.

    ``limit``: for how long this transaction may idle, where it is not what the others get.
    """

    statement: str
    parameters: Mapping[str, Any]
    limit: timedelta | None = None

    @classmethod
    def of_message(cls, message_id: UUID, token: UUID) -> Settlement:
        """Mark an inbox row as processed."""
        return cls("mark_processed", {"message_id": message_id, "token": token})

    @classmethod
    def of_task(cls, task_id: UUID, token: UUID, limit: timedelta) -> Settlement:
        """Mark a task as completed."""
        return cls("complete_task", {"id": task_id, "token": token}, limit)


class HandlerTransactions:
    """Transactions on a context's database, at most ``size`` at once of either kind.

    ``limit``: for how long a transaction may idle, and a statement take. A worker that is paused in a
    handler holds the locks of its rows no longer than that.
    """

    def __init__(self, url: str, *, limit: timedelta, size: int, application_name: str) -> None:
        self._url = url
        self._limit = limit
        self._connection = {**CONNECTION, "autocommit": False, "application_name": application_name}
        self._pool: dict[str, Any] = {
            "pool_size": size,
            "max_overflow": 0,
            "pool_timeout": limit.total_seconds(),
            # What a handler writes is nobody else's to read.
            "hide_parameters": True,
        }

    @cached_property
    def _engine(self) -> Engine:
        def connect() -> LazyConnection:
            return LazyConnection.connect(self._url, **self._connection)

        engine = create_engine(_DIALECT, creator=connect, **self._pool)
        listen.listen(engine, "checkout", _check_alive)
        return engine

    @cached_property
    def _async_engine(self) -> AsyncEngine:
        async def connect() -> LazyAsyncConnection:
            return await LazyAsyncConnection.connect(self._url, **self._connection)

        engine = create_async_engine(_DIALECT, async_creator=connect, **self._pool)
        listen.listen(engine.sync_engine, "checkout", _check_alive)
        return engine

    @contextmanager
    def settle(self, settlement: Settlement) -> Iterator[Transaction]:
        """Run the block in a transaction that ends the claimed row when it commits.

        Raises ClaimLost, and rolls back, when the claim is not ours at the end. Who stops waiting for a thread
        needs do no more than settle the row in another way: that ends the claim.
        """
        with self._begun(settlement.limit) as (outer, driver, cursor):
            with Transaction(outer, driver).used() as transaction:
                yield transaction
            cursor.execute(statement(settlement.statement), settlement.parameters)
            _check(cursor.rowcount)
            reach("after_mark_before_handler_commit")

    @asynccontextmanager
    async def settle_async(self, settlement: Settlement) -> AsyncIterator[AsyncTransaction]:
        """Do the same for a coroutine. Who gives up cancels it."""
        async with self._begun_async(settlement.limit) as (outer, driver, cursor):
            async with AsyncTransaction(outer, driver).used() as transaction:
                yield transaction
            await cursor.execute(statement(settlement.statement), settlement.parameters)
            _check(cursor.rowcount)
            reach("after_mark_before_handler_commit")

    @contextmanager
    def _begun(self, limit: timedelta | None = None) -> Iterator[_Begun]:
        """Begin a transaction and set its limits, in one round trip."""
        with self._engine.connect() as outer, outer.begin(), ExitStack() as stack:
            driver = _driver(outer)
            cursor = stack.enter_context(psycopg.Cursor(driver))
            with driver.pipeline():
                stack.enter_context(psycopg.Transaction(driver))
                cursor.execute(statement("begin_handling"), self._limits(limit))
            yield outer, driver, cursor

    @asynccontextmanager
    async def _begun_async(self, limit: timedelta | None = None) -> AsyncIterator[_BegunAsync]:
        """Do the same for a coroutine."""
        async with self._async_engine.connect() as outer, outer.begin(), AsyncExitStack() as stack:
            driver = await _async_driver(outer)
            cursor = await stack.enter_async_context(psycopg.AsyncCursor(driver))
            async with driver.pipeline():
                await stack.enter_async_context(psycopg.AsyncTransaction(driver))
                await cursor.execute(statement("begin_handling"), self._limits(limit))
            yield outer, driver, cursor

    def _limits(self, limit: timedelta | None = None) -> dict[str, str]:
        limit = limit or self._limit
        return {"limit": str(max(1, int(limit / timedelta(milliseconds=1))))}

    @contextmanager
    def share(self) -> Iterator[SharedTransaction]:
        """Run the block in a transaction for several functions; it settles their rows before it ends."""
        with self._begun() as begun:
            yield SharedTransaction(*begun)

    @asynccontextmanager
    async def share_async(self) -> AsyncIterator[AsyncSharedTransaction]:
        """Do the same for coroutines."""
        async with self._begun_async() as begun:
            yield AsyncSharedTransaction(*begun)

    def end_session(self, pid: int) -> None:
        """End another transaction of ours, and its connection with it. Does nothing if that cannot be done."""
        with suppress(psycopg.Error), psycopg.connect(self._url, **self._connection) as connection:
            connection.execute(statement("end_session"), {"pid": pid})

    async def close(self) -> None:
        """Close the connections."""
        if "_engine" in self.__dict__:
            self._engine.dispose()
        if "_async_engine" in self.__dict__:
            await self._async_engine.dispose()


def _check_alive(_connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
    """Replace a connection on which the server has said something while it lay idle: as a rule, farewell.

    A look at the socket; asking the server would cost every message a round trip.
    """
    driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | None = record.driver_connection
    if driver is None or driver.closed or _has_input(driver.fileno()):
        raise DisconnectionError("the server has closed an idle connection")


def _has_input(socket: int) -> bool:
    look = select.poll()
    look.register(socket, select.POLLIN)
    return bool(look.poll(0))


def _driver(connection: Connection) -> LazyConnection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, LazyConnection)
    return driver


async def _async_driver(connection: AsyncConnection) -> LazyAsyncConnection:
    driver = (await connection.get_raw_connection()).driver_connection
    assert isinstance(driver, LazyAsyncConnection)
    return driver


def _check(rowcount: int) -> None:
    if rowcount != 1:
        raise ClaimLost("another worker holds the row by now; what was written is rolled back")
