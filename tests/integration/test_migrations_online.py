"""A database in use is brought up to date: nobody who writes waits for long, whoever reads for however long."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from chaos.deployment import NEXT_RELEASE
from relay.adapters.postgres import migrations
from relay.devstack import PostgresServer
from relay.domain.errors import UpgradeBlocked
from tests.integration import catalogue
from tests.integration.test_migrations import HEAD, NEXT
from tests.waiting import wait_for

#: The next revision needs a table to itself for a moment, so it waits for readers.
BEFORE_A_LOCK = NEXT[0]
#: To a made-up release after this one.
upgrade = partial(migrations.upgrade, further=NEXT_RELEASE)
DEADLINE = 120.0
EVENT = (
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
    " SELECT gen_random_uuid(), 'case', mod(n, 100)::text, 'opened', '{}' FROM generate_series(1, %s) AS n"
)
MESSAGE = (
    "INSERT INTO inbox_messages (message_id, subject, subscription)"
    " SELECT gen_random_uuid(), 's', 'sub' FROM generate_series(1, %s)"
)
#: As a worker of any release publishes: claim a few, mark them.
CLAIM = (
    "UPDATE outbox_events SET published_at = clock_timestamp(), publish_attempts = 1 WHERE id IN ("
    "SELECT id FROM outbox_events WHERE published_at IS NULL AND dead_at IS NULL AND available_at IS NULL"
    " ORDER BY seq LIMIT 20 FOR UPDATE SKIP LOCKED)"
)
BUILDING = "SELECT count(*) FROM pg_stat_progress_create_index WHERE phase = 'waiting for old snapshots'"


@pytest.fixture
def used_database(postgres: PostgresServer) -> Iterator[str]:
    name = f"used_{uuid.uuid4().hex}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def fill(url: str, revision: str) -> None:
    upgrade(url, revision)
    with psycopg.connect(url) as conn:
        conn.execute(EVENT, [2_000])
        conn.execute(MESSAGE, [2_000])


class Traffic:
    """Those who write meanwhile. None waits for a lock for longer than a second, or it is an error."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, threading.Event()
        self.errors: list[Exception] = []
        self.rounds = 0

    def run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as conn:
            conn.execute("SET lock_timeout = '1s'")
            while not self._stop.is_set():
                try:
                    for statement in (EVENT, MESSAGE):
                        conn.execute(statement, [3])
                    conn.execute(CLAIM)
                except psycopg.Error as error:
                    self.errors.append(error)
                self.rounds += 1

    def goes_on(self) -> None:
        """Wait until everybody has written again a few times."""
        there = self.rounds + 20
        wait_for("work goes on", lambda: self.rounds >= there, DEADLINE)

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def traffic(url: str, pool: ThreadPoolExecutor) -> Iterator[Traffic]:
    writers = Traffic(url)
    running = [pool.submit(writers.run) for _ in range(3)]
    try:
        writers.goes_on()
        yield writers
    finally:
        writers.stop()
        for task in running:
            task.result(DEADLINE)


@pytest.fixture
def fresh(postgres: PostgresServer) -> Iterator[str]:
    """An empty database to which the next release was installed at once."""
    name = f"fresh_{uuid.uuid4().hex}"
    url = postgres.create_database(name)
    upgrade(url)
    yield url
    postgres.drop_database(name)


def same_as_new(url: str, fresh: str) -> bool:
    with psycopg.connect(url) as one, psycopg.connect(fresh) as other:
        return catalogue.everything(one) == catalogue.everything(other)


@pytest.mark.parametrize("revision", [HEAD, BEFORE_A_LOCK])
def test_writers_and_workers_go_on_though_the_upgrade_waits_for_an_idle_reader(
    revision: str, used_database: str, fresh: str, pool: ThreadPoolExecutor
) -> None:
    fill(used_database, revision)
    lines: list[str] = []
    with traffic(used_database, pool) as writers:
        with psycopg.connect(used_database, application_name="idle reader") as reader:
            for table in ("outbox_events", "inbox_messages"):
                reader.execute(f"SELECT count(*) FROM {table}")
            named = f"pid {reader.info.backend_pid} (idle reader, idle in transaction"
            upgrading = pool.submit(upgrade, used_database, waiting=lines.append)
            for _ in range(3):
                seen = len(lines)
                wait_for("the upgrade waits, or is done", lambda: len(lines) > seen or upgrading.done(), DEADLINE)  # noqa: B023
                writers.goes_on()
            assert not upgrading.done()
        upgrading.result(DEADLINE)
        writers.goes_on()
    assert writers.errors == []
    assert any(named in line for line in lines)
    assert same_as_new(used_database, fresh)


def test_an_index_is_built_beside_writers_while_an_old_snapshot_is_open(
    used_database: str, fresh: str, pool: ThreadPoolExecutor
) -> None:
    fill(used_database, HEAD)
    with traffic(used_database, pool) as writers, psycopg.connect(used_database, autocommit=True) as conn:
        with psycopg.connect(used_database) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")
            upgrading: Future[None] = pool.submit(upgrade, used_database)
            wait_for(
                "the index is built",
                lambda: conn.execute(BUILDING).fetchone() == (1,) or upgrading.done(),
                DEADLINE,
            )
            writers.goes_on()
            assert not upgrading.done()
        upgrading.result(DEADLINE)
    assert writers.errors == []
    assert same_as_new(used_database, fresh)


def test_patience_that_ends_is_an_error_that_names_who_is_in_the_way_and_harms_nothing(used_database: str) -> None:
    fill(used_database, BEFORE_A_LOCK)
    with psycopg.connect(used_database, application_name="idle reader") as reader:
        reader.execute("SELECT 'hunter2' FROM outbox_events")
        with pytest.raises(UpgradeBlocked, match=rf"pid {reader.info.backend_pid} \(idle reader") as caught:
            upgrade(used_database, patience=0.5)
    assert "hunter2" not in str(caught.value)
    assert migrations.status(used_database).current == BEFORE_A_LOCK
    upgrade(used_database)
    assert migrations.status(used_database).current == NEXT[-1]


def broken_off(conn: psycopg.Connection[Any]) -> None:
    conn.execute("CREATE INDEX idx_outbox_unpublished_0101 ON outbox_events (seq)")
    conn.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'idx_outbox_unpublished_0101'::regclass"
    )


def half_done(conn: psycopg.Connection[Any]) -> None:
    conn.execute("ALTER TABLE inbox_messages ADD COLUMN made_up TEXT")
    conn.execute(
        "CREATE INDEX idx_outbox_unpublished_0101 ON outbox_events (occurred_at, seq) WHERE published_at IS NULL"
    )


@pytest.mark.parametrize("leave", [broken_off, half_done])
def test_an_upgrade_that_was_killed_in_the_middle_is_taken_up(
    leave: Callable[[psycopg.Connection[Any]], None], used_database: str, fresh: str
) -> None:
    fill(used_database, HEAD)
    with psycopg.connect(used_database, autocommit=True) as conn:
        leave(conn)
    upgrade(used_database)
    assert same_as_new(used_database, fresh)
