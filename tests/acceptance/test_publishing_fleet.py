"""Publishing by real worker processes: each committed event once, each key in commit order, whatever dies."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import psycopg

from tests.acceptance.fleet import Fleet
from tests.acceptance.produce import Producers
from tests.waiting import wait_for

KEYS = [f"key-{number}" for number in range(200)]


def unpublished(fleet: Fleet) -> int:
    return int(fleet.query("vibespro", "SELECT count(*) FROM outbox_events WHERE published_at IS NULL")[0][0])


def published(fleet: Fleet) -> int:
    return int(fleet.query("vibespro", "SELECT count(*) FROM outbox_events WHERE published_at IS NOT NULL")[0][0])


def check_stream(fleet: Fleet, producers: Producers) -> None:
    """Each committed event is in the stream once, none that was rolled back, each key in commit order."""
    messages = fleet.messages("VIBESPRO_EVENTS")
    ids = Counter(message.headers["Nats-Msg-Id"] for message in messages)
    assert set(ids) == producers.committed
    assert [id for id, count in ids.items() if count > 1] == []
    assert not set(ids) & producers.rolled_back
    assert out_of_order(fleet, messages) == []


def out_of_order(fleet: Fleet, messages: list[Any]) -> list[Any]:
    """Pairs of one key that the stream holds in another order than PostgreSQL committed them."""
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        commits = dict(
            connection.execute(
                "SELECT xid, pg_xact_commit_timestamp(xid::xid) FROM "
                "(SELECT DISTINCT payload->>'xid' AS xid FROM outbox_events) AS transactions"
            ).fetchall()
        )
    by_key = defaultdict(list)
    for message in messages:
        payload = json.loads(message.data)["payload"]
        by_key[message.headers["Relay-Partition-Key"]].append((commits[payload["xid"]], payload["place"]))
    return [
        (key, before, after)
        for key, times in by_key.items()
        for before, after in pairwise(times)
        if after < before
    ]


def test_ten_thousand_events_arrive_once_and_in_commit_order_although_a_worker_is_killed(
    start_fleet: Callable[..., Fleet],
) -> None:
    fleet = start_fleet(postgres_settings={"track_commit_timestamp": "on"})
    fleet.scheduler()
    workers = [fleet.worker() for _ in range(3)]
    producers = Producers(fleet.urls["vibespro"], KEYS, threads=5, transactions=465).start()
    wait_for("a good part is published", lambda: published(fleet) > 2_000)
    fleet.kill(workers[0])
    producers.join()
    wait_for("everything is published", lambda: unpublished(fleet) == 0)
    assert len(producers.committed) >= 10_000
    assert producers.rolled_back
    check_stream(fleet, producers)


def test_an_outage_of_nats_spends_no_attempt_and_is_made_up_for_in_order(
    start_fleet: Callable[..., Fleet],
) -> None:
    fleet = start_fleet(postgres_settings={"track_commit_timestamp": "on"})
    fleet.scheduler()
    fleet.worker()
    fleet.worker()
    producers = Producers(fleet.urls["vibespro"], KEYS, threads=2, transactions=200).start()
    wait_for("publishing has begun", lambda: published(fleet) > 100)
    fleet.nats.kill()
    second = Producers(fleet.urls["vibespro"], KEYS, threads=2, transactions=200, seed=2).start()
    producers.join()
    second.join()
    outage(20)
    waiting = unpublished(fleet)
    assert waiting > 0
    spent = fleet.query(
        "vibespro", "SELECT count(*) FROM outbox_events WHERE published_at IS NULL AND publish_attempts > 0"
    )
    assert spent == [(0,)]
    fleet.nats.start()
    wait_for("everything is published within 10 s", lambda: unpublished(fleet) == 0, seconds=10)
    assert fleet.query("vibespro", "SELECT count(*) FROM outbox_events WHERE dead_at IS NOT NULL") == [(0,)]
    assert fleet.query("vibespro", "SELECT max(publish_attempts) FROM outbox_events") == [(1,)]
    producers.committed |= second.committed
    producers.rolled_back |= second.rolled_back
    check_stream(fleet, producers)


def test_a_flushed_and_restarted_valkey_loses_no_event(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(postgres_settings={"track_commit_timestamp": "on"})
    fleet.scheduler()
    fleet.worker()
    producers = Producers(fleet.urls["vibespro"], KEYS, threads=3, transactions=300).start()
    wait_for("publishing has begun", lambda: published(fleet) > 100)
    fleet.flush()
    wait_for("publishing goes on", lambda: published(fleet) > 500 or unpublished(fleet) == 0)
    fleet.valkey.kill()
    fleet.valkey.start()
    producers.join()
    wait_for("everything is published", lambda: unpublished(fleet) == 0)
    check_stream(fleet, producers)


def outage(seconds: float) -> None:
    """Let an outage last: the time is the fault under test, not a wait for an event."""
    import time

    time.sleep(seconds)
