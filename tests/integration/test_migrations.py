"""Bringing a context's database up to date: repeatable, by many at once, all or nothing, and as plain SQL."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from alembic.script import ScriptDirectory

from chaos.deployment import NEXT_RELEASE
from relay.adapters.postgres import migrations, revisions
from relay.adapters.postgres.migrations import upgrade
from relay.adapters.postgres.revisions import MigrationStatus
from relay.devstack import PostgresServer
from relay.domain.errors import ConfigurationError, DatabaseUnreachable, SchemaUnsupported
from tests.integration import catalogue
from tests.integration.catalogue import Connection
from tests.waiting import wait_for

ALL = revisions.in_order()
HEAD = ALL[-1]
NEXT = ("0901_made_up", "0902_made_up_too")
DEADLINE = 20.0
UPGRADE = "import sys; from relay.adapters.postgres.migrations import upgrade; upgrade(sys.argv[1])"
UPGRADING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'jetrelay-migrations'"
EVENT = (
    "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
    " VALUES (gen_random_uuid(), 'case', '7', 'opened', '{}')"
)


def test_each_file_has_the_name_of_its_revision() -> None:
    """Which revisions there are is read from the names of the files, and applied by what is in them."""
    directory = ScriptDirectory.from_config(migrations._config())
    assert tuple(it.revision for it in directory.walk_revisions())[::-1] == ALL
    assert revisions.in_order(NEXT_RELEASE) == (*ALL, *NEXT)


@pytest.fixture
def conn(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def empty_database(postgres: PostgresServer) -> Iterator[str]:
    name = f"empty_{uuid.uuid4().hex}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


def test_status_tells_what_is_missing_before_and_nothing_after(empty_database: str) -> None:
    assert migrations.status(empty_database) == MigrationStatus(current=None, head=HEAD, pending=ALL)
    upgrade(empty_database)
    assert migrations.status(empty_database) == MigrationStatus(current=HEAD, head=HEAD, pending=())


def test_looking_at_the_status_changes_nothing(empty_database: str) -> None:
    migrations.status(empty_database)
    with psycopg.connect(empty_database) as conn:
        assert catalogue.tables(conn) == []


def test_upgrading_again_changes_nothing(conn: Connection, database_url: str) -> None:
    conn.execute(EVENT)
    before = catalogue.everything(conn)
    upgrade(database_url)
    assert catalogue.everything(conn) == before
    assert conn.execute("SELECT count(*) FROM outbox_events").fetchone() == (1,)


def test_processes_that_upgrade_at_once_wait_for_each_other(empty_database: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute("SELECT pg_advisory_lock(1785882986, 0)")  # so that all of them have arrived
        command = [sys.executable, "-c", UPGRADE, empty_database]
        processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
        try:
            wait_for("all three upgrade", lambda: conn.execute(UPGRADING).fetchone() == (3,))
        finally:
            conn.execute("SELECT pg_advisory_unlock(1785882986, 0)")
            ended = [(process.communicate(timeout=DEADLINE)[1], process.returncode) for process in processes]
    assert ended == [("", 0)] * 3
    assert migrations.status(empty_database).pending == ()


def test_threads_that_upgrade_at_once_do_not_disturb_each_other(postgres: PostgresServer) -> None:
    names = [f"thread_{uuid.uuid4().hex}" for _ in range(4)]
    urls = [postgres.create_database(name) for name in names]
    with ThreadPoolExecutor() as pool:
        list(pool.map(upgrade, urls))
    assert [migrations.status(url).pending for url in urls] == [()] * 4
    for name in names:
        postgres.drop_database(name)


def test_an_upgrade_that_fails_leaves_nothing_behind(empty_database: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as conn:
        conn.execute("CREATE TABLE inbox_messages (mine int)")
        with pytest.raises(ConfigurationError, match="already exists"):
            upgrade(empty_database)
        assert catalogue.tables(conn) == ["inbox_messages"]


def test_the_printed_sql_makes_the_same_database(conn: Connection, empty_database: str) -> None:
    with psycopg.connect(empty_database, autocommit=True) as other:
        other.execute(migrations.sql().encode())  # many statements at once, as psql -f sends them
        assert catalogue.everything(other) == catalogue.everything(conn)
    assert migrations.status(empty_database).pending == ()


def test_a_database_of_a_newer_release_is_left_as_it_is(conn: Connection, database_url: str) -> None:
    conn.execute("UPDATE relay_alembic_version SET version_num = '9999_from_the_future'")
    assert migrations.status(database_url) == MigrationStatus("9999_from_the_future", HEAD, ())
    upgrade(database_url)
    assert migrations.status(database_url).current == "9999_from_the_future"


def test_a_database_of_a_next_release_is_upgraded_in_steps_and_left_as_it_is(empty_database: str) -> None:
    upgrade(empty_database)
    steps: list[tuple[int, int]] = []
    upgrade(empty_database, further=NEXT_RELEASE, progress=lambda done, of: steps.append((done, of)))
    assert steps == [(0, 2), (1, 2), (2, 2)]
    with psycopg.connect(empty_database) as conn:
        before = catalogue.everything(conn)
    upgrade(empty_database)
    with psycopg.connect(empty_database) as conn:
        assert catalogue.everything(conn) == before
    assert migrations.status(empty_database) == MigrationStatus(NEXT[-1], HEAD, ())


@pytest.mark.parametrize("look", [upgrade, migrations.status])
@pytest.mark.parametrize("revision", ["0001_messaging", "0024_causes"])
def test_a_database_from_before_the_first_release_is_refused_in_one_line(
    look: Callable[[str], object], revision: str, conn: Connection, database_url: str
) -> None:
    conn.execute("UPDATE relay_alembic_version SET version_num = %s", [revision])
    before = catalogue.everything(conn)
    with pytest.raises(SchemaUnsupported) as caught:
        look(database_url)
    assert caught.value.code == "SCHEMA_UNSUPPORTED"
    assert revision in str(caught.value)
    assert caught.value.hint
    assert "\n" not in f"{caught.value} {caught.value.hint}"
    assert catalogue.everything(conn) == before


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://sea:hunter2@127.0.0.1:1/sea_db", "refused"),
        # An @ that should be %40. What is found there depends on the network.
        ("postgresql://sea:a@hunter2/sea_db", "DATABASE_UNREACHABLE"),
        ("postgresql://sea:hunter2@127.0.0.1:1/sea_db?hunter2=1", "malformed"),
        ("hunter2", "malformed"),
    ],
)
def test_an_unreachable_database_is_an_outage_that_names_no_secret(url: str, reason: str) -> None:
    with pytest.raises(DatabaseUnreachable, match=reason) as caught:
        upgrade(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
