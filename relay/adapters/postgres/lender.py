"""Lends connections to functions: unused ones or new ones, within the budget of the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from psycopg.pq import TransactionStatus
from sqlalchemy import StaticPool
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from relay.adapters.postgres.budget import Budget
from relay.adapters.postgres.lazy import DIALECT, LazyAsyncConnection, LentConnection
from relay.adapters.postgres.lending import Lendable
from relay.adapters.postgres.pool import has_input


class AsyncLendable:
    """A connection to lend to one coroutine at a time, with an engine on top."""

    def __init__(self, driver: LazyAsyncConnection) -> None:
        self.driver = driver

        async def connected() -> LazyAsyncConnection:
            return driver

        # Errors and logs must not show what a handler writes.
        self.engine = create_async_engine(
            DIALECT, async_creator=connected, poolclass=StaticPool, hide_parameters=True
        )

    @property
    def usable(self) -> bool:
        """Whether the connection is open and has no input, as `Lendable.usable` says."""
        return not self.driver.closed and not has_input(self.driver.pgconn.socket)

    @property
    def idle(self) -> bool:
        """Whether the connection is open without an open transaction."""
        return self.driver.pgconn.transaction_status == TransactionStatus.IDLE

    def finish(self) -> None:
        """Close the connection at once, in any thread."""
        self.driver.pgconn.finish()


class Lender:
    """The connections of one kind of functions. The borrowers limit how many are lent at once.

    Functions in threads and functions on the loop share the process's ``budget``. ``options`` are psycopg's.
    """

    def __init__(self, url: str, options: Mapping[str, Any], budget: Budget) -> None:
        self._url, self._connection, self._budget = url, options, budget
        self._plain, self._async = budget.owner(url, lent=True), budget.owner(url, lent=True)

    def borrow(self) -> Lendable:
        """Take a live connection. `give_back` it later. Raises ConnectionsBusy and psycopg's errors."""
        kept = self._budget.take_in_thread(self._plain)
        if kept is not None:
            assert isinstance(kept, Lendable)
            return kept
        try:
            return Lendable(LentConnection.connect(self._url, **self._connection))
        except BaseException as error:
            self._budget.give(self._plain, None)
            if isinstance(error, DBAPIError):
                raise error.orig or error from None
            raise

    def give_back(self, borrowed: Lendable) -> None:
        """Roll back a transaction that is still open, and keep the connection for the next borrower."""
        borrowed.end()
        if not borrowed.idle:
            borrowed.finish()
        self._budget.give(self._plain, borrowed if borrowed.idle else None)

    @contextmanager
    def lending(self) -> Iterator[Lendable]:
        """Lend a connection for the block."""
        borrowed = self.borrow()
        try:
            yield borrowed
        finally:
            self.give_back(borrowed)

    @asynccontextmanager
    async def lending_async(self) -> AsyncIterator[AsyncLendable]:
        """Lend a connection to a coroutine. Raises ConnectionsBusy and psycopg's errors."""
        kept = await self._budget.take(self._async)
        try:
            if kept is None:
                kept = AsyncLendable(await LazyAsyncConnection.connect(self._url, **self._connection))
            assert isinstance(kept, AsyncLendable)
            yield kept
        finally:
            ready = isinstance(kept, AsyncLendable) and kept.idle
            if kept is not None and not ready:
                kept.finish()
            self._budget.give(self._async, kept if ready else None)

    @property
    def idle(self) -> int:
        """How many connections wait for a borrower."""
        return len(self._plain.idle) + len(self._async.idle)

    def close(self) -> None:
        """Close the connections that are not lent now, and the others when they are given back."""
        self._budget.close(self._plain)
        self._budget.close(self._async)
