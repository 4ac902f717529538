"""Messages that keep failing in a subscription whose messages are acknowledged on receipt: others pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from relay import Event, Outbox
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.test_delivery_faults import processed
from tests.waiting import wait_for

FAILING = 50  # as many as JetStream hands out at once


def commit(fleet: Fleet, name: str, count: int) -> list[str]:
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        keys = [f"{name}{n}" for n in range(count)]
        events = [Event(event_type=name, aggregate_type="vibe", aggregate_id=key, payload={}) for key in keys]
        return [str(id) for id in Outbox("vibespro").add_many(connection, events)]


def start(fleet: Fleet, handler: HandlerService) -> tuple[list[str], list[str]]:
    """Have fifty messages fail, then send twenty good ones; returns the ids of both."""
    handler.verdict = lambda body, _n: 503 if body["event_type"] == "failing" else 200
    fleet.scheduler()
    fleet.worker()
    failing = commit(fleet, "failing", FAILING)
    wait_for("every one has failed", lambda: all(handler.count(id) for id in failing))
    return failing, commit(fleet, "good", 20)


def tried(handler: HandlerService, failing: list[str], times: int) -> Callable[[], Any]:
    return lambda: all(handler.count(id) >= times for id in failing)


def test_settled_by_the_inbox_the_others_pass(start_fleet: Callable[..., Fleet], handler: HandlerService) -> None:
    fleet = start_fleet(settle="inbox", max_ack_pending=FAILING, more="circuit = false")
    failing, good = start(fleet, handler)
    wait_for("the good ones are processed", lambda: all(fleet.inbox(id).get("processed_at") for id in good))
    wait_for("nothing is open in JetStream", lambda: fleet.ack_pending() == 0)
    assert processed(fleet) == len(good)
    wait_for("every one has failed three times", tried(handler, failing, 3))
    # The table owns the retries: what Redis knows of them may be lost.
    fleet.flush()
    handler.verdict = lambda _body, _n: 200
    wait_for("all are processed", lambda: processed(fleet) == FAILING + len(good))
    assert {handler.count(id) for id in good} == {1}
