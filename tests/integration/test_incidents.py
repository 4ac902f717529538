"""The DLQ subscriber on real servers: each dead letter is one incident, and somebody is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from consumer.deadletters import SendAlerts
from relay.adapters.postgres.incidents import PostgresIncidents
from relay.devstack import NatsServer
from relay.domain.errors import AlertRefused, BrokerUnreachable
from relay.domain.facts import AlertFailed, IncidentRecorded
from relay.domain.incidents import IncidentFilter
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
        "class": "deterministic",
        "reason": "why",
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
    assert (fact.incident_id, fact.message_id, fact.kind) == (row["id"], message_id, "deterministic")
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
        async def record(self, letters: Any) -> Any:
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
    assert [row["class"] for row in await desk.rows()] == ["deterministic", "exhausted", "poison"]
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
    assert [row["class"] for row in rows] == ["poison"] * 3 + ["deterministic"]
    assert [row["original"] for row in rows[:2]] == [b"\x00\xff", b"{}"]
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


# --- alerts ---


@dataclass
class Channel:
    """A channel that takes alerts, or refuses them."""

    taken: list[dict[str, Any]] = field(default_factory=list)
    refuses: bool = False

    async def send(self, body: bytes) -> None:
        if self.refuses:
            raise AlertRefused("no")
        self.taken.append(json.loads(body))


def alerts(desk: Desk, channel: Channel, per_minute: int = 6) -> SendAlerts:
    return SendAlerts(desk.sub.context, desk.incidents, channel, per_minute, desk.sub.facts.append)


@pytest.mark.parametrize(
    ("headers", "trace_id"),
    [
        ({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}, "a" * 32),
        ({"Traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}, "a" * 32),
        ({"traceparent": "no trace"}, None),
        ({}, None),
    ],
)
async def test_an_incident_and_its_alert_tell_the_trace(
    desk: Desk, headers: dict[str, str], trace_id: str | None
) -> None:
    await desk.died(422, **headers)
    await desk.record().run()
    channel = Channel()
    await alerts(desk, channel).run()
    [fact] = recorded(desk)
    [incident] = channel.taken[0]["incidents"]
    assert fact.trace_id == incident["trace_id"] == trace_id


async def test_an_alert_tells_ids_and_reasons_and_no_payload(desk: Desk) -> None:
    message_id = await desk.died(422, payload={"iban": "DE02"})
    await desk.record().run()
    channel = Channel()
    assert await alerts(desk, channel).run() == 1
    [alert] = channel.taken
    assert (alert["type"], alert["context"], alert["count"]) == ("relay.dead_letters", desk.sub.context, 1)
    assert alert["incidents"][0]["message_id"] == str(message_id)
    assert "why" in alert["text"]
    assert "DE02" not in json.dumps(alert)
    assert await alerts(desk, channel).run() == 0


async def test_what_comes_faster_than_the_limit_is_told_together_and_nothing_is_left_out(desk: Desk) -> None:
    channel = Channel()
    await desk.died(422)
    await desk.record().run()
    assert await alerts(desk, channel).run() == 1
    for _ in range(3):
        await desk.died(422)
    await desk.record().run()
    assert await alerts(desk, channel).run() == 0
    await desk.sub.query("UPDATE dead_letters SET alerted_at = alerted_at - interval '11 seconds'")
    assert await alerts(desk, channel, per_minute=4).run() == 0
    assert await alerts(desk, channel, per_minute=6).run() == 3
    assert [alert["count"] for alert in channel.taken] == [1, 3]


async def test_an_alert_that_is_refused_is_tried_again(desk: Desk) -> None:
    await desk.died(422)
    await desk.record().run()
    channel = Channel(refuses=True)
    assert await alerts(desk, channel).run() == 0
    assert [fact.error for fact in desk.sub.facts if isinstance(fact, AlertFailed)] == ["no"]
    channel.refuses = False
    assert await alerts(desk, channel).run() == 1


async def test_nobody_is_told_of_what_an_operator_has_closed(desk: Desk) -> None:
    await desk.died(422)
    await desk.record().run()
    await desk.sub.query("UPDATE dead_letters SET status = 'discarded'")
    assert await alerts(desk, Channel()).run() == 0
