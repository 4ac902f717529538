"""Services know a message by its key, as the inbox does: what is called for two messages takes effect twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import create_engine
from starlette.testclient import TestClient

from relay.adapters.http import HttpAccess
from relay.devstack.sample import create_app
from relay.domain.envelopes import handler_request
from relay.domain.identity import Identity
from tests.integration.handler_support import Service, call, metadata, serving
from tests.integration.http_service import Seen, answering, calling, request
from tests.integration.publishing import query

pytestmark = pytest.mark.anyio

SECRET = "s3cret"
SUBJECT = "vibespro.event.vibe_created.v1"


class Message(NamedTuple):
    """A message of another program, and the envelope that reads it."""

    envelope: str
    headers: dict[str, str]
    body: dict[str, Any]


def cloudevent(source: str) -> Message:
    """Its id is unique within its source only."""
    attributes = {"ce-specversion": "1.0", "ce-id": "1001", "ce-type": "vibe_created", "ce-source": source}
    return Message("cloudevents", attributes, {"title": source})


def message_envelope(id: str, key: str) -> Message:
    body = {
        "schema_version": "1.0",
        "message_type": "vibe_created",
        "message_id": id,
        "timestamp": "2026-01-01T00:00:00Z",
        "actor_id": "usr_1",
        "actor_kind": "HUMAN",
        "payload": {"title": id},
        "idempotency_key": key,
    }
    return Message("message-envelope", {}, body)


async def called(*messages: Message, secret: str | None = None) -> list[Seen]:
    """The calls that the relay makes for messages, as they come over the wire."""
    async with calling(answering("200 OK"), access=HttpAccess(signing_secret=secret)) as (handler, service):
        for envelope, headers, body in messages:
            asked = handler_request(envelope, SUBJECT, headers, json.dumps(body).encode())
            event = asked.event
            await handler.handle(
                request(
                    message_id=event.message_id,
                    body=asked.body,
                    originals=event.originals,
                    idempotency_key=asked.idempotency_key,
                    actor=event.actor,
                )
            )
    return service.seen


@pytest.fixture
def url(database_url: str) -> str:
    metadata.create_all(create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database_url)))
    return database_url


@pytest.fixture(params=["async", "sync", "starlette"])
async def service(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Service]:
    async with serving(request.param, url, secret=SECRET) as running:
        yield running


async def answers(service: Service, *messages: Message) -> list[int]:
    calls = await called(*messages, secret=SECRET)
    return [(await service.post(seen.body, headers=seen.headers)).status_code for seen in calls]


async def test_events_of_two_sources_with_one_id_are_two(service: Service) -> None:
    one, other = cloudevent("/shop"), cloudevent("/bank")
    assert await answers(service, one, other, one, other) == [200, 200, 409, 409]
    assert service.effects() == [Identity.of("1001").uuid] * 2


async def test_one_id_with_two_keys_is_two_messages_and_one_key_with_two_ids_is_one(service: Service) -> None:
    first, again = message_envelope("evt_1", "sha256:1"), message_envelope("evt_2 ü", "sha256:1")
    other = message_envelope("evt_1", "sha256:ü 2")
    assert await answers(service, first, again, other, other) == [200, 409, 200, 409]
    assert set(service.processed()) == {Identity.of(key).uuid for key in ("sha256:1", "sha256:ü 2")}


async def test_a_service_sees_key_and_actor(service: Service) -> None:
    seen: list[Any] = []
    service.body = lambda event: seen.append((event.message_id, event.idempotency_key, str(event.actor.kind)))
    if service.kind != "sync":
        given = service.body

        async def body(event: Any) -> None:
            given(event)

        service.body = body
    assert await answers(service, message_envelope("evt_1", "sha256:ü")) == [200]
    assert seen == [("evt_1", "sha256:ü", "HUMAN")]


async def test_a_call_without_a_key_is_known_by_its_id(url: str) -> None:
    async with serving("async", url) as service:
        id = uuid4()
        body = Service.encode(call(message_id=str(id)))
        headers = [{}, {"Idempotency-Key": str(id).upper()}, {"Idempotency-Key": str(uuid4())}]
        assert [(await service.post(body, headers=it)).status_code for it in headers] == [200, 409, 200]


@pytest.mark.parametrize("key", ["", "x" * 201, "a%0Ab", "%FF", " %20"])
async def test_a_key_that_can_be_none_is_refused(url: str, key: str) -> None:
    async with serving("async", url) as service:
        answer = await service.post(call(), headers={"Idempotency-Key": key})
    assert (answer.status_code, service.effects()) == (422, [])
    assert answer.json()["detail"].startswith("idempotency-key: ")


async def test_a_key_that_was_not_signed_is_refused(url: str) -> None:
    """Else a signed call could be sent again under another key."""
    [seen] = await called(message_envelope("evt_1", "sha256:1"), secret=SECRET)
    async with serving("async", url, secret=SECRET) as service:
        for key in ("sha256:2", "evt_1"):
            answer = await service.post(seen.body, headers={**seen.headers, "idempotency-key": key})
            assert answer.status_code == 422
        without = {name: value for name, value in seen.headers.items() if name != "idempotency-key"}
        assert (await service.post(seen.body, headers=without)).status_code == 422
        assert service.effects() == []


async def test_the_sample_handler_takes_ids_of_any_text(database_url: str) -> None:
    first, other = cloudevent("/shop"), cloudevent("/bank")
    calls = await called(first, other, first, message_envelope("evt_1", "sha256:1"))
    with TestClient(create_app(database_url)) as client:
        found = [client.post("/handle", content=seen.body, headers=seen.headers).status_code for seen in calls]
        chained = call(message_id="evt_2", correlation_id="req_1", causation_id="cmd_1")
        found.append(client.post("/handle", json=chained).status_code)
    assert found == [200, 200, 409, 200, 200]
    kept: set[UUID] = {row["message_id"] for row in query(database_url, "SELECT message_id FROM sample_effects")}
    assert {Identity.of("sha256:1").uuid, Identity.of("evt_2").uuid} < kept
    assert len(kept) == 4
