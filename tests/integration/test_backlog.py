"""QRY-050 and QRY-051, and `relay backlog` and `relay db` on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.adapters.postgres import migrations
from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.row_operations import EventFilter, PostgresOutboxOperations
from relay.devstack import PostgresServer
from relay.domain.backlogs import InboxBacklog
from relay.domain.errors import DatabaseUnreachable, SchemaMissing, UnknownContext, of_context
from relay.ops.kinds import EVENTS
from tests.integration.publishing import open_backlog_reader

Connection = psycopg.Connection[Any]

OLD, NEW = datetime(2025, 12, 28, 22, tzinfo=UTC), datetime(2025, 12, 29, tzinfo=UTC)
OLDER = datetime(2025, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
CLI = [sys.executable, "-c", "from relay.cli import main; main()"]

pytestmark = pytest.mark.anyio


@pytest.fixture
def conn(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def event(conn: Connection, occurred_at: datetime, **columns: object) -> None:
    _insert(conn, "outbox_events", columns | {
        "id": uuid.uuid4(), "aggregate_type": "case", "aggregate_id": "7", "event_type": "opened", "payload": "{}",
        "occurred_at": occurred_at,
    })  # fmt: skip


def message(conn: Connection, received_at: datetime, **columns: object) -> None:
    _insert(
        conn, "inbox_messages", columns | {"message_id": uuid.uuid4(), "subject": "s", "received_at": received_at}
    )


def _insert(conn: Connection, table: str, values: dict[str, object]) -> None:
    names, marks = ", ".join(values), ", ".join(f"%({name})s" for name in values)
    conn.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})".encode(), values)


def fill(conn: Connection) -> None:
    event(conn, NEW)
    event(conn, OLD, publish_attempts=9, publish_error="too large")
    event(conn, OLDER, published_at=NEW)
    event(conn, OLDER, dead_at=NEW)
    event(conn, OLDER, dead_at=NEW, published_at=NEW)  # re-published by an operator
    message(conn, NEW, attempts=3)
    message(conn, OLD, attempts=4)
    message(conn, OLDER, attempts=9, processed_at=NEW)
    message(conn, OLDER, attempts=9, dead_lettered_at=NEW)
    message(conn, OLDER, attempts=9, dead_lettered_at=NEW)


def full(conn: Connection) -> None:
    """Have the outbox brake its producers."""
    conn.execute(
        "UPDATE relay_wakeup SET brake = 'delay', brake_reason = 'sea is full',"
        " brake_since = %s, brake_until = clock_timestamp() + interval '1 hour'",
        [NEW],
    )


# --- the queries ---


async def test_outbox_backlog_counts_what_is_not_published_and_says_what_became_of_it(
    conn: Connection, database_url: str
) -> None:
    fill(conn)
    async with open_backlog_reader(database_url) as reader:
        found = await reader.outbox_backlog()
    age = (datetime.now(UTC) - OLD).total_seconds()
    assert (found.count, found.oldest_at, found.waiting, found.dead) == (3, OLDER, 2, 1)
    assert found.waiting_age_seconds == pytest.approx(age, abs=30)


async def test_inbox_backlog_counts_what_is_not_processed_and_says_what_became_of_it(
    conn: Connection, database_url: str
) -> None:
    fill(conn)
    async with open_backlog_reader(database_url) as reader:
        found = await reader.inbox_backlog()
    age = (datetime.now(UTC) - OLD).total_seconds()
    assert (found.count, found.oldest_at, found.waiting, found.dead) == (4, OLDER, 2, 2)
    assert found.failed_attempts == 1
    assert found.waiting_age_seconds == pytest.approx(age, abs=30)


@pytest.mark.parametrize("known", [True, False])
async def test_what_is_more_than_is_counted_is_estimated(conn: Connection, database_url: str, known: bool) -> None:
    """From the server's statistics; before there are any, at least what was counted."""
    conn.execute("ALTER TABLE outbox_events SET (autovacuum_enabled = off)")
    for _ in range(40):
        event(conn, NEW)
    event(conn, OLD)
    event(conn, OLDER, dead_at=NEW)
    if known:
        conn.execute("ANALYZE outbox_events")
    async with open_backlog_reader(database_url, counted=10) as reader:
        found = await reader.outbox_backlog()
    assert found.estimated
    assert found.count == 42 if known else found.count >= 10
    assert (found.oldest_at, found.dead, found.waiting) == (OLDER, 1, found.count - 1)
    assert found.waiting_age_seconds == pytest.approx((datetime.now(UTC) - OLD).total_seconds(), abs=30)


async def test_empty_tables_have_no_oldest_and_no_age(database_url: str) -> None:
    async with open_backlog_reader(database_url) as reader:
        outbox, inbox = await reader.outbox_backlog(), await reader.inbox_backlog()
    assert (outbox.count, outbox.oldest_at, outbox.waiting_age_seconds, outbox.dead) == (0, None, 0.0, 0)
    assert inbox == InboxBacklog(0, None, 0, 0.0, 0, 0)


async def test_what_is_dead_alone_has_an_oldest_and_no_age(conn: Connection, database_url: str) -> None:
    event(conn, OLD, dead_at=NEW)
    message(conn, OLD, dead_lettered_at=NEW)
    async with open_backlog_reader(database_url) as reader:
        outbox, inbox = await reader.outbox_backlog(), await reader.inbox_backlog()
    for found in (outbox, inbox):
        assert (found.count, found.oldest_at, found.waiting, found.waiting_age_seconds) == (1, OLD, 0, 0.0)


async def test_an_event_from_a_clock_slightly_ahead_has_no_negative_age(
    conn: Connection, database_url: str
) -> None:
    ahead = conn.execute("SELECT now() + interval '30 seconds'").fetchone() or ()
    event(conn, *ahead)
    async with open_backlog_reader(database_url) as reader:
        assert (await reader.outbox_backlog()).waiting_age_seconds == 0


async def test_readers_work_on_a_shared_pool(conn: Connection, database_url: str) -> None:
    fill(conn)
    async with Pool(database_url, max_size=2, application_name="test") as pool:
        reader = PostgresBacklogReader(pool.connection)
        assert (await reader.outbox_backlog()).waiting == (await reader.inbox_backlog()).waiting == 2


async def test_an_unknown_context_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownContext, match=r"'lake'.*known: none"):
        of_context({}, "lake")


async def test_a_database_without_tables_says_what_to_run(postgres: PostgresServer) -> None:
    async with open_backlog_reader(postgres.url) as reader:
        with pytest.raises(SchemaMissing, match="relay db upgrade"):
            await reader.outbox_backlog()


async def test_a_connection_that_was_cut_is_an_outage(conn: Connection, database_url: str) -> None:
    async with open_backlog_reader(database_url) as reader:
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'jetrelay-backlog'"
        )
        with pytest.raises(DatabaseUnreachable):
            await reader.inbox_backlog()


# --- the command line ---


def relay(directory: Path, databases: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run `relay` in a directory whose relay.toml declares these databases."""
    lines = [
        f'[contexts.{name}]\ndatabase_url = "{url}"\n'
        f'[contexts.{name}.stream]\nname = "{name.upper()}_EVENTS"\nsubjects = ["{name}.event.>"]\n'
        for name, url in databases.items()
    ]
    (directory / "relay.toml").write_text("\n".join(lines))
    environ = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return subprocess.run(
        [*CLI, *words], cwd=directory, env=environ, capture_output=True, text=True, timeout=200, check=False
    )


DOWN = "postgresql://sea:hunter2@127.0.0.1:1/sea_db"


@pytest.fixture
def empty_database(postgres: PostgresServer) -> Iterator[str]:
    name = f"empty_{uuid.uuid4().hex}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


def test_relay_backlog_prints_each_context(conn: Connection, database_url: str, tmp_path: Path) -> None:
    fill(conn)
    full(conn)
    ended = relay(tmp_path, {"sea": database_url}, "backlog")
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert lines[0] == ["context", "table", "waiting", "oldest", "delayed", "tried", ">", "3", "dead", "all"]
    assert (lines[1][:3], lines[1][-4:]) == (["sea", "outbox", "2"], ["d", "0", "1", "3"])
    assert (lines[2][:3], lines[2][-4:]) == (["sea", "inbox", "2"], ["d", "1", "2", "4"])
    since = f"{NEW:%Y-%m-%dT%H:%M:%SZ}"
    assert " ".join(lines[3]) == f"producers are delayed: sea is full (since {since})"


def test_relay_backlog_speaks_json(conn: Connection, database_url: str, tmp_path: Path) -> None:
    fill(conn)
    ended = relay(tmp_path, {"sea": database_url}, "backlog", "--json", "--context", "sea")
    [found] = json.loads(ended.stdout)
    assert found.keys() == {"context", "outbox", "inbox", "brake", "full", "controls"}
    assert (found["brake"], found["full"], found["controls"]) == (None, [], [])
    assert found["outbox"].pop("waiting_age_seconds") > 0
    assert found["inbox"].pop("waiting_age_seconds") > 0
    oldest = f"{OLDER:%Y-%m-%dT%H:%M:%SZ}"
    assert found["outbox"] == {
        "count": 3,
        "oldest_at": oldest,
        "waiting": 2,
        "dead": 1,
        "estimated": False,
        "delayed": 0,
    }
    inbox = {
        "count": 4,
        "oldest_at": oldest,
        "waiting": 2,
        "failed_attempts": 1,
        "dead": 2,
        "estimated": False,
        "held": 0,
    }
    assert found["inbox"] == inbox


@pytest.mark.parametrize("command", [["backlog"], ["db", "status"], ["db", "upgrade"]])
def test_an_unreachable_database_costs_one_line_and_hides_no_other_context(
    database_url: str, tmp_path: Path, command: list[str]
) -> None:
    ended = relay(tmp_path, {"sea": DOWN, "lake": database_url}, *command)
    assert ended.returncode == 1
    assert "lake" in ended.stdout
    [line] = ended.stderr.splitlines()
    assert line.startswith("error DATABASE_UNREACHABLE: context sea: ")
    assert "hunter2" not in ended.stdout + ended.stderr
    assert "postgresql://" not in ended.stderr


@pytest.mark.parametrize("command", [["backlog"], ["db", "status"], ["db", "upgrade"]])
def test_an_unknown_context_is_refused(database_url: str, tmp_path: Path, command: list[str]) -> None:
    ended = relay(tmp_path, {"sea": database_url}, *command, "--context", "lake")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "UNKNOWN_CONTEXT" in ended.stderr
    assert "known: sea" in ended.stderr


def test_relay_db_brings_a_database_up_to_date(empty_database: str, tmp_path: Path) -> None:
    wanted = migrations.status(empty_database)
    databases, found = {"sea": empty_database}, ", ".join(wanted.pending)
    backlog = relay(tmp_path, databases, "backlog")
    assert (backlog.returncode, backlog.stdout.count("\n")) == (1, 1)
    assert backlog.stderr.startswith("error SCHEMA_MISSING: context sea:")
    before = relay(tmp_path, databases, "db", "status")
    assert before.returncode == 1
    assert before.stdout == f"sea: no tables yet, pending {found}; run: relay db upgrade --context sea\n"
    assert relay(tmp_path, databases, "db", "upgrade").stdout == f"sea: applied {found}\n"
    assert relay(tmp_path, databases, "db", "upgrade", "--context", "sea").stdout == "sea: up to date\n"
    after = relay(tmp_path, databases, "db", "status", "--json")
    assert after.returncode == 0
    expected = {"context": "sea", "current": wanted.head, "head": wanted.head, "pending": []}
    assert json.loads(after.stdout) == [expected]


def test_relay_db_sql_prints_what_makes_the_tables(empty_database: str, tmp_path: Path) -> None:
    printed = relay(tmp_path, {}, "db", "sql")
    assert (printed.returncode, printed.stderr) == (0, "")
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute(printed.stdout.encode())
    assert relay(tmp_path, {"sea": empty_database}, "db", "status").returncode == 0


# --- delayed events ---

LATER = datetime.now(UTC) + timedelta(days=300)


async def test_a_delayed_event_waits_only_from_its_time_on(conn: Connection, database_url: str) -> None:
    event(conn, OLD, available_at=LATER)
    async with open_backlog_reader(database_url) as reader:
        found = await reader.outbox_backlog()
        assert (found.count, found.waiting, found.delayed, found.waiting_age_seconds) == (1, 0, 1, 0)
        due = datetime.now(UTC) - timedelta(hours=1)
        event(conn, OLD, available_at=due)
        found = await reader.outbox_backlog()
        assert (found.count, found.waiting, found.delayed) == (2, 1, 1)
        assert found.waiting_age_seconds == pytest.approx(3_600, abs=60)
        event(conn, OLD, available_at=LATER, publish_attempts=1, publish_error="too large")
        found = await reader.outbox_backlog()
        assert (found.count, found.waiting, found.delayed) == (3, 2, 1)
        assert found.waiting_age_seconds == pytest.approx((datetime.now(UTC) - OLD).total_seconds(), abs=60)


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ({"available_at": LATER}, "delayed"),
        ({"available_at": NEW}, "waiting"),
        ({}, "waiting"),
        ({"available_at": LATER, "publish_attempts": 1}, "failing"),
        ({"available_at": LATER, "dead_at": NEW, "publish_attempts": 9}, "dead"),
        ({"available_at": LATER, "published_at": NEW}, "published"),
    ],
)
async def test_an_event_has_one_state_in_lists_and_on_its_page(
    conn: Connection, database_url: str, columns: dict[str, object], state: str
) -> None:
    event(conn, OLD, **columns)
    pool = Pool(database_url, max_size=2, application_name="operator")
    await pool.open()
    try:
        store = PostgresOutboxOperations(pool.connection)
        for asked in EVENTS.states:
            page = await store.find(EventFilter(statuses=[asked]), 10)
            assert [it["status"] for it in page.items] == ([state] if asked == state else [])
        [row] = (await store.find(EventFilter(statuses=list(EVENTS.states)), 10)).items
        one = await store.get(row["id"])
    finally:
        await pool.close()
    assert one is not None
    assert (one["status"], one["available_at"]) == (state, columns.get("available_at"))
