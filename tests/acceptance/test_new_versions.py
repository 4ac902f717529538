"""A new version of an event arrives before all workers know it (docs/how-to/evolve-events.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from relay import Event, Outbox
from tests.acceptance import versions_before
from tests.acceptance.fleet import Fleet
from tests.waiting import wait_for

BEFORE, AFTER = "python:tests.acceptance.versions_before", "python:tests.acceptance.versions_after"
HANDLER = "RELAY_CONTEXTS__SEA__SUBSCRIPTIONS__FROM_VIBESPRO__HANDLER"
UNFINISHED = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NULL AND dead_lettered_at IS NULL"
DEAD = "SELECT count(*) FROM inbox_messages WHERE dead_lettered_at IS NOT NULL"


@pytest.fixture
def start(start_fleet: Callable[..., Fleet]) -> Callable[..., Fleet]:
    def started(more: str, **options: Any) -> Fleet:
        fleet = start_fleet(handler=BEFORE, more=more, variables={"RELAY_RELEASE": "before"}, **options)
        fleet.query("sea", versions_before.TABLE)
        fleet.scheduler()
        return fleet

    return started


def new_worker(fleet: Fleet) -> subprocess.Popen[bytes]:
    """Start a worker of the next release; returns when the others can see what it handles."""
    fleet.variables |= {HANDLER: AFTER, "RELAY_RELEASE": "after"}
    worker = fleet.worker()
    wait_for("the new release is there", lambda: "after" in releases(fleet))
    return worker


def releases(fleet: Fleet) -> set[str]:
    members = json.loads(fleet.relay("fleet", "status", "--json"))
    return {it["release"] for it in members if it["kind"] == "worker"}


def awaited(fleet: Fleet) -> list[str]:
    """The beginnings of what `relay doctor` says of versions that wait."""
    command = [sys.executable, "-c", "from relay.cli import main; main()", "doctor", "--json"]
    # Its status is 1 because of other findings: this is no production.
    done = subprocess.run(command, env=fleet.environment, capture_output=True, text=True, check=False)
    findings = json.loads(done.stdout)["findings"]
    return [it["text"].partition(" for ")[0] for it in findings if it["code"] == "VERSION_AWAITED"]


def commit(fleet: Fleet, *events: tuple[str, int, int]) -> None:
    """Commit events, each with its key, its number and its version."""
    made = [
        Event(
            event_type="order_changed",
            event_version=version,
            aggregate_type="order",
            aggregate_id=key,
            partition_key=key,
            payload={"n": n},
        )
        for key, n, version in events
    ]
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        Outbox("vibespro").add_many(connection, made)


def effects(fleet: Fleet) -> Sequence[tuple[str, int, int, int]]:
    return [
        (k, n, v, a)
        for k, n, v, a in fleet.query("sea", "SELECT key, n, version, attempt FROM effects ORDER BY at")
    ]


def test_what_only_the_next_release_knows_waits_for_it_without_an_attempt_and_in_order(
    start: Callable[..., Fleet],
) -> None:
    fleet = start('order = "key"\nunknown_for = "1h"', max_ack_pending=10)
    old = fleet.worker()
    # More keys wait than the window has places: half version 2, then version 1 behind it.
    new = [(f"new{key}", n, 2 if n < 2 else 1) for n in range(4) for key in range(12)]
    usual = [(f"old{key}", n, 1) for n in range(4) for key in range(12)]
    commit(fleet, *new)
    commit(fleet, *usual)
    wait_for("all other keys are handled", lambda: len(effects(fleet)) == len(usual))
    wait_for("all have arrived", lambda: fleet.query("sea", UNFINISHED)[0][0] == len(new))
    heads = "SELECT count(*), max(attempts) FROM inbox_messages WHERE last_error LIKE 'UNKNOWN_VERSION:%%'"
    wait_for("the head of each key waits", lambda: fleet.query("sea", heads) == [(12, 0)])
    assert {key for key, *_ in effects(fleet)} == {key for key, *_ in usual}

    assert awaited(fleet) == ["12 messages of order_changed v2 wait"]

    new_worker(fleet)
    wait_for("the next release handles all", lambda: len(effects(fleet)) == len(usual) + len(new), seconds=120)
    found = effects(fleet)
    for key in {key for key, *_ in [*new, *usual]}:
        assert [it[1:3] for it in found if it[0] == key] == [it[1:3] for it in [*new, *usual] if it[0] == key]
    assert {attempt for *_, attempt in found} == {1}
    assert fleet.query("sea", DEAD) == [(0,)]
    assert awaited(fleet) == []
    assert fleet.stop(old) == 0
    wait_for("all are acknowledged", lambda: fleet.ack_pending() == 0)


@pytest.mark.parametrize("more", ["", "chunk = 10"])
def test_without_a_release_that_knows_it_it_is_dead_and_beside_one_it_waits(
    start: Callable[..., Fleet], more: str
) -> None:
    fleet = start(more)
    fleet.worker()
    commit(fleet, ("a", 0, 2))
    wait_for("it is dead", lambda: fleet.query("sea", DEAD) == [(1,)])
    reason = "SELECT attempts, dead_letter_class, dead_letter_reason FROM inbox_messages"
    [(attempts, kind, text)] = fleet.query("sea", reason)
    assert (attempts, kind) == (1, "deterministic")
    assert text.startswith("no handler for order_changed v2")

    new_worker(fleet)
    events = [(f"k{n}", n, 2) for n in range(40)]
    commit(fleet, *events)
    wait_for("the new worker has handled all", lambda: len(effects(fleet)) == len(events), seconds=120)
    assert {attempt for *_, attempt in effects(fleet)} == {1}
    assert fleet.query("sea", DEAD) == [(1,)]
