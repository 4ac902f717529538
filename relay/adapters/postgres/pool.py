"""Connections of the relay to a context's database: from a pool, or one that is opened for a single command."""

from __future__ import annotations

import select
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, TypeAlias

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.errors import UndefinedColumn, UndefinedFunction, UndefinedTable
from psycopg.postgres import types
from psycopg.pq import Format as PqFormat
from psycopg.types.datetime import TimestamptzLoader
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from relay.adapters.postgres.sql import statement
from relay.domain.disclosure import first_line
from relay.domain.errors import DatabaseUnreachable, SchemaMissing

Connection: TypeAlias = psycopg.AsyncConnection[Any]
Pool: TypeAlias = AsyncConnectionPool[Connection]
#: Lends a connection for the length of a block. Raises DatabaseUnreachable and SchemaMissing.
Source: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]

#: A dead peer is noticed within about ten seconds instead of the operating system's two hours.
CONNECTION: Final[dict[str, Any]] = {
    "autocommit": True,
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


def create_pool(
    url: str,
    *,
    max_size: int,
    application_name: str,
    configure: Callable[[Connection], Awaitable[None]] | None = None,
) -> Pool:
    """Return a pool that connects on demand. Open it with ``await pool.open()`` inside the event loop.

    ``configure`` is given each new connection.
    """
    return AsyncConnectionPool(
        url,
        connection_class=_noting(),
        kwargs={**CONNECTION, "application_name": application_name},
        configure=configure,
        min_size=1,
        max_size=max_size,
        timeout=3,
        # The pool soon gives up an attempt to connect. The job that needs the connection has its own back-off.
        reconnect_timeout=5,
        open=False,
        check=None,
        name=application_name,
    )


_USUAL: Final = psycopg.adapters.get_loader(types["timestamptz"].oid, PqFormat.TEXT) or TimestamptzLoader


class _Time(Loader):
    """Reads every time that PostgreSQL can hold. What Python cannot hold becomes the nearest time that it can.

    A producer may write any time, for example "-infinity". Such a row must not hide others.
    A day is left at either end, so that the time can be shown in any time zone.
    """

    _FIRST: ClassVar[datetime] = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
    _LAST: ClassVar[datetime] = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        self._usual = _USUAL(oid, context)

    def load(self, data: Buffer) -> datetime:
        try:
            found: datetime = self._usual.load(data)
        except psycopg.DataError:
            text = bytes(data)
            return self._FIRST if text.startswith(b"-") or text.endswith(b"BC") else self._LAST
        return min(max(found, self._FIRST), self._LAST)


class AsyncConnection(psycopg.AsyncConnection[Any]):
    """A connection of ours, which reads every time that PostgreSQL can hold."""

    @classmethod
    async def connect(cls, *arguments: Any, **options: Any) -> Any:
        """As psycopg's."""
        made = await super().connect(*arguments, **options)
        made.adapters.register_loader("timestamptz", _Time)
        return made


class _Noting(AsyncConnection):
    """Remembers why the last attempt to connect failed. The pool itself only reports a time-out."""

    failure: ClassVar[str | None] = None

    @classmethod
    async def connect(cls, *arguments: Any, **options: Any) -> Any:
        try:
            made = await super().connect(*arguments, **options)
        except psycopg.Error as error:
            cls.failure = reason(error)
            raise
        cls.failure = None
        return made


def _noting() -> type[_Noting]:
    """Return a new class, so that each pool remembers its own failure."""
    return type("_Noting", (_Noting,), {})


@asynccontextmanager
async def connection(pool: Pool) -> AsyncIterator[Connection]:
    """Lend a connection of the pool. Raises DatabaseUnreachable and SchemaMissing."""
    with migrated(), reached(pool):
        conn = await _take(pool)
        try:
            async with conn:
                yield conn
        finally:
            await pool.putconn(conn)


async def _take(pool: Pool) -> Connection:
    """Take a connection that the server has not closed. A restart closes all idle ones.

    Otherwise each of them would cost a job and its back-off. The pool's own check asks the server about each
    connection that it lends, and waits after each one that is closed.
    """
    while True:
        conn = await pool.getconn()
        try:
            if _has_news(conn):
                await pool.check_connection(conn)
        except psycopg.OperationalError:
            await pool.putconn(conn)
        except BaseException:
            await pool.putconn(conn)
            raise
        else:
            return conn


def _has_news(conn: Connection) -> bool:
    """Whether there is something to read: the server says nothing on an idle connection unless it closes it."""
    waiting = select.poll()
    waiting.register(conn.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


async def query(conn: Connection, name: str, /, **parameters: Any) -> list[Any]:
    """Run the statement ``sql/<name>.sql`` and return its rows."""
    return await (await conn.execute(statement(name), parameters)).fetchall()


@contextmanager
def reached(pool: Pool | None = None) -> Iterator[None]:
    """Turn errors that mean the server is away into DatabaseUnreachable."""
    try:
        yield
    except (PoolTimeout, PoolClosed) as error:
        why = getattr(pool.connection_class, "failure", None) if pool is not None else None
        raise DatabaseUnreachable(f"{error}: {why}" if why else str(error)) from error
    except psycopg.OperationalError as error:
        # This includes deadlocks, lock time-outs and statement time-outs: a retry can succeed.
        raise DatabaseUnreachable(first_line(error)) from error
    except (
        psycopg.InterfaceError,
        psycopg.errors.IdleInTransactionSessionTimeout,
        psycopg.errors.TransactionTimeout,
        psycopg.errors.ReadOnlySqlTransaction,
    ) as error:
        # A process that paused in a claim has lost it. After a failover, a replica may answer for a moment.
        raise DatabaseUnreachable(first_line(error)) from error


def pooled(pool: Pool) -> Source:
    """Lend connections of a pool."""

    @asynccontextmanager
    async def lend() -> AsyncIterator[Connection]:
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


# --- why PostgreSQL could not be reached ---

# The driver's messages may quote host names, users and, for a malformed URL, the password. So they are matched and
# never passed on.
_REASONS: Final = (
    # These come first, because their texts also contain the signs of other errors.
    ("root certificate file", "TLS: the file of sslrootcert cannot be read"),
    ("private key file", "TLS: the file of sslkey cannot be read, or others may read it too"),
    ("certificate file", "TLS: the file of sslcert cannot be read"),
    ("certificate required", "TLS: the server wants a certificate of ours (sslcert and sslkey)"),
    ("valid client certificate", "TLS: the server wants a certificate of ours (sslcert and sslkey)"),
    ("unknown ca", "TLS: the server does not trust our certificate (sslcert)"),
    ("certificate verify failed", "TLS: its certificate is of an authority we do not trust (sslrootcert)"),
    ("does not match host name", "TLS: its certificate is for another host"),
    ("does not support SSL", "TLS: the server offers none"),
    ("certificate", "TLS: the certificates do not match"),
    ("SSL error", "TLS: the two sides do not agree"),
    ("refused", "the connection was refused"),
    ("timeout", "no answer in time"),
    ("timed out", "no answer in time"),
    ("authentication failed", "user or password was not accepted"),
    ("no password supplied", "a password is asked for and none is configured"),
    ("no pg_hba.conf entry", "the server admits no such connection (pg_hba.conf)"),
    ("resolve host", "the host name cannot be resolved"),
    ("translate host", "the host name cannot be resolved"),
    ("starting up", "the server is starting up"),
    ("shutting down", "the server is shutting down"),
    ("too many clients", "all its connections are taken"),
    ("remaining connection slots", "all its connections are taken"),
    ("does not exist", "the database or the user does not exist"),
    ("No such file", "nothing listens on its socket"),
)
_OTHER: Final = "the connection failed"
_HINT: Final = "check database_url of the context, and that the server runs"


def reason(error: BaseException) -> str:
    """Return what the driver's error means, in words that show nothing of the connection string."""
    text = str(error)
    return next((words for sign, words in _REASONS if sign in text), _OTHER)


@contextmanager
def reaching() -> Iterator[None]:
    """Turn every error that the driver raises while it connects into DatabaseUnreachable.

    The original is not chained, because a traceback would print it.
    """
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise DatabaseUnreachable(reason(error), hint=_HINT) from None
    except psycopg.ProgrammingError:
        raise DatabaseUnreachable("the connection string is malformed", hint=_HINT) from None
