"""The official SDK of CloudEvents reads what we write and writes what we read, through a NATS server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_binary, from_structured, to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from relay import Event, Outbox
from relay.adapters.postgres.outbox import PostgresOutboxAdapter
from relay.commands.publish import PublishConfig, PublishOutboxEvents
from relay.devstack import NatsServer
from relay.domain.envelopes.cloudevents import Wording, cloudevents
from relay.domain.routing import Routing
from tests.integration.consuming import Handler, Subscription, subscribed
from tests.integration.publishing import ALL

pytestmark = pytest.mark.anyio

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
AT = datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC)
PAYLOAD = {"title": 'Grüße "to" \\ 100 %s 🎷', "n": [1, 2.5, None, True, -(2**63)], "nested": {"": {}}}
#: The SDK has no binding for NATS. Its HTTP binding has the same headers and encodes values the same.
READ = {"binary": from_binary, "structured": from_structured}
WRITE = {"binary": to_binary, "structured": to_structured}
both_modes = pytest.mark.parametrize("mode", READ)


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


async def published(sub: Subscription, mode: str, event: Event) -> BaseCloudEvent:
    """Commit an event and publish it; returns what the SDK reads from the stream."""
    templates = {"source": "/{context}", "subject": "{key}", "dataschema": "https://up.example/{name}/{version}"}
    wording = Wording(sub.name, mode == "structured", tuple(templates.items()))
    config = PublishConfig(routing=Routing(context=sub.name), envelope=cloudevents(wording))
    async with sub.pool.connection() as connection, connection.transaction():
        await Outbox(sub.name).add(connection, event)
    outbox = PostgresOutboxAdapter(sub.pool.connection)
    assert await PublishOutboxEvents(config, outbox, sub.publisher, sub.facts.append).drain(ALL) == 1
    message = await sub.js.get_msg(sub.stream, 1)
    return READ[mode](HTTPMessage(message.headers or {}, message.data or b""), JSONFormat())


@both_modes
async def test_the_sdk_reads_what_we_write(sub: Subscription, mode: str) -> None:
    correlation, causation = uuid4(), "req 1/é"
    headers = {"traceparent": TRACE, "ce-tenant": "Gr%C3%BCn"}
    event = Event(
        id="evt_1",
        event_type="vibe_renamed",
        event_version=3,
        aggregate_type="vibe",
        aggregate_id="v 1/ü",
        occurred_at=AT,
        correlation_id=correlation,
        causation_id=causation,
        payload=PAYLOAD,
        headers=headers,
    )
    read = await published(sub, mode, event)
    assert read.get_data() == PAYLOAD
    sequence = read.get_attributes()["sequence"]
    assert (len(sequence), int(sequence)) == (19, 1)
    assert read.get_attributes() == {
        "specversion": "1.0",
        "id": "evt_1",
        "source": f"/{sub.name}",
        "type": "vibe_renamed",
        "time": AT,
        "datacontenttype": "application/json",
        "subject": "vibe:v 1/ü",
        "dataschema": "https://up.example/vibe_renamed/3",
        "eventversion": "3",
        "partitionkey": "vibe:v 1/ü",
        "sequence": sequence,
        "correlationid": str(correlation),
        "causationid": causation,
        "traceparent": TRACE,
        "tenant": "Grün",
    }


def written(mode: str, id: str, **attributes: Any) -> tuple[bytes, dict[str, str]]:
    """An event as the SDK sends it."""
    known = {"id": id, "source": "//them/über", "type": "vibe_renamed", "time": AT, "specversion": "1.0"}
    event = CloudEvent({**known, "datacontenttype": "application/json", **attributes}, PAYLOAD)
    message = WRITE[mode](event, JSONFormat())
    return message.body, message.headers


@both_modes
async def test_we_read_what_the_sdk_writes(sub: Subscription, mode: str) -> None:
    about = {"eventversion": "3", "partitionkey": "v 1/ü", "traceparent": TRACE, "correlationid": "req_1"}
    subject, handler = f"{sub.name}.event.vibe_renamed.v3", Handler()
    for id in ("evt_1", "evt_2", "evt_1"):
        body, headers = written(mode, id, **about)
        await sub.js.publish(subject, body, headers=headers)
    await sub.pull("cloudevents").accept(await sub.fetch())
    rows = sorted(await sub.rows(), key=lambda row: row["originals"]["id"])
    assert [row["originals"] for row in rows] == [
        {"id": id, "correlation_id": "req_1"} for id in ("evt_1", "evt_2")
    ]
    assert {row["partition_key"] for row in rows} == {"v 1/ü"}
    for row in rows:
        await sub.process(handler, envelope="cloudevents").process(row["message_id"])
    one, other = handler.requests
    assert json.loads(one.body) == {
        "message_id": "evt_1",
        "subject": subject,
        "event_type": "vibe_renamed",
        "event_version": 3,
        "occurred_at": "2026-01-02T03:04:05.600000Z",
        "correlation_id": "req_1",
        "causation_id": None,
        "payload": PAYLOAD,
    }
    assert one.idempotency_key != other.idempotency_key
    assert (one.headers["traceparent"], one.headers["Relay-Partition-Key"]) == (TRACE, "v%201/%C3%BC")


@both_modes
async def test_what_is_no_json_dies_and_its_neighbours_live(sub: Subscription, mode: str) -> None:
    subject = f"{sub.name}.event.vibe_renamed.v3"
    event = CloudEvent({"source": "/t", "type": "t", "datacontenttype": "text/plain"}, "plain")
    message = WRITE[mode](event, JSONFormat())
    await sub.js.publish(subject, message.body, headers=message.headers)
    body, headers = written(mode, str(uuid4()))
    await sub.js.publish(subject, body, headers=headers)
    await sub.pull("cloudevents").accept(await sub.fetch())
    dead, alive = sorted(await sub.rows(), key=lambda row: row["stream_seq"])
    assert "data must be JSON" in dead["dead_letter_reason"]
    assert (alive["dead_letter_reason"], alive["event_type"]) == (None, "vibe_renamed")
