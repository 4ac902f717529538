"""Psycopg's connections as targets: rows are written at once, or when they are awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from relay.adapters.postgres.encrypting import encrypted, encrypted_async
from relay.adapters.postgres.enqueue import Ready, Row, refusals, statements
from relay.adapters.postgres.unawaited_rows import Queue, fatal
from relay.domain.errors import NoTransaction


def write(
    target: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], rows: Sequence[Row]
) -> Awaitable[None] | None:
    """Write ``rows``. Raises NoTransaction and what `refusals` raises."""
    asynchronous = isinstance(target, psycopg.AsyncConnection)
    if not rows:
        return Ready(None) if asynchronous else None
    check(target)
    if isinstance(target, psycopg.AsyncConnection):
        return _queue(target).promise(rows)
    insert(target, rows)
    return None


def insert(connection: psycopg.Connection[Any], rows: Sequence[Row]) -> None:
    """Write ``rows`` in the transaction of a connection. Raises what `refusals` raises."""
    # A plain cursor, because the connection's own cursor class may use another parameter style.
    with refusals(connection), psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        rows = encrypted(rows, lambda sql, parameters: cursor.execute(sql, parameters).fetchall())
        for sql, parameters in statements(rows):
            cursor.execute(sql, parameters)


async def _insert(connection: psycopg.AsyncConnection[Any], rows: Sequence[Row]) -> None:
    with refusals(connection):
        async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:

            async def ask(sql: str, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
                return await (await cursor.execute(sql, parameters)).fetchall()

            for sql, parameters in statements(await encrypted_async(rows, ask)):
                await cursor.execute(sql, parameters)


def check(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a connection that cannot write the row in the transaction of the change. Raises NoTransaction."""
    if connection.closed:
        raise NoTransaction("the connection is closed", field="target", hint="open another one")
    if connection._tpc is not None and connection._tpc[1]:  # noqa: SLF001
        raise NoTransaction(
            "the transaction is prepared already", field="target", hint="add events before tpc_prepare()"
        )
    if connection.autocommit and not _in_transaction(connection):
        raise NoTransaction(
            "the connection is in autocommit mode and no transaction is open",
            field="target",
            hint="use `with connection.transaction():` around the change and the event",
        )


def _in_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether a connection in autocommit mode has an open transaction.

    In a pipeline libpq knows only what the last sync has told. Then the blocks of psycopg count, and no BEGIN or
    COMMIT of the application's own. The same holds while another thread or task uses the connection.
    """
    status, libpq = connection.info.transaction_status, connection.pgconn
    if libpq.pipeline_status != PipelineStatus.OFF or status == TransactionStatus.ACTIVE:
        return connection._num_transactions > 0  # noqa: SLF001
    return status != TransactionStatus.IDLE


# --- rows that were not awaited ---


class _WriteFirst:
    """Replaces a connection's lock while rows wait: the next caller of the lock writes them first.

    Everything that a connection does takes its lock: a statement, a commit, a block of a transaction.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection: Any = connection
        self.lock = connection.lock
        self.queue = Queue(lambda rows: _insert(connection, rows), self._guard, self._free)
        self._error: Exception | None = None

    def _guard(self, _: Queue) -> None:
        self._connection.lock = self

    def _free(self) -> None:
        self._connection.lock = self.lock

    async def __aenter__(self) -> None:
        try:
            await self.queue.flush()
        except Exception as error:
            if not fatal(error):
                raise
            # The command still runs, so the driver sees that the transaction ends: its commit is a rollback now.
            self._error = error
        await self.lock.acquire()

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()
        if self._error is not None:
            first, self._error = self._error, None
            raise first


def _queue(connection: psycopg.AsyncConnection[Any]) -> Queue:
    waiting: Any = connection.lock
    return waiting.queue if isinstance(waiting, _WriteFirst) else _WriteFirst(connection).queue


async def write_waiting(connection: psycopg.AsyncConnection[Any]) -> None:
    """Write the rows whose ``await`` was forgotten. Raises what `refusals` raises."""
    waiting: Any = connection.lock
    if isinstance(waiting, _WriteFirst):
        await waiting.queue.flush()


def drop_waiting(connection: psycopg.AsyncConnection[Any]) -> None:
    """Drop the rows whose ``await`` was forgotten."""
    waiting: Any = connection.lock
    if isinstance(waiting, _WriteFirst):
        waiting.queue.drop()
