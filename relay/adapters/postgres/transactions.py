"""The transaction of a Python function: its writes and the end of its row commit together, or not at all.

The connection is lent: a handler can neither commit nor roll back. So it cannot commit its writes without the row.
A session works in a savepoint of its own, and its commit and rollback act on that savepoint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, TypeAlias

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection

from relay.adapters.postgres.budget import Budget
from relay.adapters.postgres.failures import reached
from relay.adapters.postgres.function_connections import (
    AsyncFunctionTransaction,
    FunctionConnection,
    FunctionConnections,
    FunctionTransaction,
    Settlement,
    limiting,
)
from relay.adapters.postgres.lazy_transactions import LazyAsyncConnection
from relay.adapters.postgres.lent_sessions import resetting
from relay.adapters.postgres.pipeline import Command
from relay.adapters.postgres.pool import CONNECTION, POOLED, dial
from relay.adapters.postgres.shared_transactions import AsyncSharedTransaction, SharedTransaction
from relay.adapters.postgres.sql import statement
from relay.domain.errors import ClaimLost, Outage
from relay.failpoints import reach

__all__ = ["HandlerTransactions", "RowTransaction", "Settlement"]

#: A transaction that has locked a table for so long may have stopped a statement.
_LONG_LOCK: Final = timedelta(milliseconds=500)
_BegunAsync: TypeAlias = tuple[AsyncConnection, LazyAsyncConnection, psycopg.AsyncCursor[Any]]


class RowTransaction:
    """The transaction of a plain function whose row is claimed.

    Either `settle` it once, in any thread, or `release` it. The transaction begins when the function first reads
    or writes in it. If the function does neither, no transaction begins. ``borrowed``: the connection that it
    uses; by default it borrows one.
    """

    def __init__(
        self, lender: FunctionConnections, limit: timedelta, borrowed: FunctionConnection | None = None
    ) -> None:
        self._connections = lender
        self._limit = limit
        # Only one thread can take it out: the one that calls the function, or the one that gave up before.
        self._held = [borrowed]

    @contextmanager
    def settle(self, settlement: Settlement) -> Iterator[FunctionTransaction]:
        """Run the block in the transaction, which ends the row when it commits.

        A transaction that never begins does not end the row: the block's transaction has ``settled`` false.
        Raises ClaimLost, and rolls back, when the claim is not ours at the end. To stop waiting for a thread, it
        is enough to settle the row in another way.
        """
        try:
            borrowed = self._held.pop() or self._connections.borrow()
        except IndexError:
            raise ClaimLost("the time was up before the function began") from None
        try:
            borrowed.begin_late(self._limit)
            with FunctionTransaction(borrowed.outer, borrowed.driver) as transaction:
                yield transaction
            if borrowed.begun:
                borrowed.settle(settlement)
            transaction.settled = borrowed.begun
        finally:
            self._connections.give_back(borrowed)

    def release(self) -> None:
        """Give the connection back, unless `settle` has taken it. The row stays claimed."""
        with suppress(IndexError):
            if (borrowed := self._held.pop()) is not None:
                self._connections.give_back(borrowed)


class HandlerTransactions:
    """Transactions on a context's database. The caller limits how many there are at the same time.

    ``limit``: how long a transaction may idle and a statement may take. If a worker pauses in a handler, its locks
    end after this time. ``budget``: the connections of the process; by default a budget of its own.
    ``pooler``: whether the address leads to a pooler in transaction mode. ``connections``: of others for the same
    kind of functions, to share them.
    """

    def __init__(
        self,
        url: str,
        *,
        limit: timedelta,
        application_name: str,
        budget: Budget | None = None,
        pooler: bool = False,
        connections: FunctionConnections | None = None,
    ) -> None:
        self._url = url
        self._limit = limit
        usual = POOLED if pooler else CONNECTION
        self._connection = {**usual, "autocommit": False, "application_name": application_name}
        self._connections = connections or FunctionConnections(url, self._connection, budget or Budget())

    @property
    def connections(self) -> FunctionConnections:
        """The connections, which others may share."""
        return self._connections

    @property
    def idle(self) -> int:
        """How many connections wait for a function."""
        return self._connections.idle

    def claim(
        self, claim: Command, *, keep: bool, limit: timedelta | None = None
    ) -> tuple[dict[str, Any], RowTransaction] | None:
        """Claim a row for a plain function; None when it is not free. The claim commits on its own.

        ``keep``: keep the connection for the function. Without this, the claim would count an attempt, and then
        the function might get no connection. Raises DatabaseUnreachable.
        """
        with reached():
            borrowed = self._connections.borrow()
            try:
                rows = borrowed.run(claim)
            except BaseException:
                self._connections.give_back(borrowed)
                raise
        transaction = RowTransaction(self._connections, limit or self._limit, borrowed)
        if not rows or not keep:
            transaction.release()
        return (rows[0], transaction) if rows else None

    def for_row(self, limit: timedelta | None = None) -> RowTransaction:
        """Return the transaction of a row that is claimed already.

        ``limit``: how long this transaction may idle, if it differs from the usual limit.
        """
        return RowTransaction(self._connections, limit or self._limit)

    def run(self, command: Command) -> list[dict[str, Any]]:
        """Run one of our statements by itself and return its rows. Raises DatabaseUnreachable."""
        with reached(), self._connections.lending() as borrowed:
            return borrowed.run(command)

    def table_is_locked(self) -> bool:
        """Whether another program has locked a table of the application for a while. False if nobody knows."""
        with suppress(Outage, psycopg.Error):
            return bool(self.run(("server/table_locked", {"longer": _LONG_LOCK})))
        return False

    @asynccontextmanager
    async def settle_async(self, settlement: Settlement) -> AsyncIterator[AsyncFunctionTransaction]:
        """Run a coroutine's block in a transaction that ends the row. Raises ClaimLost. To give up, cancel it."""
        async with self._begun_async(settlement.limit) as (outer, driver, cursor):
            async with AsyncFunctionTransaction(outer, driver).used() as transaction:
                yield transaction
            driver.kept = None
            try:
                for name, parameters in driver.home:
                    await cursor.execute(statement(name), parameters)
                await cursor.execute(statement(settlement.statement), settlement.parameters)
            except psycopg.errors.DivisionByZero:
                raise ClaimLost("another worker has the row now; what was written is rolled back") from None
            reach("after_mark_before_handler_commit")

    @asynccontextmanager
    async def _begun_async(self, limit: timedelta | None = None) -> AsyncIterator[_BegunAsync]:
        """Begin a transaction and set its limits, in one round trip."""
        async with AsyncExitStack() as stack:
            borrowed = await stack.enter_async_context(self._connections.lending_async())
            outer = await stack.enter_async_context(borrowed.engine.connect())
            await stack.enter_async_context(outer.begin())
            driver = borrowed.driver
            cursor = await stack.enter_async_context(psycopg.AsyncCursor(driver))
            async with driver.pipeline():
                await stack.enter_async_context(psycopg.AsyncTransaction(driver))
                name, parameters = limiting(limit or self._limit, local=True)
                await cursor.execute(statement(name), parameters)
            yield outer, driver, cursor

    @contextmanager
    def share(self) -> Iterator[SharedTransaction]:
        """Run the block in a transaction for several functions. The block settles their rows before it ends."""
        with self._connections.lending() as borrowed:
            borrowed.begin(self._limit)
            with psycopg.Cursor(borrowed.driver) as cursor:
                reset = resetting(borrowed.driver, self._limit)
                yield SharedTransaction(borrowed.outer(), borrowed.driver, cursor, borrowed.pid, reset)
            borrowed.commit()

    @asynccontextmanager
    async def share_async(self) -> AsyncIterator[AsyncSharedTransaction]:
        """Do the same for coroutines."""
        async with self._begun_async() as begun:
            yield AsyncSharedTransaction(*begun, resetting(begun[1], self._limit))

    def end_session(self, pid: int) -> None:
        """End another transaction of ours together with its connection. Ignores errors."""
        with suppress(psycopg.Error), dial(self._url, **self._connection) as connection:
            connection.execute(statement("session/end"), {"pid": pid})

    async def close(self) -> None:
        """Close the connections."""
        self._connections.close()
