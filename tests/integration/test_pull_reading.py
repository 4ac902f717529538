"""What a pull job makes of messages: every envelope to the handler, every unreadable one to a row of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from relay import Event, Outbox
from relay.adapters.postgres.outbox import PostgresOutboxAdapter
from relay.commands.publish import PublishConfig, PublishOutboxEvents
from relay.devstack import NatsServer
from relay.domain.identity import Identity, stand_in_id
from relay.domain.routing import Routing
from relay.ports import HandlerRequest
from tests.integration.consuming import Handler, Subscription, subscribed
from tests.integration.publishing import ALL

pytestmark = pytest.mark.anyio

ENVELOPES = ["handler", "message-envelope", "cloudevents", "raw"]


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


# --- readable ---


async def from_outbox_to_handler(sub: Subscription, envelope: str, event: Event) -> tuple[UUID, HandlerRequest]:
    """Commit an event, publish it, pull it, and process it with a handler that says 200."""
    outbox = PostgresOutboxAdapter(sub.pool.connection)
    config = PublishConfig(routing=Routing(context=sub.name), envelope=envelope)
    async with sub.pool.connection() as connection, connection.transaction():
        event_id = await Outbox(sub.name).add(connection, event)
    assert await PublishOutboxEvents(config, outbox, sub.publisher, sub.facts.append).drain(ALL) == 1
    await sub.pull(envelope).accept(await sub.fetch())
    handler = Handler()
    await sub.process(handler, envelope=envelope).process(sub.enqueued[-1])
    [request] = handler.requests
    return event_id, request


@pytest.mark.parametrize("envelope", ENVELOPES)
async def test_an_event_reaches_the_handler_whole_in_every_envelope(sub: Subscription, envelope: str) -> None:
    values: dict[str, Any] = {
        "event_type": "vibe_renamed",
        "event_version": 3,
        "occurred_at": datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC),
        "correlation_id": uuid4(),
        "causation_id": uuid4(),
        "payload": {"title": 'Grüße "to" \\ 100 %s', "n": [1, 2.5, None, True, -(2**63)], "nested": {"": {}}},
    }
    headers = {"Actor-Id": "ann", "traceparent": "00-a-b-01"}
    event = Event(aggregate_type="vibe", aggregate_id="v 1/ü", headers=headers, **values)
    event_id, request = await from_outbox_to_handler(sub, envelope, event)
    body = json.loads(request.body)
    assert body == {
        "message_id": str(event_id),
        "subject": f"{sub.name}.event.vibe_renamed.v3",
        "event_type": "vibe_renamed",
        "event_version": 3,
        "occurred_at": body["occurred_at"],
        "correlation_id": str(event.correlation_id),
        "causation_id": str(event.causation_id),
        "payload": event.payload,
    }
    assert datetime.fromisoformat(body["occurred_at"]) == event.occurred_at
    assert body["occurred_at"].endswith("Z")
    assert (request.correlation_id, request.attempt) == (event.correlation_id, 1)
    # A message-envelope is known by its key.
    assert (request.message_id == event_id) == (envelope != "message-envelope")
    assert (request.subject, request.event_type, request.event_version) == (body["subject"], "vibe_renamed", 3)
    row = await sub.row(request.message_id)
    assert {name: row[name] for name in values if name != "payload"} == {
        name: value for name, value in values.items() if name != "payload"
    }
    assert row["partition_key"] == "vibe:v 1/ü"
    assert row["headers"]["traceparent"] == "00-a-b-01"
    assert row["processed_at"] is not None


@pytest.mark.parametrize("envelope", ENVELOPES)
async def test_an_event_with_the_bare_minimum_reaches_the_handler_in_every_envelope(
    sub: Subscription, envelope: str
) -> None:
    event = Event(event_type="ping", aggregate_type="a", aggregate_id="1", payload={}, partition_key=None)
    event_id, request = await from_outbox_to_handler(sub, envelope, event)
    body = json.loads(request.body)
    assert (body["correlation_id"], body["causation_id"], body["payload"]) == (None, None, {})
    assert (body["event_version"], request.correlation_id) == (1, None)
    assert body["message_id"] == str(event_id)
    assert (await sub.row(request.message_id))["partition_key"] is None


# --- unreadable ---

ENVELOPE_1 = {
    "schema_version": "1.0",
    "message_type": "vibe_created",
    "message_id": "evt_1",
    "timestamp": "2026-01-01T00:00:00Z",
    "actor_id": "ann",
    "actor_kind": "HUMAN",
    "idempotency_key": "sha256:1",
}
GOOD = json.dumps({"event_type": "vibe_created", "event_version": 1, "payload": {}}).encode()
UNREADABLE: dict[str, tuple[str, bytes, dict[str, str], str]] = {
    "not JSON": ("handler", b"not json", {}, "is not JSON"),
    "not UTF-8": ("handler", b'{"a":"\xff"}', {}, "is not JSON"),
    "no object": ("handler", b"[]", {}, "not a JSON object"),
    "a field missing": ("handler", b"{}", {}, "event_type"),
    "no id": ("handler", GOOD, {"Nats_Msg_Id": ""}, "Nats-Msg-Id"),
    "a malformed id": ("handler", GOOD, {"Nats_Msg_Id": "x" * 201}, "Nats-Msg-Id"),
    "NaN": ("raw", b'{"a":NaN}', {"Relay_Event_Type": "e"}, "is not JSON"),
    "a number out of range": ("raw", b'{"a":1e999}', {"Relay_Event_Type": "e"}, "is not JSON"),
    "too deep": ("raw", b"[" * 2_000 + b"]" * 2_000, {"Relay_Event_Type": "e"}, "nests deeper"),
    "a schema version of the future": (
        "message-envelope",
        json.dumps({**ENVELOPE_1, "schema_version": "2.0", "payload": {}}).encode(),
        {},
        "schema_version",
    ),
    "no time zone": (
        "message-envelope",
        json.dumps({**ENVELOPE_1, "timestamp": "2026-01-01T00:00:00", "payload": {}}).encode(),
        {},
        "time zone",
    ),
    "a NUL in the key": (
        "handler",
        GOOD,
        {"Relay_Partition_Key": "a%00b"},
        "Partition-Key",
    ),
    "a raw NUL in a header": ("handler", GOOD, {"Actor_Id": "a\x00b"}, "cannot store"),
    "a raw NUL and not JSON": ("handler", b"not json", {"Actor_Id": "a\x00b"}, "is not JSON"),
}


@pytest.mark.parametrize("case", UNREADABLE)
async def test_an_unreadable_message_is_rejected_and_its_neighbours_go_on(sub: Subscription, case: str) -> None:
    envelope, body, headers, reason = UNREADABLE[case]
    good = await send_good(sub, envelope)
    await sub.send(body, **headers)
    other = await send_good(sub, envelope)
    bad = stand_in_id(sub.stream, 2)
    deliveries = await sub.fetch()
    assert await sub.pull(envelope).accept(deliveries) == 3
    assert sub.enqueued == [good, bad, other]
    row = await sub.row(bad)
    assert reason in row["dead_letter_reason"]
    assert (row["dead_letter_class"], bytes(row["body"]), row["attempts"]) == ("poison", body, 0)
    handler = Handler()
    for message_id in sub.enqueued:
        await sub.process(handler, envelope=envelope, consumer=sub.lossy()).process(message_id)
    assert [request.message_id for request in handler.requests] == [good, other]
    [letter] = await sub.dead_letters()
    assert (letter["message_id"], letter["attempts"], letter["class"]) == (str(bad), 0, "poison")
    # Delivered again because the acknowledgements were lost: known, done, and acknowledged.
    assert await sub.unacked() == 3
    assert await sub.pull(envelope).accept(deliveries) == 0
    await sub.acked()


async def send_good(sub: Subscription, envelope: str) -> UUID:
    if envelope == "message-envelope":
        key = f"sha256:{uuid4().hex}"
        await sub.send(json.dumps({**ENVELOPE_1, "idempotency_key": key, "payload": {}}).encode())
        return Identity.of(key).uuid
    return await sub.send(GOOD, Relay_Event_Type="vibe_created")


async def test_an_unreadable_message_is_terminated_so_that_the_server_says_so(sub: Subscription) -> None:
    advisory = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{sub.stream}.down"
    advisories = await sub.js._nc.subscribe(advisory)
    await sub.send(b"not\r\njson")
    await sub.pull().accept(await sub.fetch())
    await sub.process(Handler()).process(stand_in_id(sub.stream, 1))
    told = json.loads((await advisories.next_msg(timeout=10)).data)
    assert told["stream_seq"] == 1
    assert "is not JSON" in told["reason"]
    await sub.acked()


async def test_an_unreadable_message_that_returns_while_it_waits_is_one_row(sub: Subscription) -> None:
    await sub.send(b"not json")
    deliveries = await sub.fetch()
    assert await sub.pull().accept(deliveries) == 1
    await sub.consumer.nak([deliveries[0].reply], timedelta(0))
    assert await sub.pull().accept(await sub.fetch()) == 0
    assert len(await sub.rows()) == 1


ARCHIVED = """
    WITH gone AS (DELETE FROM inbox_messages RETURNING message_id, subscription)
    INSERT INTO archived_messages (message_id, batch, subscription) SELECT message_id, 1, subscription FROM gone
    RETURNING message_id
"""


@pytest.mark.parametrize("archived", [False, True])
async def test_an_unreadable_message_of_a_stream_that_was_made_anew_is_no_repeat(
    sub: Subscription, archived: bool
) -> None:
    """It may have the place of an earlier one. The body tells them apart; an archived one does not come again."""
    await sub.send(b"one")
    [first] = await sub.fetch()
    second = first._replace(body=b"two")
    for delivery in (first, second):
        assert await sub.pull().accept([delivery]) == 1
        await sub.process(Handler(), consumer=sub.lossy()).process(sub.enqueued[-1])
        if archived and delivery is first:
            assert len(await sub.query(ARCHIVED)) == 1
    assert len({letter["message_id"] for letter in await sub.dead_letters()}) == 2
    assert await sub.unacked() == 1
    assert await sub.pull().accept([second]) == 0
    await sub.acked()
