"""What tests of the outbox and of publishing share: producers of every kind, and a publisher on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import nats
import psycopg
import pytest
from nats.js.api import StreamConfig
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from relay import Event, Outbox
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.publisher import NatsJetStreamPublisher
from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.low_water import SEARCH_LIMITS, SearchLimits
from relay.adapters.postgres.outbox import LARGEST, KeptPayloads, PostgresOutboxAdapter
from relay.adapters.postgres.pool import Pool, Source, connected
from relay.adapters.postgres.wakeup import DuePollTimes
from relay.commands.publish import PublishConfig, PublishOutboxEvents
from relay.domain.controls import Controls, uncontrolled
from relay.domain.errors import Outage
from relay.domain.facts import Fact
from relay.domain.ordering import Shard
from relay.domain.retry import Backoff, RetryPolicy
from relay.domain.routing import Route, Routing
from tests.waiting import eventually

DEADLINE = 60.0
ALL = Shard(0, 1)
#: On a busy machine a question may take long. It is asked again all the same.
NO_REST = DuePollTimes(slow=60.0)
#: What publishing writes. The rest of a bad row may be more than a client can read.
STATE = (
    "id, published_at, publish_attempts, publish_error, available_at, dead_at, "
    "published_stream, published_seq, published_duplicate, partition_key"
)
_numbers = itertools.count(1)


@asynccontextmanager
async def open_backlog_reader(url: str, **options: Any) -> AsyncIterator[PostgresBacklogReader]:
    async with connected(url, "backlog") as source:
        yield PostgresBacklogReader(source, **options)


def event(aggregate: str = "v1", **values: Any) -> Event:
    values = {"event_type": "vibe_created", "aggregate_type": "vibe", "payload": {}} | values
    return Event(aggregate_id=aggregate, **values)


def engine_url(url: str, driver: str = "psycopg") -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


def query(url: str, sql: str, *parameters: Any) -> list[dict[str, Any]]:
    """What another connection sees."""
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
        cursor = connection.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []


def outbox_rows(url: str) -> list[dict[str, Any]]:
    return query(url, "SELECT * FROM outbox_events ORDER BY seq")


# --- producers ---


@dataclass
class Producer:
    """One kind of target, spoken to in one way."""

    target: Any
    #: How this kind begins, commits and rolls back, if not by itself or by methods of its own.
    begin: Callable[[], Awaitable[None]] | None = None
    end: Callable[[str], Awaitable[None]] | None = None

    async def call(self, name: str, *arguments: Any) -> Any:
        if name in ("commit", "rollback") and self.end is not None:
            return await self.end(name)
        result = getattr(self.target, name)(*arguments)
        return await result if inspect.isawaitable(result) else result

    async def add(self, *events: Any) -> Sequence[UUID]:
        if self.begin is not None:
            await self.begin()
        ids = Outbox("vibespro").add_many(self.target, events)
        return await ids if isinstance(ids, Awaitable) else ids

    async def execute(self, sql: str) -> None:
        if self.begin is not None:
            await self.begin()
        if type(self.target).__module__.startswith("django"):
            self.target.cursor().execute(sql)
            return
        alchemy = type(self.target).__module__.startswith("sqlalchemy")
        await self.call("execute", text(sql) if alchemy else sql)


@asynccontextmanager
async def _sync(url: str, kind: str) -> AsyncIterator[Any]:
    engine = create_engine(engine_url(url))
    if kind == "Connection":
        with engine.connect() as connection:
            yield connection
    elif kind == "scoped_session":
        registry = scoped_session(sessionmaker(engine))
        yield registry
        registry.remove()
    else:
        with Session(engine) as session:
            yield session
    engine.dispose()


@asynccontextmanager
async def _async(url: str, kind: str) -> AsyncIterator[Any]:
    kind, _, driver = kind.partition(" on ")
    engine = create_async_engine(engine_url(url, driver or "psycopg"))
    if kind == "AsyncConnection":
        async with engine.connect() as connection:
            yield connection
    elif kind == "async_scoped_session":
        registry = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        yield registry
        await registry.remove()
    else:
        async with AsyncSession(engine) as session:
            yield session
    await engine.dispose()


KINDS = [
    *("Session", "scoped_session", "AsyncSession", "async_scoped_session"),
    *("Connection", "AsyncConnection", "psycopg", "psycopg async"),
    *("AsyncSession on asyncpg", "AsyncConnection on asyncpg", "asyncpg", "asyncpg pool", "Django"),
]


@asynccontextmanager
async def _asyncpg(url: str, kind: str) -> AsyncIterator[Producer]:
    """asyncpg has objects for transactions."""
    import asyncpg

    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as lent:
        connection = lent if kind == "asyncpg pool" else await asyncpg.connect(url)
        open_: list[Any] = []

        async def begin() -> None:
            if not open_:
                open_.append(connection.transaction())
                await open_[0].start()

        async def end(name: str) -> None:
            if open_:
                await getattr(open_.pop(), name)()

        yield Producer(connection, begin, end)
        if connection is not lent:
            await connection.close()


def django_connection(url: str) -> Any:
    """A connection as Django makes it."""
    import django
    from django.conf import settings
    from django.db.backends.postgresql.base import DatabaseWrapper

    if not settings.configured:
        settings.configure()
        django.setup()
    parts = conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    database: dict[str, Any] = {name: str(parts.get(part, "")) for name, part in names.items()}
    database |= {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {}, "AUTOCOMMIT": True, "TIME_ZONE": None}
    database |= {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False, "TEST": {}}
    return DatabaseWrapper(database)


@asynccontextmanager
async def producing(kind: str, url: str) -> AsyncIterator[Producer]:
    """A producer of this kind, on a connection of its own."""
    if kind == "psycopg":
        with psycopg.connect(url) as connection:
            yield Producer(connection)
    elif kind == "psycopg async":
        async with await psycopg.AsyncConnection.connect(url) as async_connection:
            yield Producer(async_connection)
    elif kind == "Django":
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
            connection = django_connection(url)
            connection.set_autocommit(False)
            yield Producer(connection)
            connection.close()
    elif kind.startswith("asyncpg"):
        async with _asyncpg(url, kind) as producer:
            yield producer
    else:
        manager = _async if kind.lower().startswith("async") else _sync
        async with manager(url, kind) as target:
            yield Producer(target)


# --- publisher ---


Hook = Callable[[Any], Awaitable[None]]


@dataclass
class Interposed:
    """An outbox repository with something happening inside of its claims: after claiming, before committing."""

    inner: PostgresOutboxAdapter
    claimed: Hook | None
    settled: Hook | None

    @asynccontextmanager
    async def find_unpublished(self, lanes: Sequence[int], limit: int, max_bytes: int) -> AsyncIterator[Any]:
        async with self.inner.find_unpublished(lanes, limit, max_bytes) as claim:
            if self.claimed:
                await self.claimed(claim)
            yield claim
            if self.settled:
                await self.settled(claim)


@dataclass
class Relay:
    """A publisher of one context, with a stream of its own on a NATS server shared with other tests."""

    url: str
    nats_url: str
    context: str = field(default_factory=lambda: f"context{next(_numbers)}")
    facts: list[Fact] = field(default_factory=list)
    #: Longer than a busy machine stands still. Tests of a broker that is slow or silent shorten it.
    ack_timeout: timedelta = timedelta(seconds=30)
    #: When the commands made from now on search for low-water marks.
    search: SearchLimits = SEARCH_LIMITS

    async def __aenter__(self) -> Relay:
        self.pool = Pool(self.url, max_size=4, application_name="publisher")
        await self.pool.open()
        self.nats = NatsConnection(self.nats_url)
        self.publisher = NatsJetStreamPublisher(self.nats, ack_timeout=self.ack_timeout)
        self.outbox = Outbox(self.context, undeclared=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.nats.close()
        await self.pool.close()

    @property
    def stream(self) -> str:
        return self.context.upper()

    async def admin(self, call: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do something with JetStream on a connection of its own."""
        client = await nats.connect(self.nats_url)
        try:
            return await call(client.jetstream())
        finally:
            await client.close()

    async def create_stream(self, **settings: Any) -> None:
        config = StreamConfig(name=self.stream, subjects=[f"{self.context}.event.>"], **settings)
        await self.admin(lambda js: js.add_stream(config))

    async def update_stream(self, **settings: Any) -> None:
        config = StreamConfig(name=self.stream, subjects=[f"{self.context}.event.>"], **settings)
        await self.admin(lambda js: js.update_stream(config))

    async def messages(self) -> list[Any]:
        """All messages of the stream, in its order."""

        async def read(js: Any) -> list[Any]:
            last = (await js.stream_info(self.stream)).state.last_seq
            return [await js.get_msg(self.stream, seq) for seq in range(1, last + 1)]

        return list(await self.admin(read))

    async def ids(self) -> list[str]:
        return [message.headers["Nats-Msg-Id"] for message in await self.messages()]

    async def bodies(self) -> list[Any]:
        return [json.loads(message.data) for message in await self.messages()]

    def command(
        self,
        *,
        batch_size: int = 300,
        batch_bytes: int = 4 * 1024**2,
        max_attempts: int = 3,
        backoff: Backoff = Backoff(initial=timedelta(milliseconds=50)),
        envelope: str = "handler",
        system_actor: str = "system",
        routes: Sequence[Route] = (),
        streams: Mapping[str, Sequence[str]] | None = None,
        dead_head_blocks: bool = False,
        claimed: Hook | None = None,
        settled: Hook | None = None,
        source: Source | None = None,
        controls: Callable[[], Awaitable[Controls]] = uncontrolled,
        expires_in: Mapping[str, timedelta] | None = None,
        ttl: bool = False,
        kept: KeptPayloads | None = None,
    ) -> PublishOutboxEvents:
        """CMD-050; ``claimed`` and ``settled`` happen inside of each claim, first and last."""
        config = PublishConfig(
            routing=Routing(context=self.context, routes=routes, streams=streams or {}),
            envelope=envelope,
            batch_size=batch_size,
            batch_bytes=batch_bytes,
            policy=RetryPolicy(max_attempts=max_attempts, backoff=backoff),
            system_actor=system_actor,
            expires_in=expires_in or {},
            ttl=ttl,
            dead_head_blocks=dead_head_blocks,
        )
        outbox: Any = PostgresOutboxAdapter(
            source or self.pool.connection,
            dead_head_blocks=dead_head_blocks,
            search=self.search,
            largest=lambda: self.publisher.largest(LARGEST),
            kept=kept,
        )
        if claimed or settled:
            outbox = Interposed(outbox, claimed, settled)
        return PublishOutboxEvents(config, outbox, self.publisher, self.facts.append, controls=controls)

    async def drained(self, command: PublishOutboxEvents | None = None) -> None:
        """Drain, as ticks do, until everything is published."""
        command = command or self.command()

        async def tick() -> bool:
            with contextlib.suppress(Outage):
                await command.drain(ALL)
            return self.unpublished() == []

        await eventually("everything is published", tick)

    def add(self, *events: Event) -> list[UUID]:
        """Commit events in one transaction."""
        with psycopg.connect(self.url) as connection:
            return list(self.outbox.add_many(connection, events))

    def insert(self, **columns: Any) -> UUID:
        """Commit a row by raw SQL, past all checks; returns its id."""
        values = {"event_type": "vibe_created", "aggregate_type": "vibe", "aggregate_id": "raw", "payload": "{}"}
        values |= columns
        names, marks = ", ".join(values), ", ".join(["%s"] * len(values))
        sql = f"INSERT INTO outbox_events (id, {names}) VALUES (gen_random_uuid(), {marks}) RETURNING id"
        return UUID(str(query(self.url, sql, *values.values())[0]["id"]))

    def row(self, event_id: UUID) -> dict[str, Any]:
        return query(self.url, f"SELECT {STATE} FROM outbox_events WHERE id = %s", event_id)[0]

    def unpublished(self) -> list[dict[str, Any]]:
        return query(self.url, f"SELECT {STATE} FROM outbox_events WHERE published_at IS NULL ORDER BY seq")
