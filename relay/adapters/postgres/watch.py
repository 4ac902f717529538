"""A connection for the same short questions, asked all day. Meanwhile it receives notifications.

An idle scheduler asks about fifty questions a second. With a pool and a cursor, a question would cost several
times as much as the server needs to answer it. So this calls libpq directly: the server has the statements
prepared, and one reader stays on the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.errors import QueryCanceled, error_from_result
from psycopg.pq import ExecStatus

from relay.adapters.postgres.pool import CONNECTION, Connection, reached
from relay.adapters.postgres.source import migrated
from relay.adapters.postgres.sql import statement

#: Rows as the server writes them, in text.
Rows: TypeAlias = Sequence[Sequence[bytes | None]]

#: The shortest time between two attempts to connect, in seconds.
_RECONNECT: Final = 1.0
#: Shortly after this time the caller gives up, and the server would not notice.
_LIMIT: Final = "SET statement_timeout = '4s'"


class Watch:
    """Connects on the first question and after every loss. Asks one question at a time.

    ``hear`` gets the payload of every notification on ``channel``. It gets None after each connect and each loss:
    notifications may be missing then, so ask again. It is called in the event loop.
    """

    def __init__(self, url: str, channel: str, hear: Callable[[str | None], None]) -> None:
        self._url, self._channel, self._hear = url, channel, hear
        self._lock = asyncio.Lock()
        self._conn: Connection | None = None
        self._socket = -1
        self._connecting: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._again: asyncio.TimerHandle | None = None
        self._prepared: dict[Any, bytes] = {}
        self._answer: asyncio.Future[Rows] | None = None
        self._rows: list[Sequence[bytes | None]] = []
        self._cancelled: QueryCanceled | None = None

    async def ask(self, question: str, parameters: Mapping[str, Any] | None = None) -> Rows:
        """Return the rows of a statement in ``sql/``. Raises DatabaseUnreachable and SchemaMissing."""
        with reached(), migrated():
            if self._conn is None:
                await self._connected()
            async with self._lock:
                if self._conn is None:
                    raise psycopg.OperationalError("the connection was lost")
                try:
                    name = await self._name(self._conn, question, parameters or {})
                    return await self._exchange(self._conn, name)
                except BaseException as error:
                    # The answer may still arrive and would look like the next one's. A time-out of the statement
                    # is itself an answer, so then the connection stays.
                    if error is not self._cancelled:
                        self._drop()
                    raise

    async def close(self) -> None:
        """Close the connection. The next question opens it again."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        async with self._lock:
            self._drop()
        if self._again is not None:
            self._again.cancel()

    # --- the connection ---

    async def _connected(self) -> None:
        """Connect. Callers that ask meanwhile share the attempt."""
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
        await asyncio.shield(self._connecting)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._not_before - loop.time())
        self._not_before = loop.time() + _RECONNECT
        try:
            self._conn = conn = await self._dial()
        except psycopg.Error:
            self._ask_again()
            raise
        self._socket, self._prepared = conn.pgconn.socket, {}
        loop.add_reader(self._socket, self._read)
        loop.call_soon(self._hear, None)

    async def _dial(self) -> Connection:
        options = {**CONNECTION, "application_name": "jetrelay-wakeup"}
        conn = await psycopg.AsyncConnection.connect(self._url, **options)
        try:
            conn.add_notify_handler(lambda news: self._hear(news.payload))
            await conn.execute(_LIMIT)
            await conn.execute(f"LISTEN {self._channel}")
        except BaseException:
            conn.pgconn.finish()
            raise
        return conn

    def _drop(self) -> None:
        if self._conn is not None:
            # By the stored number, because libpq may have closed the socket already.
            asyncio.get_running_loop().remove_reader(self._socket)
            self._conn.pgconn.finish()
            self._conn = None
            self._ask_again()

    def _ask_again(self) -> None:
        """Call ``hear`` soon, so that somebody asks and so connects."""
        if self._again is not None:
            self._again.cancel()
        self._again = asyncio.get_running_loop().call_later(_RECONNECT, self._hear, None)

    # --- questions ---

    async def _name(self, conn: Connection, question: str, parameters: Mapping[str, Any]) -> bytes:
        """Return the prepared name of a question. Prepares it on first use."""
        key = (question, *parameters.items())
        if key not in self._prepared:
            name = f"{question}_{len(self._prepared)}".replace("/", "_")
            text = psycopg.AsyncClientCursor(conn).mogrify(statement(question), parameters)
            loop = asyncio.get_running_loop()
            # While psycopg waits, it replaces our reader of the socket by its own.
            loop.remove_reader(self._socket)
            await conn.execute(f"PREPARE {name} AS {text}".encode())
            loop.add_reader(self._socket, self._read)
            self._prepared[key] = name.encode()
        return self._prepared[key]

    async def _exchange(self, conn: Connection, name: bytes) -> Rows:
        self._answer, self._rows = asyncio.get_running_loop().create_future(), []
        self._cancelled = None
        try:
            conn.pgconn.send_query_prepared(name, None)
            # So few bytes always fit into the socket, unless the server has long stopped reading.
            conn.pgconn.flush()
            return await self._answer
        finally:
            self._answer = None

    def _read(self) -> None:
        """Read what has arrived: notifications, an answer, or the end of the connection."""
        assert self._conn is not None
        try:
            self._take_in(self._conn)
        except psycopg.Error as error:
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(error)
            self._drop()

    def _take_in(self, conn: Connection) -> None:
        pgconn = conn.pgconn
        pgconn.consume_input()
        while (news := pgconn.notifies()) is not None:
            self._hear(news.extra.decode())
        while self._answer is not None and not self._answer.done() and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                self._end(self._answer)
            elif result.status == ExecStatus.TUPLES_OK:
                columns = range(result.nfields)
                self._rows += [
                    [result.get_value(row, column) for column in columns] for row in range(result.ntuples)
                ]
            else:
                error = error_from_result(result)
                if not isinstance(error, QueryCanceled):
                    raise error
                self._cancelled = error

    def _end(self, answer: asyncio.Future[Rows]) -> None:
        if self._cancelled is not None:
            answer.set_exception(self._cancelled)
        else:
            answer.set_result(self._rows)
