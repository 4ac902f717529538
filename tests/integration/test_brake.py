"""A full outbox brakes those who write to it, once in each transaction and before they lock a key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import make_conninfo

from relay import Outbox
from relay.adapters.postgres import enqueue, microdao, migrations
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.sql import statement
from relay.adapters.postgres.wakeup import Wakeup
from relay.domain.backpressure import BrakeAction, OutboxLimits
from relay.domain.errors import OutboxFull
from relay.settings.urls import with_search_path
from tests.integration.publishing import Producer, event, outbox_rows, producing, query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

REASON = "the outbox of sea is full: its limit is 1 waiting events"
PLAIN = (
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
    " VALUES (gen_random_uuid(), 'case', '7', 'opened', '{}')"
)
#: Longer than any test: who waits for so long is still there when the test looks.
LONG = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
ASLEEP = (
    "SELECT a.pid, EXISTS (SELECT FROM pg_locks AS l WHERE l.pid = a.pid AND l.locktype = 'advisory') AS locks"
    " FROM pg_stat_activity AS a WHERE a.datname = current_database() AND a.wait_event = 'PgSleep'"
)


@asynccontextmanager
async def waking(url: str) -> AsyncIterator[Wakeup]:
    async with Pool(url, max_size=1, application_name="scheduler") as pool:
        wakeup = Wakeup(pool, url)
        yield wakeup
        await wakeup.close()


async def brake(
    url: str, action: BrakeAction, *, delay: timedelta = timedelta(milliseconds=1), hold: timedelta = MINUTE
) -> None:
    async with waking(url) as wakeup:
        await wakeup.brake.set(OutboxLimits(above=1, age=None, action=action, delay=delay), REASON, hold)


async def release(url: str) -> None:
    async with waking(url) as wakeup:
        await wakeup.brake.release()


@pytest.fixture(autouse=True)
def _nothing_was_logged() -> Iterator[None]:
    enqueue._logged.clear()
    yield
    enqueue._logged.clear()


# --- refuse ---


async def test_a_producer_is_refused_with_a_code_of_ours_until_it_is_released(
    producer: Producer, database_url: str
) -> None:
    await brake(database_url, "refuse")
    with pytest.raises(OutboxFull) as caught:  # noqa: PT012
        await producer.add(event(payload={"secret": "hunter2"}))
        await producer.call("commit")
    await producer.call("rollback")
    assert (caught.value.code, caught.value.message) == ("OUTBOX_FULL", REASON)
    assert "later" in str(caught.value.hint)
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"
    assert outbox_rows(database_url) == []
    await release(database_url)
    await producer.add(event())
    await producer.call("commit")
    assert len(outbox_rows(database_url)) == 1


async def test_plain_sql_gets_an_error_that_names_the_code(database_url: str) -> None:
    microdao.lay(database_url, "microdao")
    view = (
        "INSERT INTO microdao.outbox_events (id, stream, topic, payload) VALUES ('evt_1', 'S', 'a.event.b', '{}')"
    )
    await brake(database_url, "refuse")
    with psycopg.connect(database_url, autocommit=True) as conn:
        for statement in (PLAIN, view):
            with pytest.raises(errors.ConfigurationLimitExceeded) as caught:
                conn.execute(statement.encode())
            assert caught.value.diag.message_primary == f"OUTBOX_FULL: {REASON}"
            assert caught.value.diag.sqlstate == "53400"
    assert outbox_rows(database_url) == []


async def test_it_ends_by_itself_by_the_clock_of_the_database(database_url: str) -> None:
    """The scheduler that told it may be gone."""
    await brake(database_url, "refuse", hold=timedelta())
    query(database_url, PLAIN)
    assert len(outbox_rows(database_url)) == 1


async def test_the_workers_own_sessions_are_delayed_instead(database_url: str) -> None:
    """A handler that is refused would spend an attempt, and end as a dead letter."""
    await brake(database_url, "refuse")
    worker = f"{database_url}{'&' if '?' in database_url else '?'}application_name=jetrelay-handler-sea"
    with psycopg.connect(worker) as conn:
        Outbox("sea").add(conn, event())
        assert conn.execute("SHOW relay.braked").fetchone() == ("public",)
    assert len(outbox_rows(database_url)) == 1


async def test_what_operators_and_publishers_do_is_no_insert(database_url: str) -> None:
    query(database_url, PLAIN)
    await brake(database_url, "refuse")
    [row] = query(database_url, "UPDATE outbox_events SET published_at = now(), publish_attempts = 1 RETURNING id")
    with psycopg.connect(database_url) as conn:
        conn.execute(statement("outbox/replay"), {"ids": [row["id"]]})
    assert [row["generation"] for row in outbox_rows(database_url)] == [1]
    query(database_url, "INSERT INTO task_outbox (id, type, payload) VALUES (gen_random_uuid(), 't', '1')")


# --- delay ---


async def test_a_delayed_producer_sleeps_in_the_server_and_holds_no_key(database_url: str) -> None:
    """The event loop goes on: this test runs in it."""
    await brake(database_url, "delay", delay=LONG)
    async with producing("AsyncSession", database_url) as producer:
        await producer.add(event())
        commit = asyncio.create_task(producer.call("commit"))
        [asleep] = await eventually("it sleeps", lambda: query(database_url, ASLEEP))
        assert not asleep["locks"]
        query(database_url, "SELECT pg_cancel_backend(%s)", asleep["pid"])
        await asyncio.gather(commit, return_exceptions=True)
        await producer.call("rollback")


async def test_a_transaction_is_delayed_once_and_the_next_one_again(database_url: str) -> None:
    await brake(database_url, "delay")
    with psycopg.connect(database_url, options="-c statement_timeout=20s") as conn:
        Outbox("sea").add(conn, event())
        await brake(database_url, "delay", delay=LONG)
        Outbox("sea").add(conn, event("v2"))
        conn.execute(PLAIN)
        conn.commit()
        conn.execute("SET LOCAL statement_timeout = '50ms'")
        with pytest.raises(errors.QueryCanceled):
            conn.execute(PLAIN)
    assert len(outbox_rows(database_url)) == 3


async def test_of_many_rows_in_one_statement_the_statement_is_delayed_and_not_each_row(database_url: str) -> None:
    await brake(database_url, "delay", delay=timedelta(seconds=1))
    values = "SELECT gen_random_uuid(), 'case', n::text, 'opened', '{}' FROM generate_series(1, 100) AS n"
    with psycopg.connect(database_url, options="-c statement_timeout=50s") as conn:
        conn.execute(PLAIN.split(" VALUES", maxsplit=1)[0].encode() + b" " + values.encode())
    assert len(outbox_rows(database_url)) == 100


async def test_a_transaction_that_was_open_before_is_refused_at_its_next_event(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        Outbox("sea").add(conn, event())
        await brake(database_url, "refuse")
        with pytest.raises(OutboxFull):
            Outbox("sea").add(conn, event("v2"))
        conn.rollback()
    assert outbox_rows(database_url) == []


async def test_contexts_of_one_database_brake_apart(database_url: str) -> None:
    city = with_search_path(database_url, f"city_{uuid4().hex[:8]}")
    migrations.upgrade(city)
    await brake(city, "refuse")
    query(database_url, PLAIN)
    with pytest.raises(errors.ConfigurationLimitExceeded):
        query(city, PLAIN)


# --- warn ---


@pytest.mark.parametrize(
    "kind",
    ["Session", "AsyncConnection", "psycopg", "psycopg async", "asyncpg", "AsyncSession on asyncpg", "Django"],
)
async def test_a_warning_is_logged_once_and_the_event_is_recorded(
    kind: str, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await brake(database_url, "warn")
    for number in range(2):
        async with producing(kind, database_url) as producer:
            await producer.add(event(f"v{number}"))
            await producer.call("commit")
    lines = [record for record in caplog.records if record.name == "relay.outbox"]
    assert [(line.levelno, line.getMessage()) for line in lines] == [(logging.WARNING, f"OUTBOX_FULL: {REASON}")]
    assert len(outbox_rows(database_url)) == 2


async def test_plain_sql_gets_a_warning_and_not_with_every_transaction(database_url: str) -> None:
    """Warnings go to the log of the server, too."""
    await brake(database_url, "warn")
    heard: list[Any] = []
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.add_notice_handler(lambda notice: heard.append((notice.severity, notice.message_primary)))
        for _ in range(3):
            conn.execute(PLAIN)
        assert heard == [("WARNING", f"OUTBOX_FULL: {REASON}")]
        conn.execute("SET relay.warned_at = '1'")  # long ago
        conn.execute(PLAIN)
        assert len(heard) == 2
    assert len(outbox_rows(database_url)) == 4


async def test_a_producer_with_the_name_of_the_relay_is_refused(database_url: str) -> None:
    role = f"producer_{uuid4().hex[:12]}"
    query(database_url, f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
    query(database_url, f"GRANT INSERT ON outbox_events TO {role}")
    await brake(database_url, "refuse")
    name = "jetrelay-worker-sea"
    url = make_conninfo(database_url, user=role, password=role, application_name=name)
    with psycopg.connect(url) as producer, pytest.raises(errors.ConfigurationLimitExceeded):
        producer.execute(PLAIN)
    # A handler of the relay's own writes on.
    with psycopg.connect(database_url, application_name=name) as own:
        own.execute(PLAIN)
    query(database_url, f"DROP OWNED BY {role}")
    query(database_url, f"DROP ROLE {role}")
