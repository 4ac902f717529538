"""Transactions of which a test knows everything, and the judge's verdict on what came of them (DESIGN §9)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg

from chaos.checker import judge
from chaos.evidence import Evidence
from chaos.history import (
    Business,
    ConsumerEnd,
    Effect,
    InboxState,
    Incident,
    Operation,
    OutboxState,
    Outcome,
    Plan,
    Produced,
    Sample,
    Source,
    Stored,
)
from chaos.ledger import ROLLBACK
from relay import Event, Outbox
from tests.acceptance.fleet import Fleet
from tests.waiting import moves_until

OUTBOX = Outbox("vibespro")
KEYS = 5
TRANSACTIONS = 10
#: Those of DESIGN §9 that the end of a short run decides. 0: the run means anything.
DECIDED = (*range(7), 10)
CONSUMERS = {"sea__from_vibespro": "VIBESPRO_EVENTS", "relay__sea__dead_letters": "SEA_DLQ"}

REST = {
    "vibespro": "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL OR dead_at IS NOT NULL",
    "sea": "SELECT count(*) FROM inbox_messages"
    " WHERE processed_at IS NOT NULL"
    " OR dead_lettered_at IS NOT NULL AND message_id IN (SELECT message_id FROM dead_letters)",
}
OUTBOX_STATES = """
SELECT id::text, CASE WHEN published_at IS NOT NULL THEN 'published' WHEN dead_at IS NOT NULL THEN 'dead'
                      ELSE 'waiting' END, published_seq FROM outbox_events ORDER BY seq"""
INBOX_STATES = """
SELECT message_id::text, CASE WHEN processed_at IS NOT NULL THEN 'processed'
                              WHEN dead_lettered_at IS NOT NULL THEN 'dead-lettered' ELSE 'open' END, attempts
FROM inbox_messages"""


@dataclass
class Story:
    """Every transaction of a run, in order of commit; the handler is of the kind ``source``."""

    source: Source
    version: int = 1
    """The version of the events to come."""
    operations: list[Operation] = field(default_factory=list)

    @property
    def committed(self) -> list[Produced]:
        return [event for operation in self.operations if operation.kind != ROLLBACK for event in operation.events]

    def tell(self, url: str) -> None:
        """Commit 40 events over five keys, two of them poison, and roll ten back."""
        with psycopg.connect(url) as connection:
            for number in range(TRANSACTIONS):
                events = self._write(connection, poison=number % 5 == 2)
                rollback = number % 5 == 4
                connection.rollback() if rollback else connection.commit()
                kind = ROLLBACK if rollback else "batch"
                self.operations.append(Operation(len(self.operations), kind, Outcome.OK, events, time.time()))

    def _write(self, connection: psycopg.Connection[Any], *, poison: bool) -> list[Produced]:
        """One event of each key; the first is poison if asked for."""
        events = [
            Event(
                event_type="vibe_created",
                event_version=self.version,
                aggregate_type="vibe",
                aggregate_id=f"v{place}",
                payload={"n": place, "poison": poison and place == 0},
            )
            for place in range(KEYS)
        ]
        plans = [Plan.POISON if poison else Plan.ACCEPT, *[Plan.ACCEPT] * (KEYS - 1)]
        ids = OUTBOX.add_many(connection, events)
        return [
            Produced(str(id), self.source, f"v{place}", plan)
            for place, (id, plan) in enumerate(zip(ids, plans, strict=True))
        ]


def broken(fleet: Fleet, story: Story, patience: float = 60) -> dict[int, tuple[str, ...]]:
    """The promises that are broken once all is at rest, or stuck for ``patience`` seconds, and what shows it."""
    drained = comes_to_rest(fleet, story, patience)
    judgements = judge(gather(fleet, story), drained=drained, faults_expected=False)
    return {found.number: found.violations for found in judgements if not found.kept and found.number in DECIDED}


def comes_to_rest(fleet: Fleet, story: Story, patience: float) -> bool:
    """Wait until nothing more is going to happen; False when nothing has moved for ``patience`` seconds."""
    return moves_until(lambda: at_rest(fleet, story), lambda: progress(fleet), patience)


def progress(fleet: Fleet) -> list[int]:
    """How many events are published and received, and how many came to their end."""
    reads = [*REST.items(), ("sea", "SELECT count(*) FROM inbox_messages")]
    return [fleet.query(context, sql)[0][0] for context, sql in reads]


def at_rest(fleet: Fleet, story: Story) -> bool:
    """Whether nothing more is going to happen, if all goes well. Cheap to ask: the counts first."""
    expected = len(story.committed)
    if any(fleet.query(context, sql) != [(expected,)] for context, sql in REST.items()):
        return False
    return all(end.pending == end.ack_pending == 0 for end in consumers(fleet))


# --- evidence ---


def gather(fleet: Fleet, story: Story) -> Evidence:
    """What the tables and streams hold. The test itself stands in for the business table."""
    places = Counter[str]()
    business = []
    for event in story.committed:
        places[event.key] += 1
        business.append(Business(event.id, event.key, places[event.key]))
    count = len(business)
    return Evidence(
        operations=story.operations,
        samples=[Sample(time.time(), count, None, None, None, None)],
        business=business,
        outbox=[OutboxState(*row) for row in fleet.query("vibespro", OUTBOX_STATES)],
        stream=list(stored(fleet)),
        inbox=[InboxState(id, story.source, *rest) for id, *rest in fleet.query("sea", INBOX_STATES)],
        effects=list(effects(fleet, story)),
        incidents=list(incidents(fleet, story)),
        consumers=consumers(fleet),
    )


def stored(fleet: Fleet) -> Iterator[Stored]:
    for message in fleet.messages("VIBESPRO_EVENTS"):
        id, _, _generation = message.headers["Nats-Msg-Id"].partition(".")
        yield Stored(message.metadata.sequence.stream, id)


def effects(fleet: Fleet, story: Story) -> Iterator[Effect]:
    keys = {event.id: event.key for operation in story.operations for event in operation.events}
    rows = fleet.query("sea", "SELECT message_id::text FROM effects")
    for place, (id,) in enumerate(rows):
        yield Effect(id, story.source, keys.get(id, ""), place)


def incidents(fleet: Fleet, story: Story) -> Iterator[Incident]:
    rows = fleet.query("sea", "SELECT message_id::text, class, attempts FROM dead_letters")
    for id, kind, attempts in rows:
        yield Incident(id, story.source, kind, attempts)


def consumers(fleet: Fleet) -> list[ConsumerEnd]:
    async def ask(js: Any) -> list[ConsumerEnd]:
        return [await _end(js, name, stream) for name, stream in CONSUMERS.items()]

    ends: list[ConsumerEnd] = fleet.jetstream(ask)
    return ends


async def _end(js: Any, name: str, stream: str) -> ConsumerEnd:
    info = await js.consumer_info(stream, name)
    last = (await js.stream_info(stream)).state.last_seq
    return ConsumerEnd(name, info.num_pending, info.num_ack_pending, info.ack_floor.stream_seq, last)
