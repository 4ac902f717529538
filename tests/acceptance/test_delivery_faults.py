"""Faults between the stream and the handler: nothing lost, no second effect, nothing stuck."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import redis

from relay import Event, Outbox
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.produce import commit_one
from tests.waiting import wait_for


def commit_many(fleet: Fleet, count: int) -> list[str]:
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        events = [
            Event(event_type="vibe_created", aggregate_type="vibe", aggregate_id=f"v{n % 20}", payload={"n": n})
            for n in range(count)
        ]
        return [str(id) for id in Outbox("vibespro").add_many(connection, events)]


def processed(fleet: Fleet) -> int:
    return int(fleet.query("sea", "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL")[0][0])


def test_a_flushed_and_restarted_valkey_loses_no_message_and_no_retry(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    """Every message fails twice, so at any moment many wait in Redis for their next attempt."""
    fleet = start_fleet(more="circuit = false")
    succeeded: set[str] = set()

    def verdict(body: dict[str, Any], n: int) -> int:
        if n <= 2:
            return 503
        status = 409 if body["message_id"] in succeeded else 200
        succeeded.add(body["message_id"])
        return status

    handler.verdict = verdict
    fleet.scheduler()
    fleet.worker()
    ids = commit_many(fleet, 120)
    wait_for("retries are waiting", lambda: len(handler.calls) > 60)
    fleet.flush()
    wait_for("work goes on", lambda: processed(fleet) > 20)
    fleet.valkey.kill()
    fleet.valkey.start()
    wait_for("all are processed", lambda: processed(fleet) == len(ids))
    wait_for("all are acknowledged", lambda: fleet.ack_pending() == 0)
    # Each was called until it succeeded and not once more.
    assert {id: handler.count(id) for id in ids} == dict.fromkeys(ids, 3)


def test_a_row_that_somebody_else_has_locked_keeps_no_other_message_from_the_service(
    fleet: Fleet, handler: HandlerService
) -> None:
    """The service has answered: its place is another's, however long the answer takes to be noted."""
    with psycopg.connect(fleet.urls["sea"]) as other:

        def verdict(body: dict[str, Any], n: int) -> int:
            if n == 1 and not locked:
                locked.append(body["message_id"])
                other.execute("SELECT FROM inbox_messages WHERE message_id = %s FOR UPDATE", locked)
            return 200

        locked: list[str] = []
        handler.verdict = verdict
        fleet.scheduler()
        fleet.worker(threads=1)
        ids = commit_many(fleet, 4)
        wait_for("the others are processed", lambda: processed(fleet) == 3)
        assert not fleet.inbox(locked[0])["processed_at"]
    wait_for("all are processed", lambda: processed(fleet) == 4)
    assert [handler.count(id) for id in ids] == [1] * 4


def test_a_killed_worker_leaves_nothing_behind(fleet: Fleet, handler: HandlerService) -> None:
    fleet.scheduler()
    workers = [fleet.worker(), fleet.worker()]
    ids = commit_many(fleet, 300)
    wait_for("some are processed", lambda: processed(fleet) > 50)
    fleet.kill(workers[0])
    wait_for("all are processed", lambda: processed(fleet) == len(ids))
    assert {call.message_id for call in handler.calls} == set(ids)


def test_a_worker_killed_while_its_jobs_wait_for_nats_keeps_nobody_waiting(
    fleet: Fleet, handler: HandlerService
) -> None:
    """What waits in a back-off dies with the worker that holds it; its gate must not outlive it for long."""
    fleet.scheduler()
    worker = fleet.worker()
    ids = [str(commit_one(fleet.urls["vibespro"]))]
    wait_for("the fleet works", lambda: processed(fleet) == 1)
    fleet.nats.kill()
    ids.append(str(commit_one(fleet.urls["vibespro"])))
    client = redis.Redis.from_url(fleet.valkey.url)

    def waiting() -> set[bytes]:
        return {key.split(b":")[2] for key in client.keys("relay:gate:*") if b":waits" in (client.get(key) or b"")}

    wait_for("its jobs are in back-off", lambda: waiting() == {b"pull", b"publish"})
    fleet.kill(worker)
    fleet.nats.start()
    fleet.worker()
    # Ten seconds by promise; a machine under load may take its time to start a process.
    wait_for("the message is processed", lambda: processed(fleet) == 2, seconds=30)
    assert {call.message_id for call in handler.calls} == set(ids)


def test_a_worker_paused_in_the_middle_of_a_call_does_not_settle_the_row_of_its_successor(
    fleet: Fleet, handler: HandlerService
) -> None:
    go_on = threading.Event()

    def verdict(_body: dict[str, Any], n: int) -> int:
        if n == 1:
            go_on.wait(60)
        return 503 if n == 1 else 200

    handler.verdict = verdict
    fleet.scheduler()
    first = fleet.worker()
    message_id = commit_one(fleet.urls["vibespro"])
    wait_for("the first worker has called", lambda: handler.count(message_id) == 1)
    fleet.freeze(first)
    fleet.worker()
    wait_for("another worker has taken over", lambda: handler.count(message_id) == 2)
    row = wait_for("it is processed", lambda: processed(fleet) and fleet.inbox(message_id))
    go_on.set()
    fleet.thaw(first)
    marker = commit_many(fleet, 20)
    wait_for("later messages are processed", lambda: processed(fleet) == 1 + len(marker))
    assert fleet.inbox(message_id)["processed_at"] == row["processed_at"]
    assert fleet.inbox(message_id)["next_attempt_at"] is None
    assert handler.count(message_id) == 2


def test_a_restart_of_postgresql_in_the_middle_is_survived(fleet: Fleet, handler: HandlerService) -> None:
    fleet.scheduler()
    fleet.worker()
    ids = commit_many(fleet, 300)
    wait_for("some are processed", lambda: processed(fleet) > 30)
    fleet.postgres.stop("immediate")
    fleet.postgres.start()
    wait_for("all are processed", lambda: processed(fleet) == len(ids))
    wait_for("all are acknowledged", lambda: fleet.ack_pending() == 0, seconds=150)
    assert {call.message_id for call in handler.calls} == set(ids)


def test_messages_that_wait_are_kept_from_redelivery(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    """The ack wait is much shorter than the retries take, so only +WPI keeps JetStream quiet."""
    fleet = start_fleet(ack_wait="4s", handler_timeout="2s")
    handler.verdict = lambda _body, n: 503 if n <= 4 else 200
    fleet.scheduler()
    fleet.worker()
    message_id = commit_one(fleet.urls["vibespro"])
    wait_for("it is processed", lambda: processed(fleet) == 1)
    wait_for("it is acknowledged", lambda: fleet.ack_pending() == 0)

    async def redelivered(js: Any) -> int:
        info = await js.consumer_info("VIBESPRO_EVENTS", "sea__from_vibespro")
        return int(info.delivered.consumer_seq)

    assert fleet.jetstream(redelivered) == 1
    assert handler.count(message_id) == 5


def test_processes_stop_cleanly_and_another_fleet_goes_on(fleet: Fleet, handler: HandlerService) -> None:
    scheduler, worker = fleet.scheduler(), fleet.worker()
    ids = commit_many(fleet, 300)
    wait_for("some are processed", lambda: processed(fleet) > 10)
    assert fleet.stop(worker) == 0
    assert fleet.stop(scheduler) == 0
    fleet.scheduler()
    fleet.worker()
    wait_for("all are processed", lambda: processed(fleet) == len(ids))
    assert {id: handler.count(id) for id in ids} == dict.fromkeys(ids, 1)
