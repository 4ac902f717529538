"""The adapters of PostgreSQL, JetStream, folders and buckets keep the contracts of their ports.

Time cannot be moved on a server. So the times in its rows are moved back instead.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from nats.js.api import ConsumerConfig, StreamConfig

from relay.adapters.coldstore import FolderStore
from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.adapters.jetstream.publisher import NatsJetStreamPublisher
from relay.adapters.postgres.archive import PostgresArchive
from relay.adapters.postgres.enqueue import insert
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.incidents import PostgresIncidents
from relay.adapters.postgres.ordered_inbox import OrderedInboxAdapter
from relay.adapters.postgres.outbox import PostgresOutboxAdapter
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.schedule import PostgresSchedule
from relay.devstack import NatsServer
from relay.domain.model import OutboxEvent
from relay.domain.operators import Operator
from relay.domain.policies import Published
from relay.domain.schedule import WaitingRun
from relay.ports import InboxRow
from relay.testing.contracts import (
    ArchiveContract,
    ColdStoreContract,
    ConsumerContract,
    InboxContract,
    IncidentsContract,
    OutboxContract,
    PublisherContract,
    PublishState,
    RunsContract,
)
from tests.s3 import Buckets

pytestmark = pytest.mark.anyio

_GRACE = timedelta(minutes=10)
_EVENT = (
    *("id", "aggregate_type", "aggregate_id", "event_type", "event_version", "payload", "occurred_at"),
    *(
        "correlation_id",
        "causation_id",
        "partition_key",
        "topic",
        "headers",
        "available_at",
        "stream",
        "originals",
    ),
)
_DEAD = """
    INSERT INTO dead_letters (message_id, occurrence, subject, event_type, class, reason, attempts, letter_stream,
                              letter_seq)
    SELECT message_id, requeues + 1, subject, event_type, dead_letter_class, dead_letter_reason, attempts, 'DLQ', 1
    FROM inbox_messages WHERE message_id = %s
    ON CONFLICT (message_id, occurrence) DO UPDATE SET note = NULL RETURNING id
"""
_names = (f"up{number}x{uuid4().hex[:6]}" for number in itertools.count(1))


class Database:
    """The adapters of a database, on one pool."""

    def __init__(self, url: str) -> None:
        self.pool = Pool(url, max_size=10, application_name="contract")
        self.inbox = PostgresInboxAdapter(self.pool, grace=_GRACE)
        self.outbox = PostgresOutboxAdapter(self.pool.connection)
        self.incidents = PostgresIncidents(self.pool.connection)
        self.runs = PostgresSchedule(self.pool.connection)
        self.tables = PostgresArchive(self.pool.connection, "sea")

    async def do(self, sql: str, *parameters: Any) -> list[Any]:
        async with self.pool.connection() as conn:
            cursor = await conn.execute(sql.encode(), parameters)
            return await cursor.fetchall() if cursor.description else []

    async def elapse(self, time: timedelta) -> None:
        for table, columns in (
            (
                "inbox_messages",
                "received_at enqueued_at next_attempt_at claimed_until processed_at dead_lettered_at let_go_at",
            ),
            ("inbox_messages", "expires_at"),
            ("outbox_events", "occurred_at available_at expires_at"),
            ("scheduled_runs", "claimed_until available_at"),
        ):
            moved = ", ".join(f"{name} = {name} - %s" for name in columns.split())
            await self.do(f"UPDATE {table} SET {moved}", *([time] * len(columns.split())))

    # --- inbox ---

    async def requeue(self, message_id: UUID) -> None:
        [(incident,)] = await self.do(_DEAD, message_id)
        assert (await self.incidents.requeue([incident], Operator("ann"))).refused == ()

    async def error_of(self, message_id: UUID) -> str | None:
        [(error,)] = await self.do("SELECT last_error FROM inbox_messages WHERE message_id = %s", message_id)
        return error

    # --- outbox ---

    async def add(self, *events: OutboxEvent) -> None:
        async with self.pool.connection() as conn, conn.transaction():
            for event in events:
                if event.timing is not None:
                    sql, parameters = insert([event])
                    await conn.execute(sql.encode(), parameters)
                    continue
                values = {name: getattr(event, name) for name in _EVENT} | {"headers": json.dumps(event.headers)}
                values["originals"] = json.dumps(event.originals) if event.originals else None
                given = [name for name in _EVENT if values[name] is not None]
                sql = f"INSERT INTO outbox_events ({', '.join(given)}) VALUES ({', '.join(['%s'] * len(given))})"
                await conn.execute(sql.encode(), [values[name] for name in given])

    async def lose_claims(self) -> None:
        await self.do(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE state = 'idle in transaction' AND datname = current_database()"
        )

    async def state(self, id: UUID) -> PublishState:
        columns = "publish_attempts, publish_error, dead_at IS NOT NULL"
        ack = "published_stream, published_seq, published_duplicate, published_at IS NOT NULL"
        [(*row, stream, seq, duplicate, published)] = await self.do(
            f"SELECT {columns}, {ack} FROM outbox_events WHERE id = %s", id
        )
        return PublishState(*row, Published(stream, seq, duplicate) if published else None)

    # --- records ---

    async def receive(self, body: bytes) -> UUID:
        row = InboxRow(uuid4(), "s", "from_up", "UP", 1, "reply", body, {})
        await self.inbox.insert([row])
        return row.message_id

    async def original_of(self, id: int) -> bytes | None:
        detail = await self.incidents.get(id)
        assert detail is not None
        original: bytes | None = detail["original"]
        return original

    async def open(self, run: WaitingRun) -> None:
        sql = "INSERT INTO scheduled_runs (job, scheduled_for, correlation_id) VALUES (%s, %s, %s)"
        await self.do(sql, run.job, run.scheduled_for, uuid4())

    async def publish(self, stream: str, age: timedelta) -> UUID:
        id = uuid4()
        columns = "id, event_type, aggregate_type, aggregate_id, payload, published_stream, published_seq"
        await self.do(
            f"INSERT INTO outbox_events ({columns}, occurred_at, published_at) "
            "VALUES (%s, 'e', 'vibe', 'v1', '{}', %s, 1, now() - %s, now() - %s)",
            *(id, stream, age, age),
        )
        return id


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    bench = Database(database_url)
    await bench.pool.open()
    yield bench
    await bench.pool.close()


@pytest.fixture
def bench(database: Database) -> Database:
    return database


class TestInbox(InboxContract):
    pass


class TestOrderedInbox(InboxContract):
    """An ordered subscription keeps the same contract for messages without a key."""

    @pytest.fixture
    def bench(self, database: Database) -> Database:
        database.inbox = OrderedInboxAdapter(database.pool, grace=_GRACE)
        return database


class TestOutbox(OutboxContract):
    pass


class TestIncidents(IncidentsContract):
    pass


class TestRuns(RunsContract):
    pass


class TestArchive(ArchiveContract):
    pass


class TestColdStore(ColdStoreContract):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Any:
        class Bench:
            store = FolderStore(tmp_path)

        return Bench


class TestBucket(ColdStoreContract):
    @pytest.fixture
    def bench(self, buckets: Buckets) -> Any:
        class Bench:
            store = buckets.store(buckets.create())

        return Bench


class Broker:
    """A stream of its own on the shared server, with the adapters for it."""

    def __init__(self, url: str) -> None:
        self.nats = NatsConnection(url)
        self.subject = f"{next(_names)}.event.a"
        self.name = self.subject.partition(".")[0].upper()
        self.publisher = NatsJetStreamPublisher(self.nats, ack_timeout=timedelta(seconds=30))
        self.consumer = NatsJetStreamConsumer(self.nats, stream=self.name, durable="down")

    async def create(self) -> None:
        self.js = (await self.nats.client()).jetstream()
        await self.js.add_stream(StreamConfig(name=self.name, subjects=[self.subject]))
        await self._ack_within(120)

    async def _ack_within(self, seconds: float) -> None:
        config = ConsumerConfig(durable_name="down", ack_policy="explicit", ack_wait=seconds)
        await self.js.add_consumer(self.name, config)

    async def stored(self) -> Sequence[tuple[bytes, Mapping[str, str]]]:
        last = (await self.js.stream_info(self.name)).state.last_seq
        found = [await self.js.get_msg(self.name, seq) for seq in range(1, last + 1)]
        return [(message.data or b"", message.headers or {}) for message in found]

    async def send(self, *bodies: bytes) -> None:
        for body in bodies:
            await self.js.publish(self.subject, body)

    async def pass_ack_wait(self) -> None:
        await self._ack_within(0.2)


@pytest.fixture
async def broker(nats_server: NatsServer) -> AsyncIterator[Broker]:
    broker = Broker(nats_server.url)
    broker.nats.start()
    await broker.create()
    yield broker
    await broker.js.delete_stream(broker.name)
    await broker.nats.close()


class TestPublisher(PublisherContract):
    @pytest.fixture
    def bench(self, broker: Broker) -> Broker:
        return broker


class TestConsumer(ConsumerContract):
    @pytest.fixture
    def bench(self, broker: Broker) -> Broker:
        return broker
