"""A running fleet brings back what a stream or an inbox has lost."""

from __future__ import annotations

import shutil

import redis

from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.produce import commit_one
from tests.waiting import wait_for


def processed(fleet: Fleet, message_id: object) -> None:
    wait_for(f"message {message_id} is processed", lambda: fleet.inbox(message_id).get("processed_at"))
    wait_for("it is acknowledged", lambda: fleet.ack_pending() == 0)


def forget(fleet: Fleet, message_id: object) -> None:
    """Take an inbox row away, as a failover to a replica that was behind does."""
    fleet.query("sea", "DELETE FROM inbox_messages WHERE message_id = %s", message_id)


def hang(fleet: Fleet, duty: str) -> None:
    """Have a job outstanding that never ends, so that the clock sends no other: only the reconnection does."""
    with redis.Redis.from_url(fleet.valkey.url) as client:
        client.set(f"relay:gate:{duty}", "token", px=600_000)


def test_what_a_stream_and_an_inbox_lost_comes_back(fleet: Fleet, handler: HandlerService) -> None:
    fleet.scheduler()
    fleet.worker()
    store, copy = fleet.nats.directory / "jetstream", fleet.directory / "older"
    kept = commit_one(fleet.urls["vibespro"])
    processed(fleet, kept)
    fleet.nats.stop()
    shutil.copytree(store, copy)
    fleet.nats.start()
    lost = commit_one(fleet.urls["vibespro"])
    processed(fleet, lost)

    fleet.nats.stop()
    shutil.rmtree(store)
    shutil.copytree(copy, store)
    forget(fleet, lost)
    hang(fleet, "reconcile_stream:vibespro")
    fleet.nats.start()
    processed(fleet, lost)
    assert len(fleet.messages("VIBESPRO_EVENTS")) == 2
    assert "StreamLossFound" in fleet.log("worker")

    forget(fleet, kept)
    fleet.relay("schedule", "run", "look_after:sea", "--context", "sea")  # by itself it compares every 30 s
    processed(fleet, kept)
    assert "InboxGapFilled" in fleet.log("worker")
    assert [len(handler.calls_for(id)) for id in (kept, lost)] == [2, 2]
    assert fleet.query("vibespro", "SELECT count(*) FROM outbox_events WHERE published_at IS NULL") == [(0,)]
