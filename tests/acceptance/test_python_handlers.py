"""Python handlers in real workers: what they write happens once, whatever is killed and when."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil
import psycopg
import pytest

from relay import Event, Outbox
from tests.acceptance import python_effects
from tests.acceptance.fleet import Fleet
from tests.waiting import wait_for

HANDLER = "python:tests.acceptance.python_effects"


@pytest.fixture
def python_fleet(start_fleet: Callable[..., Fleet]) -> Fleet:
    fleet = start_fleet(handler=HANDLER)
    fleet.query("sea", python_effects.TABLE)
    return fleet


def commit(fleet: Fleet, *payloads: dict[str, Any]) -> list[str]:
    """Commit events, odd numbers in version 2; returns their ids."""
    events = [
        Event(
            event_type="vibe_created",
            event_version=1 + payload["n"] % 2,
            aggregate_type="vibe",
            aggregate_id=f"v{payload['n'] % 20}",
            payload=payload,
        )
        for payload in payloads
    ]
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        return [str(id) for id in Outbox("vibespro").add_many(connection, events)]


def processed(fleet: Fleet) -> int:
    return int(fleet.query("sea", "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL")[0][0])


def effects(fleet: Fleet) -> Counter[str]:
    return Counter(str(id) for (id,) in fleet.query("sea", "SELECT message_id FROM effects"))


def followed(fleet: Fleet) -> Counter[str]:
    """How many events each message has led to."""
    return Counter(str(id) for (id,) in fleet.query("sea", "SELECT causation_id FROM outbox_events"))


def test_every_effect_happens_once_though_a_worker_is_killed_in_the_middle(python_fleet: Fleet) -> None:
    fleet = python_fleet
    fleet.scheduler()
    workers = [fleet.worker(), fleet.worker()]
    ids = commit(fleet, *({"n": n} for n in range(300)))
    wait_for("some are processed", lambda: processed(fleet) > 40)
    fleet.kill(workers[0])
    wait_for("all are processed", lambda: processed(fleet) == len(ids))
    once = Counter(dict.fromkeys(ids, 1))
    assert effects(fleet) == once
    assert followed(fleet) == once
    wait_for("all are acknowledged", lambda: fleet.ack_pending() == 0)


def test_a_worker_that_dies_between_the_effect_and_its_commit_leaves_none(python_fleet: Fleet) -> None:
    fleet = python_fleet
    fleet.scheduler()
    fleet.worker()
    [message_id] = commit(fleet, {"n": 0, "crash": True})
    wait_for("the first attempt has begun", lambda: fleet.inbox(message_id).get("attempts") == 1)
    fleet.worker()
    wait_for("it is processed", lambda: processed(fleet) == 1)
    assert fleet.query("sea", "SELECT message_id::text, attempt FROM effects") == [(message_id, 2)]
    assert followed(fleet) == {message_id: 1}


def test_poison_becomes_a_dead_letter_and_its_effect_is_undone(python_fleet: Fleet) -> None:
    fleet = python_fleet
    fleet.scheduler()
    fleet.worker()
    [bad] = commit(fleet, {"n": 0, "poison": True})
    [unfit] = commit(fleet, {"n": 0, "crash": "maybe not"})
    [good] = commit(fleet, {"n": 1})
    wait_for("all are finished", lambda: processed(fleet) == 1 and dead(fleet) == 2)
    reason, _, stack = fleet.inbox(bad)["last_error"].partition(" <- ")
    assert reason == "Poison: not this one"
    assert stack.startswith("tests/acceptance/python_effects.py:")
    assert "at payload.crash" in fleet.inbox(unfit)["last_error"]
    assert effects(fleet) == {good: 1}


def dead(fleet: Fleet) -> int:
    return int(fleet.query("sea", "SELECT count(*) FROM inbox_messages WHERE dead_lettered_at IS NOT NULL")[0][0])


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("tests.acceptance.nothing_here", "there is no module 'tests.acceptance.nothing_here'"),
        ("tests.acceptance.produce", "tests.acceptance.produce registers no handler"),
    ],
)
def test_a_worker_does_not_start_with_a_handler_it_cannot_use(
    start_fleet: Callable[..., Fleet], module: str, expected: str
) -> None:
    fleet = start_fleet(handler=f"python:{module}")
    worker: subprocess.Popen[bytes] = fleet.worker()
    assert worker.wait(30) != 0
    assert f"INVALID_HANDLER [handler]: {expected}" in fleet.log("worker")


# --- claims ahead of their turn ---


@pytest.fixture
def busy_fleet(start_fleet: Callable[..., Fleet]) -> Fleet:
    """As many messages wait in a worker as it fetches."""
    fleet = start_fleet(handler=HANDLER, max_ack_pending=1_000)
    fleet.query("sea", python_effects.TABLE)
    fleet.scheduler()
    return fleet


def claims(fleet: Fleet) -> int:
    """How many messages somebody has: more than a worker has threads when some are claimed ahead."""
    return int(fleet.query("sea", "SELECT count(*) FROM inbox_messages WHERE claim_token IS NOT NULL")[0][0])


def serves(worker: subprocess.Popen[bytes]) -> bool:
    """Whether the process that works has its threads."""
    return any(child.num_threads() > 8 for child in psutil.Process(worker.pid).children(recursive=True))


def test_workers_that_stop_give_back_what_they_have_claimed_and_not_begun(busy_fleet: Fleet) -> None:
    fleet = busy_fleet
    workers = [fleet.worker(), fleet.worker()]
    ids = commit(fleet, *({"n": 2 * n} for n in range(2_000)))
    wait_for("both serve", lambda: all(serves(worker) for worker in workers))
    wait_for("many are claimed", lambda: claims(fleet) > 20)
    for worker in workers:
        # As a service manager does: the parent passes it on, so the process that works hears it twice.
        fleet.signal(worker, signal.SIGTERM)
    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert claims(fleet) == 0
    assert fleet.query(
        "sea", "SELECT count(*) FROM inbox_messages WHERE attempts > 0 AND processed_at IS NULL"
    ) == [(0,)]
    fleet.worker()
    wait_for("all are processed", lambda: processed(fleet) == len(ids))
    assert effects(fleet) == Counter(dict.fromkeys(ids, 1))
    assert fleet.query("sea", "SELECT DISTINCT attempts FROM inbox_messages") == [(1,)]


def test_a_worker_that_is_told_to_stop_twice_ends_at_once(python_fleet: Fleet) -> None:
    """The second is meant when it comes later: here, while its handler does not return."""
    fleet = python_fleet
    fleet.scheduler()
    worker = fleet.worker()
    [hanging] = commit(fleet, {"n": 0, "hang": True})
    wait_for("it is called", lambda: fleet.inbox(hanging).get("attempts") == 1)
    worker.terminate()
    wait_for("the parent has passed it on", lambda: "Sending signal 'SIGTERM'" in fleet.log("worker"))

    def killed() -> bool:
        worker.terminate()
        return worker.poll() is not None

    wait_for("it ends", killed)
    assert "Killing worker process" in fleet.log("worker")


def test_a_worker_that_is_killed_takes_no_more_than_an_attempt_of_what_it_has_claimed(busy_fleet: Fleet) -> None:
    fleet = busy_fleet
    workers = [fleet.worker(), fleet.worker()]
    ids = commit(fleet, *({"n": 2 * n} for n in range(2_000)))
    for n in range(2):
        wait_for("many are claimed", lambda: claims(fleet) > 20)
        fleet.kill(workers[n])
        workers[n] = fleet.worker()
    wait_for("all are processed", lambda: processed(fleet) == len(ids))
    assert effects(fleet) == Counter(dict.fromkeys(ids, 1))
    # What was tried once is claimed in its turn only, and may then be under way when a worker is killed.
    [[attempts, more]] = fleet.query(
        "sea", "SELECT max(attempts), count(*) FILTER (WHERE attempts > 2) FROM inbox_messages"
    )
    assert attempts <= 3
    assert more <= 8


# --- many messages at a time ---

CHUNK = "chunk = 20\n"


@pytest.fixture
def chunk_fleet(start_fleet: Callable[..., Fleet]) -> Fleet:
    fleet = start_fleet(handler=HANDLER, more=CHUNK, max_ack_pending=300)
    fleet.query("sea", python_effects.TABLE)
    return fleet


def test_every_effect_of_a_chunk_happens_once_though_workers_are_killed_in_the_middle(chunk_fleet: Fleet) -> None:
    fleet = chunk_fleet
    fleet.scheduler()
    workers = [fleet.worker(), fleet.worker()]
    good = commit(fleet, *({"n": n} for n in range(600)))
    bad = commit(fleet, *({"n": n, "poison": True} for n in range(10)))
    for victim, reached in ((0, 40), (1, 250)):
        wait_for("some are processed", lambda reached=reached: processed(fleet) > reached)
        fleet.kill(workers[victim])
        workers[victim] = fleet.worker()
    wait_for("all are finished", lambda: processed(fleet) == len(good) and dead(fleet) == len(bad))
    once = Counter(dict.fromkeys(good, 1))
    assert effects(fleet) == once
    assert followed(fleet) == once
    wait_for("all are acknowledged", lambda: fleet.ack_pending() == 0)
    assert fleet.query("sea", "SELECT count(*) FROM inbox_messages WHERE attempts > 4") == [(0,)]


def test_a_message_that_kills_its_worker_takes_its_chunk_along_once_at_most(chunk_fleet: Fleet) -> None:
    fleet = chunk_fleet
    fleet.scheduler()
    fleet.worker()
    payloads = [{"n": 2 * n, "crash": n == 5} for n in range(20)]
    ids = commit(fleet, *payloads)
    wait_for("the worker is dead", lambda: fleet.running[-1].poll() is not None)
    fleet.worker()
    wait_for("all are processed", lambda: processed(fleet) == len(ids))
    assert effects(fleet) == Counter(dict.fromkeys(ids, 1))
    assert {row[0] for row in fleet.query("sea", "SELECT attempts FROM inbox_messages")} <= {1, 2}
