"""The service's own transaction around one call: first the dedupe row, then the handler's writes.

The session joins the transaction by a savepoint. So a handler that commits or rolls back itself can neither
commit half of its work nor lose the dedupe row.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

import anyio
import anyio.to_thread
from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from relay.adapters.postgres.processed_events import Claim, claim, prune
from relay.domain.errors import NoTransaction, Outage, OutboxFull, WriteConflict

Session_co = TypeVar("Session_co", bound=Session | AsyncSession, covariant=True)
Value = TypeVar("Value")

#: SQLSTATE classes of errors that a retry can solve: connection, transaction conflict, resources, operator,
#: system. Also the codes for locks that are not available and for a server that became a replica.
_PASSING: Final = ("08", "40", "53", "57", "58", "55P03", "25006")
_SESSION: Final[dict[str, Any]] = {"join_transaction_mode": "create_savepoint", "expire_on_commit": False}
#: The number of threads in which calls wait for a connection. Handlers run in other threads: otherwise waiting
#: calls could take all threads, and none would be left to finish a call and release its connection.
_WAITING_THREADS: Final = 100


class Transaction(Protocol[Session_co]):
    """One call's transaction."""

    async def begin(self, table: Table, handler: str, message_id: UUID) -> Claim:
        """Open the transaction and insert the dedupe row."""

    @property
    def session(self) -> Session_co:
        """The session for the handler's writes."""

    async def commit(self) -> None:
        """Flush the session and commit everything."""

    async def roll_back(self) -> None:
        """Roll back what is not committed, and release the connection."""


class SyncTransaction:
    """A transaction on an ``Engine``. Calls that may block run in a thread."""

    def __init__(self, engine: Engine, waiting: anyio.CapacityLimiter) -> None:
        self._engine, self._waiting = engine, waiting
        self._connection: Connection | None = None
        self.session = Session()

    async def begin(self, table: Table, handler: str, message_id: UUID) -> Claim:
        """See Transaction."""
        return await self._run(lambda: self._begin(table, handler, message_id), self._waiting)

    def _begin(self, table: Table, handler: str, message_id: UUID) -> Claim:
        self._connection = self._engine.connect()
        self._connection.begin()
        _check(self._connection)
        self.session = Session(self._connection, **_SESSION)
        return claim(self._connection, table, handler, message_id)

    async def commit(self) -> None:
        """See Transaction."""
        await self._run(self._commit)

    def _commit(self) -> None:
        assert self._connection is not None
        self.session.commit()
        self._connection.commit()
        self._close()

    async def roll_back(self) -> None:
        """See Transaction."""
        if self._connection is not None:
            with anyio.CancelScope(shield=True):
                await self._run(self._close)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        try:
            self.session.close()
        finally:
            if connection is not None:
                connection.close()

    async def _run(self, call: Callable[[], Value], limiter: anyio.CapacityLimiter | None = None) -> Value:
        return await anyio.to_thread.run_sync(call, limiter=limiter)


class AsyncTransaction:
    """A transaction on an ``AsyncEngine``."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._connection: AsyncConnection | None = None
        self.session = AsyncSession()

    async def begin(self, table: Table, handler: str, message_id: UUID) -> Claim:
        """See Transaction."""
        self._connection = await self._engine.connect()
        await self._connection.begin()
        await self._connection.run_sync(_check)
        self.session = AsyncSession(self._connection, **_SESSION)
        return await self._connection.run_sync(claim, table, handler, message_id)

    async def commit(self) -> None:
        """See Transaction."""
        assert self._connection is not None
        await self.session.commit()
        await self._connection.commit()
        await self._close()

    async def roll_back(self) -> None:
        """See Transaction."""
        if self._connection is not None:
            with anyio.CancelScope(shield=True):
                await self._close()

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        try:
            await self.session.close()
        finally:
            if connection is not None:
                await connection.close()


def waiting_room() -> anyio.CapacityLimiter:
    """The limit of threads in which calls wait for a connection."""
    return anyio.CapacityLimiter(_WAITING_THREADS)


async def prune_engine(engine: Engine | AsyncEngine, table: Table, keep: timedelta) -> int:
    """Prune the table in its own transaction."""
    if isinstance(engine, AsyncEngine):
        async with engine.begin() as connection:
            return await connection.run_sync(prune, table, keep)

    def run() -> int:
        with engine.begin() as connection:
            return prune(connection, table, keep)

    return await anyio.to_thread.run_sync(run)


def is_outage(error: BaseException) -> bool:
    """Whether a retry can solve this: the database is unavailable or full, a deadlock, a time-out."""
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None) or ""
        passing = isinstance(error, OperationalError | InterfaceError) or state.startswith(_PASSING)
        return passing or error.connection_invalidated
    return isinstance(error, WriteConflict | OutboxFull | Outage | PoolTimeout | ConnectionError | TimeoutError)


def _check(connection: Connection) -> None:
    if getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise NoTransaction(
            "the engine is in autocommit mode", field="engine", hint="use an engine without AUTOCOMMIT"
        )
