"""Sections 3, 4, 5 and 10 of the MicroDAO outbox: its table, as producers in any language see it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors
from typer.testing import CliRunner

from relay.adapters.postgres import microdao
from relay.adapters.postgres.migrations import upgrade
from relay.cli import create_app, main
from relay.devstack import PostgresServer
from relay.domain.errors import ConfigurationError
from relay.domain.identity import Identity
from relay.settings.urls import with_search_path
from tests.integration.microdao_support import FETCH, INSERT, Dao, connect, laid
from tests.integration.publishing import ALL, DEADLINE, Relay, outbox_rows
from tests.pages import code
from tests.waiting import wait_for

pytestmark = pytest.mark.anyio

Connection = psycopg.Connection[dict[str, Any]]

PAYOUT = ("STREAM_PAYOUT", "payout.generated", '{"payout_id": "p_001", "team_id": "t_555"}')
DOCUMENTED = {
    "id": "text",
    "stream": "text",
    "topic": "text",
    "payload": "jsonb",
    "created_at": "timestamp with time zone",
    "processed": "boolean",
    "processed_at": "timestamp with time zone",
    "error": "text",
}


@pytest.fixture
def conn(database_url: str) -> Iterator[Connection]:
    with connect(laid(database_url)) as connection:
        yield connection


@pytest.fixture
def dao(relay: Relay) -> Dao:
    return Dao(relay)


# --- section 3: the table ---


def test_section_3_the_view_has_the_columns_of_the_table_a_partition_key_and_a_trace(conn: Connection) -> None:
    query = """
        SELECT column_name AS name, data_type AS type FROM information_schema.columns
        WHERE table_schema = 'microdao' AND table_name = 'outbox_events' ORDER BY ordinal_position"""
    found = {row["name"]: row["type"] for row in conn.execute(query)}
    assert list(found.items()) == [*DOCUMENTED.items(), ("partition_key", "text"), ("traceparent", "text")]


def test_the_statements_of_the_page_write_an_event_with_the_change(conn: Connection) -> None:
    conn.execute("CREATE TABLE payouts AS SELECT 'p_001' AS id, 'planned' AS status")
    conn.execute(code("docs/how-to/microdao.md", "sql", 1).replace("…", "GX").encode())
    found = "SELECT e.id, e.payload, p.status FROM microdao.outbox_events AS e, payouts AS p"
    [row] = conn.execute(found).fetchall()
    assert row == {"id": "evt_01HQGX", "payload": {"payout_id": "p_001"}, "status": "generated"}


def test_section_3_an_event_has_the_defaults_of_the_table(conn: Connection) -> None:
    conn.execute(INSERT, ("evt_1", *PAYOUT))
    [row] = conn.execute("SELECT *, created_at <= now() AS past FROM microdao.outbox_events").fetchall()
    assert row.pop("created_at") is not None
    assert row == {
        "id": "evt_1",
        "stream": "STREAM_PAYOUT",
        "topic": "payout.generated",
        "payload": json.loads(PAYOUT[2]),
        "processed": False,
        "processed_at": None,
        "error": None,
        "partition_key": "STREAM_PAYOUT",
        "traceparent": None,
        "past": True,
    }


@pytest.mark.parametrize("column", ["id", "stream", "topic", "payload"])
@pytest.mark.parametrize("how", ["left out", "NULL"])
def test_section_3_what_the_table_requires_is_required(conn: Connection, column: str, how: str) -> None:
    values = dict(zip(("id", "stream", "topic", "payload"), ("evt_1", *PAYOUT), strict=True))
    if how == "NULL":
        values[column] = None  # type: ignore[assignment]
    else:
        del values[column]
    marks = ", ".join(["%s"] * len(values))
    with pytest.raises(errors.NotNullViolation):
        conn.execute(
            f"INSERT INTO microdao.outbox_events ({', '.join(values)}) VALUES ({marks})".encode(),
            [*values.values()],
        )


@pytest.mark.parametrize(
    "id", ["evt_01HQGX8K9JNPQR5MWTVYZ3F4BC", "7012345678901234567", "ключ", "7f2c1c9e-6e57-4d0c-9d36-5f3a0b1c2d3e"]
)
def test_section_3_an_id_is_any_text_and_only_once(conn: Connection, id: str) -> None:
    conn.execute(INSERT, (id, *PAYOUT))
    with pytest.raises(errors.UniqueViolation):
        conn.execute(INSERT, (id, *PAYOUT))
    assert [row["id"] for row in conn.execute("SELECT id FROM microdao.outbox_events")] == [id]


def test_section_3_a_uuid_is_the_id_of_its_row(conn: Connection) -> None:
    id = uuid4()
    conn.execute(INSERT, (str(id).upper(), *PAYOUT))
    [row] = conn.execute("SELECT id, originals FROM outbox_events").fetchall()
    assert row == {"id": id, "originals": None}
    assert conn.execute("SELECT id FROM microdao.outbox_events").fetchall() == [{"id": str(id)}]


@pytest.mark.parametrize(
    "id",
    [
        "7f2c1c9e6e574d0c9d365f3a0b1c2d3e",
        "{7f2c1c9e-6e57-4d0c-9d36-5f3a0b1c2d3e}",
        "7f2c-1c9e-6e57-4d0c9d365f3a0b1c-2d3e",
        "{7f2c1c9-6e57-4d0c-9d36-5f3a0b1c2d3}",
        "7f2c1c9e-6e57-4d0c-9d36-5f3a0b1c2d3g",
        "7f2c1c9e-6e57-4d0c-9d36-5f3a0b1c2d3é",
        "        -    -    -    -            ",
    ],
)
def test_section_3_what_only_resembles_a_uuid_stays_as_it_is(conn: Connection, id: str) -> None:
    assert Identity.of(id).derived
    conn.execute(INSERT, (id, *PAYOUT))
    [row] = conn.execute("SELECT originals FROM outbox_events").fetchall()
    assert row == {"originals": {"id": id}}
    assert conn.execute("SELECT id FROM microdao.outbox_events").fetchall() == [{"id": id}]


# --- section 4: the insert ---


async def test_section_4_an_event_leaves_with_the_business_change_or_not_at_all(dao: Dao) -> None:
    await dao.relay.create_stream()
    with connect(dao.relay.url) as connection:
        connection.execute("CREATE TABLE payouts (id text, status text)")
        connection.execute("INSERT INTO payouts VALUES ('p_001', 'new')")
        for id, outcome in (("undone", "ROLLBACK"), ("done", "COMMIT")):
            connection.execute("BEGIN")
            connection.execute("UPDATE payouts SET status='generated' WHERE id='p_001'")
            connection.execute(INSERT, (id, dao.stream, dao.topic(), PAYOUT[2]))
            connection.execute(outcome)
    await dao.relay.drained(dao.relay.command(envelope="raw"))
    [message] = await dao.relay.messages()
    assert (message.subject, json.loads(message.data)) == (dao.topic(), json.loads(PAYOUT[2]))
    assert message.headers["Nats-Msg-Id"] == "done"
    [row] = dao.rows()
    assert (row["id"], row["processed"], row["error"]) == ("done", True, None)
    assert row["processed_at"] >= row["created_at"]


@pytest.mark.parametrize("made", ["lpad(nextval('ids')::text, 32, '0')::uuid::text", "'evt_' || nextval('ids')"])
def test_section_4_an_id_that_the_statement_makes_is_made_once(conn: Connection, made: str) -> None:
    conn.execute("CREATE SEQUENCE ids")
    sql = f"INSERT INTO microdao.outbox_events (id, stream, topic, payload) VALUES ({made}, 'S', 'a.b', '{{}}')"
    [told] = conn.execute(f"{sql} RETURNING id, processed, partition_key".encode()).fetchall()
    [row] = conn.execute("SELECT coalesce(originals ->> 'id', id::text) AS id FROM outbox_events").fetchall()
    assert told == {"id": row["id"], "processed": False, "partition_key": "S"}
    assert conn.execute("SELECT last_value FROM ids").fetchall() == [{"last_value": 1}]


def test_section_4_a_statement_of_many_rows_keeps_their_order(conn: Connection) -> None:
    rows = "SELECT 'sel_' || n, 'S' || n % 3, 'a.b', '{}'::jsonb FROM generate_series(1, 200) AS n ORDER BY n DESC"
    conn.execute(f"INSERT INTO microdao.outbox_events (id, stream, topic, payload) {rows}".encode())
    values = ", ".join(f"('val_{n}', 'S{n % 3}', 'a.b', '{{}}')" for n in range(50))
    done = conn.execute(
        f"INSERT INTO microdao.outbox_events (id, stream, topic, payload) VALUES {values}".encode()
    )
    assert done.rowcount == 50
    ids = [row["id"] for row in conn.execute("SELECT originals ->> 'id' AS id FROM outbox_events ORDER BY seq")]
    assert ids == [*(f"sel_{n}" for n in range(200, 0, -1)), *(f"val_{n}" for n in range(50))]


def test_section_4_a_prepared_statement_goes_on_working(conn: Connection) -> None:
    for n in range(20):
        conn.execute(INSERT, (f"evt_{n}", *PAYOUT), prepare=True)
    assert conn.execute("SELECT count(*) AS n FROM microdao.outbox_events").fetchall() == [{"n": 20}]


def test_section_4_the_publisher_wakes_up(conn: Connection) -> None:
    conn.execute("UPDATE relay_wakeup SET sleeping = true")
    conn.execute("LISTEN relay_outbox")
    conn.execute(INSERT, ("evt_1", *PAYOUT))
    assert [notice.channel for notice in conn.notifies(timeout=DEADLINE, stop_after=1)] == ["relay_outbox"]


def test_section_4_the_rows_of_an_outbox_so_far_may_be_taken_over(conn: Connection) -> None:
    """As they are: what was processed stays so, and what was given up is not tried again."""
    conn.execute("""
        CREATE TABLE before (id text, stream text, topic text, payload jsonb, created_at timestamptz,
                             processed bool, processed_at timestamptz, error text)""")
    conn.execute("""
        INSERT INTO before VALUES
            ('1', 'S', 'a.b', '{}', '2024-01-01', true, '2024-01-02', NULL),
            ('2', 'S', 'a.b', '{}', '2024-01-03', false, NULL, 'unrecoverable'),
            ('3', 'S', 'a.b', '{}', '2024-01-04', false, NULL, NULL)""")
    conn.execute("INSERT INTO microdao.outbox_events SELECT * FROM before")
    both = "SELECT id, stream, topic, payload, created_at, processed, processed_at, error FROM"
    kept = conn.execute(f"{both} microdao.outbox_events ORDER BY id".encode()).fetchall()
    assert kept == conn.execute(f"{both} before ORDER BY id".encode()).fetchall()
    due = "SELECT originals ->> 'id' AS id FROM outbox_events WHERE published_at IS NULL AND dead_at IS NULL"
    assert conn.execute(due.encode()).fetchall() == [{"id": "3"}]


def test_section_4_what_postgresql_does_not_rewrite_is_refused(conn: Connection) -> None:
    with pytest.raises(errors.FeatureNotSupported, match="ON CONFLICT"):
        conn.execute(f"{INSERT} ON CONFLICT DO NOTHING".encode(), ("evt_1", *PAYOUT))
    copy = "COPY microdao.outbox_events (id, stream, topic, payload) FROM STDIN"
    with pytest.raises(errors.WrongObjectType, match="cannot copy to view"), conn.cursor().copy(copy.encode()):
        pass
    assert conn.execute("SELECT FROM outbox_events").fetchall() == []


# --- section 5: what it shows ---


async def test_section_5_an_event_shows_what_becomes_of_it(dao: Dao) -> None:
    publish = dao.relay.command(envelope="raw")

    def shown() -> tuple[bool, str | None]:
        return dao.row("evt_1")["processed"], dao.row("evt_1")["error"]

    dao.insert("evt_1")
    assert shown() == (False, None)
    await publish.drain(ALL)
    processed, error = shown()
    assert not processed
    assert error
    assert not error.startswith("unrecoverable")
    await dao.relay.create_stream()
    await dao.relay.drained(publish)
    assert shown() == (True, None)
    dao.insert("evt_2", topic="two words")
    await publish.drain(ALL)
    given_up = dao.row("evt_2")
    assert not given_up["processed"]
    assert given_up["error"].startswith("unrecoverable: ")


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (FETCH, "idx_outbox_unpublished"),
        ("SELECT * FROM microdao.outbox_events WHERE id = 'evt_1'", "idx_outbox_shown_id"),
    ],
)
def test_section_5_a_search_uses_an_index(conn: Connection, query: str, index: str) -> None:
    conn.execute("SET enable_seqscan = off")
    plan = [row["QUERY PLAN"] for row in conn.execute(f"EXPLAIN {query}".encode())]
    assert any(f"Index Scan using {index}" in line for line in plan), plan
    assert not any("Sort" in line for line in plan), plan


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE microdao.outbox_events SET processed = true",
        "UPDATE microdao.outbox_events SET payload = '{}' WHERE id = 'no such event'",
        "DELETE FROM microdao.outbox_events",
        "DELETE FROM microdao.outbox_events WHERE false",
    ],
)
def test_section_5_events_are_not_changed_through_the_view(conn: Connection, change: str) -> None:
    conn.execute(INSERT, ("evt_1", *PAYOUT))
    with pytest.raises(errors.ObjectNotInPrerequisiteState) as refused:
        conn.execute(change.encode())
    assert str(refused.value.diag.message_primary).startswith(
        "microdao.outbox_events takes INSERT and SELECT only"
    )
    assert "relay" in str(refused.value.diag.message_hint)
    assert conn.execute("SELECT processed FROM microdao.outbox_events").fetchall() == [{"processed": False}]


# --- section 10: order ---


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (("S", None), ("S", None), True),
        (("S", "t_555"), ("S", "t_555"), True),
        (("S", None), ("S", "t_555"), False),
        (("S", "t_555"), ("S", "t_556"), False),
        (("S", "t_555"), ("OTHER", "t_555"), False),
    ],
)
def test_section_10_writers_of_a_stream_and_key_commit_in_their_order(
    database_url: str, first: tuple[str, str | None], second: tuple[str, str | None], *, waits: bool
) -> None:
    laid(database_url)
    columns = "id, stream, partition_key, topic, payload"
    sql = f"INSERT INTO microdao.outbox_events ({columns}) VALUES (%s, %s, %s, 'a.b', '{{}}')"
    with connect(database_url) as one, connect(database_url) as other, ThreadPoolExecutor(1) as pool:
        one.execute("BEGIN")
        one.execute(sql.encode(), ("one", *first))
        other.execute("SET lock_timeout = '20s'")
        done = pool.submit(other.execute, sql.encode(), ("other", *second))
        if waits:
            blocked = "SELECT cardinality(pg_blocking_pids(%s)) > 0 AS it"
            pid = other.info.backend_pid
            wait_for("the other is blocked", lambda: one.execute(blocked, (pid,)).fetchall()[0]["it"])
        else:
            done.result(DEADLINE)
        one.execute("COMMIT")
        done.result(DEADLINE)
        rows = one.execute(
            "SELECT originals ->> 'id' AS id, partition_key FROM outbox_events ORDER BY seq"
        ).fetchall()
    assert len({row["partition_key"] for row in rows}) == (1 if waits else 2)
    if waits:
        assert [row["id"] for row in rows] == ["one", "other"]


# --- laying it ---


def test_the_upgrade_lays_the_view_as_often_as_it_is_run(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["relay", "db", "upgrade"])
    laid(database_url)
    (tmp_path / "relay.toml").write_text(f'''
[contexts.dao]
database_url = "{database_url}"
envelope = "raw"
microdao_schema = "city"
''')
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        assert capsys.readouterr().out == "dao: up to date; view city.outbox_events\n"
    with connect(database_url) as connection:
        connection.execute(INSERT.replace("microdao", "city").encode(), ("evt_1", *PAYOUT))


@pytest.mark.parametrize("schema", [None, "dao"])
def test_the_plain_sql_of_a_context_makes_its_view_too(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: str | None
) -> None:
    url = postgres.create_database(f"plain_{schema}")
    monkeypatch.chdir(tmp_path)
    where = f'schema = "{schema}"' if schema else ""
    settings = f'[contexts.dao]\ndatabase_url = "{url}"\nmicrodao_schema = "city"\n{where}\n'
    (tmp_path / "relay.toml").write_text(settings)
    printed = CliRunner().invoke(create_app(["db"]), ["db", "sql", "--context", "dao"])
    with connect(url) as connection:
        connection.execute(printed.output.encode())
        connection.execute("RESET search_path")
        connection.execute(INSERT.replace("microdao", "city").encode(), ("evt_1", *PAYOUT))
        [row] = connection.execute("SELECT id, processed FROM city.outbox_events").fetchall()
    assert row == {"id": "evt_1", "processed": False}
    again = CliRunner().invoke(create_app(["db"]), ["db", "upgrade"])
    assert again.output == "dao: up to date; view city.outbox_events\n"


def test_a_view_over_the_events_of_another_context_is_left_alone(database_url: str) -> None:
    """Else the events of that one's producers would be committed, and leave, as those of this context."""
    laid(with_search_path(database_url, "public"))
    other = with_search_path(database_url, "other")
    upgrade(other)
    with pytest.raises(ConfigurationError, match=r"microdao\.outbox_events .* of the schema public") as refused:
        microdao.lay(other, "microdao")
    assert "microdao_schema" in str(refused.value.hint)
    microdao.lay(other, "other_dao")
    with connect(database_url) as connection:
        connection.execute(INSERT, ("evt_1", *PAYOUT))
        connection.execute(INSERT.replace("microdao", "other_dao").encode(), ("evt_1", *PAYOUT))
    assert len(outbox_rows(database_url)) == len(outbox_rows(other)) == 1


def test_producers_go_on_while_the_view_is_laid_again(database_url: str) -> None:
    laid(database_url)
    stop = threading.Event()

    def write() -> int:
        written = 0
        with connect(database_url) as connection:
            while not stop.is_set():
                connection.execute(INSERT, (f"evt_{written}", *PAYOUT))
                written += 1
        return written

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        for _ in range(5):
            laid(database_url)
        stop.set()
        written = writing.result(DEADLINE)
    assert len(outbox_rows(database_url)) == written > 0


def test_a_schema_with_a_table_of_that_name_is_refused(database_url: str) -> None:
    laid(database_url)
    with pytest.raises(ConfigurationError, match="outbox_events"):
        microdao.lay(database_url, "public")
