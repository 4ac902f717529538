"""The transaction of a Python function: its writes and the end of its row commit together, or not at all.

psycopg's own transaction block is the outermost, and SQLAlchemy rides on it: inside the block psycopg
refuses a commit, so a handler cannot commit its half alone. A session works in a savepoint of its own;
its commit and rollback act on that savepoint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import psycopg
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from relay.adapters.postgres.pool import CONNECTION
from relay.adapters.postgres.shared import AsyncSharedTransaction, AsyncTransaction, SharedTransaction, Transaction
from relay.adapters.postgres.sql import statement
from relay.domain.errors import ClaimLost
from relay.failpoints import reach

_DIALECT: Final = "postgresql+psycopg://"


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
            "pool_pre_ping": True,
            # What a handler writes is nobody else's to read.
            "hide_parameters": True,
        }

    @cached_property
    def _engine(self) -> Engine:
        def connect() -> psycopg.Connection[Any]:
            return psycopg.connect(self._url, **self._connection)

        return create_engine(_DIALECT, creator=connect, **self._pool)

    @cached_property
    def _async_engine(self) -> AsyncEngine:
        async def connect() -> psycopg.AsyncConnection[Any]:
            return await psycopg.AsyncConnection.connect(self._url, **self._connection)

        return create_async_engine(_DIALECT, async_creator=connect, **self._pool)

    @contextmanager
    def settle(self, settlement: Settlement) -> Iterator[Transaction]:
        """Run the block in a transaction that ends the claimed row when it commits.

        Raises ClaimLost, and rolls back, when the claim is not ours at the end. Who stops waiting for a thread
        needs do no more than settle the row in another way: that ends the claim.
        """
        with self._engine.connect() as outer, outer.begin():
            driver = _driver(outer)
            with driver.transaction(), psycopg.Cursor(driver) as cursor:
                cursor.execute(statement("begin_handling"), self._limits(settlement.limit))
                with Session(outer, join_transaction_mode="create_savepoint") as session:
                    yield Transaction(session, driver)
                    session.commit()
                cursor.execute(statement(settlement.statement), settlement.parameters)
                _check(cursor.rowcount)
                reach("after_mark_before_handler_commit")

    @asynccontextmanager
    async def settle_async(self, settlement: Settlement) -> AsyncIterator[AsyncTransaction]:
        """Do the same for a coroutine. Who gives up cancels it."""
        async with self._async_engine.connect() as outer, outer.begin():
            driver = await _async_driver(outer)
            async with driver.transaction(), psycopg.AsyncCursor(driver) as cursor:
                await cursor.execute(statement("begin_handling"), self._limits(settlement.limit))
                async with AsyncSession(outer, join_transaction_mode="create_savepoint") as session:
                    yield AsyncTransaction(session, driver)
                    await session.commit()
                await cursor.execute(statement(settlement.statement), settlement.parameters)
                _check(cursor.rowcount)
                reach("after_mark_before_handler_commit")

    def _limits(self, limit: timedelta | None = None) -> dict[str, str]:
        limit = limit or self._limit
        return {"limit": str(max(1, int(limit / timedelta(milliseconds=1))))}

    @contextmanager
    def share(self) -> Iterator[SharedTransaction]:
        """Run the block in a transaction for several functions; it settles their rows before it ends."""
        with self._engine.connect() as outer, outer.begin():
            driver = _driver(outer)
            with driver.transaction(), psycopg.Cursor(driver) as cursor:
                cursor.execute(statement("begin_handling"), self._limits())
                yield SharedTransaction(outer, driver, cursor)

    @asynccontextmanager
    async def share_async(self) -> AsyncIterator[AsyncSharedTransaction]:
        """Do the same for coroutines."""
        async with self._async_engine.connect() as outer, outer.begin():
            driver = await _async_driver(outer)
            async with driver.transaction(), psycopg.AsyncCursor(driver) as cursor:
                await cursor.execute(statement("begin_handling"), self._limits())
                yield AsyncSharedTransaction(outer, driver, cursor)

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


def _driver(connection: Connection) -> psycopg.Connection[Any]:
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


async def _async_driver(connection: AsyncConnection) -> psycopg.AsyncConnection[Any]:
    driver = (await connection.get_raw_connection()).driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)
    return driver


def _check(rowcount: int) -> None:
    if rowcount != 1:
        raise ClaimLost("another worker holds the row by now; what was written is rolled back")
