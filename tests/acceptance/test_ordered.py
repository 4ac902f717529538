"""Ordered subscriptions in a whole fleet: within a key effects happen in order, whatever is killed and when."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable

import psycopg
import pytest

from relay import Event, Outbox
from tests.acceptance import ordered_effects
from tests.acceptance.fleet import Fleet
from tests.sampling import marked
from tests.waiting import wait_for

HANDLER = "python:tests.acceptance.ordered_effects"
ORDERED = 'order = "key"\nbackoff_initial = "100ms"\n'
KEYS, LENGTH = 40, 15

StartFleet = Callable[..., Fleet]


def start(start_fleet: StartFleet, more: str = "", **options: object) -> Fleet:
    fleet = start_fleet(handler=HANDLER, more=ORDERED + more, **{"max_ack_pending": 200, **options})
    for table in ordered_effects.TABLES:
        fleet.query("sea", table)
    return fleet


def commit(fleet: Fleet, keys: int = KEYS, length: int = LENGTH, **flaky: int) -> dict[str, list[int]]:
    """Commit the steps of all keys, interleaved; returns what must become of them."""
    chance = random.Random(7)
    steps = [f"k{number}" for number in range(keys) for _ in range(length)]
    chance.shuffle(steps)
    taken: dict[str, int] = defaultdict(int)
    events = []
    for key in steps:
        payload = {"key": key, "n": taken[key], "failures": chance.choice([0, 0, 0, 0, 0, 1, 2]) if flaky else 0}
        taken[key] += 1
        events.append(Event(event_type="step_taken", aggregate_type="walk", aggregate_id=key, payload=payload))
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        for first in range(0, len(events), 50):
            Outbox("vibespro").add_many(connection, events[first : first + 50])
            connection.commit()
    return {key: list(range(length)) for key in sorted(taken)}


def effects(fleet: Fleet) -> dict[str, list[int]]:
    """The steps of each key in the order in which they happened."""
    found: dict[str, list[int]] = defaultdict(list)
    for key, n in fleet.query("sea", "SELECT key, n FROM effects ORDER BY id"):
        found[key].append(n)
    return dict(sorted(found.items()))


def count(fleet: Fleet) -> int:
    return int(fleet.query("sea", "SELECT count(*) FROM effects")[0][0])


CASES = [
    (fault, *kind)
    for kind in (("handler", 1), ("inbox", 1), ("handler", 16))
    for fault in ("a worker", "a worker and nats-server", "valkey's memory")
]


@pytest.mark.parametrize(("fault", "settle", "chunk"), marked(CASES))
def test_effects_of_a_key_happen_once_and_in_order(
    start_fleet: StartFleet, fault: str, settle: str, chunk: int
) -> None:
    fleet = start(start_fleet, f"chunk = {chunk}\n", settle=settle)
    fleet.scheduler()
    workers = [fleet.worker(), fleet.worker()]
    expected = commit(fleet, flaky=1)
    wait_for("some effects have happened", lambda: count(fleet) > 60)
    if "nats" in fault:
        fleet.nats.kill()
    if "worker" in fault:
        fleet.kill(workers[0])
    if "nats" in fault:
        fleet.nats.start()
    if "valkey" in fault:
        fleet.flush()
    wait_for("all effects have happened", lambda: count(fleet) >= KEYS * LENGTH)
    assert effects(fleet) == expected
    wait_for("all are acknowledged", lambda: fleet.ack_pending() == 0)


def with_a_broken_step(start_fleet: StartFleet, policy: str) -> tuple[Fleet, dict[str, list[int]]]:
    """Step 2 of the key k0 is refused; all that does not wait for it has happened."""
    fleet = start(start_fleet, f'failed_head = "{policy}"\n')
    fleet.query("sea", "INSERT INTO broken VALUES ('k0', 2)")
    fleet.scheduler()
    fleet.worker()
    expected = commit(fleet, keys=6, length=8)
    others = 5 * 8
    reached = others + (7 if policy == "skip" else 2)
    wait_for("all that can happen has happened", lambda: count(fleet) == reached)
    incidents = "SELECT count(*) FROM dead_letters"
    wait_for("the incident is recorded", lambda: fleet.query("sea", incidents) == [(1,)])
    return fleet, expected


def test_a_blocked_key_waits_unacknowledged_until_its_head_is_requeued(start_fleet: StartFleet) -> None:
    fleet, expected = with_a_broken_step(start_fleet, "block")
    assert effects(fleet) == expected | {"k0": [0, 1]}
    wait_for("the others are acknowledged", lambda: fleet.ack_pending() == 5)
    fleet.query("sea", "DELETE FROM broken")
    fleet.relay("dlq", "requeue", "--all", "--context", "sea")
    wait_for("the key has gone on", lambda: count(fleet) == 48, seconds=20)
    assert effects(fleet) == expected
    wait_for("all are acknowledged", lambda: fleet.ack_pending() == 0)


def test_a_blocked_key_goes_on_without_a_head_that_is_discarded(start_fleet: StartFleet) -> None:
    fleet, expected = with_a_broken_step(start_fleet, "block")
    fleet.relay("dlq", "discard", "--all", "--note", "not needed", "--context", "sea")
    wait_for("the key has gone on", lambda: count(fleet) == 47, seconds=20)
    assert effects(fleet) == expected | {"k0": [0, 1, 3, 4, 5, 6, 7]}


def test_a_parked_key_is_listed_and_runs_in_order_once_it_is_released(start_fleet: StartFleet) -> None:
    fleet, expected = with_a_broken_step(start_fleet, "park")
    assert effects(fleet) == expected | {"k0": [0, 1]}
    wait_for("nothing is held back at JetStream", lambda: fleet.ack_pending() == 0)
    [parked] = json.loads(fleet.relay("parked", "list", "--json", "--context", "sea"))
    assert (parked["key"], parked["waiting"], parked["reason"]) == (
        "walk:k0", 5, "Poison: not as long as it is broken",
    )  # fmt: skip
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        late = {"key": "k0", "n": 8}
        Outbox("vibespro").add(
            connection, Event(event_type="step_taken", aggregate_type="walk", aggregate_id="k0", payload=late)
        )
    waiting = "SELECT count(*) FROM inbox_messages WHERE enqueued_at = 'infinity'"
    wait_for("the new one has joined them", lambda: fleet.query("sea", waiting) == [(6,)])
    fleet.relay("parked", "release", "walk:k0", "--context", "sea")
    wait_for("it has failed again", lambda: fleet.query("sea", "SELECT count(*) FROM dead_letters") == [(2,)])
    fleet.query("sea", "DELETE FROM broken")
    fleet.relay("parked", "release", "--all", "--context", "sea")
    wait_for("the key has gone on", lambda: count(fleet) == 49, seconds=20)
    assert effects(fleet) == expected | {"k0": list(range(9))}


def test_a_skipped_head_can_still_be_requeued(start_fleet: StartFleet) -> None:
    fleet, expected = with_a_broken_step(start_fleet, "skip")
    assert effects(fleet) == expected | {"k0": [0, 1, 3, 4, 5, 6, 7]}
    fleet.query("sea", "DELETE FROM broken")
    fleet.relay("dlq", "requeue", "--all", "--context", "sea")
    wait_for("it has happened after all", lambda: count(fleet) == 48, seconds=20)
    assert effects(fleet) == expected | {"k0": [0, 1, 3, 4, 5, 6, 7, 2]}
