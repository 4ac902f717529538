"""What becomes of dead letters, with real processes and the operator's commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.produce import commit_one
from tests.waiting import wait_for

SEA, VIBESPRO = ("--context", "sea"), ("--context", "vibespro")


def incidents(fleet: Fleet, *arguments: str) -> list[dict[str, Any]]:
    return list(json.loads(fleet.relay("dlq", "list", *arguments, *SEA, "--json")))


def processed(fleet: Fleet, message_id: object) -> Any:
    return wait_for(f"message {message_id} is processed", lambda: fleet.inbox(message_id).get("processed_at"))


def published(fleet: Fleet) -> list[str]:
    return [message.headers["Nats-Msg-Id"] for message in fleet.messages("VIBESPRO_EVENTS")]


async def _observe(js: Any) -> None:
    await js.add_consumer("VIBESPRO_EVENTS", durable_name="observer", ack_policy="explicit")


async def _observed(js: Any) -> int:
    info = await js.consumer_info("VIBESPRO_EVENTS", "observer")
    return int(info.num_pending)


@pytest.fixture
def alerting(server_directory: Path, handler: HandlerService) -> Iterator[tuple[Fleet, HandlerService]]:
    """A fleet that tells a webhook of its dead letters."""

    class Alerting(Fleet):
        @property
        def environment(self) -> dict[str, str]:
            return {**super().environment, "RELAY_CONTEXTS__SEA__ALERTS__WEBHOOK": webhook.url}

    class Webhook(HandlerService):
        async def _handle(self, request: Any) -> Response:
            alert = json.loads(await request.body())
            # An alarm about the same incident may come beside it.
            if alert["class"] == "dead_letter":
                self.alerts.append(alert)
            return Response(status_code=204)

    webhook = Webhook()
    webhook.alerts = []
    with webhook, Alerting(server_directory, handler=handler.url) as fleet:
        yield fleet, webhook


def test_from_422_to_handled_by_an_operators_hand(
    alerting: tuple[Fleet, HandlerService], handler: HandlerService
) -> None:
    fleet, webhook = alerting
    handler.verdict = lambda _body, _n: 422
    fleet.jetstream(_observe)
    fleet.scheduler()
    fleet.worker()
    message_id = commit_one(fleet.urls["vibespro"], iban="DE02")
    [incident] = wait_for("the incident appears", lambda: incidents(fleet))
    assert (incident["message_id"], incident["class"]) == (str(message_id), "poison")
    assert (incident["reason"], incident["attempts"]) == ("HTTP 422: verdict 422", 1)
    assert "DE02" in fleet.relay("dlq", "show", str(incident["id"]), "--payload")
    [alert] = wait_for("somebody is told", lambda: webhook.alerts)
    assert (alert["count"], alert["incidents"][0]["id"]) == (1, incident["id"])
    assert "DE02" not in json.dumps(alert)

    handler.verdict = lambda _body, _n: 200  # the handler is mended
    fleet.relay("dlq", "requeue", str(incident["id"]), "--note", "handler mended")
    processed(fleet, message_id)
    assert handler.count(message_id) == 2
    [closed] = incidents(fleet, "--all")
    assert closed["status"] == "requeued"
    assert closed["handled_at"]
    assert incidents(fleet) == []
    # Nobody else saw it again.
    assert published(fleet) == [str(message_id)]
    assert fleet.jetstream(_observed) == 1
    assert fleet.ack_pending() == 0


def test_a_requeued_message_that_dies_again_is_another_incident(fleet: Fleet, handler: HandlerService) -> None:
    handler.verdict = lambda _body, _n: 422
    fleet.scheduler()
    fleet.worker()
    message_id = commit_one(fleet.urls["vibespro"])
    [first] = wait_for("the incident appears", lambda: incidents(fleet))
    fleet.relay("dlq", "requeue", str(first["id"]))
    [second] = wait_for("the next one appears", lambda: incidents(fleet))
    assert (second["message_id"], second["occurrence"]) == (str(message_id), 2)
    assert handler.count(message_id) == 2


def test_a_dead_event_is_published_by_retry_and_once_more_by_replay(fleet: Fleet, handler: HandlerService) -> None:
    fleet.scheduler()
    fleet.worker()
    [(event_id,)] = fleet.query(
        "vibespro",
        "INSERT INTO outbox_events"
        " (id, aggregate_type, aggregate_id, event_type, payload, topic)"
        " VALUES (gen_random_uuid(), 'vibe', 'v1', 'vibe_created', '{}', 'not a subject') RETURNING id",
    )

    def dead() -> Any:
        return json.loads(fleet.relay("outbox", "list", "--status", "dead", *VIBESPRO, "--json"))

    [found] = wait_for("it is dead", dead)
    assert found["id"] == str(event_id)
    fleet.query("vibespro", "UPDATE outbox_events SET topic = NULL")  # the cause is mended
    fleet.relay("outbox", "retry", str(event_id), *VIBESPRO)
    processed(fleet, event_id)
    assert published(fleet) == [str(event_id)]

    fleet.relay("outbox", "replay", "--aggregate", "vibe:v1", *VIBESPRO)
    wait_for("it is published once more", lambda: len(published(fleet)) == 2)
    assert published(fleet)[1] == f"{event_id}.1"
    wait_for("the consumer has dealt with it", lambda: delivered(fleet) == 2 and fleet.ack_pending() == 0)
    assert handler.count(event_id) == 1
    ledger = "SELECT published_seq, published_duplicate, generation FROM outbox_events"
    assert fleet.query("vibespro", ledger) == [(2, False, 1)]


def delivered(fleet: Fleet) -> int:
    async def look(js: Any) -> int:
        return int((await js.consumer_info("VIBESPRO_EVENTS", "sea__from_vibespro")).delivered.stream_seq)

    return int(fleet.jetstream(look))
