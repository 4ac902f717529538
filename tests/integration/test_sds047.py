"""The names and signatures of SDS-047, on real servers."""

from __future__ import annotations

import dataclasses
import inspect
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from relay import RequestContext, sds047
from relay.domain.errors import DuplicateMessage, InvalidEvent, InvalidTimestamp
from relay.domain.model import HandlerResult, Verdict
from relay.ports import HandlerRequest
from tests.integration.consuming import subscribed
from tests.integration.publishing import Relay, event, outbox_rows, query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

NOW = datetime.now(UTC)
#: §7 of the document: each port, its methods, and their parameters.
PORTS = {
    "OutboxRepository": {
        "find_unpublished": [],
        "mark_published": ["id"],
        "increment_attempts": ["id", "error"],
    },
    "InboxRepository": {"insert": ["msg"], "mark_processed": ["id"], "record_error": ["id", "error"]},
    "JetStreamPublisher": {"publish": ["subject", "payload", "headers"]},
    "JetStreamConsumer": {"fetch": ["batch"], "ack": ["msg"], "nak": ["msg"]},
    "EventHandler": {"handle": ["event_type", "payload"]},
}


@pytest.mark.parametrize("port", PORTS)
def test_each_port_has_the_methods_of_the_document_with_their_parameters(port: str) -> None:
    for name, wanted in PORTS[port].items():
        signature = inspect.signature(getattr(getattr(sds047, port), name)).parameters.values()
        needed = [it.name for it in signature if it.default is inspect.Parameter.empty and it.name != "self"]
        assert needed == wanted


def test_the_entities_have_the_fields_of_the_document() -> None:
    def fields(kind: Any) -> list[str]:
        return [field.name for field in dataclasses.fields(kind)]

    assert fields(sds047.InboxMessage) == [
        *("message_id", "subject", "received_at", "processed_at", "attempts", "last_error")
    ]
    assert fields(sds047.OutboxEvent) == [
        *("id", "aggregate_type", "aggregate_id", "event_type", "event_version", "payload", "occurred_at"),
        *("correlation_id", "causation_id", "published_at", "publish_attempts", "publish_error"),
    ]
    assert fields(sds047.CorrelationContext) == ["correlation_id", "causation_id"]


def test_a_message_is_not_processed_before_it_is_received() -> None:
    with pytest.raises(InvalidTimestamp):
        sds047.InboxMessage(
            message_id=uuid4(), subject="s", received_at=NOW, processed_at=NOW - timedelta(seconds=1)
        )


@pytest.mark.parametrize("field", ["received_at", "processed_at"])
def test_a_time_without_a_zone_is_refused_by_name(field: str) -> None:
    times = {"received_at": NOW, "processed_at": NOW, field: NOW.replace(tzinfo=None)}
    with pytest.raises(InvalidTimestamp) as refused:
        sds047.InboxMessage(message_id=uuid4(), subject="s", **times)
    assert refused.value.field == field


@pytest.mark.parametrize("field", ["id", "event_type"])
def test_an_event_without_id_or_type_is_an_invalid_outbox(field: str) -> None:
    values: dict[str, Any] = {"id": uuid4(), "event_type": "x", field: None}
    kind = {"aggregate_type": "v", "aggregate_id": "1", "event_version": 1}
    with pytest.raises(InvalidEvent) as refused:
        sds047.OutboxEvent(payload={}, occurred_at=NOW, **kind, **values)
    assert (refused.value.code, refused.value.field) == ("INVALID_OUTBOX", field)


async def test_an_outbox_one_event_at_a_time(relay: Relay) -> None:
    outbox = sds047.OutboxRepository(relay.pool.connection)
    chain = sds047.CorrelationContext(correlation_id=uuid4(), causation_id=uuid4())
    with chain.use():
        first, second = relay.add(event(payload={"n": 1}), event("v2"))
    found = await outbox.find_unpublished()
    assert [it.id for it in found] == [first, second]
    assert (found[0].payload, found[0].correlation_id) == ({"n": 1}, chain.correlation_id)
    assert found[0].causation_id == chain.causation_id
    assert await outbox.increment_attempts(second, "no stream")
    assert await outbox.mark_published(first)
    assert not await outbox.mark_published(first)
    assert not await outbox.increment_attempts(first, "late")
    assert not await outbox.mark_published(uuid4())
    [left] = await outbox.find_unpublished()
    assert (left.id, left.publish_attempts, left.publish_error) == (second, 1, "no stream")
    [done, _] = outbox_rows(relay.url)
    assert (done["publish_attempts"], done["published_at"] is not None) == (1, True)


async def test_an_inbox_one_message_at_a_time(relay: Relay) -> None:
    inbox = sds047.InboxRepository(relay.pool.connection)
    message = sds047.InboxMessage(message_id=uuid4(), subject="sea.event.x.v1", received_at=NOW)
    await inbox.insert(message)
    with pytest.raises(DuplicateMessage):
        await inbox.insert(message)
    assert await inbox.record_error(message.message_id, "HTTP 503")
    assert await inbox.mark_processed(message.message_id)
    assert not await inbox.mark_processed(message.message_id)
    assert not await inbox.record_error(message.message_id, "late")
    [row] = query(relay.url, "SELECT attempts, last_error, processed_at >= received_at AS ok FROM inbox_messages")
    assert row == {"attempts": 1, "last_error": "HTTP 503", "ok": True}


async def test_a_worker_that_has_a_message_is_not_disturbed(relay: Relay) -> None:
    inbox = sds047.InboxRepository(relay.pool.connection)
    message = sds047.InboxMessage(message_id=uuid4(), subject="sea.event.x.v1", received_at=NOW)
    await inbox.insert(message)
    query(relay.url, "UPDATE inbox_messages SET claim_token = gen_random_uuid(), claimed_until = now() + '1 h'")
    assert not await inbox.mark_processed(message.message_id)
    assert not await inbox.record_error(message.message_id, "x")


async def test_messages_are_fetched_acknowledged_and_refused_one_by_one(relay: Relay, database_url: str) -> None:
    async with subscribed(database_url, relay.nats_url) as sub:
        publisher: sds047.JetStreamPublisher = relay.publisher
        for number in range(2):
            await publisher.publish(sub.subject, b"{}", {"Nats-Msg-Id": f"m{number}"})
        consumer = sds047.JetStreamConsumer(sub.consumer)
        seen: list[str] = []

        async def fetched() -> bool:
            for message in await consumer.fetch(1):
                seen.append(message.headers["Nats-Msg-Id"])
                await (consumer.ack if len(seen) > 1 else consumer.nak)(message)
            return len(seen) == 3

        await eventually("one comes again", fetched)
        assert sorted(seen) in (["m0", "m0", "m1"], ["m0", "m1", "m1"])

        async def settled() -> bool:
            return (await sub.consumer.state()).pending == 0

        await eventually("all are acknowledged", settled)


async def test_a_handler_gets_type_and_payload_and_answers_with_a_verdict() -> None:
    got: list[HandlerRequest] = []

    class Recording:
        async def handle(self, request: HandlerRequest) -> HandlerResult:
            got.append(request)
            return HandlerResult.from_status(409)

    with RequestContext(correlation_id=UUID(int=7)).use():
        answer = await sds047.EventHandler(Recording()).handle("vibe_created", {"n": 1})
    assert answer.verdict is Verdict.ALREADY_PROCESSED
    [request] = got
    assert (request.event_type, request.correlation_id) == ("vibe_created", UUID(int=7))
    assert b'"payload": {"n": 1}' in request.body
