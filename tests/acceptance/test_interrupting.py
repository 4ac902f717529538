"""A handler that raises KeyboardInterrupt, SystemExit or the like fails its own message, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import psycopg

from relay import Event, Outbox
from tests.acceptance import interrupting
from tests.acceptance.fleet import Fleet
from tests.waiting import wait_for

HANDLER = "python:tests.acceptance.interrupting"


def commit(fleet: Fleet, version: int, payload: dict[str, Any]) -> str:
    event = Event(
        event_type="vibe_created", event_version=version, aggregate_type="v", aggregate_id="1", payload=payload
    )
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        return str(Outbox("vibespro").add(connection, event))


def test_the_worker_goes_on_and_the_failure_is_recorded(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(handler=HANDLER)
    fleet.scheduler()
    worker = fleet.worker()
    bad = {
        commit(fleet, version, {"raises": name}): error.__name__
        for version, (name, error) in itertools.product((1, 2), interrupting.ERRORS.items())
    }
    for name in interrupting.ERRORS:
        commit(fleet, 1, {"raises": name, "in_task": True})
    total = len(bad) + len(interrupting.ERRORS) + 10
    for number in range(10):
        commit(fleet, 1 + number % 2, {})

    def processed() -> int:
        return int(fleet.query("sea", "SELECT count(processed_at) FROM inbox_messages")[0][0])

    wait_for("all are handled", lambda: processed() == total)
    failed = fleet.query("sea", "SELECT message_id::text, last_error FROM inbox_messages WHERE attempts > 1")
    assert {id: (error or "").split(" ")[0] for id, error in failed} == bad
    assert fleet.stop(worker) == 0
