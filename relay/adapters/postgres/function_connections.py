"""Connections for functions, one for each transaction, within the budget of the process; what a function gets."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, Self

import psycopg
from psycopg import IsolationLevel
from psycopg.errors import InvalidSqlStatementName
from psycopg.pq import PipelineStatus
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection, PoolProxiedConnection, StaticPool, create_engine
from sqlalchemy.exc import DBAPIError, InterfaceError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from relay.adapters.postgres.adapters import ENCODING
from relay.adapters.postgres.budget import Budget
from relay.adapters.postgres.enqueue import Row
from relay.adapters.postgres.failures import NO_ROOM, reason
from relay.adapters.postgres.lazy_transactions import DIALECT, LazyAsyncConnection, LazyConnection, LazyCursor
from relay.adapters.postgres.lent_sessions import (
    BEGINNINGS,
    CLEANING_MORE,
    ISOLATION,
    OF_A_POOLER,
    Usual,
    cleaning,
    lent,
    milliseconds,
)
from relay.adapters.postgres.pipeline import (
    BEGIN,
    COMMIT,
    ROLLBACK,
    Command,
    Prepared,
    Sent,
    as_sent,
    exchange,
    fetch_all,
    rows,
)
from relay.adapters.postgres.pool import at_rest, has_input, prepares
from relay.adapters.postgres.sql import statement
from relay.adapters.postgres.targets import write_later
from relay.domain.errors import ClaimLost, ConnectionsBusy
from relay.failpoints import enabled, reach

#: Asks for the server process of a transaction. Behind a pooler, the number from the connect is not this process.
_PROCESS: Final[Command] = ("session/process", {})
_BEGIN, _COMMIT, _ROLLBACK = as_sent(BEGIN), as_sent(COMMIT), as_sent(ROLLBACK)
_OF_A_POOLER: Final = [as_sent(it) for it in OF_A_POOLER]
_CLEANING_MORE: Final = [as_sent(it) for it in CLEANING_MORE]


def limiting(limit: timedelta, *, local: bool) -> Command:
    """Return the statement that limits a transaction (``local``), or all that follow on a connection."""
    return "session/limit", {"limit": milliseconds(limit), "local": local}


@dataclass(frozen=True, slots=True)
class Settlement:
    """The statement that ends the claimed row of a transaction, fenced by the claim's token.

    It divides by zero when the claim is not ours. ``limit``: how long this transaction may idle, if it differs
    from the usual limit.
    """

    statement: str
    parameters: dict[str, Any]
    limit: timedelta | None = None


class FunctionTransaction:
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
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The session, which works in a savepoint of its own."""
        if self._session is None:
            self._session = Session(self._outer(), join_transaction_mode="create_savepoint")
            if self._later is not None:
                write_later(self._session, self._later)
        return self._session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Commit the session if there was no error."""
        if self._session is None:
            return
        try:
            if error is None and self._session.in_transaction():
                self._session.commit()
        finally:
            self._session.close()


class AsyncFunctionTransaction:
    """The session and the connection that a coroutine may use; see `FunctionTransaction`."""

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
    async def used(self) -> AsyncIterator[AsyncFunctionTransaction]:
        """Commit the session when the block ends without an error."""
        try:
            yield self
            if "session" in self.__dict__ and self.session.in_transaction():
                await self.session.commit()
        finally:
            if "session" in self.__dict__:
                # Also when the coroutine is cancelled.
                await asyncio.shield(self.session.close())


class _Held(PoolProxiedConnection):
    """What SQLAlchemy holds a driver by, for one transaction. Once it is closed, nobody reaches the driver by it.

    A pool would give the same to each borrower anew, which takes as long as a small statement.
    """

    def __init__(self, driver: LazyConnection) -> None:
        self.dbapi_connection: Any = driver
        self.info: dict[Any, Any] = {}

    @property
    def driver_connection(self) -> Any:  # type: ignore[override]
        """The driver's connection; None once this is closed."""
        return self.dbapi_connection

    @property
    def record_info(self) -> None:
        """Nothing: it has no pool."""
        return

    @property
    def is_valid(self) -> bool:
        """Whether it is not closed yet."""
        return self.dbapi_connection is not None

    @property
    def is_detached(self) -> bool:
        """No: it has no pool."""
        return False

    def invalidate(self, e: BaseException | None = None, soft: bool = False) -> None:
        """Close the driver's connection: it is broken."""
        if self.dbapi_connection is not None and not soft:
            self.dbapi_connection.pgconn.finish()
        self.close()

    def close(self) -> None:
        """Let go of the driver."""
        self.dbapi_connection = None

    def _close_special(self, transaction_reset: bool = False) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if self.dbapi_connection is None:
            raise InterfaceError(name, None, psycopg.InterfaceError("the function has returned"))
        return getattr(self.dbapi_connection, name)


class FunctionConnection:
    """A connection to lend to one thread at a time, with an engine on top for functions that use a session."""

    def __init__(self, driver: LazyConnection) -> None:
        self.driver = driver
        driver.cursor_factory = LazyCursor
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
        self._held: _Held | None = None
        #: The statements that the connection knows by name; None behind a pooler in transaction mode.
        self._prepared = Prepared() if prepares(driver) else None
        #: The server process of the open transaction.
        self.pid = driver.info.backend_pid
        driver.usual, self._begin = Usual(driver), _BEGIN
        self._input, self._room = select.poll(), select.poll()
        self._input.register(driver.pgconn.socket, select.POLLIN)
        self._room.register(driver.pgconn.socket, select.POLLOUT)
        self._limit: timedelta | None = None
        self._cleaning = _OF_A_POOLER
        if self._prepared is not None:
            self._cleaning = [as_sent(it) for it in cleaning(None)]
            found, _ = self._exchange(as_sent(ISOLATION), as_sent(lent(None)))
            [usual] = rows(found, driver)
            driver.path, self._begin = usual["path"], as_sent(BEGINNINGS.get(usual["level"], BEGIN))

    def outer(self) -> Connection:
        """Return SQLAlchemy's view of the open transaction: a new one for each, as it numbers the savepoints."""
        if self._outer is None:
            told = self._engine.pool.dispatch
            if told.checkout or told.checkin or told.reset:
                # An application listens to all pools.
                self._outer = self._engine.connect()
            else:
                self._held = _Held(self.driver)
                self._outer = Connection(self._engine, self._held)
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
        return rows(self._exchange(as_sent(command))[0], self.driver)

    def begin(self, limit: timedelta) -> None:
        """Begin the transaction of functions."""
        self._keep_to(limit)
        if self._prepared is not None:
            self._exchange(self._begin)
        else:
            # Behind a pooler the session is shared, so only limits of the transaction are safe.
            *_, found = self._exchange(_BEGIN, as_sent(limiting(limit, local=True)), as_sent(_PROCESS))
            self.pid = rows(found, self.driver)[0]["pid"]
        self.driver.lent = True

    def begin_late(self, limit: timedelta) -> None:
        """Begin the transaction of functions later, with the first command that is sent."""
        self._keep_to(limit)
        alone = self._prepared is not None
        self.driver.begin_late(self._begin.text if alone else self._begin_limited(limit), alone=alone)
        self.driver.lent = True

    @property
    def begun(self) -> bool:
        """Whether a transaction has begun."""
        return self.driver.before is None

    def settle(self, settlement: Settlement) -> None:
        """End the row and commit, in one round trip. Raises ClaimLost; then nothing is committed."""
        self.driver.kept = None
        end = [as_sent(it) for it in (*self.driver.home, (settlement.statement, settlement.parameters))]
        try:
            if enabled():
                self._exchange(*end)
                reach("after_mark_before_handler_commit")
                self._end(_COMMIT)
            else:
                self._end(*end, _COMMIT)
        except psycopg.errors.DivisionByZero:
            raise ClaimLost("another worker has the row now; what was written is rolled back") from None

    def commit(self) -> None:
        """Commit a transaction whose rows the borrowers have settled."""
        self._end(_COMMIT)

    def end(self) -> None:
        """Roll back what is still open."""
        self.driver.lent = False
        self.driver.forget_steps()
        with suppress(psycopg.Error, SQLAlchemyError):
            if not self.idle:
                self._end(_ROLLBACK)
            elif self.driver.undone:
                self._end()
        if self._outer is not None:
            self._close_outer(self._outer)
        self.driver.restore()
        if self.driver.renamed:
            self.finish()

    def _close_outer(self, outer: Connection) -> None:
        self._outer = None
        if self._held is not None:
            # Nothing is open any more, so SQLAlchemy need not ask the driver for a rollback.
            self._held.close()
            self._held = None
        with suppress(psycopg.Error, SQLAlchemyError):
            outer.close()

    def _end(self, *commands: Sent) -> None:
        """End the transaction, and clean the session in the same round trip. A session that stays dirty is closed.

        Locks of the session are released after the commit: another function must not go on before.
        """
        self.driver.undone = False
        results = self._exchange(*commands, *self._cleaning, late=len(self._cleaning))
        if len(results) < len(commands) + len(self._cleaning):
            self.finish()
        elif self._prepared is not None and results[-2].get_value(0, 0) != b"f":
            with suppress(psycopg.Error):
                self._exchange(*_CLEANING_MORE)
                return
            self.finish()

    def finish(self) -> None:
        """Close the connection at once, in any thread."""
        self.driver.pgconn.finish()

    @property
    def idle(self) -> bool:
        """Whether the connection is open without an open transaction or pipeline."""
        return at_rest(self.driver.pgconn)

    def _exchange(self, *statements: Sent, late: int = 0) -> list[PGresult]:
        """Run statements in one round trip, and wait in this thread. ``late``: see `exchange`."""
        libpq, prepared = self.driver.pgconn, None if self.driver.renamed else self._prepared
        if libpq.pipeline_status != PipelineStatus.OFF:
            self.finish()
            raise psycopg.ProgrammingError("a pipeline was left open: open it with `with`, and it ends there")
        if self.driver.forgotten:
            self.driver.forgotten = False
            if prepared is not None:
                prepared.clear()
        waits = exchange(libpq, prepared, statements, late)
        try:
            while True:
                (self._room if next(waits) else self._input).poll()
        except StopIteration as end:
            return [*end.value]

    def _keep_to(self, limit: timedelta) -> None:
        """Set the limits of transactions, in a round trip of its own, so that no rollback undoes them."""
        if self._prepared is not None and limit != self._limit:
            self._exchange(as_sent(limiting(limit, local=False)))
            self._limit = limit
            self._cleaning = [as_sent(it) for it in cleaning(limit)]

    def _begin_limited(self, limit: timedelta) -> bytes:
        """Return the text that begins a transaction with its limits."""
        name, values = limiting(limit, local=True)
        return b"BEGIN; " + psycopg.ClientCursor(self.driver).mogrify(statement(name), values).encode()


class AsyncFunctionConnection:
    """A connection to lend to one coroutine at a time, with an engine on top."""

    def __init__(self, driver: LazyAsyncConnection) -> None:
        self.driver = driver

        async def connected() -> LazyAsyncConnection:
            return driver

        # Errors and logs must not show what a handler writes.
        self.engine = create_async_engine(
            DIALECT, async_creator=connected, poolclass=StaticPool, hide_parameters=True
        )

    async def prepare(self) -> None:
        """Make the new session ready for functions. Raises psycopg's errors."""
        # The engine's first connection asks the server a few questions, and may add to the adapters.
        try:
            await (await self.engine.connect()).close()
        except DBAPIError as error:
            raise error.orig or error from None
        self.driver.usual = Usual(self.driver)
        if prepares(self.driver):
            (usual,), _ = await fetch_all(self.driver, [as_sent(ISOLATION), as_sent(lent(None))])
            self.driver.path, level = usual["path"], usual["level"]
            if level in BEGINNINGS:
                await self.driver.set_isolation_level(IsolationLevel[level.replace(" ", "_").upper()])

    async def clean(self) -> None:
        """Undo what a coroutine has left behind. A session that stays dirty is closed."""
        self.driver.restore()
        if self.driver.renamed:
            self.finish()
        if not prepares(self.driver) or not self.idle:
            return
        undone = [as_sent(it) for it in cleaning(None)]
        try:
            try:
                *_, [found], _ = await fetch_all(self.driver, undone)
            except InvalidSqlStatementName:
                *_, [found], _ = await fetch_all(self.driver, undone)
            if found["more"]:
                await fetch_all(self.driver, _CLEANING_MORE)
        except BaseException:
            self.finish()
            raise

    @property
    def usable(self) -> bool:
        """Whether the connection is open and has no input, as `FunctionConnection.usable` says."""
        return not self.driver.closed and not has_input(self.driver.pgconn.socket)

    @property
    def idle(self) -> bool:
        """Whether the connection is open without an open transaction or pipeline."""
        return at_rest(self.driver.pgconn)

    def finish(self) -> None:
        """Close the connection at once, in any thread."""
        self.driver.pgconn.finish()


class FunctionConnections:
    """The connections of one kind of functions. The borrowers limit how many are lent at once.

    Functions in threads and functions on the loop share the process's ``budget``. ``options`` are psycopg's.
    """

    def __init__(self, url: str, options: Mapping[str, Any], budget: Budget) -> None:
        # The adapters are those of the application, and so is the rest of the session.
        self._url, self._connection, self._budget = url, {**ENCODING, **options}, budget
        self._plain, self._async = budget.owner(url, lent=True), budget.owner(url, lent=True)

    def borrow(self) -> FunctionConnection:
        """Take a live connection. `give_back` it later. Raises ConnectionsBusy and psycopg's errors."""
        kept = self._budget.take_in_thread(self._plain)
        if kept is not None:
            assert isinstance(kept, FunctionConnection)
            return kept
        try:
            return FunctionConnection(LazyConnection.connect(self._url, **self._connection))
        except BaseException as error:
            self._budget.give(self._plain, None)
            self._told(error)
            if isinstance(error, DBAPIError):
                raise error.orig or error from None
            raise

    def give_back(self, borrowed: FunctionConnection) -> None:
        """Roll back a transaction that is still open, and keep the connection for the next borrower."""
        borrowed.end()
        if not borrowed.idle:
            borrowed.finish()
        self._budget.give(self._plain, borrowed if borrowed.idle else None)

    @contextmanager
    def lending(self) -> Iterator[FunctionConnection]:
        """Lend a connection for the block."""
        borrowed = self.borrow()
        try:
            yield borrowed
        finally:
            self.give_back(borrowed)

    @asynccontextmanager
    async def lending_async(self) -> AsyncIterator[AsyncFunctionConnection]:
        """Lend a connection to a coroutine. Raises ConnectionsBusy and psycopg's errors."""
        kept = await self._budget.take(self._async)
        try:
            if kept is None:
                kept = AsyncFunctionConnection(await self._connect())
                await kept.prepare()
            assert isinstance(kept, AsyncFunctionConnection)
            try:
                yield kept
            finally:
                with suppress(psycopg.Error):
                    await kept.clean()
        finally:
            ready = isinstance(kept, AsyncFunctionConnection) and kept.idle
            if kept is not None and not ready:
                kept.finish()
            self._budget.give(self._async, kept if ready else None)

    async def _connect(self) -> Any:
        try:
            return await LazyAsyncConnection.connect(self._url, **self._connection)
        except Exception as error:
            self._told(error)
            raise

    def _told(self, error: BaseException) -> None:
        """Give way if the server has no room. The function was not called, so this spends no attempt."""
        if reason(error) == NO_ROOM:
            self._budget.refused()
            raise ConnectionsBusy(f"the server refuses a connection: {NO_ROOM}") from None

    @property
    def idle(self) -> int:
        """How many connections wait for a borrower."""
        return len(self._plain.idle) + len(self._async.idle)

    def close(self) -> None:
        """Close the connections that are not lent now, and the others when they are given back."""
        self._budget.close(self._plain)
        self._budget.close(self._async)
