"""The DLQ subscriber on real servers: each dead letter is one incident, and somebody is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from relay.adapters.postgres.incidents import PostgresIncidents
from relay.devstack import NatsServer
from relay.domain.errors import BrokerUnreachable
from relay.domain.facts import IncidentRecorded
from relay.domain.incidents import IncidentFilter
from relay.domain.policies import DeadLetterClass
from tests.integration.consuming import SUBSCRIPTION, Handler
from tests.integration.incidents import Desk, at_the_desk

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(database_url: str, nats_server: NatsServer) -> AsyncIterator[Desk]:
    async with at_the_desk(database_url, nats_server.url) as desk:
        yield desk


def recorded(desk: Desk) -> list[IncidentRecorded]:
    return [fact for fact in desk.sub.facts if isinstance(fact, IncidentRecorded)]


async def test_a_dead_letter_becomes_an_incident_with_all_that_is_known(desk: Desk) -> None:
    correlation, causation = uuid4(), uuid4()
    ids = {"Relay_Correlation_Id": str(correlation), "Relay_Causation_Id": str(causation)}
    message_id = await desk.died(422, **ids)
    assert await desk.record().run() == 1
    [row] = await desk.rows()
    body = (await desk.sub.row(message_id))["body"]
    expected = {
        "message_id": message_id,
        "occurrence": 1,
        "subscription": SUBSCRIPTION,
        "subject": desk.sub.subject,
        "stream": desk.sub.stream,
        "stream_seq": 1,
        "event_type": "vibe_created",
        "correlation_id": correlation,
        "causation_id": causation,
        "class": "poison",
        "reason": "HTTP 422: why",
        "attempts": 1,
        "original": body,
        "letter_stream": f"{desk.sub.context.upper()}_DLQ",
        "letter_seq": 1,
        "status": "open",
        "alerted_at": None,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["headers"]["Nats-Msg-Id"] == str(message_id)
    [fact] = recorded(desk)
    assert (fact.incident_id, fact.message_id, fact.kind) == (row["id"], message_id, "poison")
    assert (fact.correlation_id, fact.causation_id) == (correlation, causation)
    assert await desk.unacked() == 0


async def test_a_letter_read_again_is_no_second_incident_and_no_second_alert(desk: Desk) -> None:
    await desk.died(422)
    deliveries = [*await desk.fetch()]
    assert await desk.record().accept([*deliveries, *deliveries]) == 1
    assert await desk.record().accept(deliveries) == 0
    assert len(await desk.rows()) == len(recorded(desk)) == 1


async def test_a_letter_is_acknowledged_only_once_it_is_recorded(desk: Desk) -> None:
    class Away(PostgresIncidents):
        async def record_letters(self, letters: Any) -> Any:
            raise BrokerUnreachable("away")

    await desk.died(422)
    with pytest.raises(BrokerUnreachable):
        await desk.record(Away(desk.sub.pool.connection)).run()
    assert await desk.unacked() == 1
    assert recorded(desk) == []


async def test_each_class_is_told_apart(desk: Desk) -> None:
    await desk.died(422)
    await desk.died(503, max_attempts=1)
    await desk.sub.send(b"not json")
    [delivery] = await desk.sub.fetch()
    await desk.sub.pull().accept([delivery])
    await desk.sub.process(Handler()).process(desk.sub.enqueued[-1])
    assert await desk.record().run() == 3
    assert [row["class"] for row in await desk.rows()] == ["poison", "exhausted", "poison"]
    assert (await desk.rows())[-1]["original"] == b"not json"


async def test_an_original_too_large_for_its_letter_comes_from_the_inbox(desk: Desk) -> None:
    big = json.dumps({"event_type": "vibe_created", "event_version": 1, "payload": '"' * 350_000}).encode()
    await desk.died(422, body=big)
    await desk.record().run()
    [row] = await desk.rows()
    assert row["original"] == big


async def test_what_others_send_to_the_dlq_does_not_stop_it(desk: Desk) -> None:
    subject = f"{desk.sub.context}.dlq.strange"
    for body in (b"\x00\xff", b"{}", b'{"message_id": "\\u0000"}'):
        await desk.sub.js.publish(subject, body)
    await desk.died(422)
    assert await desk.record().run() == 4
    rows = await desk.rows()
    assert sorted(row["class"] for row in rows) == ["poison"] + ["unconfirmed"] * 3
    assert {row["original"] for row in rows} >= {b"\x00\xff", b"{}"}
    assert await desk.unacked() == 0


async def test_more_than_a_batch_is_recorded_in_one_run(desk: Desk) -> None:
    for _ in range(120):
        await desk.sub.js.publish(f"{desk.sub.context}.dlq.x", b"{}")
    assert await desk.record().run() == 120


async def test_incidents_are_found_by_what_an_operator_knows(desk: Desk) -> None:
    first = await desk.died(422)
    await desk.died(503, max_attempts=1)
    await desk.record().run()
    since = (await desk.rows())[1]["recorded_at"]

    async def found(**wanted: Any) -> int:
        return (await desk.incidents.find(IncidentFilter(**wanted), 10)).total

    assert await found() == 2
    assert await found(message_id=first) == 1
    assert await found(reason="EXHAUSTED") == 1
    assert await found(reason="%") == 0
    assert await found(event_type="vibe_created", subscription=SUBSCRIPTION) == 2
    assert await found(event_type="other") == await found(subscription="other") == 0
    assert await found(since=since) == (2 if (await desk.rows())[0]["recorded_at"] == since else 1)
    page = await desk.incidents.find(IncidentFilter(), 1)
    assert (len(page.items), page.total) == (1, 2)


async def test_a_422_is_found_as_poison_also_if_an_older_release_called_it_deterministic(desk: Desk) -> None:
    ids = [await desk.died(422) for _ in range(2)]
    await desk.record().run()
    old = ("deterministic", "HTTP 422: no"), ("deterministic", "DomainError: closed")
    for id, (kind, reason) in zip(ids, old, strict=True):
        await desk.sub.query(
            "UPDATE dead_letters SET class = %s, reason = %s WHERE message_id = %s", kind, reason, id
        )
    new = await desk.died(422)
    await desk.record().run()

    async def found(kind: DeadLetterClass) -> set[UUID]:
        page = await desk.incidents.find(IncidentFilter(kinds=(kind,)), 10)
        return {UUID(str(row["message_id"])) for row in page.items}

    assert await found(DeadLetterClass.POISON) == {ids[0], new}
    assert await found(DeadLetterClass.DETERMINISTIC) == set(ids)
    groups = await desk.incidents.groups(IncidentFilter(), 10)
    assert "status_422" in {row["reason_code"] for row in groups}
