"""A connection for short questions that are asked all day. Meanwhile it receives notifications.

With a pool and a cursor, a question would cost several times as much as the server needs to answer it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import psycopg
from psycopg.errors import InvalidSqlStatementName
from psycopg.pq import ConnStatus, TransactionStatus

from relay.adapters.postgres.failures import migrated, reached
from relay.adapters.postgres.pipeline import Sent, fetch_all
from relay.adapters.postgres.pool import CONNECTION, AsyncConnection, Connection
from relay.adapters.postgres.sql import statement
from relay.concurrency import end

Rows: TypeAlias = Sequence[Mapping[str, Any]]
#: A statement in ``sql/`` and its parameters.
Question: TypeAlias = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PollTimes:
    """Times in seconds.

    ``reconnect``: the shortest time between two attempts to connect. ``lend``: how long a borrower waits for a
    question, because to connect costs more than most questions take. ``answer``: the server ends a question after
    it; 0 means never. Shortly later the caller gives up, which the server would not notice.
    """

    reconnect: float = 1.0
    lend: float = 0.1
    answer: float = 4.0


class PollConnection:
    """A connection for the same short questions, asked all day. Meanwhile it receives notifications.

    Connects on the first question and after every loss. Asks one question at a time.

    ``hear`` gets the payload of every notification on ``channel``. It gets None after each connect and each loss:
    notifications may be missing then, so ask again. It is called in the event loop.
    """

    def __init__(
        self, url: str, channel: str, hear: Callable[[str | None], None], times: PollTimes = PollTimes()
    ) -> None:
        self._url, self._channel, self._hear, self._times = url, channel, hear, times
        self._lock = asyncio.Lock()
        self._conn: Connection | None = None
        self._socket = -1
        self._connecting: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._again: asyncio.TimerHandle | None = None
        self._questions: dict[Any, Sent] = {}

    async def ask(self, question: str, parameters: Mapping[str, Any] | None = None) -> Rows:
        """Return the rows of a statement in ``sql/``. Raises DatabaseUnreachable and SchemaMissing."""
        [rows] = await self.ask_all([(question, parameters or {})])
        return rows

    async def ask_all(self, questions: Sequence[Question]) -> list[Rows]:
        """As `ask`, in one round trip and one transaction: if one fails, all do."""
        with reached(), migrated():
            if self._conn is None:
                await self._connected()
            async with self._lock:
                if self._conn is None:
                    raise psycopg.OperationalError("the connection was lost")
                try:
                    return await self._exchange(self._conn, [self._sent(self._conn, *it) for it in questions])
                except BaseException:
                    # If the exchange is not over, its answer may still arrive and would look like the next one's.
                    if self._conn.pgconn.transaction_status != TransactionStatus.IDLE:
                        self._drop()
                    raise

    async def connect(self) -> None:
        """Connect, unless there is a connection. Raises DatabaseUnreachable."""
        with reached():
            if self._conn is None:
                await self._connected()

    @asynccontextmanager
    async def lend(self, *, at_once: bool = False) -> AsyncIterator[Connection | None]:
        """Lend the connection for other short statements; None if there is none, or if a question takes long.

        ``at_once``: None if it is in use.
        """
        if at_once and (self._conn is None or self._lock.locked()):
            yield None
            return
        try:
            async with asyncio.timeout(self._times.lend):
                await self._lock.acquire()
        except TimeoutError:
            yield None
            return
        try:
            if (conn := self._conn) is None:
                yield None
                return
            asyncio.get_running_loop().remove_reader(self._socket)
            try:
                yield conn
            finally:
                if conn.pgconn.transaction_status != TransactionStatus.IDLE:
                    self._drop()
                else:
                    asyncio.get_running_loop().add_reader(self._socket, self._read)
                    self._hear_news(conn)
        finally:
            self._lock.release()

    async def close(self) -> None:
        """Close the connection. The next question opens it again."""
        if self._connecting is not None:
            await end(self._connecting)
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
        self._not_before = loop.time() + self._times.reconnect
        try:
            self._conn = conn = await self._dial()
        except psycopg.Error:
            self._ask_again()
            raise
        self._socket = conn.pgconn.socket
        loop.add_reader(self._socket, self._read)
        loop.call_soon(self._hear, None)

    async def _dial(self) -> Connection:
        options = {**CONNECTION, "application_name": "jetrelay-wakeup"}
        conn: Connection = await AsyncConnection.connect(self._url, **options)
        try:
            conn.add_notify_handler(lambda news: self._hear(news.payload))
            await conn.execute(f"SET statement_timeout = {round(1000 * self._times.answer)}")
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
        """Call ``hear`` soon. It leads to a question, and so to a new connection."""
        if self._again is not None:
            self._again.cancel()
        self._again = asyncio.get_running_loop().call_later(self._times.reconnect, self._hear, None)

    # --- questions ---

    def _sent(self, conn: Connection, question: str, parameters: Mapping[str, Any]) -> Sent:
        """Return a question with its parameters in its text, so that it is planned for them once."""
        key = (question, *parameters.items())
        if key not in self._questions:
            name = f"{question}_{len(self._questions)}".replace("/", "_")
            text = psycopg.AsyncClientCursor(conn).mogrify(statement(question), parameters)
            self._questions[key] = Sent(name.encode(), text.encode(), [])
        return self._questions[key]

    async def _exchange(self, conn: Connection, sent: Sequence[Sent]) -> list[Rows]:
        loop = asyncio.get_running_loop()
        # One reader at a time: the exchange has its own.
        loop.remove_reader(self._socket)
        try:
            try:
                return [*await fetch_all(conn, sent)]
            except InvalidSqlStatementName:
                # While it was lent, the driver has deallocated every statement, as it does after a rollback.
                return [*await fetch_all(conn, sent)]
        finally:
            if conn.pgconn.status == ConnStatus.OK:
                loop.add_reader(self._socket, self._read)
                self._hear_news(conn)

    def _read(self) -> None:
        """Read what has arrived between two questions: notifications, or the end of the connection."""
        assert self._conn is not None
        try:
            self._conn.pgconn.consume_input()
            self._hear_news(self._conn)
        except psycopg.Error:
            self._drop()

    def _hear_news(self, conn: Connection) -> None:
        while (news := conn.pgconn.notifies()) is not None:
            self._hear(news.extra.decode())
