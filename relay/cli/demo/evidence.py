"""Read the outcome of the demo's events from the servers. Nothing here depends on reports of the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from nats.js import JetStreamContext
from sqlalchemy import DateTime, Engine, Executable, Integer, Uuid, column, create_engine, func, select, table

from relay.cli.demo.accounts import Books
from relay.cli.demo.scenario import ProducerRecord, Vibe
from relay.credentials import jetstream
from relay.devstack import sample
from relay.domain.envelopes import MSG_ID
from relay.settings import Settings

PRODUCER: Final = "vibespro"
CONSUMER: Final = "sea"

outbox_events = table("outbox_events", column("id", Uuid), column("published_at", DateTime(timezone=True)))
inbox_messages = table(
    "inbox_messages",
    column("message_id", Uuid),
    column("processed_at", DateTime(timezone=True)),
    column("dead_lettered_at", DateTime(timezone=True)),
    column("attempts", Integer),
)
#: How many messages an inbox holds at each stage, under the names of `Counts`.
INBOX_COUNTS: Final = select(
    func.count().label("received"),
    func.count(inbox_messages.c.processed_at).label("handled"),
    func.count().filter(inbox_messages.c.attempts > 1).label("retried"),
    func.count(inbox_messages.c.dead_lettered_at).label("dead_lettered"),
).select_from(inbox_messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The live figures, in the order of an event's way."""

    committed: int
    published: int
    received: int
    handled: int
    retried: int
    dead_lettered: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds from the write of the business row, just before its commit, sorted.

    ``handled`` leaves out events that the handler refused at first: they wait on purpose.
    """

    published: Sequence[float]
    handled: Sequence[float]


class Evidence:
    """Both databases and the broker, read only."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.producer = connect_to(settings, PRODUCER)
        self._consumer = connect_to(settings, CONSUMER)

    def close(self) -> None:
        """Close the connections."""
        self.producer.dispose()
        self._consumer.dispose()

    def counts(self) -> Counts:
        """Count the events at each stage. Reads later stages first, so that none seems ahead of an earlier one."""
        inbox = self._rows(self._consumer, INBOX_COUNTS)[0]
        published = self._rows(self.producer, select(func.count(outbox_events.c.published_at)))[0][0]
        committed = self._rows(self.producer, select(func.count()).select_from(Vibe))[0][0]
        return Counts(committed=committed, published=published, **inbox._mapping)  # noqa: SLF001 - its public name

    async def unacknowledged(self) -> int:
        """Count the messages that are not acknowledged in JetStream, delivered or not."""
        [subscription] = self._settings.contexts[CONSUMER].subscriptions.values()
        async with jetstream(self._settings) as js:
            info = await js.consumer_info(subscription.stream, subscription.durable)
        return (info.num_ack_pending or 0) + (info.num_pending or 0)

    async def books(self, production: ProducerRecord) -> Books:
        """Read everything, id by id."""
        outbox = self._rows(self.producer, select(outbox_events.c.id, outbox_events.c.published_at))
        inbox = self._rows(self._consumer, select(inbox_messages))
        done = select(sample.calls.c.message_id).where(sample.calls.c.status == sample.OK)
        async with jetstream(self._settings) as js:
            stream = await _message_ids(js, self._settings.contexts[PRODUCER].event_streams[0].name)
            dlq = await _message_ids(js, self._settings.contexts[CONSUMER].dlq.name)
        return Books(
            committed=production.committed,
            rolled_back=production.rolled_back,
            business=[row.event_id for row in self._rows(self.producer, select(Vibe.event_id))],
            outbox={row.id for row in outbox},
            published={row.id for row in outbox if row.published_at},
            stream=stream,
            received={row.message_id for row in inbox},
            handled={row.message_id for row in inbox if row.processed_at},
            dead_lettered={row.message_id for row in inbox if row.dead_lettered_at},
            done=[row.message_id for row in self._rows(self._consumer, done)],
            effects=[row.message_id for row in self._rows(self._consumer, select(sample.effects.c.message_id))],
            dlq=dlq,
            unacknowledged=await self.unacknowledged(),
        )

    def answers(self) -> Mapping[UUID, Sequence[int]]:
        """Return the statuses the handler gave, in order, by message."""
        calls = sample.calls.c
        rows = self._rows(self._consumer, select(calls.message_id, calls.status).order_by(calls.number))
        found: dict[UUID, list[int]] = {}
        for row in rows:
            found.setdefault(row.message_id, []).append(row.status)
        return found

    def latencies(self) -> Latencies:
        """Measure latencies by the database server's clock, which stamps both ends."""
        written = dict(self._rows(self.producer, select(Vibe.event_id, Vibe.created_at)))
        published = self._rows(self.producer, select(outbox_events.c.id, outbox_events.c.published_at))
        inbox = inbox_messages.c
        at_once = select(inbox.message_id, inbox.processed_at).where(inbox.attempts == 1)
        return Latencies(_seconds(written, published), _seconds(written, self._rows(self._consumer, at_once)))

    def _rows(self, engine: Engine, query: Executable) -> Sequence[Any]:
        with engine.connect() as connection:
            return connection.execute(query).all()


def connect_to(settings: Settings, context: str) -> Engine:
    """Connect to a context's database, when there is something to read."""
    url = settings.contexts[context].database
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))


def _seconds(begin: Mapping[UUID, datetime], rows: Sequence[tuple[UUID, datetime | None]]) -> list[float]:
    return sorted((end - begin[id]).total_seconds() for id, end in rows if end and id in begin)


async def _message_ids(js: JetStreamContext, stream: str) -> list[UUID]:
    """Return the message id of every message of a stream, in order."""
    total = (await js.stream_info(stream)).state.messages
    subscription = await js.subscribe("", stream=stream, ordered_consumer=True)
    messages = [await subscription.next_msg(timeout=5) for _ in range(total)]
    return [UUID((message.headers or {})[MSG_ID]) for message in messages]
