"""What the leading scheduler counts for the metrics, on a real database."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.adapters.postgres.sql import statement
from relay.devstack import PostgresServer, ValkeyServer
from relay.domain.backlogs import Backlogs, TaskBacklog
from relay.domain.errors import DatabaseUnreachable, SchemaMissing
from relay.domain.facts import BacklogsSampled
from tests.integration.crowded import ID, repeatable
from tests.integration.publishing import open_backlog_reader
from tests.integration.scheduling import scheduling

pytestmark = pytest.mark.anyio

Connection = psycopg.Connection[Any]
HOUR = 3600


@pytest.fixture
def conn(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def put(conn: Connection, table: str, hours: dict[str, float] | None = None, **values: object) -> None:
    """Insert a row; ``hours``: columns that hold a time so many hours ago, or to come if negative."""
    defaults: dict[str, dict[str, object]] = {
        "outbox_events": {
            "id": uuid.uuid4(), "aggregate_type": "case", "aggregate_id": "7", "event_type": "e", "payload": "{}",
        },
        "inbox_messages": {"message_id": uuid.uuid4(), "subject": "s"},
        "task_outbox": {"id": uuid.uuid4(), "type": "mail", "payload": "{}"},
        "dead_letters": {"message_id": uuid.uuid4(), "subject": "s", "reason": "r"},
        "parked_keys": {"message_id": uuid.uuid4(), "reason": "r"},
    }  # fmt: skip
    row, times = {**defaults[table], **values}, hours or {}
    marks = [f"%({name})s" for name in row] + [f"now() - interval '1 h' * {ago}" for ago in times.values()]
    text = f"INSERT INTO {table} ({', '.join([*row, *times])}) VALUES ({', '.join(marks)})"
    conn.execute(text.encode(), row)


async def backlogs(url: str, **options: Any) -> Backlogs:
    async with open_backlog_reader(url, **options) as reader:
        return await reader.backlogs()


def age(hours: float) -> Any:
    return pytest.approx(hours * HOUR, abs=60)


async def test_what_waits_in_the_inbox_is_told_by_subscription(conn: Connection, database_url: str) -> None:
    put(conn, "inbox_messages", {"received_at": 1}, subscription="a", attempts=3)
    put(conn, "inbox_messages", {"received_at": 3}, subscription="a", attempts=4)
    put(conn, "inbox_messages", {"received_at": 2}, subscription="b")
    put(conn, "inbox_messages", {"received_at": 9, "processed_at": 8}, subscription="a")
    put(conn, "inbox_messages", {"received_at": 9, "dead_lettered_at": 8}, subscription="b")
    found = {it.subscription: it for it in (await backlogs(database_url, counted=10)).inbox}
    assert (found["a"].count, found["a"].oldest_age_seconds, found["a"].failed_attempts) == (2, age(3), 1)
    assert (found["b"].count, found["b"].oldest_age_seconds, found["b"].failed_attempts) == (1, age(2), 0)


async def test_a_delayed_event_waits_from_its_time_on_and_is_not_overdue(
    conn: Connection, database_url: str
) -> None:
    put(conn, "outbox_events", {"occurred_at": 9, "available_at": -1})
    found = await backlogs(database_url)
    assert (found.outbox.waiting, found.outbox.delayed, found.outbox.waiting_age_seconds) == (0, 1, 0)
    assert found.overdue == 0
    put(conn, "outbox_events", {"occurred_at": 8, "available_at": 2})
    put(conn, "outbox_events", {"occurred_at": 1})
    found = await backlogs(database_url)
    assert (found.outbox.waiting, found.outbox.delayed, found.outbox.waiting_age_seconds) == (2, 1, age(2))
    assert found.overdue == age(2)


async def test_more_delayed_events_than_are_counted_hide_none_that_waits(
    conn: Connection, database_url: str
) -> None:
    for _ in range(5):
        put(conn, "outbox_events", {"occurred_at": 9, "available_at": -1})
    assert (await backlogs(database_url, counted=3)).outbox.waiting_age_seconds == 0
    put(conn, "outbox_events", {"occurred_at": 2})
    assert (await backlogs(database_url, counted=3)).outbox.waiting_age_seconds == age(2)
    put(conn, "outbox_events", {"occurred_at": 8, "available_at": 3})
    assert (await backlogs(database_url, counted=3)).outbox.waiting_age_seconds == age(3)


async def test_an_event_that_fails_is_overdue_whatever_its_back_off(conn: Connection, database_url: str) -> None:
    put(conn, "outbox_events", {"occurred_at": 3, "available_at": -1}, publish_attempts=4)
    put(conn, "outbox_events", {"occurred_at": 9, "dead_at": 8}, publish_attempts=10)
    put(conn, "outbox_events", {"occurred_at": 9, "published_at": 8})
    assert (await backlogs(database_url)).overdue == age(3)


async def test_tasks_wait_from_when_they_are_due(conn: Connection, database_url: str) -> None:
    put(conn, "task_outbox", {"created_at": 1})
    put(conn, "task_outbox", {"created_at": 9, "available_at": 2})
    put(conn, "task_outbox", {"created_at": 3}, status="delivered")
    put(conn, "task_outbox", {"created_at": 9, "available_at": -1})
    put(conn, "task_outbox", {"created_at": 9}, status="failed")
    for status in ("completed", "cancelled"):
        put(conn, "task_outbox", {"created_at": 9}, status=status)
    tasks = (await backlogs(database_url)).tasks
    assert (tasks.count, tasks.oldest_age_seconds, tasks.delayed, tasks.failed) == (3, age(3), 1, 1)


async def test_what_waits_for_an_operator_is_told_by_subscription(conn: Connection, database_url: str) -> None:
    put(conn, "dead_letters", {"recorded_at": 2}, subscription="a", **{"class": "poison"})
    put(conn, "dead_letters", {"recorded_at": 4}, subscription="a", **{"class": "poison"})
    put(conn, "dead_letters", {"recorded_at": 1}, subscription="a", **{"class": "exhausted"})
    put(conn, "dead_letters", {"recorded_at": 9}, subscription="a", status="resolved", **{"class": "poison"})
    put(conn, "parked_keys", {"parked_at": 5}, subscription="a", order_key="k1")
    put(conn, "parked_keys", {"parked_at": 1}, subscription="a", order_key="k2")
    found = await backlogs(database_url)
    incidents = {(it.subscription, it.kind): (it.count, it.oldest_age_seconds) for it in found.incidents}
    assert incidents == {("a", "poison"): (2, age(4)), ("a", "exhausted"): (1, age(1))}
    assert [(it.subscription, it.count, it.oldest_age_seconds) for it in found.parked] == [("a", 2, age(5))]


async def test_what_is_more_than_is_counted_is_estimated_for_each_subscription(
    conn: Connection, database_url: str
) -> None:
    for subscription, count in (("busy", 50), ("quiet", 9), (None, 2)):
        for age_s in range(1, count + 1):
            put(conn, "inbox_messages", {"received_at": age_s}, subscription=subscription, subject="s")
    conn.execute("ANALYZE inbox_messages")
    found = {it.subscription: it.count for it in (await backlogs(database_url, counted=10)).inbox}
    assert found.pop("busy") == pytest.approx(50, abs=5)
    assert found == {"quiet": 9, None: 2}


async def test_empty_tables_are_zero(database_url: str) -> None:
    found = await backlogs(database_url)
    assert (found.outbox.count, found.overdue) == (0, 0)
    assert found.tasks == TaskBacklog(count=0, oldest_age_seconds=0, delayed=0, failed=0)
    assert [*found.inbox, *found.incidents, *found.parked] == []


async def test_a_database_without_tables_is_told_as_that(postgres: PostgresServer) -> None:
    with pytest.raises(SchemaMissing):
        await backlogs(postgres.url)


async def test_finished_tasks_are_not_read(conn: Connection) -> None:
    repeatable(conn)
    conn.execute(
        f"INSERT INTO task_outbox (id, type, payload, status) SELECT {ID}, 'mail', '{{}}',"
        " CASE WHEN n % 5000 = 0 THEN 'pending' ELSE 'completed' END"
        " FROM generate_series(1, 50000) AS n"
    )
    conn.execute("VACUUM ANALYZE task_outbox")
    [plan] = (
        conn.execute(f"EXPLAIN (FORMAT JSON) {statement('tasks/backlog')}".encode(), {"limit": 20_000}).fetchone()
        or ()
    )
    assert "Seq Scan" not in json.dumps(plan)


# --- the job ---


async def test_the_job_states_what_waits(tmp_path: Path, database_url: str, valkey: ValkeyServer) -> None:
    async with scheduling(tmp_path, database_url, valkey.url, RELAY_METRICS__SCHEDULER="9464") as scheduler:
        scheduler.produce(2)
        await scheduler.tick("metrics:sea")
        [told] = [fact for fact in scheduler.facts if isinstance(fact, BacklogsSampled)]
        assert (told.context, told.backlogs.outbox.count) == ("sea", 2)
        assert scheduler.table["metrics:sea"].every.total_seconds() == 15


async def test_without_an_address_nothing_is_counted(
    tmp_path: Path, database_url: str, valkey: ValkeyServer
) -> None:
    async with scheduling(tmp_path, database_url, valkey.url, RELAY_METRICS__TASKS="9464") as scheduler:
        assert "metrics:sea" not in scheduler.table


async def test_an_outage_is_left_to_the_leader(
    tmp_path: Path, own_postgres: PostgresServer, valkey: ValkeyServer
) -> None:
    url = own_postgres.create_database("sea")
    async with scheduling(tmp_path, url, valkey.url, RELAY_METRICS__SCHEDULER="9464") as scheduler:
        own_postgres.stop()
        with pytest.raises(DatabaseUnreachable):
            await scheduler.tick("metrics:sea")
        assert not any(isinstance(fact, BacklogsSampled) for fact in scheduler.facts)
