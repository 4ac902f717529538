"""The way from one version of an envelope to the next (SR-MESSAGE-CONTRACTS §7.2), under load."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from relay import Event, Outbox, jobs
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.waiting import wait_for

NEW = "python:tests.acceptance.wire"
WRITES = "RELAY_CONTEXTS__VIBESPRO__ENVELOPE"
READS = "RELAY_CONTEXTS__SEA__SUBSCRIPTIONS__FROM_VIBESPRO__ENVELOPE"
PUBLISHING = (jobs.PUBLISH_QUEUE,)
CONSUMING = (jobs.PULL_QUEUE, jobs.HANDLE_QUEUE, jobs.UPKEEP_QUEUE)


@contextmanager
def load(fleet: Fleet) -> Iterator[list[str]]:
    """Commit events without a pause; the ids of those that are committed."""
    ids: list[str] = []
    stop, outbox = threading.Event(), Outbox("vibespro")

    def commit() -> None:
        with psycopg.connect(fleet.urls["vibespro"]) as connection:
            while not stop.wait(0.05):
                payload = {"n": len(ids)}
                events = [
                    Event(event_type="made", aggregate_type="v", aggregate_id=f"{n}", payload=payload)
                    for n in range(4)
                ]
                with connection.transaction():
                    added = outbox.add_many(connection, events)
                ids.extend(map(str, added))

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield ids
    finally:
        stop.set()
        thread.join(30)


def versions(fleet: Fleet) -> Counter[str]:
    return Counter(json.loads(message.data)["schema_version"] for message in fleet.messages("VIBESPRO_EVENTS"))


def newest(fleet: Fleet) -> str:
    """The version of the last message of the stream."""

    async def ask(js: Any) -> str:
        last = (await js.stream_info("VIBESPRO_EVENTS")).state.last_seq
        return str(json.loads((await js.get_msg("VIBESPRO_EVENTS", last)).data)["schema_version"])

    return str(fleet.jetstream(ask))


def handled(handler: HandlerService) -> set[str]:
    return {call.message_id for call in list(handler.calls)}


def test_a_fleet_goes_from_1_0_to_2_0_under_load_and_nothing_is_lost_or_refused(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    fleet = start_fleet(variables={WRITES: "message-envelope", READS: "message-envelope"}, max_ack_pending=500)
    fleet.scheduler()
    old_consumer, old_producer = fleet.worker(queues=CONSUMING), fleet.worker(queues=PUBLISHING)
    with load(fleet) as ids:
        wait_for("1.0 is read by readers of 1.0", lambda: len(handled(handler)) > 50)

        fleet.variables[READS] = NEW
        fleet.worker(queues=CONSUMING)
        assert fleet.stop(old_consumer) == 0
        seen = len(handled(handler))
        wait_for("1.0 is read by readers of both", lambda: len(handled(handler)) > seen + 50)
        assert newest(fleet) == "1.0"

        fleet.variables[WRITES] = NEW
        fleet.worker(queues=PUBLISHING)
        wait_for("2.0 is written beside 1.0", lambda: newest(fleet) == "2.0")
        assert fleet.stop(old_producer) == 0
        seen = len(handled(handler))
        wait_for("2.0 is written alone", lambda: len(handled(handler)) > seen + 50)
        assert newest(fleet) == "2.0"
    wait_for("all are handled", lambda: handled(handler) >= set(ids))
    wait_for("all are acknowledged", lambda: fleet.ack_pending() == 0)
    assert handled(handler) == set(ids)
    written = versions(fleet)
    assert written.keys() == {"1.0", "2.0"}
    assert written.total() == len(ids)
    assert fleet.messages("SEA_DLQ") == []
    assert fleet.query("sea", "SELECT count(*) FROM inbox_messages WHERE dead_letter_reason IS NOT NULL") == [(0,)]


def test_readers_of_1_0_alone_refuse_2_0_with_its_reason_and_go_on(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    """What the order of the steps is for."""
    fleet = start_fleet(variables={WRITES: NEW, READS: "message-envelope"})
    fleet.scheduler()
    fleet.worker()
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        event = Event(event_type="made", aggregate_type="v", aggregate_id="1", payload={})
        Outbox("vibespro").add(connection, event)
    [letter] = wait_for("it is a dead letter", lambda: fleet.messages("SEA_DLQ"))
    assert "schema_version" in json.loads(letter.data)["reason"]
    assert "is not one that is supported: 1.0" in json.loads(letter.data)["reason"]
    assert not handler.calls


@pytest.mark.parametrize(("name", "expected"), [("python:tests.acceptance.nowhere", "there is no module")])
def test_a_worker_does_not_start_with_an_envelope_that_it_cannot_find(
    start_fleet: Callable[..., Fleet], name: str, expected: Any
) -> None:
    fleet = start_fleet(variables={WRITES: name})
    assert fleet.worker().wait(60) != 0
    assert f"env {WRITES}: contexts.vibespro.envelope: {expected}" in fleet.log("worker")
