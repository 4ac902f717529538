"""Connections that are lent to functions for one transaction at a time, and what a function gets to use."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection, StaticPool, create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from relay.adapters.postgres.enqueue import Row
from relay.adapters.postgres.lazy import DIALECT, LentConnection
from relay.adapters.postgres.pipeline import BEGIN, COMMIT, ROLLBACK, Command, as_sent, exchange, rows
from relay.adapters.postgres.pool import prepares
from relay.adapters.postgres.sql import statement
from relay.adapters.postgres.targets import write_later
from relay.domain.errors import ClaimLost
from relay.failpoints import enabled, reach

#: Asks for the server process of a transaction. Behind a pooler, the number from the connect is not this process.
_PROCESS: Final[Command] = ("session/process", {})


def limiting(limit: timedelta, *, local: bool) -> Command:
    """Return the statement that limits a transaction (``local``), or all that follow on a connection."""
    return "session/limit", {"limit": str(max(1, limit // timedelta(milliseconds=1))), "local": local}


@dataclass(frozen=True, slots=True)
class Settlement:
    """The statement that ends the claimed row of a transaction, fenced by the claim's token.

    It divides by zero when the claim is not ours. ``limit``: how long this transaction may idle, if it differs
    from the usual limit.
    """

    statement: str
    parameters: dict[str, Any]
    limit: timedelta | None = None


class Transaction:
    """The session and the connection that a function in a thread may use. Both are in one transaction.

    The session is created on first use. ``later``: the list that takes the session's outbox rows. ``settled``:
    whether the transaction also ended the row.
    """

    settled = True

    def __init__(
        self,
        outer: Callable[[], Connection],
        connection: psycopg.Connection[Any],
        later: list[Row] | None = None,
    ) -> None:
        self.connection = connection
        self._outer = outer
        self._later = later

    @cached_property
    def session(self) -> Session:
        """The session, which works in a savepoint of its own."""
        session = Session(self._outer(), join_transaction_mode="create_savepoint")
        if self._later is not None:
            write_later(session, self._later)
        return session

    @contextmanager
    def used(self) -> Iterator[Transaction]:
        """Commit the session when the block ends without an error."""
        try:
            yield self
            if "session" in self.__dict__ and self.session.in_transaction():
                self.session.commit()
        finally:
            if "session" in self.__dict__:
                self.session.close()


class AsyncTransaction:
    """The session and the connection that a coroutine may use; see `Transaction`."""

    def __init__(
        self, outer: AsyncConnection, connection: psycopg.AsyncConnection[Any], later: list[Row] | None = None
    ) -> None:
        self.connection = connection
        self._outer = outer
        self._later = later

    @cached_property
    def session(self) -> AsyncSession:
        """The session, which works in a savepoint of its own."""
        session = AsyncSession(self._outer, join_transaction_mode="create_savepoint")
        if self._later is not None:
            write_later(session.sync_session, self._later)
        return session

    @asynccontextmanager
    async def used(self) -> AsyncIterator[AsyncTransaction]:
        """Commit the session when the block ends without an error."""
        try:
            yield self
            if "session" in self.__dict__ and self.session.in_transaction():
                await self.session.commit()
        finally:
            if "session" in self.__dict__:
                # Also when the coroutine is cancelled.
                await asyncio.shield(self.session.close())


class Lendable:
    """A connection to lend to one thread at a time, with an engine on top for functions that use a session."""

    def __init__(self, driver: LentConnection) -> None:
        self.driver = driver
        # Errors and logs must not show what a handler writes.
        self._engine = create_engine(
            DIALECT,
            creator=lambda: driver,
            poolclass=StaticPool,
            pool_reset_on_return=None,
            hide_parameters=True,
        )
        # Connect once now: the engine's first connection asks the server a few questions.
        self._engine.connect().close()
        driver.rollback()
        self._outer: Connection | None = None
        #: The statements that the connection knows by name; None behind a pooler in transaction mode.
        self._prepared: set[bytes] | None = set() if prepares(driver) else None
        #: The server process of the open transaction.
        self.pid = driver.info.backend_pid
        self._input, self._room = select.poll(), select.poll()
        self._input.register(driver.pgconn.socket, select.POLLIN)
        self._room.register(driver.pgconn.socket, select.POLLOUT)
        self._limit: timedelta | None = None

    def outer(self) -> Connection:
        """Return SQLAlchemy's view of the open transaction: a new one for each, as it numbers the savepoints."""
        if self._outer is None:
            self._outer = self._engine.connect()
            self._outer.begin()
        return self._outer

    @property
    def usable(self) -> bool:
        """Whether the connection is open and has no input. Input while idle usually means the server closed it.

        To ask the server would cost a round trip for every message.
        """
        return not self.driver.closed and not self._input.poll(0)

    def run(self, command: Command) -> list[dict[str, Any]]:
        """Run a statement by itself and return its rows."""
        return rows(self._exchange(command)[0], self.driver)

    def begin(self, limit: timedelta) -> None:
        """Begin the transaction of functions."""
        self._keep_to(limit)
        if self._prepared is not None:
            self._exchange(BEGIN)
        else:
            # Behind a pooler the session is shared, so only limits of the transaction are safe.
            *_, found = self._exchange(BEGIN, limiting(limit, local=True), _PROCESS)
            self.pid = rows(found, self.driver)[0]["pid"]
        self.driver.lent = True

    def begin_late(self, limit: timedelta) -> None:
        """Begin the transaction of functions later, with the first command that is sent."""
        self._keep_to(limit)
        self.driver.begin_step(b"BEGIN" if self._prepared is not None else self._begin_limited(limit))
        self.driver.lent = True

    @property
    def begun(self) -> bool:
        """Whether a transaction has begun."""
        return self.driver.before is None

    def settle(self, settlement: Settlement) -> None:
        """End the row and commit, in one round trip. Raises ClaimLost; then nothing is committed."""
        self.driver.kept = None
        end = settlement.statement, settlement.parameters
        try:
            if enabled():
                self._exchange(end)
                reach("after_mark_before_handler_commit")
                self._exchange(COMMIT)
            else:
                self._exchange(end, COMMIT)
        except psycopg.errors.DivisionByZero:
            raise ClaimLost("another worker has the row now; what was written is rolled back") from None

    def commit(self) -> None:
        """Commit a transaction whose rows the borrowers have settled."""
        self._exchange(COMMIT)

    def end(self) -> None:
        """Roll back what is still open."""
        self.driver.lent = False
        self.driver.before = self.driver.kept = None
        with suppress(psycopg.Error, SQLAlchemyError):
            if not self.idle:
                self._exchange(ROLLBACK)
        outer, self._outer = self._outer, None
        with suppress(psycopg.Error, SQLAlchemyError):
            if outer is not None:
                # SQLAlchemy asks the driver for a rollback, but nothing is open any more.
                outer.close()

    def finish(self) -> None:
        """Close the connection at once, in any thread."""
        self.driver.pgconn.finish()

    @property
    def idle(self) -> bool:
        """Whether the connection is open without an open transaction."""
        return self.driver.pgconn.transaction_status == TransactionStatus.IDLE

    def _exchange(self, *commands: Command) -> list[PGresult]:
        """Run statements in one round trip, and wait in this thread."""
        if self.driver.forgotten:
            self.driver.forgotten = False
            if self._prepared is not None:
                self._prepared.clear()
        waits = exchange(self.driver.pgconn, self._prepared, [as_sent(command) for command in commands])
        try:
            while True:
                (self._room if next(waits) else self._input).poll()
        except StopIteration as end:
            return [*end.value]

    def _keep_to(self, limit: timedelta) -> None:
        """Set the limits of transactions, in a round trip of its own, so that no rollback undoes them."""
        if self._prepared is not None and limit != self._limit:
            self._exchange(limiting(limit, local=False))
            self._limit = limit

    def _begin_limited(self, limit: timedelta) -> bytes:
        """Return the text that begins a transaction with its limits."""
        name, values = limiting(limit, local=True)
        return b"BEGIN; " + psycopg.ClientCursor(self.driver).mogrify(statement(name), values).encode()
