"""Wake-up by LISTEN/NOTIFY: a hint that costs nothing under load (DESIGN §5).

A NOTIFY takes a lock of the whole database cluster at commit. So producers send one only while the publisher has
said that it sleeps. Hints only save time: polling finds all work without them.

An idle scheduler asks about fifty questions a second. With a pool and a cursor, a question would cost several
times as much as the server needs to answer it. So `Watch` has a connection for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.errors import QueryCanceled
from psycopg.pq import ConnStatus, TransactionStatus

from relay.adapters.postgres.brake import ProducerBrake, tell
from relay.adapters.postgres.pipeline import Sent, fetch_all
from relay.adapters.postgres.pool import CONNECTION, Connection, Pool, migrated, reached
from relay.adapters.postgres.sql import statement
from relay.adapters.postgres.tasks import GRACE
from relay.concurrency import Batcher
from relay.domain.errors import DatabaseUnreachable
from relay.domain.ordering import LANES, Shard

Rows: TypeAlias = Sequence[Mapping[str, Any]]
#: A statement in ``sql/`` and its parameters.
Question: TypeAlias = tuple[str, Mapping[str, Any]]

CHANNEL: Final = "relay_outbox"
#: The payloads of hints: an event was recorded, a task was scheduled.
EVENTS: Final = ""
TASKS: Final = "tasks"
#: A question that took the server longer than _SLOW_S, twice, is asked again after _PAUSE_FACTOR times that time.
_SLOW_S: Final = 0.1
_PAUSE_FACTOR: Final = 20
_ALL_LANES: Final = (1 << LANES) - 1
_DUE: Final = "outbox/due"
#: The shortest time between two attempts to connect, in seconds.
_RECONNECT_INTERVAL_S: Final = 1.0
#: Shortly after this time the caller gives up, and the server would not notice.
_LIMIT: Final = "SET statement_timeout = '4s'"
_GIVE_UP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Due:
    """How many events wait to be published, and the lanes of their keys: one bit for each lane."""

    count: int
    lanes: int

    def concerns(self, shard: Shard) -> bool:
        """Whether any of the events is in a lane of ``shard``."""
        return any(self.lanes >> lane & 1 for lane in shard.lanes)


class Wakeup:
    """Asks whether anything is due, and receives hints, on a connection of its own."""

    def __init__(self, pool: Pool, url: str) -> None:
        self._pool = pool
        self._watch = Watch(url, CHANNEL, self._hear)
        self.brake = ProducerBrake(pool, self._watch.ask)
        self._asked: Batcher[Question, Rows | None] = Batcher(self._together)
        self._sleeping: bool | None = None
        self._rest_until = 0.0
        self._slow = False
        self._wakes: dict[str, Callable[[], None]] = {}

    async def due(self, limit: int) -> Due:
        """Return what waits to be published, counted up to ``limit``. Raises DatabaseUnreachable, SchemaMissing.

        When the server takes long, for example after an hour under an old snapshot, this asks seldom. Between two
        questions, and after a time-out, it returns ``limit`` and all lanes. An outage raises.
        """
        begun = time.monotonic()
        if begun < self._rest_until:
            return Due(limit, _ALL_LANES)
        rows: Rows | None = None
        try:
            rows = await self._asked.ask((_DUE, {"limit": limit}))
        except DatabaseUnreachable as error:
            if not isinstance(error.__cause__, QueryCanceled):
                raise
        if rows is None:
            count, lanes, took = limit, _ALL_LANES, time.monotonic() - begun
        else:
            count, lanes, took = rows[0].values()
        before, self._slow = self._slow, took > _SLOW_S
        # Once may be chance. While it rests it takes all for due, which would make a busy machine busier.
        if self._slow and (before or rows is None):
            self._rest_until = begun + _PAUSE_FACTOR * took
        return Due(int(count or 0), lanes or 0)

    async def tasks_due(self) -> bool:
        """Whether a task is waiting to be delivered. Raises DatabaseUnreachable."""
        return bool(await self._asked.ask(("tasks/pending_queues", {})))

    async def tasks_overdue(self) -> bool:
        """Whether a delivered task should have begun by now. Raises DatabaseUnreachable."""
        return bool(await self._asked.ask(("tasks/delivered_queues", {"grace": GRACE})))

    async def _together(self, questions: Sequence[Question]) -> Sequence[Rows | None]:
        """Ask what is asked at the same time, in one round trip and one transaction.

        None for what waits to be published if that took too long, so that the other questions have their answers.
        """
        try:
            # Those who ask give up, and nobody would see that the connection is dead.
            async with asyncio.timeout(_GIVE_UP_S):
                return await self._watch.ask_all(questions)
        except TimeoutError as error:
            raise DatabaseUnreachable(f"no answer within {_GIVE_UP_S:g} s") from error
        except DatabaseUnreachable as error:
            if len(questions) == 1 or not isinstance(error.__cause__, QueryCanceled):
                raise
        others = iter(await self._watch.ask_all([it for it in questions if it[0] != _DUE]))
        return [None if name == _DUE else next(others) for name, _ in questions]

    @property
    def hinted(self) -> bool:
        """Whether producers send hints, as far as is known, and a connection is there that receives them."""
        return self._sleeping is True

    async def set_sleeping(self, sleeping: bool) -> None:
        """Tell producers whether to send hints. Does nothing if they know already."""
        if sleeping != self._sleeping:
            await tell(self._pool, "schedule/set_sleeping", sleeping=sleeping)
            self._sleeping = sleeping

    def listen(self, kind: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` for every hint of a kind, in the event loop, from the next question until `close`."""
        self._wakes[kind] = wake

    async def close(self) -> None:
        """Stop listening."""
        self._wakes.clear()
        await self._watch.close()

    def _hear(self, kind: str | None) -> None:
        if kind is None:
            # Another process may have told producers something else meanwhile.
            self._sleeping = None
            for wake in list(self._wakes.values()):
                wake()
        elif kind in self._wakes:
            self._wakes[kind]()


class Watch:
    """A connection for the same short questions, asked all day. Meanwhile it receives notifications.

    Connects on the first question and after every loss. Asks one question at a time.

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
        self._not_before = loop.time() + _RECONNECT_INTERVAL_S
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
        self._again = asyncio.get_running_loop().call_later(_RECONNECT_INTERVAL_S, self._hear, None)

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
