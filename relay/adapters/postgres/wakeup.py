"""Wake-up by LISTEN/NOTIFY: a hint that costs nothing under load (DESIGN §5).

A NOTIFY takes a lock of the whole database cluster at commit. So producers send one only while the scheduler has
said that it sleeps. Hints only save time: polling finds all work without them.

A scheduler asks all day, for every context. With a pool and a cursor, a question would cost several times as much
as the server needs to answer it. So `PollConnection` is one for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from psycopg.errors import QueryCanceled

from relay.adapters.postgres import array
from relay.adapters.postgres.brake import ProducerBrake, tell
from relay.adapters.postgres.failures import migrated, reached
from relay.adapters.postgres.poll_connection import PollConnection, PollTimes, Question, Rows
from relay.adapters.postgres.pool import Connection, Pool, query
from relay.adapters.postgres.tasks import GRACE
from relay.concurrency import Batcher
from relay.domain.errors import DatabaseUnreachable
from relay.domain.ordering import LANES, Shard

CHANNEL: Final = "relay_outbox"
#: The payloads of hints: an event was recorded, a task was scheduled.
EVENTS: Final = ""
TASKS: Final = "tasks"
_ALL_LANES: Final = (1 << LANES) - 1
_DUE: Final = "outbox/due"


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePollTimes:
    """Times in seconds.

    If a question took the server longer than ``slow`` twice, it is asked again after ``pause_factor`` times that
    time. ``give_up``: after this time the caller waits no longer, because the connection may be dead.
    """

    slow: float = 0.1
    pause_factor: float = 20
    give_up: float = 5.0
    polls: PollTimes = field(default_factory=PollTimes)


@dataclass(frozen=True, slots=True)
class DueEvents:
    """How many events wait to be published, and the lanes of their keys: one bit for each lane."""

    count: int
    lanes: int

    def concerns(self, shard: Shard) -> bool:
        """Whether any of the events is in a lane of ``shard``."""
        return any(self.lanes >> lane & 1 for lane in shard.lanes)


class Wakeup:
    """Asks whether anything is due, and receives hints, on a connection of its own."""

    def __init__(self, pool: Pool, url: str, times: DuePollTimes = DuePollTimes()) -> None:
        self._pool, self._times = pool, times
        self._polls = PollConnection(url, CHANNEL, self._hear, times.polls)
        self.brake = ProducerBrake(pool, self._polls.ask)
        self._asked: Batcher[Question, Rows | None] = Batcher(self._together)
        self._wanted: bool | None = None
        #: Whether a connection receives the hints of producers.
        self._sleeping = False
        self._rest_until = self._blind_until = 0.0
        self._slow = self._late = False
        self._wakes: dict[str, Callable[[], None]] = {}
        #: What this object calls itself, to find out whether it hears anything, and whether it has.
        self._name, self._heard = uuid4().hex, asyncio.Event()

    async def due(self, limit: int) -> DueEvents:
        """Return what waits to be published, counted up to ``limit``. Raises DatabaseUnreachable, SchemaMissing.

        When the server takes long, for example after an hour with an old snapshot, this asks seldom. Between two
        questions, and after a time-out, it returns ``limit`` and all lanes. In an outage it raises.
        """
        begun = time.monotonic()
        if begun < self._rest_until:
            return DueEvents(limit, _ALL_LANES)
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
        before, self._slow = self._slow, took > self._times.slow
        # Once may be chance. While it does not ask, everything counts as due, which makes a busy machine busier.
        if self._slow and (before or rows is None):
            self._rest_until = begun + self._times.pause_factor * took
        return DueEvents(int(count or 0), lanes or 0)

    async def tasks_due(self) -> bool:
        """Whether a task is waiting to be delivered. Raises DatabaseUnreachable."""
        return bool(await self._asked.ask(("tasks/pending_queues", {})))

    async def tasks_overdue(self) -> bool:
        """Whether a delivered task should have begun by now. Raises DatabaseUnreachable."""
        return bool(await self._asked.ask(("tasks/delivered_queues", {"grace": GRACE})))

    async def alerts_waiting(self) -> bool:
        """Whether any alert must be sent. Raises DatabaseUnreachable."""
        [row] = await self._asked.ask(("alerts/waiting", {})) or [{"waiting": True}]
        return bool(row["waiting"])

    async def unfinished(self, subscriptions: Sequence[str]) -> Sequence[str]:
        """Those of the subscriptions that have unfinished messages; all of them if that is not known.

        That is so while the database is away, and for a time after an answer that took long.
        """
        begun = time.monotonic()
        if begun < self._blind_until:
            return subscriptions
        try:
            async with asyncio.timeout(self._times.give_up):
                rows = await self._polls.ask("inbox/open", {"subscriptions": array.of_texts(subscriptions)})
        except (DatabaseUnreachable, TimeoutError):
            rows = None
        took = time.monotonic() - begun
        before, self._late = self._late, took > self._times.slow
        # Once may be this process.
        if rows is None or (self._late and before):
            self._blind_until = begun + self._times.pause_factor * took
        return subscriptions if rows is None else [row["name"] for row in rows]

    async def _together(self, questions: Sequence[Question]) -> Sequence[Rows | None]:
        """Ask what is asked at the same time, in one round trip and one transaction.

        None for what waits to be published if that took too long, so that the other questions have their answers.
        """
        try:
            # The callers give up, and nothing would see that the connection is dead.
            async with asyncio.timeout(self._times.give_up):
                return await self._polls.ask_all(questions)
        except TimeoutError as error:
            raise DatabaseUnreachable(f"no answer within {self._times.give_up:g} s") from error
        except DatabaseUnreachable as error:
            if len(questions) == 1 or not isinstance(error.__cause__, QueryCanceled):
                raise
        others = iter(await self._polls.ask_all([it for it in questions if it[0] != _DUE]))
        return [None if name == _DUE else next(others) for name, _ in questions]

    @property
    def hinted(self) -> bool:
        """Whether, as far as is known, producers send hints and a connection receives them."""
        return self._sleeping

    async def set_sleeping(self, sleeping: bool) -> None:
        """Tell producers whether to send hints. Does nothing if they know already."""
        if sleeping != self._wanted:
            [(self._sleeping,)] = await tell(self._pool, "schedule/set_sleeping", sleeping=sleeping)
            self._wanted = sleeping

    @asynccontextmanager
    async def lend(self, *, at_once: bool = False) -> AsyncIterator[Connection]:
        """Lend the connection of the questions if it is free; otherwise one of the pool. A `Source`.

        So a slow question delays no other statement, and a leader needs only one connection to a database. The
        connection is always there, and has the statements of its borrowers prepared; those of a pool are closed
        soon. ``at_once``: do not wait until it is free.
        """
        async with self._polls.lend(at_once=at_once) as conn:
            if conn is not None:
                with reached(), migrated():
                    yield conn
                return
        async with self._pool.connection() as conn:
            yield conn

    def listen(self, kind: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` for every hint of a kind, in the event loop, from the next question until `close`."""
        self._wakes[kind] = wake

    async def hear(self) -> bool:
        """Connect, and return whether hints arrive here. Through a pooler that lends sessions, they do not.

        Raises DatabaseUnreachable.
        """
        await self._polls.connect()
        if not self._heard.is_set():
            async with self._pool.connection() as conn:
                await query(conn, "schedule/call_ourselves", channel=CHANNEL, name=self._name)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._times.give_up):
                    await self._heard.wait()
        return self._heard.is_set()

    async def close(self) -> None:
        """Stop listening."""
        self._wakes.clear()
        await self._polls.close()

    def _hear(self, kind: str | None) -> None:
        if kind is None:
            # Another process may have told producers something else meanwhile.
            self._wanted, self._sleeping = None, False
            self._heard.clear()
            for wake in list(self._wakes.values()):
                wake()
        elif kind == self._name:
            self._heard.set()
        elif kind in self._wakes:
            self._wakes[kind]()
