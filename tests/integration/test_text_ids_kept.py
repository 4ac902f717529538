"""Ids of any text in what operators see and keep: reconciliation, dead letters, commands, archive, tasks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from relay import RequestContext
from relay.adapters.postgres.alerts import PostgresAlerts
from relay.adapters.postgres.pool import connected
from relay.adapters.postgres.row_operations import (
    EventFilter,
    PostgresOutboxOperations,
    PostgresTaskOperations,
    TaskFilter,
)
from relay.devstack import NatsServer
from relay.domain.facts import IncidentRecorded, StreamLossFound
from relay.domain.identity import Identity
from relay.domain.incidents import IncidentFilter
from relay.domain.operators import Outcome
from tasks.registry import TaskContext
from tests.integration.archiving import archived
from tests.integration.consuming import Handler, Subscription
from tests.integration.incidents import ANN, Desk, at_the_desk
from tests.integration.publishing import ALL, Relay, event, query
from tests.integration.reconciling import command, delete, only
from tests.integration.tasking import Mail, tasking
from tests.integration.test_reconcile_inbox import find

pytestmark = pytest.mark.anyio

ENVELOPES = ["handler", "message-envelope", "cloudevents", "raw"]
EVT, REQ = "evt_01HQGX8K9JNPQR5MWTVYZ3F4BC", "req_01HQGX8K9JNPQR5MWTVYZ3F4AB"


@pytest.fixture
async def relay(database_url: str, nats_server: NatsServer) -> AsyncIterator[Relay]:
    async with Relay(database_url, nats_server.url) as relay:
        await relay.create_stream()
        yield relay


@pytest.fixture
async def desk(database_url: str, nats_server: NatsServer) -> AsyncIterator[Desk]:
    async with at_the_desk(database_url, nats_server.url) as desk:
        yield desk


def operated(relay: Relay) -> PostgresOutboxOperations:
    return PostgresOutboxOperations(relay.pool.connection)


# --- the ledger and the stream ---


@pytest.mark.parametrize("envelope", ENVELOPES)
async def test_a_stream_of_texts_is_intact_until_it_loses_one_and_that_one_comes_again(
    relay: Relay, envelope: str
) -> None:
    publish = relay.command(envelope=envelope)
    relay.add(event(id="evt_1"), event(id="order.7"), event(), event(id=f"{uuid4()}.3"))
    relay.insert(originals=json.dumps({"id": "evt_sql"}))
    await relay.drained(publish)
    for repair in (False, True):
        report = only(await command(relay).everything(repair=repair))
        assert (report.lost, report.checked) == (0, 5)
    assert [only(await command(relay).tick(page)).lost for page in (0, 1)] == [0, 0]
    assert relay.unpublished() == []

    [place] = query(
        relay.url, "SELECT published_seq AS seq FROM outbox_events WHERE originals ->> 'id' = 'evt_sql'"
    )
    before = await relay.ids()
    await delete(relay, place["seq"])
    assert list(only(await command(relay).everything(repair=False)).middle.ids) == ["evt_sql"]
    assert only(await command(relay).everything(repair=True)).lost == 1
    [fact] = [fact for fact in relay.facts if isinstance(fact, StreamLossFound) and fact.repaired]
    assert list(fact.ids) == ["evt_sql"]
    assert len(relay.unpublished()) == 1
    await relay.drained(publish)
    await relay.admin(
        lambda js: js.publish(f"{relay.context}.event.x.v1", b"{}", headers={"Nats-Msg-Id": "evt_9"})
    )

    async def last(js: Any) -> str:
        return str((await js.get_msg(relay.stream, 6)).headers["Nats-Msg-Id"])

    assert await relay.admin(last) == f"{before[place['seq'] - 1]}.1"
    assert only(await command(relay).everything(repair=True)).lost == 0
    assert relay.unpublished() == []


async def test_a_replay_of_a_text_is_known_by_the_ledger_and_by_the_inbox(desk: Desk) -> None:
    sub = desk.sub
    async with Relay(sub.url, sub.nats_url, sub.name) as relay:
        relay.add(event(id=EVT))
        await relay.drained()
        assert await operated(relay).replay([EVT], ANN) == Outcome((EVT,), (), deed=1)
        await relay.drained()
        assert await relay.ids() == [EVT, f"{EVT}.1"]
        assert only(await command(relay).everything(repair=True)).lost == 0
        await sub.pull().accept(await sub.fetch())
        assert [row["originals"] for row in await sub.rows()] == [{"id": EVT}]


# --- the inbox and the stream ---

FOREIGN: dict[str, Any] = {
    "schema_version": "1.0",
    "message_type": "vibe_created",
    "message_id": "evt_1",
    "timestamp": "2026-01-01T00:00:00Z",
    "actor_id": "usr_1",
    "actor_kind": "HUMAN",
    "payload": {},
    "idempotency_key": "sha256:1",
}


async def settled(sub: Subscription, envelope: str) -> None:
    await sub.pull(envelope).accept(await sub.fetch())
    for id in sub.enqueued:
        await sub.process(Handler(), envelope=envelope).process(id)
    await sub.acked()


@pytest.mark.parametrize("sent", ["its key", "another id", ""])
async def test_messages_that_another_id_names_are_not_missing_unless_they_are(desk: Desk, sent: str) -> None:
    sub = desk.sub
    for number in (1, 2):
        body = json.dumps({**FOREIGN, "idempotency_key": f"sha256:{number}"}).encode()
        name = {"its key": f"sha256:{number}", "another id": f"n{number}", "": ""}[sent]
        await sub.js.publish(sub.subject, body, headers={"Nats-Msg-Id": name} if name else {"X": "1"})
    await settled(sub, "message-envelope")
    assert list((await find(sub).run()).missing) == []
    await sub.query("DELETE FROM inbox_messages WHERE message_id = %s", Identity.of("sha256:1").uuid)
    assert list((await find(sub).run()).missing) == [1]


async def test_a_lost_acknowledgement_of_a_text_is_given_again_without_handling_it_again(desk: Desk) -> None:
    sub = desk.sub
    await sub.send(b'{"event_type":"vibe_created","event_version":1,"payload":1}', Nats_Msg_Id="evt_1")
    await sub.pull().accept(await sub.fetch())
    await sub.process(Handler(), consumer=sub.lossy()).process(sub.enqueued[0])
    assert await sub.unacked() == 1
    await sub.query(
        "UPDATE inbox_messages SET processed_at = processed_at - interval '2 seconds', "
        "received_at = received_at - interval '3 seconds'"
    )
    assert await sub.recovery().recover() == 0
    await sub.acked()
    assert sub.enqueued == [Identity.of("evt_1").uuid]


# --- dead letters ---


async def died(desk: Desk, envelope: str = "handler") -> dict[str, Any]:
    """A message of texts that died and is an incident; returns its letter."""
    sub = desk.sub
    body: dict[str, Any] = {"event_type": "vibe_created", "event_version": 1, "payload": {}, "correlation_id": REQ}
    if envelope == "message-envelope":
        body = {**FOREIGN, "message_id": EVT, "correlation_id": REQ}
    await sub.send(json.dumps(body).encode(), Nats_Msg_Id=EVT)
    await sub.pull(envelope).accept(await sub.fetch())
    await sub.process(Handler.answering(422), envelope=envelope).process(sub.enqueued[-1])
    await desk.record().run()
    return (await sub.dead_letters())[-1]


@pytest.mark.parametrize("envelope", ["handler", "message-envelope"])
async def test_a_dead_letter_shows_the_originals_and_a_requeue_keeps_them(desk: Desk, envelope: str) -> None:
    sub = desk.sub
    letter = await died(desk, envelope)
    assert (letter["message_id"], letter["correlation_id"]) == (EVT, REQ)
    assert letter["inbox_id"] == str(sub.enqueued[-1])
    [fact] = [fact for fact in sub.facts if isinstance(fact, IncidentRecorded)]
    assert (fact.message_id, fact.correlation_id) == (EVT, REQ)

    for wanted in ({"message_id": EVT}, {"correlation_id": REQ}, {"message_id": sub.enqueued[-1]}):
        page = await desk.incidents.find(IncidentFilter(**wanted), 10)
        assert [(row["message_id"], row["correlation_id"]) for row in page.items] == [(EVT, REQ)], wanted
    assert (await desk.incidents.find(IncidentFilter(message_id="evt_2"), 10)).total == 0
    incident = page.items[0]["id"]
    shown = await desk.incidents.get(incident)
    assert shown is not None
    assert (shown["message_id"], shown["row_id"]) == (EVT, sub.enqueued[-1])

    assert (await desk.incidents.requeue([incident], ANN)).done == (str(incident),)
    handler = Handler()
    await sub.process(handler, envelope=envelope).process(sub.enqueued[-1])
    [request] = handler.requests
    assert json.loads(request.body)["message_id"] == EVT
    assert await to_alert(desk) == []  # decided on


async def test_an_alert_names_the_originals(desk: Desk) -> None:
    await died(desk)
    assert await to_alert(desk) == [(EVT, REQ)]


async def to_alert(desk: Desk) -> list[tuple[str, str]]:
    """The message and the correlation of the dead letters that the next alert names."""
    async with PostgresAlerts(desk.sub.pool.connection).unsent() as held:
        assert held is not None
        return [(it.about["message_id"], it.about["correlation_id"]) for it in held.causes if it.open]


# --- operators ---


async def test_operators_find_and_act_by_the_text(relay: Relay) -> None:
    relay.add(event(id=EVT, correlation_id=REQ, topic="nowhere.at.all"), event())
    row_id = relay.insert(originals=json.dumps({"id": "evt_sql"}), topic="no spaces allowed")
    await relay.command(max_attempts=1).drain(ALL)
    page = await operated(relay).find(EventFilter(statuses=["failing"], correlation_id=REQ), 10)
    assert [(row["id"], row["correlation_id"]) for row in page.items] == [(EVT, REQ)]
    shown = await operated(relay).get("evt_sql")
    assert shown is not None
    assert (shown["id"], shown["row_id"], shown["status"]) == ("evt_sql", row_id, "dead")
    assert await operated(relay).get("evt_2") is None
    assert await operated(relay).get(row_id) is not None

    query(relay.url, "UPDATE outbox_events SET topic = NULL")
    outcome = await operated(relay).retry([EVT, "evt_sql", "evt_2"], ANN)
    assert (outcome.done, [(id, error.code) for id, error in outcome.refused]) == (
        (EVT, "evt_sql"),
        [("evt_2", "NOT_PUBLISHABLE")],
    )
    await relay.drained()
    assert set(await relay.ids()) >= {EVT, "evt_sql"}


async def test_the_archive_keeps_the_texts(database_url: str, nats_server: NatsServer, tmp_path: Path) -> None:
    async with archived(database_url, nats_server.url, tmp_path / "cold") as archive:
        await archive.events(1)
        originals = {"id": EVT, "correlation_id": REQ}
        query(archive.url, "UPDATE outbox_events SET originals = %s::jsonb", json.dumps(originals))
        archive.messages(1)
        query(archive.url, "UPDATE inbox_messages SET originals = %s::jsonb", json.dumps(originals))
        await archive.command().run(ANN)
        for kind in ("outbox", "inbox"):
            [line] = archive.lines(kind)
            assert json.loads(line)["originals"] == originals


# --- tasks ---


@pytest.mark.parametrize("ahead", [False, True])
async def test_a_task_carries_the_correlation_of_its_request_on(database_url: str, *, ahead: bool) -> None:
    async with tasking(database_url) as tasks:
        tasks.threads = tasks.ahead = ahead
        seen: list[Any] = []

        def look(mail: Mail, context: TaskContext) -> None:
            seen.extend([context.correlation_id, context.causation_id, RequestContext.current().correlation_id])

        tasks.register(look)
        with RequestContext(correlation_id=REQ, causation_id=EVT).use():
            [id] = tasks.schedule(Mail(n=1))
        assert await tasks.run(id) is None
        assert seen == [REQ, EVT, REQ]
    async with connected(database_url, "test") as source:
        page = await PostgresTaskOperations(source).find(
            TaskFilter(statuses=["completed"], correlation_id=REQ), 10
        )
        assert [(row["id"], row["causation_id"]) for row in page.items] == [(id, EVT)]
