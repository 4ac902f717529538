"""What tests of dead letters share: a subscription, its DLQ subscriber, and an operator's desk."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from nats.js.api import ConsumerConfig

from consumer.deadletters import RecordDeadLetters
from relay.adapters.jetstream.consumer import NatsJetStreamConsumer
from relay.adapters.postgres.incidents import PostgresIncidents
from relay.commands.incidents import RecordIncidents
from relay.domain.operators import Operator
from relay.domain.topology import dead_letter_consumer
from relay.ports import Delivery
from tests.integration.consuming import Handler, Subscription, subscribed, unacknowledged
from tests.integration.publishing import query

ANN = Operator("ann", "because")


def waiting_for_locks(url: str) -> int:
    """How many sessions of a database wait for somebody else's row."""
    waiting = "wait_event_type = 'Lock' AND datname = current_database()"
    return int(query(url, f"SELECT count(*) AS n FROM pg_stat_activity WHERE {waiting}")[0]["n"])


@dataclass
class Desk:
    """Use `at_the_desk`."""

    sub: Subscription
    incidents: PostgresIncidents
    letters: NatsJetStreamConsumer

    def record(self, incidents: Any = None) -> RecordDeadLetters:
        return RecordDeadLetters(self.letters, self.recording(incidents))

    def recording(self, incidents: Any = None) -> RecordIncidents:
        return self.sub.recording(incidents or self.incidents)

    async def died(
        self, status: int, *, payload: Any = None, max_attempts: int = 20, body: bytes | None = None, **head: str
    ) -> UUID:
        """Send a message that its handler answers with ``status``; returns its id. ``head`` as in `send`."""
        content = {"event_type": "vibe_created", "event_version": 1, "payload": payload or {}}
        message_id = await self.sub.send(body or json.dumps(content).encode(), **head)
        await self.sub.pull().accept(await self.sub.fetch())
        await self.sub.process(Handler.answering(status), max_attempts=max_attempts).process(message_id)
        assert (await self.sub.row(message_id))["dead_lettered_at"] is not None
        return message_id

    async def incident(self, status: int = 422, **values: Any) -> tuple[UUID, int]:
        """A message that died and is recorded: its id, and that of the incident."""
        message_id = await self.died(status, **values)
        await self.record().run()
        return message_id, (await self.rows())[-1]["id"]

    async def rows(self) -> list[dict[str, Any]]:
        return await self.sub.query("SELECT * FROM dead_letters ORDER BY id")

    async def audit(self) -> list[dict[str, Any]]:
        return await self.sub.query("SELECT actor, action, ids, note FROM audit_log ORDER BY id")

    async def fetch(self) -> Sequence[Delivery]:
        return [*await self.letters.fetch(100, timedelta(seconds=1)), *await self.letters.finish()]

    async def unacked(self) -> int:
        """How many letters JetStream has delivered and not seen acknowledged."""
        spec = dead_letter_consumer(self.sub.context, f"{self.sub.context.upper()}_DLQ")
        return await unacknowledged(self.sub.nats, spec.stream, spec.durable)


@asynccontextmanager
async def at_the_desk(url: str, nats_url: str) -> AsyncIterator[Desk]:
    """A subscription, and the durable on its DLQ stream."""
    async with subscribed(url, nats_url) as sub:
        spec = dead_letter_consumer(sub.context, f"{sub.context.upper()}_DLQ")
        config = ConsumerConfig(
            durable_name=spec.durable, filter_subject=spec.filter_subject, ack_policy="explicit", ack_wait=30
        )
        await sub.js.add_consumer(spec.stream, config)
        letters = NatsJetStreamConsumer(sub.nats, stream=spec.stream, durable=spec.durable)
        yield Desk(sub, PostgresIncidents(sub.pool.connection), letters)
