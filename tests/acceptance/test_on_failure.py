"""``on_failure = "nak"`` in a real fleet: redeliveries come, and a message is tried as often as its row says."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from relay import Event, Outbox
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.test_delivery_faults import processed
from tests.waiting import wait_for

COUNT = 120
TIMES = 3


def test_redeliveries_make_no_attempt_of_their_own(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    more = 'on_failure = "nak"\nbackoff_initial = "300ms"\nbackoff_max = "1s"\ncircuit = false'
    fleet = start_fleet(max_ack_pending=COUNT, more=more)
    handler.verdict = lambda _body, n: 200 if n > TIMES else 503
    fleet.scheduler()
    workers = [fleet.worker(), fleet.worker()]
    assert len(workers) == 2
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        events = [
            Event(event_type="vibe_created", aggregate_type="vibe", aggregate_id=f"v{n}", payload={})
            for n in range(COUNT)
        ]
        ids = Outbox("vibespro").add_many(connection, events)
    wait_for("some have failed", lambda: sum(map(handler.count, ids)) > COUNT)
    fleet.flush()  # what the queue knew of retries is lost; the rows know it
    wait_for("all are processed", lambda: processed(fleet) == COUNT)
    wait_for("all are acknowledged", lambda: fleet.ack_pending() == 0)
    assert {handler.count(id) for id in ids} == {TIMES + 1}
    assert fleet.query("sea", "SELECT DISTINCT attempts FROM inbox_messages") == [(TIMES + 1,)]
    info = fleet.jetstream(lambda js: js.consumer_info("VIBESPRO_EVENTS", "sea__from_vibespro"))
    assert info.delivered.consumer_seq > COUNT
