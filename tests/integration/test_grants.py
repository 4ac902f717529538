"""Each role of a context's database can do its work and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import dict_row
from sqlalchemy import MetaData, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from typer.testing import CliRunner

from relay import Event, Outbox
from relay.adapters.postgres import grants, microdao
from relay.adapters.postgres.processed_events import Claim, claim, processed_events_table
from relay.adapters.postgres.sql import statement
from relay.cli import create_app
from relay.devstack import PostgresServer
from relay.domain.errors import ConfigurationError
from tasks import schedule
from tests.integration import deployed

Connection = psycopg.Connection[Any]

RAW = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) VALUES"
DENIED = errors.InsufficientPrivilege


@pytest.fixture(scope="module")
def server(server_root: Path) -> Iterator[PostgresServer]:
    with PostgresServer(server_root / "roles") as server:
        deployed.make_roles(server)
        deployed.migrate(server)
        yield server


def connect(server: PostgresServer, role: str) -> Connection:
    return psycopg.connect(deployed.url_of(server, role, "sea"), autocommit=True, row_factory=dict_row)


@pytest.fixture
def application(server: PostgresServer) -> Iterator[Connection]:
    with connect(server, "application") as connection:
        yield connection


@pytest.fixture
def relay(server: PostgresServer) -> Iterator[Connection]:
    with connect(server, "relay") as connection:
        yield connection


@pytest.fixture
def owner(server: PostgresServer) -> Iterator[Connection]:
    with connect(server, "relay_owner") as connection:
        yield connection


def event(**more: Any) -> Event:
    fixed = {"event_type": "opened", "aggregate_type": "case", "aggregate_id": "1", "payload": {"iban": "secret"}}
    return Event(**{**fixed, **more})


# --- everything is decided over ---


def test_every_table_sequence_and_function_has_rights_decided(owner: Connection) -> None:
    """Whoever adds a table says in `grants` who may do what to it."""
    kinds = {"r": "tables", "p": "tables", "v": "tables", "m": "tables", "f": "tables", "S": "sequences"}
    found: dict[str, set[str]] = {"tables": set(), "sequences": set()}
    query = """
        SELECT c.relname AS name, c.relkind::text AS kind,
               EXISTS (SELECT FROM pg_depend WHERE objid = c.oid AND deptype = 'i') AS of_identity
        FROM pg_class AS c
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')"""
    for row in owner.execute(query):
        if not row["of_identity"] or row["name"] in grants.SEQUENCES:
            found[kinds[row["kind"]]].add(row["name"])
    assert found == {"tables": set(grants.TABLES), "sequences": set(grants.SEQUENCES)}
    functions = owner.execute("SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace")
    assert {row["proname"] for row in functions} == set(grants.FUNCTIONS)


def test_the_server_grants_what_is_decided_and_nothing_else(owner: Connection) -> None:
    """Read from the server's own lists, so that a grant of a migration or a default would be seen."""
    query = """
        SELECT c.relname AS name, coalesce(nullif(a.grantee, 0)::regrole::text, 'PUBLIC') AS role,
               string_agg(a.privilege_type, ', ') AS rights
        FROM pg_class AS c, aclexplode(c.relacl) AS a
        WHERE c.relnamespace = 'public'::regnamespace AND a.grantee <> c.relowner
        GROUP BY 1, 2"""
    found = {(row["name"], row["role"]): set(row["rights"].split(", ")) for row in owner.execute(query)}
    wanted = {
        (name, role): {right for right in re.sub(r"\w+ \(.*?\)", "", getattr(rights, role)).split(", ") if right}
        for name, rights in {**grants.TABLES, **grants.SEQUENCES}.items()
        for role in ("relay", "application")
    }
    assert found == {key: rights for key, rights in wanted.items() if rights}


#: They read and change nothing but sequences, and only forward.
_KEEPING_NUMBERS = {"relay_keep_ahead", "relay_mend_sequences", "relay_sequences_behind"}
#: It ends events that have not left, and tells their ids only: who may insert them may take them back.
_TAKING_BACK = {"relay_cancel_events"}


def test_functions_that_run_as_the_owner_have_a_fixed_search_path_and_are_for_nobody_else(
    owner: Connection,
) -> None:
    rows = owner.execute("""
        SELECT proname AS name, prosecdef AS as_owner, proconfig AS config,
               prorettype = 'trigger'::regtype AS trigger,
               has_function_privilege('application', oid, 'EXECUTE') AS application,
               has_function_privilege('relay', oid, 'EXECUTE') AS relay
        FROM pg_proc WHERE pronamespace = 'public'::regnamespace""").fetchall()
    assert any(row["as_owner"] for row in rows)
    for row in rows:
        wanted = grants.FUNCTIONS[row["name"]]
        assert (row["relay"], row["application"]) == (bool(wanted.relay), bool(wanted.application))
        if row["trigger"]:
            assert wanted == grants.Rights()
        if row["as_owner"]:
            assert row["config"] == ["search_path=public, pg_temp"], row["name"]
            assert row["trigger"] or row["name"] in _KEEPING_NUMBERS | _TAKING_BACK


# --- an application ---


def test_an_application_writes_through_the_view_of_microdao_and_reads_no_payload(
    server: PostgresServer, application: Connection, relay: Connection
) -> None:
    url = deployed.url_of(server, "relay_owner", "sea")
    microdao.lay(url, "microdao")
    grants.grant(url, ["relay"], ["application"])
    insert = "INSERT INTO microdao.outbox_events (id, stream, topic, payload) VALUES ('evt_1', 'S', 'a.b', '{}')"
    assert application.execute(f"{insert} RETURNING id, processed".encode()).fetchall() == [
        {"id": "evt_1", "processed": False}
    ]
    assert len(application.execute("SELECT id, error FROM microdao.outbox_events").fetchall()) == 1
    assert len(relay.execute("SELECT * FROM microdao.outbox_events").fetchall()) == 1
    for denied in ("SELECT payload FROM", "DELETE FROM", "UPDATE microdao.outbox_events SET topic = 'x' --"):
        with pytest.raises(DENIED):
            application.execute(f"{denied} microdao.outbox_events".encode())
    with pytest.raises(DENIED):
        relay.execute(insert.replace("evt_1", "evt_2").encode())
    relay.execute("DELETE FROM outbox_events")


def test_an_application_records_events_and_tasks(
    server: PostgresServer, application: Connection, relay: Connection
) -> None:
    with application.transaction():
        event_id = Outbox("sea").add(application, event(partition_key="k"))
        many = Outbox("sea").add_many(application, [event(aggregate_id=str(n)) for n in range(300)])
        task_id = schedule(application, "send", {"to": 1}, registered=False, priority=7)
    raw = uuid4()
    application.execute(f"{RAW} (%s, 'case', '1', 'opened', '{{}}')", [raw])
    ids = [row["id"] for row in relay.execute("SELECT id FROM outbox_events")]
    assert {event_id, raw, *many} <= set(ids)
    assert relay.execute("SELECT partition_key FROM outbox_events WHERE id = %s", [raw]).fetchone() == {
        "partition_key": "case:1"
    }
    assert relay.execute("SELECT priority FROM task_outbox WHERE id = %s", [task_id]).fetchone() == {"priority": 7}


def test_an_application_says_until_when_and_takes_back(application: Connection, relay: Connection) -> None:
    box, hour = Outbox("sea"), timedelta(hours=1)
    with application.transaction():
        id = box.add(application, event(), expires_in=hour, deliver_at=hour)
        task_id = schedule(application, "send", {"to": 1}, registered=False, expires_in=hour)
        assert box.cancel(application, id=id) == [id]
    for table, row in (("outbox_events", id), ("task_outbox", task_id)):
        found = relay.execute(f"SELECT expires_at > now() AS later FROM {table} WHERE id = %s".encode(), [row])
        assert found.fetchone() == {"later": True}


def test_a_producer_may_name_all_columns_of_the_specification(application: Connection) -> None:
    application.execute(
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, event_version, payload,"
        " occurred_at, correlation_id, causation_id, published_at, publish_attempts, publish_error)"
        " VALUES (%s, 'case', '1', 'opened', 1, '{}', %s, NULL, NULL, NULL, 0, NULL)",
        [uuid4(), datetime.now(UTC)],
    )


@pytest.mark.anyio
async def test_a_service_of_an_application_notes_what_it_has_handled(server: PostgresServer) -> None:
    url = deployed.url_of(server, "application", "sea").replace("postgresql://", "postgresql+psycopg://")
    table, message = processed_events_table(MetaData()), uuid4()
    engine = create_engine(url)
    with engine.begin() as connection:
        assert claim(connection, table, "case", message) is Claim.OURS
        assert claim(connection, table, "case", message) is Claim.REPEATED
    engine.dispose()
    other = create_async_engine(url)
    async with other.begin() as connection:
        assert await connection.run_sync(claim, table, "case", message) is Claim.REPEATED
    await other.dispose()


def test_an_application_wakes_a_sleeping_publisher_without_seeing_whether_it_sleeps(
    application: Connection, relay: Connection
) -> None:
    relay.execute("UPDATE relay_wakeup SET sleeping = true")
    relay.execute("LISTEN relay_outbox")
    application.execute(f"{RAW} (%s, 'case', '1', 'opened', '{{}}')", [uuid4()])
    assert [notice.payload for notice in relay.notifies(timeout=20, stop_after=1)] == [""]
    with pytest.raises(DENIED):
        application.execute("SELECT * FROM relay_wakeup")


def test_the_relay_brakes_an_application_that_cannot_see_the_brake(
    application: Connection, relay: Connection
) -> None:
    told = {"action": "refuse", "delay": "1 ms", "reason": "sea is full", "hold": "1 min"}
    relay.execute(statement("schedule/set_brake"), told)
    try:
        with pytest.raises(errors.ConfigurationLimitExceeded, match="OUTBOX_FULL: sea is full"):
            application.execute(f"{RAW} (%s, 'case', '1', 'opened', '{{}}')", [uuid4()])
    finally:
        relay.execute(statement("schedule/release_brake"))
    application.execute(f"{RAW} (%s, 'case', '1', 'opened', '{{}}')", [uuid4()])


FORBIDDEN_TO_APPLICATIONS = [
    "SELECT payload FROM outbox_events",
    "SELECT id FROM outbox_events",
    "SELECT FROM outbox_events FOR UPDATE",
    f"{RAW} (gen_random_uuid(), 'case', '1', 'opened', '{{}}') RETURNING payload",
    f"{RAW.replace('(id', '(seq, id')} (1, gen_random_uuid(), 'case', '1', 'opened', '{{}}')",
    f"{RAW.replace('(id', '(published_stream, id')} ('X', gen_random_uuid(), 'case', '1', 'opened', '{{}}')",
    "UPDATE outbox_events SET published_at = now()",
    "DELETE FROM outbox_events",
    "TRUNCATE outbox_events",
    "BEGIN; LOCK TABLE outbox_events IN SHARE MODE",
    "CREATE TRIGGER spy AFTER INSERT ON outbox_events EXECUTE FUNCTION relay_wake_publisher()",
    "COPY outbox_events TO STDOUT",
    "SELECT * FROM inbox_messages",
    "INSERT INTO inbox_messages (message_id, subject) VALUES (gen_random_uuid(), 'x')",
    "UPDATE inbox_messages SET processed_at = now()",
    "SELECT payload FROM task_outbox",
    "INSERT INTO task_outbox (id, type, payload, status) VALUES (gen_random_uuid(), 'x', '{}', 'completed')",
    "DELETE FROM task_outbox",
    "DELETE FROM processed_events",
    "UPDATE processed_events SET processed_at = now()",
    "SELECT original FROM dead_letters",
    "UPDATE dead_letters SET status = 'resolved'",
    "INSERT INTO audit_log (actor, action, ids) VALUES ('me', 'x', '{}')",
    "SELECT * FROM audit_log",
    "UPDATE scheduler_lease SET term = term + 1",
    "UPDATE relay_wakeup SET sleeping = true",
    "UPDATE relay_wakeup SET brake = NULL",
    "SELECT relay_brake_producer('refuse')",
    "SELECT nextval('outbox_events_seq_seq')",
    "SELECT setval('relay_reopened', 1)",
    "CREATE TABLE public.mine (n int)",
    "CREATE TEMP TABLE outbox_events (n int)",
    "CREATE SCHEMA mine",
    "DROP TABLE outbox_events",
    "ALTER TABLE outbox_events ADD COLUMN mine int",
    "DELETE FROM relay_alembic_version",
    "SET ROLE relay",
    "SET ROLE relay_owner",
    "CREATE ROLE mine",
    "COPY (SELECT 1) TO PROGRAM 'id'",
]
FORBIDDEN_TO_THE_FLEET = [
    "DROP TABLE outbox_events",
    "TRUNCATE outbox_events",
    "ALTER TABLE outbox_events ADD COLUMN mine int",
    "ALTER TABLE outbox_events DISABLE TRIGGER ALL",
    "CREATE INDEX mine ON outbox_events (id)",
    "CREATE TRIGGER mine AFTER INSERT ON outbox_events EXECUTE FUNCTION relay_wake_publisher()",
    "CREATE TABLE public.mine (n int)",
    "CREATE TEMP TABLE mine (n int)",
    "CREATE SCHEMA mine",
    "CREATE FUNCTION public.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "DELETE FROM audit_log",
    "UPDATE audit_log SET actor = 'somebody else'",
    "DELETE FROM dead_letters",
    "DELETE FROM archive_batches",
    "DELETE FROM subject_keys",
    "INSERT INTO relay_alembic_version VALUES ('x')",
    "SELECT setval('outbox_events_seq_seq', 1)",
    "SELECT nextval('relay_reopened')",
    "INSERT INTO scheduler_lease DEFAULT VALUES",
    "DROP DATABASE vibespro",
    "SET ROLE relay_owner",
    "CREATE ROLE mine",
    "COPY (SELECT 1) TO PROGRAM 'id'",
    "SELECT pg_read_file('/etc/passwd')",
]


@pytest.mark.parametrize("statement", FORBIDDEN_TO_APPLICATIONS)
def test_an_application_is_refused(application: Connection, statement: str) -> None:
    with pytest.raises(DENIED):
        application.execute(statement)


@pytest.mark.parametrize("statement", FORBIDDEN_TO_THE_FLEET)
def test_the_fleet_is_refused(relay: Connection, statement: str) -> None:
    with pytest.raises(DENIED):
        relay.execute(statement)


def test_a_table_of_the_application_cannot_borrow_our_functions(application: Connection) -> None:
    """They run as the owner."""
    application.execute(
        "CREATE TABLE mine (partition_key text, aggregate_type text, aggregate_id text, seq bigint)"
    )
    with pytest.raises(DENIED):
        application.execute(
            "CREATE TRIGGER mine BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION relay_order_outbox_event()"
        )


def test_a_namesake_in_the_schema_of_a_producer_deceives_nobody(
    application: Connection, relay: Connection
) -> None:
    application.execute("CREATE TABLE relay_wakeup (sleeping boolean)")
    application.execute("CREATE SEQUENCE outbox_events_seq_seq START 1000000000")
    try:
        found = uuid4()
        application.execute(f"{RAW} (%s, 'case', '1', 'opened', '{{}}')", [found])
        row = relay.execute("SELECT seq FROM outbox_events WHERE id = %s", [found]).fetchone()
        assert row
        assert row["seq"] < 1_000_000_000
    finally:
        application.execute("DROP TABLE relay_wakeup; DROP SEQUENCE outbox_events_seq_seq")


@pytest.mark.parametrize("role", ["application", "relay"])
def test_nobody_gets_into_another_database(server: PostgresServer, role: str) -> None:
    server.create_database(f"private_of_{role}")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"REVOKE CONNECT ON DATABASE private_of_{role} FROM PUBLIC")
    with pytest.raises(psycopg.OperationalError, match="permission denied"):
        psycopg.connect(deployed.url_of(server, role, f"private_of_{role}"))


# --- the command ---


def command(server: PostgresServer, tmp_path: Path, role: str, *arguments: str) -> Any:
    (tmp_path / "relay.toml").write_text("[contexts.sea]\n")
    environment = {
        "RELAY_CONFIG": str(tmp_path / "relay.toml"),
        "DATABASE_URL": deployed.url_of(server, role, "sea"),
    }
    return CliRunner().invoke(create_app(), ["db", "grant", *arguments], env=environment)


def rights(owner: Connection) -> set[tuple[str, str]]:
    """Every right on every relation, column and function."""
    query = """
        SELECT relname AS name, unnest(relacl)::text AS acl FROM pg_class
        WHERE relnamespace = 'public'::regnamespace
        UNION ALL SELECT attname, unnest(attacl)::text FROM pg_attribute
        UNION ALL SELECT proname, unnest(proacl)::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace"""
    return {(row["name"], row["acl"]) for row in owner.execute(query)}


def test_the_command_takes_what_was_granted_by_mistake(
    server: PostgresServer, owner: Connection, tmp_path: Path
) -> None:
    before = rights(owner)
    owner.execute("GRANT ALL ON outbox_events, audit_log TO relay, application, PUBLIC")
    owner.execute("GRANT UPDATE (payload) ON outbox_events TO application")
    owner.execute("GRANT EXECUTE ON FUNCTION relay_wake_publisher TO PUBLIC")
    assert rights(owner) != before
    result = command(server, tmp_path, "relay_owner", "--relay", "relay", "--application", "application")
    assert (result.exit_code, result.stdout) == (0, "sea: granted\n")
    assert rights(owner) == before


def test_the_printed_sql_does_the_same(server: PostgresServer, owner: Connection, tmp_path: Path) -> None:
    done = command(server, tmp_path, "relay_owner", "--relay", "relay", "--application", "application", "--sql")
    assert done.exit_code == 0
    before = rights(owner)
    owner.execute("GRANT ALL ON outbox_events TO application")
    owner.execute(done.stdout.encode())
    assert rights(owner) == before


@pytest.mark.parametrize(
    ("role", "arguments", "words"),
    [
        ("relay_owner", ["--relay", "relay_owner"], "owns the tables"),
        ("relay_owner", ["--relay", "nobody_known"], 'role "nobody_known" does not exist'),
        ("relay", ["--application", "application"], "as the owner of the tables"),
        ("relay_owner", [], "name a role"),
    ],
)
def test_a_grant_that_cannot_be_is_told(
    server: PostgresServer, tmp_path: Path, owner: Connection, role: str, arguments: list[str], words: str
) -> None:
    before = rights(owner)
    result = command(server, tmp_path, role, *arguments)
    assert result.exit_code != 0
    assert words in " ".join(result.output.split())
    assert rights(owner) == before


def test_a_role_with_a_hostile_name_is_only_a_name(server: PostgresServer, owner: Connection) -> None:
    name = 'x"; DROP TABLE outbox_events; --'
    with pytest.raises(ConfigurationError, match="DROP TABLE"):
        grants.grant(deployed.url_of(server, "relay_owner", "sea"), [name], [])
    assert owner.execute("SELECT count(*) FROM outbox_events").fetchone()
