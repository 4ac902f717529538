"""What is played, and what the servers hold of it. Nothing here depends on reports of the fleet."""

from __future__ import annotations

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from rich.console import Console
from sqlalchemy import DateTime, Engine, Executable, Integer, Uuid, column, create_engine, func, select, table

from relay.cli.demo.accounts import Books, Counts, Latencies, audit
from relay.cli.demo.scenario import Base, ProducerRecord, Vibe, plan, produce
from relay.cli.demo.screen import summarise, verdict
from relay.credentials import jetstream
from relay.devstack import sample
from relay.domain.envelopes import MSG_ID
from relay.settings import Settings, SubscriptionSettings

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


class Played(ABC):
    """Events that a producer commits, in the databases of producer and consumers and in the broker.

    ``committed``: the ids that the producer knows to be committed; it grows while events are produced.
    """

    def __init__(self, settings: Settings, producer: str, committed: Collection[object]) -> None:
        self.settings = settings
        self.producer = connect_to(settings, producer)
        self._committed = committed
        self.consumers = [connect_to(settings, name) for name, it in settings.contexts.items() if it.subscriptions]

    @abstractmethod
    def begin(self) -> None:
        """Make the tables of the business."""

    @abstractmethod
    def produce(self, events: int, stop: threading.Event) -> None:
        """Commit so many events at an even pace, or fewer if ``stop`` is set."""

    @abstractmethod
    def check(self, console: Console) -> bool:
        """Print the accounts; returns whether they balance."""

    def close(self) -> None:
        """Close the connections."""
        for engine in (self.producer, *self.consumers):
            engine.dispose()

    @property
    def subscriptions(self) -> list[SubscriptionSettings]:
        """All subscriptions."""
        return [it for context in self.settings.contexts.values() for it in context.subscriptions.values()]

    def counts(self) -> Counts:
        """Count the events at each stage. Reads later stages first, so that none seems ahead of an earlier one."""
        inboxes = [rows(engine, INBOX_COUNTS)[0] for engine in self.consumers]
        received, handled, retried, dead_lettered = (sum(column) for column in zip(*inboxes, strict=True))
        published = rows(self.producer, select(func.count(outbox_events.c.published_at)))[0][0]
        return Counts(
            committed=len(self._committed),
            published=published,
            received=received,
            handled=handled,
            retried=retried,
            dead_lettered=dead_lettered,
        )

    async def unacknowledged(self) -> int:
        """Count the messages that are not acknowledged in JetStream, delivered or not."""
        waiting = 0
        async with jetstream(self.settings) as js:
            for subscription in self.subscriptions:
                info = await js.consumer_info(subscription.stream, subscription.durable)
                waiting += (info.num_ack_pending or 0) + (info.num_pending or 0)
        return waiting


class Vibes(Played):
    """The demo's own events, from one service to another."""

    def __init__(self, settings: Settings) -> None:
        self._production = ProducerRecord()
        super().__init__(settings, PRODUCER, self._production.committed)
        [self._consumer] = self.consumers

    def begin(self) -> None:
        """See Played."""
        Base.metadata.create_all(self.producer)

    def produce(self, events: int, stop: threading.Event) -> None:
        """See Played."""
        produce(self.producer, plan(events), self._production, stop)

    def check(self, console: Console) -> bool:
        """See Played."""
        books = asyncio.run(self.books())
        faults = audit(books)
        summarise(console, books, self.answers(), self.latencies())
        verdict(console, books, faults)
        return not faults

    async def books(self) -> Books:
        """Read everything, id by id."""
        outbox = rows(self.producer, select(outbox_events.c.id, outbox_events.c.published_at))
        inbox = rows(self._consumer, select(inbox_messages))
        done = select(sample.calls.c.message_id).where(sample.calls.c.status == sample.OK)
        async with jetstream(self.settings) as js:
            events = await _messages(js, self.settings.contexts[PRODUCER].event_streams[0].name)
            letters = await _messages(js, self.settings.contexts[CONSUMER].dlq.name)
        return Books(
            committed=self._production.committed,
            rolled_back=self._production.rolled_back,
            business=[row.event_id for row in rows(self.producer, select(Vibe.event_id))],
            outbox={row.id for row in outbox},
            published={row.id for row in outbox if row.published_at},
            stream=[UUID((event.headers or {})[MSG_ID]) for event in events],
            received={row.message_id for row in inbox},
            handled={row.message_id for row in inbox if row.processed_at},
            dead_lettered={row.message_id for row in inbox if row.dead_lettered_at},
            done=[row.message_id for row in rows(self._consumer, done)],
            effects=[row.message_id for row in rows(self._consumer, select(sample.effects.c.message_id))],
            # A dead letter has an id of its own, and names its message.
            dlq=[UUID(json.loads(letter.data)["message_id"]) for letter in letters],
            unacknowledged=await self.unacknowledged(),
        )

    def answers(self) -> Mapping[UUID, Sequence[int]]:
        """Return the statuses the handler gave, in order, by message."""
        calls = sample.calls.c
        query = select(calls.message_id, calls.status).order_by(calls.number)
        answers: dict[UUID, list[int]] = {}
        for row in rows(self._consumer, query):
            answers.setdefault(row.message_id, []).append(row.status)
        return answers

    def latencies(self) -> Latencies:
        """Measure latencies by the database server's clock, which stamps both ends."""
        written = dict(rows(self.producer, select(Vibe.event_id, Vibe.created_at)))
        published = rows(self.producer, select(outbox_events.c.id, outbox_events.c.published_at))
        inbox = inbox_messages.c
        at_once = select(inbox.message_id, inbox.processed_at).where(inbox.attempts == 1)
        return Latencies(_seconds(written, published), _seconds(written, rows(self._consumer, at_once)))


def rows(engine: Engine, query: Executable) -> Sequence[Any]:
    """Run a query, on a connection of its own."""
    with engine.connect() as connection:
        return connection.execute(query).all()


def connect_to(settings: Settings, context: str) -> Engine:
    """Connect to a context's database, when there is something to read."""
    url = settings.contexts[context].database
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))


def _seconds(begin: Mapping[UUID, datetime], ends: Sequence[tuple[UUID, datetime | None]]) -> list[float]:
    return sorted((end - begin[id]).total_seconds() for id, end in ends if end and id in begin)


async def _messages(js: JetStreamContext, stream: str) -> list[Msg]:
    """Return every message of a stream, in order."""
    total = (await js.stream_info(stream)).state.messages
    subscription = await js.subscribe("", stream=stream, ordered_consumer=True)
    return [await subscription.next_msg(timeout=5) for _ in range(total)]
