"""One transaction for the functions of several messages. Each function works in a savepoint of its own.

A function that fails undoes only its own writes. A function that sends nothing to the server needs no savepoint.
The outbox rows of all sessions are written in one statement when all functions are done. So the locks are taken in
one order, and two such transactions cannot deadlock over them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from uuid import UUID

import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from relay.adapters.postgres.conflicts import is_conflict
from relay.adapters.postgres.enqueue import Row
from relay.adapters.postgres.function_connections import AsyncFunctionTransaction, FunctionTransaction
from relay.adapters.postgres.lazy_transactions import LazyAsyncConnection, LazyConnection
from relay.adapters.postgres.on_psycopg import drop_waiting, write_waiting
from relay.adapters.postgres.sql import statement
from relay.adapters.postgres.targets import insert_sqlalchemy, insert_sqlalchemy_async
from relay.domain.errors import ClaimLost, TransactionBroken
from relay.failpoints import reach

_BEGIN: Final = b"SAVEPOINT jetrelay"
_KEEP: Final = b"RELEASE SAVEPOINT jetrelay"
_UNDO: Final = b"ROLLBACK TO SAVEPOINT jetrelay"


class _Shared:
    """What the two kinds have in common.

    ``broken``: a savepoint could not be released or rolled back, so the whole transaction is unusable.
    ``conflict``: a function lost a conflict with another transaction, for example a deadlock. This transaction
    should end soon. ``reset``: what undoes what a function has set. ``view``: SQLAlchemy's of the transaction.
    """

    def __init__(self, reset: bytes, view: Connection) -> None:
        # What the functions have set is undone before the rows are settled, too.
        self._keep = b"; ".join(filter(None, (_KEEP, reset)))
        self._view, self._options = view, view.get_execution_options()
        self.broken = self.conflict = False
        self._rows: list[Row] = []
        self._open = False

    def _arm(self, driver: LazyConnection | LazyAsyncConnection) -> None:
        """Begin a step when something is sent in it. The same round trip releases the savepoint before it."""
        driver.before = b"; ".join((self._keep, _BEGIN)) if self._open else _BEGIN

    def _disarm(self, driver: LazyConnection | LazyAsyncConnection) -> bool:
        """End the step, and make the connection as it was; returns whether anything was sent in it."""
        driver.restore()
        self._view._execution_options = self._options  # noqa: SLF001 - SQLAlchemy only adds to them
        used, driver.before = driver.before is None, None
        self._open = self._open or used
        return used

    def _note(self, error: BaseException) -> None:
        self.conflict = self.conflict or is_conflict(error)

    def _check(self, rowcount: int, ids: Sequence[UUID]) -> None:
        if rowcount != len(ids):
            raise ClaimLost("other workers have some of the rows now; what was written is rolled back")
        reach("after_mark_before_handler_commit")


class SharedTransaction(_Shared):
    """A shared transaction for plain functions, in a thread. ``pid``: the server process of its connection."""

    def __init__(
        self, outer: Connection, driver: LazyConnection, cursor: psycopg.Cursor[Any], pid: int, reset: bytes
    ) -> None:
        super().__init__(reset, outer)
        self._outer, self._driver, self._cursor = outer, driver, cursor
        self.pid = pid

    @contextmanager
    def step(self) -> Iterator[FunctionTransaction]:
        """Run the block in a savepoint: an error undoes what it wrote. Raises TransactionBroken."""
        self._arm(self._driver)
        rows: list[Row] = []
        try:
            with FunctionTransaction(lambda: self._outer, self._driver, rows) as transaction:
                yield transaction
        except BaseException as error:
            self._note(error)
            if self._disarm(self._driver):
                self._execute(_UNDO)
            raise
        self._disarm(self._driver)
        self._rows += rows

    def settle(self, ids: Sequence[UUID], token: UUID) -> None:
        """End the rows of the steps that succeeded. Raises ClaimLost when one of their claims is not ours."""
        if self._open:
            self._execute(self._keep)
        insert_sqlalchemy(self._outer, self._rows)
        self._cursor.execute(statement("inbox/mark_processed"), {"ids": list(ids), "token": token})
        self._check(self._cursor.rowcount, ids)

    def _execute(self, sql: bytes) -> None:
        try:
            self._cursor.execute(sql, prepare=False)
        except psycopg.Error as error:
            self.broken = True
            raise TransactionBroken("the transaction of several messages is gone") from error


class AsyncSharedTransaction(_Shared):
    """The same for coroutines."""

    def __init__(
        self,
        outer: AsyncConnection,
        driver: LazyAsyncConnection,
        cursor: psycopg.AsyncCursor[Any],
        reset: bytes,
    ) -> None:
        assert outer.sync_connection is not None
        super().__init__(reset, outer.sync_connection)
        self._outer, self._driver, self._cursor = outer, driver, cursor

    @asynccontextmanager
    async def step(self) -> AsyncIterator[AsyncFunctionTransaction]:
        """Run the block in a savepoint: an error undoes what it wrote. Raises TransactionBroken."""
        self._arm(self._driver)
        rows: list[Row] = []
        try:
            async with AsyncFunctionTransaction(self._outer, self._driver, rows).used() as transaction:
                yield transaction
            await write_waiting(self._driver)
        except BaseException as error:
            self._note(error)
            drop_waiting(self._driver)
            if self._disarm(self._driver):
                await self._execute(_UNDO)
            raise
        self._disarm(self._driver)
        self._rows += rows

    async def settle(self, ids: Sequence[UUID], token: UUID) -> None:
        """End the rows of the steps that succeeded. Raises ClaimLost when one of their claims is not ours."""
        if self._open:
            await self._execute(self._keep)
        await insert_sqlalchemy_async(self._outer, self._rows)
        await self._cursor.execute(statement("inbox/mark_processed"), {"ids": list(ids), "token": token})
        self._check(self._cursor.rowcount, ids)

    async def _execute(self, sql: bytes) -> None:
        try:
            await self._cursor.execute(sql, prepare=False)
        except psycopg.Error as error:
            self.broken = True
            raise TransactionBroken("the transaction of several messages is gone") from error
