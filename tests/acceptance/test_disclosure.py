"""What a service, a function and a producer get wrong is told everywhere, and their data nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from relay import Event, Outbox
from tasks import schedule
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.leaking import Account, book
from tests.acceptance.produce import commit_one
from tests.waiting import wait_for

IBAN = "DE89370400440532013000"
MORE = """
[contexts.vibespro.subscriptions.from_sea]
stream = "SEA_EVENTS"
durable = "vibespro__from_sea"
filter_subject = "sea.event.>"
handler = "python:tests.acceptance.leaking"
max_attempts = 2
backoff_initial = "100ms"
"""
#: Every column in which a failure is told.
TOLD = {
    "outbox_events": ("publish_error",),
    "inbox_messages": ("last_error", "dead_letter_reason"),
    "dead_letters": ("reason",),
    "task_outbox": ("last_error",),
}


class Service(HandlerService):
    """Answers as FastAPI does by itself, which repeats the input, or in its own words."""

    async def _handle(self, request: Any) -> Response:
        body = json.loads(await request.body())
        if "alert" in request.url.path:
            self.alerts.append(body)
            return Response(status_code=204)
        found = body["payload"]
        if found["answer"] == 422:
            error = {
                "type": "string_type",
                "loc": ["body", "payload", "iban"],
                "msg": f"no {IBAN}",
                "input": found,
            }
            return JSONResponse({"detail": [error]}, status_code=422)
        return PlainTextResponse(f"Traceback: ValueError: {found['iban']}", status_code=500)


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    found.alerts = []
    with found:
        yield found


@pytest.fixture
def fleet(service: Service, server_directory: Path) -> Iterator[Fleet]:
    variables = {
        "RELAY_ACTOR_MODULES": "tasks.actors,consumer.actors,tests.acceptance.leaking",
        "RELAY_CONTEXTS__SEA__ALERTS__WEBHOOK": service.url.replace("/handle", "/alert"),
        "RELAY_CONTEXTS__SEA__ALERTS__PER_MINUTE": "60",
        "RELAY_CONTEXTS__VIBESPRO__ALERTS__WEBHOOK": service.url.replace("/handle", "/alert"),
        "RELAY_CONTEXTS__VIBESPRO__ALERTS__PER_MINUTE": "60",
        "RELAY_LOG_LEVEL": "DEBUG",
        "RELAY_LOG_FORMAT": "json",
    }
    with Fleet(server_directory, handler=service.url, max_attempts=2, more=MORE, variables=variables) as started:
        yield started


def fail_in_every_way(fleet: Fleet) -> None:
    for answer in (422, 500):
        commit_one(fleet.urls["vibespro"], key=str(answer), answer=answer, iban=IBAN)
    with psycopg.connect(fleet.urls["sea"]) as connection:
        for name in ("account_opened", "account_checked", "account_unknown"):
            event = Event(event_type=name, aggregate_type="account", aggregate_id="1", payload={"iban": IBAN})
            Outbox("sea").add(connection, event)
        event = Event(event_type="account_opened", aggregate_type="account", aggregate_id="1", payload=[IBAN])
        Outbox("sea").add(connection, event)
        schedule(connection, book, Account(iban=IBAN))
        schedule(connection, "book", {"iban": [IBAN]}, registered=False)
    fleet.query(
        "vibespro",
        "INSERT INTO outbox_events"
        " (id, aggregate_type, aggregate_id, event_type, payload, topic)"
        " VALUES (%s, 'a', '1', 'e', %s, 'not a subject')",
        uuid4(),
        json.dumps({"iban": IBAN}),
    )
    fleet.jetstream(strange)


async def strange(js: Any) -> None:
    """Messages of a producer that keeps no rule."""
    subject = "vibespro.event.vibe_created.v1"
    whole = {"event_type": "vibe_created", "event_version": 1, "payload": {"iban": IBAN}}
    too_long = " ".join([IBAN] * 20)  # a shorter text would be an id, and ids are told
    for headers, body in (
        ({"Nats-Msg-Id": too_long}, json.dumps(whole)),
        ({"Nats-Msg-Id": str(uuid4())}, IBAN),
        ({"Nats-Msg-Id": str(uuid4())}, json.dumps({**whole, "event_type": IBAN + " "})),
        ({"Nats-Msg-Id": str(uuid4())}, json.dumps({**whole, "subject": IBAN})),
        ({"Nats-Msg-Id": str(uuid4()), "Relay-Correlation-Id": too_long}, json.dumps(whole)),
        ({"Nats-Msg-Id": str(uuid4()), "Relay-Event-Version": IBAN}, json.dumps(whole)),
    ):
        await js.publish(subject, body.encode(), headers=headers)
    await js.publish("sea.dlq.strange", json.dumps({"message_id": IBAN, "class": IBAN, "reason": IBAN}).encode())


def test_no_datum_is_told_by_a_failure(fleet: Fleet, service: Service) -> None:
    fail_in_every_way(fleet)
    fleet.scheduler()
    fleet.worker(threads=4)
    # 422, 500 and six strange ones; a strange letter. Four of functions.
    counts = {"sea": 9, "vibespro": 4}
    for context, count in counts.items():
        sql = "SELECT count(*) FROM dead_letters WHERE alerted_at IS NOT NULL"
        wait_for(f"{context} has told of {count}", lambda: fleet.query(context, sql)[0][0] == count)  # noqa: B023
    wait_for("both tasks have failed", lambda: _count(fleet, "sea", "task_outbox WHERE status = 'failed'") == 2)
    wait_for(
        "the event is dead", lambda: _count(fleet, "vibespro", "outbox_events WHERE dead_at IS NOT NULL") == 1
    )

    told = {"scheduler.log": fleet.log("scheduler"), "worker.log": fleet.log("worker")}
    told["alerts"] = json.dumps(service.alerts)
    for context in counts:
        for table, columns in TOLD.items():
            rows = fleet.query(context, f"SELECT {', '.join(columns)} FROM {table}")
            told[f"{context}.{table}"] = repr(rows)
        for stream in (f"{context.upper()}_DLQ",):
            told[stream] = repr([_reason(message.data) for message in fleet.messages(stream)])
        for command in (("dlq", "list"), ("outbox", "list"), ("tasks", "list"), ("parked", "list")):
            told[f"{context}: {command}"] = fleet.relay(*command, "--context", context, "--json")
            told[f"{context}: {command} as a table"] = fleet.relay(*command, "--context", context)
        for (id,) in fleet.query(context, "SELECT id FROM dead_letters WHERE headers = '{}'"):
            told[f"{context}: incident {id}"] = fleet.relay("dlq", "show", str(id), "--context", context, "--json")
    assert [where for where, text in told.items() if IBAN in text or IBAN[4:] in text] == []

    # It is kept where it is meant to be, and what went wrong is told.
    assert IBAN in repr(fleet.query("sea", "SELECT original FROM dead_letters"))
    reasons = told["sea.dead_letters"] + told["vibespro.dead_letters"] + told["sea.task_outbox"]
    for reason in (
        "HTTP 422: string_type at body.payload.iban",
        "the last one: HTTP 500",
        "ValueError at tests.acceptance.leaking.raise_it:",
        "InvalidTextRepresentation 22P02 at tests.acceptance.leaking.have_postgresql_say_it:",
        "no handler for account_unknown v1",
        "Poison: account_opened v1 does not fit its handler",
        "LookupError at tests.acceptance.leaking.book:",
        "string_type at payload.iban",
        "MALFORMED_MESSAGE [subject]: contradicts what is known",
    ):
        assert reason in reasons, reason
    assert "MessageDeadLettered" in told["worker.log"]


def _count(fleet: Fleet, context: str, table: str) -> int:
    return int(fleet.query(context, f"SELECT count(*) FROM {table}")[0][0])


def _reason(letter: bytes) -> object:
    """What a letter tells; the rest of it is the original. One from elsewhere is its sender's affair."""
    fields = json.loads(letter)
    return fields["reason"] if "subscription" in fields else None
