"""Ids of any text, from the outbox to the handler and on to what the handler writes: each sees the originals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from consumer.handlers import IncomingEvent, MessageContext
from relay import Actor, Outbox, RequestContext
from relay.devstack import NatsServer
from relay.domain.errors import DuplicateMessage, InvalidActor, InvalidKey
from relay.domain.identity import Identity, stand_in_id
from relay.ports import HandlerRequest
from tests.integration.consuming import Handler, Subscription, subscribed
from tests.integration.publishing import ALL, Producer, Relay, event, outbox_rows
from tests.integration.python_handling import Handling, handling

pytestmark = pytest.mark.anyio

ENVELOPES = ["handler", "message-envelope", "cloudevents", "raw"]
EVT, REQ, CAUSE = "evt_01HQGX8K9JNPQR5MWTVYZ3F4BC", "req_01HQGX8K9JNPQR5MWTVYZ3F4AB", "cmd 7/ü 100%"
ORIGINALS = {"id": EVT, "correlation_id": REQ, "causation_id": CAUSE}


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


@pytest.fixture
async def flow(sub: Subscription) -> AsyncIterator[Relay]:
    """The publisher whose stream the subscription reads."""
    async with Relay(sub.url, sub.nats_url, sub.name) as relay:
        yield relay


# --- into the outbox ---


async def test_every_target_takes_texts_and_keeps_them_beside_their_uuids(
    producer: Producer, database_url: str
) -> None:
    with RequestContext(correlation_id=REQ, causation_id=uuid4()).use():
        [id] = await producer.add(event(id=EVT, causation_id=CAUSE))
    await producer.call("commit")
    [row] = outbox_rows(database_url)
    assert row["originals"] == ORIGINALS
    assert (row["id"], row["correlation_id"], row["causation_id"]) == tuple(
        Identity.of(text).uuid for text in (EVT, REQ, CAUSE)
    )
    assert id == row["id"]


async def test_the_same_text_twice_is_a_duplicate(producer: Producer, database_url: str) -> None:
    async def add(**values: Any) -> None:
        await producer.add(event(**values))
        await producer.call("commit")

    await add(id=EVT)
    with pytest.raises(DuplicateMessage) as raised:
        await add(id=EVT)
    assert raised.value.code == "DUPLICATE_MESSAGE"
    await producer.call("rollback")
    await add(id=EVT.lower())
    await add(id=str(uuid4()).upper())
    assert len(outbox_rows(database_url)) == 3


async def test_the_text_of_a_row_written_in_sql_is_a_duplicate_too(producer: Producer, flow: Relay) -> None:
    async def add() -> None:
        await producer.add(event(id=EVT))
        await producer.call("commit")

    flow.insert(originals=json.dumps({"id": EVT}))
    with pytest.raises(DuplicateMessage):
        await add()
    await producer.call("rollback")
    with pytest.raises(psycopg.errors.UniqueViolation):
        flow.insert(originals=json.dumps({"id": EVT}))


@pytest.mark.parametrize("text", ["", "x" * 201, "a\nb", " a", "\ud800"])
@pytest.mark.parametrize("name", ["id", "correlation_id", "causation_id"])
def test_what_is_no_id_is_refused_by_its_name(database_url: str, name: str, text: str) -> None:
    with psycopg.connect(database_url) as connection, pytest.raises(InvalidKey) as raised:
        Outbox("vibespro").add(connection, event(**{name: text}))
    assert raised.value.field == name
    assert outbox_rows(database_url) == []


# --- actors ---


async def test_the_actor_comes_from_the_request_unless_the_event_names_one(flow: Relay) -> None:
    with RequestContext(actor=Actor("usr_1 ü", "HUMAN")).use():
        flow.add(event(), event(headers=Actor("bot", "AGENT").headers))
    flow.add(event())
    await flow.drained(flow.command(envelope="message-envelope", system_actor="solver"))
    told = [(body["actor_id"], body["actor_kind"]) for body in await flow.bodies()]
    assert told == [("usr_1 ü", "HUMAN"), ("bot", "AGENT"), ("solver", "SYSTEM")]
    assert not any("Relay-Actor-Id" in message.headers for message in await flow.messages())


async def test_an_actor_of_no_kind_is_refused_where_the_event_is_written(flow: Relay) -> None:
    with pytest.raises(InvalidActor) as raised:
        Actor("usr_1", "ROBOT")
    assert (raised.value.code, raised.value.field) == ("INVALID_ACTOR", "actor_kind")
    with pytest.raises(InvalidActor):
        flow.add(event(headers={"Relay-Actor-Id": "usr_1", "Relay-Actor-Kind": "human"}))
    with pytest.raises(InvalidActor, match="is spelled Relay-Actor-Id"):
        flow.add(event(headers={"relay-actor-id": "usr_1", "relay-actor-kind": "HUMAN"}))
    assert outbox_rows(flow.url) == []


BAD_ROWS: dict[str, dict[str, Any]] = {
    "INVALID_ACTOR": {"headers": '{"Relay-Actor-Id": "usr_1"}'},
    "INVALID_ACTOR [headers.relay-actor-id]: is": {"headers": '{"relay-actor-id": "usr_1"}'},
    "INVALID_KEY": {"originals": '{"id": "a\\nb"}'},
    "INVALID_OUTBOX": {"originals": '{"name": "evt_1"}'},
}


@pytest.mark.parametrize("code", BAD_ROWS)
async def test_a_row_written_in_sql_with_a_bad_part_fails_alone(flow: Relay, code: str) -> None:
    [first] = flow.add(event("v1"))
    bad = flow.insert(**BAD_ROWS[code])
    [last] = flow.add(event("v2"))
    await flow.command(max_attempts=1).drain(ALL)
    assert await flow.ids() == [str(first), str(last)]
    row = flow.row(bad)
    assert row["dead_at"] is not None
    assert row["publish_error"].startswith(f"unrecoverable: {code} ")


# --- to the handler ---


async def handled(sub: Subscription, envelope: str, count: int = 1) -> list[HandlerRequest]:
    """Pull what there is, and process it."""
    await sub.pull(envelope).accept(await sub.fetch())
    handler = Handler()
    for id in sub.enqueued:
        await sub.process(handler, envelope=envelope).process(id)
    assert len(handler.requests) == count
    return handler.requests


@pytest.mark.parametrize("sql", [False, True])
@pytest.mark.parametrize("envelope", ENVELOPES)
async def test_the_handler_is_shown_the_originals(
    sub: Subscription, flow: Relay, envelope: str, *, sql: bool
) -> None:
    if sql:
        ids = {name: uuid4() for name in ("correlation_id", "causation_id")}
        row_id = flow.insert(originals=json.dumps(ORIGINALS), **ids)
    else:
        [row_id] = flow.add(event(id=EVT, correlation_id=REQ, causation_id=CAUSE))
    await flow.drained(flow.command(envelope=envelope))
    [message] = await flow.messages()
    key = json.loads(message.data)["idempotency_key"] if envelope == "message-envelope" else EVT
    assert message.headers["Nats-Msg-Id"] == key
    assert message.headers["Relay-Event-Id"] == str(row_id)

    [request] = await handled(sub, envelope)
    body = json.loads(request.body)
    assert (body["message_id"], body["correlation_id"], body["causation_id"]) == (EVT, REQ, CAUSE)
    assert request.message_id == Identity.of(key).uuid
    assert (request.originals, request.idempotency_key) == (ORIGINALS, key)
    row = await sub.row(request.message_id)
    assert (row["originals"], row["correlation_id"]) == (ORIGINALS, Identity.of(REQ).uuid)
    assert {fact.message_id for fact in sub.facts if hasattr(fact, "message_id")} == {EVT}


async def test_a_uuid_is_sent_and_shown_as_ever(sub: Subscription, flow: Relay) -> None:
    [id] = flow.add(event())
    await flow.drained()
    [message] = await flow.messages()
    assert message.headers["Nats-Msg-Id"] == str(id)
    assert "Relay-Event-Id" not in message.headers
    [request] = await handled(sub, "handler")
    assert (request.message_id, request.originals, request.idempotency_key) == (id, {}, str(id))
    assert (await sub.row(id))["originals"] is None


async def test_what_a_function_writes_carries_the_originals_on(sub: Subscription) -> None:
    async with handling(sub) as work:
        shown: list[tuple[Any, ...]] = []
        outbox = Outbox("next")

        def follow(incoming: IncomingEvent, context: MessageContext, connection: psycopg.Connection[Any]) -> None:
            shown.append(
                (incoming.message_id, incoming.correlation_id, context.message_id, context.idempotency_key)
            )
            shown.append((context.actor, RequestContext.current().actor))
            outbox.add(connection, event(payload={}))

        await _received(work, sub)
        await work.process(work.handler(follow)).process(sub.enqueued[0])
    assert shown == [(EVT, REQ, EVT, EVT), (Actor("usr_1", "HUMAN"), None)]
    [row] = outbox_rows(sub.url)
    assert row["originals"] == {"correlation_id": REQ, "causation_id": EVT}
    assert row["headers"] == {}  # who wrote this is not who caused that


async def _received(work: Handling, sub: Subscription) -> None:
    body = {"event_type": "vibe_created", "event_version": 1, "correlation_id": REQ, "payload": {"title": "x"}}
    actor = {"Relay_Actor_Id": "usr_1", "Relay_Actor_Kind": "HUMAN"}
    await sub.send(json.dumps(body).encode(), Nats_Msg_Id=EVT, **actor)
    await sub.pull().accept(await sub.fetch())


async def test_a_function_is_given_the_actor_of_the_envelope_whatever_headers_say(sub: Subscription) -> None:
    async with handling(sub) as work:
        shown: list[Any] = []

        def look(_incoming: IncomingEvent, context: MessageContext) -> None:
            shown.append(context.actor)

        await sub.send(envelope(), Relay_Actor_Id="other", Relay_Actor_Kind="ROBOT")
        await sub.pull("message-envelope").accept(await sub.fetch())
        await work.process(work.handler(look), envelope="message-envelope").process(sub.enqueued[0])
    assert shown == [Actor("usr_1", "HUMAN")]


async def test_a_function_is_given_uuids_as_uuids(sub: Subscription) -> None:
    async with handling(sub) as work:
        shown: list[tuple[Any, ...]] = []

        def look(incoming: IncomingEvent, context: MessageContext) -> None:
            shown.append((incoming.message_id, incoming.correlation_id, context.correlation_id, context.actor))

        correlation = uuid4()
        id = await work.received(correlation_id=str(correlation))
        await work.process(work.handler(look)).process(id)
    assert shown == [(id, correlation, correlation, None)]


# --- from other programs ---

BODY = json.dumps({"event_type": "vibe_created", "event_version": 1, "payload": {}}).encode()


async def test_any_text_of_another_program_is_the_id_of_its_message(sub: Subscription) -> None:
    texts = [EVT, "order.7", f"{uuid4()}.x", "sha256:ab", "日本", "{" + str(uuid4()) + "}", "x" * 200]
    for text in texts:
        await sub.send(BODY, Nats_Msg_Id=text)
    requests = await handled(sub, "handler", len(texts))
    assert [json.loads(request.body)["message_id"] for request in requests] == texts
    assert [row["message_id"] for row in await sub.rows()] == [Identity.of(text).uuid for text in texts]
    await sub.send(BODY, Nats_Msg_Id=EVT, Relay_Other="1")
    assert await sub.pull().accept(await sub.fetch()) == 0


@pytest.mark.parametrize("text", ["e" * 10_240, "", "a\x01b", "a\u2028b"])
async def test_an_id_that_is_none_is_a_dead_letter_and_its_neighbours_go_on(sub: Subscription, text: str) -> None:
    for id in ("evt_1", text, "evt_2"):
        await sub.send(BODY, Nats_Msg_Id=id)
    requests = await handled(sub, "handler", 2)
    assert [request.originals["id"] for request in requests] == ["evt_1", "evt_2"]
    row = await sub.row(stand_in_id(sub.stream, 2))
    assert row["dead_letter_class"] == "poison"
    assert row["dead_letter_reason"].startswith("MALFORMED_MESSAGE [Nats-Msg-Id]: ")
    [letter] = await sub.dead_letters()
    assert letter["message_id"] == str(stand_in_id(sub.stream, 2))


ENVELOPE: dict[str, Any] = {
    "schema_version": "1.0",
    "message_type": "vibe_created",
    "message_id": "evt_1",
    "timestamp": "2026-01-01T00:00:00Z",
    "actor_id": "usr_1",
    "actor_kind": "HUMAN",
    "payload": {},
    "idempotency_key": "sha256:1",
}


def envelope(**fields: Any) -> bytes:
    return json.dumps({**ENVELOPE, **fields}).encode()


async def test_one_key_under_two_ids_is_handled_once_and_under_its_first_id(sub: Subscription) -> None:
    await sub.send(envelope(), Nats_Msg_Id="one")
    [request] = await handled(sub, "message-envelope")
    assert (request.idempotency_key, request.actor) == ("sha256:1", Actor("usr_1", "HUMAN"))
    await sub.send(envelope(message_id="evt_2"), Nats_Msg_Id="two")
    await sub.send(envelope(idempotency_key="sha256:2"), Nats_Msg_Id="three")
    assert await sub.pull("message-envelope").accept(await sub.fetch()) == 1
    assert [row["originals"] for row in await sub.rows()] == [{"id": "evt_1"}, {"id": "evt_1"}]
    assert await sub.unacked() == 1  # the copy needs no handling


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"actor_id": None}, "[actor_id]"),
        ({"actor_kind": "ROBOT"}, "[actor_kind]"),
        ({"message_id": "e" * 10_240}, "[message_id]"),
        ({"idempotency_key": None}, "[idempotency_key]"),
        ({"timestamp": "2026-01-01T00:00:00"}, "[timestamp]"),
        ({"schema_version": "2.0"}, "[schema_version]"),
        ({"payload": []}, "[payload]"),
    ],
)
async def test_an_envelope_that_breaks_the_contract_is_a_dead_letter(
    sub: Subscription, fields: dict[str, Any], reason: str
) -> None:
    await sub.send(envelope(idempotency_key="sha256:a"))
    await sub.send(envelope(**fields))
    await sub.send(envelope(idempotency_key="sha256:b", new_field={"of": "1.1"}))
    requests = await handled(sub, "message-envelope", 2)
    assert [it.idempotency_key for it in requests] == ["sha256:a", "sha256:b"]
    [letter] = await sub.dead_letters()
    assert reason in letter["reason"]


async def test_the_key_is_the_same_for_every_resend(sub: Subscription, flow: Relay) -> None:
    [id] = flow.add(event(id=EVT, payload={"b": 1, "a": "é"}))
    command = flow.command(envelope="message-envelope")
    await flow.drained(command)
    await sub.query("UPDATE outbox_events SET published_at = NULL, publish_attempts = 0")
    await flow.drained(command)
    [key] = await flow.ids()  # the stream knew it
    await sub.query("UPDATE outbox_events SET published_at = NULL, publish_attempts = 0, generation = 1")
    await flow.drained(command)
    assert await flow.ids() == [key, f"{key}.1"]
    assert {body["idempotency_key"] for body in await flow.bodies()} == {key}
    [request] = await handled(sub, "message-envelope")
    assert (request.idempotency_key, request.originals["id"]) == (key, EVT)
    assert flow.row(UUID(str(id)))["published_at"] is not None
