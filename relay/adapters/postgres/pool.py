"""The relay's own connections to a context's database: from a pool, or opened for a single command."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, Self, TypeAlias

import psycopg
from psycopg.errors import QueryCanceled
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn

from relay.adapters.postgres import adapters
from relay.adapters.postgres.budget import Budget
from relay.adapters.postgres.failures import NO_ROOM, migrated, reached, reaching, reason
from relay.adapters.postgres.sql import statement
from relay.domain.errors import ConnectionsBusy, DatabaseUnreachable, TooSlow

Connection: TypeAlias = psycopg.AsyncConnection[Any]
#: Lends a connection for the length of a block. Raises DatabaseUnreachable and SchemaMissing.
Source: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]
#: Prepares a new connection.
Configure: TypeAlias = Callable[[Connection], Awaitable[None]]

#: A dead peer is noticed within about ten seconds instead of the operating system's two hours.
CONNECTION: Final[dict[str, Any]] = {
    "autocommit": True,
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
#: The same through a pooler in transaction mode. It uses no named prepared statements: they would stay in a
#: session that another process gets next.
POOLED: Final[dict[str, Any]] = {**CONNECTION, "prepare_threshold": None}
#: The pause after the first attempt to connect, in seconds. Each further pause is twice as long.
_FIRST_PAUSE_S: Final = 0.2


class AsyncConnection(psycopg.AsyncConnection[Any]):
    """A connection of ours. It loads any value of PostgreSQL, and does not depend on what others set."""

    @classmethod
    async def connect(cls, *arguments: Any, **options: Any) -> Any:
        """As psycopg's; ``autocommit`` must be on."""
        made = await super().connect(*arguments, **{**adapters.ENCODING, "context": adapters.context(), **options})
        try:
            needs = "session/ours" if prepares(made) else "session/ours_shared"
            await made.execute(statement(needs), prepare=False)
        except BaseException:
            made.finish()
            raise
        return made

    @property
    def at_rest(self) -> bool:
        """Whether it is open, in no transaction, and has answered everything."""
        return at_rest(self.pgconn)

    @property
    def usable(self) -> bool:
        """Whether it is open and has no input. Input usually means that the server has closed it."""
        return not self.closed and not has_input(self.pgconn.socket)

    def finish(self) -> None:
        """Close it at once, in any thread."""
        self.pgconn.finish()


def dial(url: str, **options: Any) -> psycopg.Connection[Any]:
    """Make a connection of ours that blocks, for an owner's command. No limit of a service is for it.

    Takes psycopg's ``options`` and raises its errors.
    """
    ours = {**adapters.ENCODING, "context": adapters.context(), **options, "autocommit": True}
    made: psycopg.Connection[Any] = psycopg.connect(url, **ours)
    try:
        for needs in ("session/ours", "session/unhurried") if prepares(made) else ("session/ours_shared",):
            made.execute(statement(needs), prepare=False)
        made.autocommit = False
    except BaseException:
        made.close()
        raise
    return made


def prepares(conn: psycopg.BaseConnection[Any]) -> bool:
    """Whether statements may be prepared by name on a connection."""
    return conn.prepare_threshold is not None


def at_rest(libpq: PGconn) -> bool:
    """Whether a connection is open, in no transaction, and has answered everything."""
    return libpq.transaction_status == TransactionStatus.IDLE and libpq.pipeline_status == PipelineStatus.OFF


def has_input(socket: int) -> bool:
    """Whether a socket has input. To ask the server instead would cost a round trip each time."""
    look = select.poll()
    look.register(socket, select.POLLIN)
    return bool(look.poll(0))


class Pool:
    """The connections to a database, made on demand, for at most ``max_size`` callers at a time.

    All pools of a process to one server share its ``budget``; without one, a pool
    has its own. Open it inside the event loop. ``configure`` gets each new connection. ``pooler``: whether the
    address leads to a pooler in transaction mode. ``timeout``: for how many seconds a caller tries to connect.
    """

    def __init__(
        self,
        url: str,
        *,
        max_size: int,
        application_name: str,
        budget: Budget | None = None,
        configure: Configure | None = None,
        pooler: bool = False,
    ) -> None:
        budget = budget or Budget()
        self.max_size, self.timeout = min(max_size, budget.most_alike), 3.0
        self._url, self._budget, self._configure = url, budget, configure
        self._options = {**(POOLED if pooler else CONNECTION), "application_name": application_name}
        self._turns = asyncio.Semaphore(self.max_size)
        self._owner = budget.owner(url)
        self._opened = False
        #: Why the last attempt to connect failed.
        self._away: DatabaseUnreachable | None = None

    async def open(self) -> None:
        """Begin to close connections that are unused for a while."""
        if not self._opened:
            self._opened = True
            self._budget.attend()

    async def close(self) -> None:
        """Close the unused connections now, and the others as soon as they are given back."""
        self._budget.close(self._owner)
        if self._opened:
            self._opened = False
            await self._budget.leave()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend a connection. Ends its transaction: commits it, unless the block raises.

        Raises ConnectionsBusy, DatabaseUnreachable and SchemaMissing.
        """
        if self._owner.closed:
            raise DatabaseUnreachable("its connections are closed: the process is about to end")
        with migrated(), reached():
            await self._turn()
            try:
                kept = await self._budget.take(self._owner)
                try:
                    if kept is None:
                        kept = await self._connect()
                    assert isinstance(kept, AsyncConnection)
                    async with _ended(kept):
                        yield kept
                finally:
                    ready = isinstance(kept, AsyncConnection) and kept.at_rest
                    if kept is not None and not ready:
                        kept.finish()
                    self._budget.give(self._owner, kept if ready else None)
            finally:
                self._turns.release()

    async def _turn(self) -> None:
        """Wait for a turn. While the server is away, wait no longer than a caller that tries to connect."""
        if not self._turns.locked():
            await self._turns.acquire()
            return
        for limit in (self.timeout, self._budget.wait - self.timeout):
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._turns.acquire()
                    return
            if self._away is not None:
                raise DatabaseUnreachable(self._away.message, hint=self._away.hint)
        text = f"all {self.max_size} connections to the database were in use for {self._budget.wait:g} s"
        raise ConnectionsBusy(text, hint="is it slow? relay doctor says what delays it")

    async def _connect(self) -> Any:
        """Connect, and try again for a while. The job that needs the connection has its own back-off."""
        until, pause = time.monotonic() + self.timeout, _FIRST_PAUSE_S
        while True:
            try:
                with reaching():
                    made = await self._dial()
            except DatabaseUnreachable as error:
                self._away = error
                if error.message == NO_ROOM:
                    self._budget.refused()
                if self._owner.closed or time.monotonic() + pause > until:
                    raise
            else:
                self._away = None
                return made
            await asyncio.sleep(pause)
            pause *= 2

    async def _dial(self) -> Any:
        made = await AsyncConnection.connect(self._url, **self._options)
        try:
            if self._configure is not None:
                await self._configure(made)
        except BaseException:
            made.finish()
            raise
        return made


@asynccontextmanager
async def _ended(conn: Connection) -> AsyncIterator[None]:
    """End the transaction with the block, if one is open."""
    try:
        yield
    except BaseException:
        # If this fails too, the connection is not at rest and is closed.
        with suppress(Exception):
            await conn.rollback()
        raise
    await conn.commit()


async def query(conn: Connection, name: str, /, **parameters: Any) -> list[Any]:
    """Run the statement ``sql/<name>.sql`` and return its rows."""
    return await (await conn.execute(statement(name), parameters)).fetchall()


@asynccontextmanager
async def connected(url: str, name: str, limit_s: float | None = None) -> AsyncIterator[Source]:
    """Open one connection for a command and lend it. Raises DatabaseUnreachable.

    ``limit_s``: how long a statement may take, in seconds. Then raises TooSlow.
    """
    with reaching():
        conn = await AsyncConnection.connect(
            url, autocommit=True, connect_timeout=5, application_name=f"jetrelay-{name}"
        )

    @asynccontextmanager
    async def lend() -> AsyncIterator[Connection]:
        with migrated():
            try:
                yield conn
            except QueryCanceled as error:
                if limit_s is None:
                    raise DatabaseUnreachable(reason(error)) from error
                text = f"the database needs more than {limit_s:g} s for this"
                raise TooSlow(text, hint="narrow it with filters, such as --since; or ask in SQL") from None
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                raise DatabaseUnreachable(reason(error)) from error

    async with conn:
        if limit_s is not None:
            with reaching():
                await query(conn, "session/limit", limit=str(int(limit_s * 1000)), local=False)
        yield lend
