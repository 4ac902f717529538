"""Contexts that share a database, each in a schema of its own: neither sees the other, or waits for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from nats.js.api import StreamConfig
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from typer.testing import CliRunner

from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.adapters.postgres import grants, migrations
from relay.adapters.postgres.orphans import PostgresOrphans
from relay.cli import create_app
from relay.commands.orphans import FindOrphans
from relay.devstack import NatsServer, PostgresServer
from relay.domain.errors import SchemaMissing, WriteConflict
from relay.outbox import Outbox
from relay.settings import load_settings
from relay.settings.urls import with_search_path
from tasks import schedule, task
from tests.integration.publishing import ALL, Relay, engine_url, event, query
from tests.pages import code

pytestmark = pytest.mark.anyio

NAMES = ("city", "user")  # a word of SQL


class SendMail(BaseModel):
    user_id: int


@task(f"send_mail_{uuid4().hex}")
def send_mail(mail: SendMail) -> None: ...


LOCKS = ("publisher", "key", "lane", "concurrency", "archive")
#: A function or trigger that says this shares what belongs to one context.
SHARED = ("relay.outbox_keys'", "relay.outbox_raw'")


@pytest.fixture
def shared(postgres: PostgresServer) -> Iterator[str]:
    """An empty database, whose schema public has the tables of nobody."""
    name = f"shared_{uuid4().hex}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def urls(shared: str) -> dict[str, str]:
    """The addresses of two contexts in one database, which is upgraded for both."""
    found = {name: with_search_path(shared, name) for name in NAMES}
    for url in found.values():
        migrations.upgrade(url)
    return found


@pytest.fixture
async def relays(urls: dict[str, str], nats_server: NatsServer) -> AsyncIterator[dict[str, Relay]]:
    async with AsyncExitStack() as stack:
        found = {}
        for name, url in urls.items():
            relay = await stack.enter_async_context(Relay(url, nats_server.url))
            await relay.create_stream()
            found[name] = relay
        yield found


def record(url: str, *events: Any, schema: str | None) -> None:
    with psycopg.connect(url) as connection:
        Outbox("any", schema=schema).add_many(connection, events)


# --- tables ---


def test_each_context_has_tables_of_its_own_and_public_has_none(shared: str, urls: dict[str, str]) -> None:
    tables = "SELECT schemaname AS schema, count(*) FROM pg_tables WHERE schemaname !~ '^(pg|inf)' GROUP BY 1"
    found = {row["schema"]: row["count"] for row in query(shared, tables)}
    assert set(found) == set(NAMES)
    assert len(set(found.values())) == 1
    for url in urls.values():
        assert migrations.status(url).pending == ()
        migrations.upgrade(url)
    with pytest.raises(SchemaMissing):
        record(shared, event(), schema=None)


def test_printed_sql_makes_the_same(shared: str) -> None:
    with psycopg.connect(shared, autocommit=True) as connection:
        connection.execute(migrations.sql("city").encode())
    migrations.upgrade(with_search_path(shared, "user"))
    assert migrations.status(with_search_path(shared, "city")).pending == ()
    functions = """
        SELECT nspname AS schema, proname FROM pg_proc JOIN pg_namespace ON pg_namespace.oid = pronamespace
        WHERE proname ~ '^relay'"""
    found: dict[str, set[str]] = {name: set() for name in NAMES}
    for row in query(shared, functions):
        found[row["schema"]].add(row["proname"])
    assert found["city"] == found["user"] != set()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_a_schema_names_what_belongs_to_the_whole_database(
    database_url: str, urls: dict[str, str], name: str
) -> None:
    """A later revision that replaces a function must keep it apart: see schema/shared_database.sql."""
    bodies = """
        SELECT pg_get_functiondef(oid) AS text FROM pg_proc
        WHERE pronamespace = current_schema()::regnamespace
        UNION ALL
        SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'outbox_events'::regclass"""
    assert any(word in row["text"] for row in query(database_url, bodies) for word in SHARED)
    assert not [row["text"] for row in query(urls[name], bodies) for word in SHARED if word in row["text"]]
    classes = "SELECT " + ", ".join(f"relay_{lock}_locks() AS {lock}" for lock in LOCKS)
    all_of = [value for url in (database_url, *urls.values()) for value in query(url, classes)[0].values()]
    assert len(set(all_of)) == len(all_of)
    assert query(database_url, classes)[0]["publisher"] == 1785882987


# --- publishing ---


async def test_each_publishes_its_own_events_and_neither_waits_for_the_other(
    shared: str, relays: dict[str, Relay]
) -> None:
    city, user = relays["city"], relays["user"]
    for name in NAMES:
        record(shared, *(event(f"v{n}") for n in range(100)), schema=name)
    others: list[int] = []

    async def meanwhile(_: Any) -> None:
        if not others:
            others.append(await user.command().drain(ALL))

    assert await city.command(claimed=meanwhile).drain(ALL) == 100
    assert others == [100]
    assert (len(await city.ids()), len(await user.ids())) == (100, 100)
    assert set(await city.ids()).isdisjoint(await user.ids())


async def test_the_orphans_of_one_are_never_those_of_the_other(shared: str, relays: dict[str, Relay]) -> None:
    """Also if both publish to one stream, and both tables of orphans are in one database."""
    city, user = relays["city"], relays["user"]
    await user.admin(lambda js: js.delete_stream(user.stream))
    both = StreamConfig(name=city.stream, subjects=[f"{it.context}.event.>" for it in (city, user)])
    await city.admin(lambda js: js.update_stream(both))
    for name in NAMES:
        record(shared, *(event(f"v{n}") for n in range(20)), schema=name)
        assert await relays[name].command().drain(ALL) == 20
    lost = {
        row["id"] for row in query(city.url, "DELETE FROM outbox_events WHERE published_seq > 10 RETURNING id")
    }
    find = {}
    for one, other in ((city, user), (user, city)):
        ledger, auditor = PostgresOrphans(one.pool.connection), NatsStreamAuditor(one.nats)
        find[one.context] = FindOrphans(
            one.context, [city.stream], [other.context], ledger, auditor, one.facts.append
        )
        await find[one.context].tick(page=0)
    scanned = [{it.event_id for it in (await find[it.context].scan(city.stream)).orphans} for it in (city, user)]
    noted = "SELECT event_id FROM orphaned_events"
    assert scanned == [{row["event_id"] for row in query(it.url, noted)} for it in (city, user)] == [lost, set()]
    assert len(lost) == 10


# --- writers ---


def test_the_page_writes_into_the_schema_that_it_names(shared: str) -> None:
    migrations.upgrade(with_search_path(shared, "sr"))
    engine = create_engine(engine_url(shared))
    names = {"Session": Session, "engine": engine, "event": event("v1"), "SendMail": SendMail}
    exec(code("docs/how-to/shared-database.md", "python", 1), {**names, "send_mail": send_mail})
    engine.dispose()
    [found] = query(
        shared, "SELECT o.aggregate_id AS event, t.payload AS task FROM sr.outbox_events AS o, sr.task_outbox AS t"
    )
    assert found == {"event": "v1", "task": {"user_id": 7}}


def test_writers_of_a_key_wait_for_those_of_their_context_only(shared: str, urls: dict[str, str]) -> None:
    with psycopg.connect(shared) as first, psycopg.connect(shared) as second:
        Outbox("city", schema="city").add(first, event("v1"))
        second.execute("SET lock_timeout = '200ms'")
        second.commit()
        Outbox("user", schema="user").add(second, event("v1"))
        with pytest.raises(WriteConflict):
            Outbox("city", schema="city").add(second, event("v1"))


@pytest.mark.parametrize("keys", [1, 65])
def test_a_transaction_that_writes_to_both_holds_the_keys_of_both(
    shared: str, urls: dict[str, str], keys: int
) -> None:
    events = [event(f"v{n}") for n in range(keys)]
    with psycopg.connect(shared) as first, psycopg.connect(shared) as second:
        for name in NAMES:
            Outbox(name, schema=name).add_many(first, events)
        second.execute("SET lock_timeout = '200ms'")
        second.commit()
        for name in NAMES:
            with pytest.raises(WriteConflict):
                Outbox(name, schema=name).add(second, event("v0"))
            second.rollback()
        first.commit()
        for name in NAMES:
            Outbox(name, schema=name).add(second, event("v0"))
    for url in urls.values():
        assert len(query(url, "SELECT id FROM outbox_events")) == keys + 1


def test_a_session_writes_to_each_schema_at_its_commit(shared: str, urls: dict[str, str]) -> None:
    engine = create_engine(engine_url(shared))
    with Session(engine) as session, session.begin():
        for name in (*NAMES, *NAMES):
            Outbox(name, schema=name).add(session, event("v1", event_type=f"from_{name}"))
            schedule(session, f"of_{name}", {}, schema=name, registered=False)
    engine.dispose()
    for name, url in urls.items():
        types = [row["event_type"] for row in query(url, "SELECT event_type FROM outbox_events ORDER BY seq")]
        assert types == [f"from_{name}"] * 2
        assert [row["type"] for row in query(url, "SELECT type FROM task_outbox")] == [f"of_{name}"] * 2


def test_raw_sql_needs_no_search_path(shared: str, urls: dict[str, str]) -> None:
    with psycopg.connect(shared) as connection:
        connection.execute("SET LOCAL search_path = ''")
        for n in range(3):
            for name in NAMES:
                connection.execute(
                    f'INSERT INTO "{name}".outbox_events (id, aggregate_type, aggregate_id, event_type, payload)'
                    " VALUES (gen_random_uuid(), 'case', %s, 'opened', '{}')",
                    [str(n)],
                )
        held = connection.execute(
            "SELECT DISTINCT classid::bigint FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        ).fetchall()
    assert len(held) == 4  # keys and lanes of each
    for url in urls.values():
        found = query(url, "SELECT aggregate_id FROM outbox_events ORDER BY seq")
        assert [row["aggregate_id"] for row in found] == list("012")


async def test_a_function_finds_the_tables_of_its_context_before_those_of_the_application(
    shared: str, urls: dict[str, str]
) -> None:
    query(shared, "CREATE TABLE accounts (id int); CREATE TABLE outbox_events (trap int)")
    address = with_search_path(shared, "user", '"$user"', "public")
    with psycopg.connect(address) as connection:
        connection.execute("INSERT INTO accounts VALUES (1)")
        Outbox("user").add(connection, event())
    assert len(query(urls["user"], "SELECT id FROM outbox_events")) == 1


# --- roles, commands ---


def test_roles_get_their_rights_in_the_schema_of_their_context(
    postgres: PostgresServer, shared: str, urls: dict[str, str]
) -> None:
    role = f"city_app_{uuid4().hex[:8]}"
    query(shared, f"CREATE ROLE {role} LOGIN")
    grants.grant(urls["city"], [], [role])
    with psycopg.connect(shared) as connection:
        connection.execute(f"SET ROLE {role}")
        Outbox("city", schema="city").add(connection, event())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            Outbox("user", schema="user").add(connection, event())
    query(shared, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_the_commands_act_in_the_schema_of_each_context(
    shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_ = "".join(f'[contexts.{name}]\ndatabase_url = "{shared}"\nschema = "{name}"\n' for name in NAMES)
    (tmp_path / "relay.toml").write_text(text_)
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    for command in ("upgrade", "status"):
        answer = runner.invoke(create_app(["db"]), ["db", command])
        assert (answer.exit_code, answer.output.count("\n")) == (0, 2), answer.output
    record(shared, event(), schema="user")
    settings = load_settings()
    assert [settings.contexts[name].own_schema for name in NAMES] == list(NAMES)
    answer = runner.invoke(create_app(["outbox"]), ["outbox", "list", "--status", "waiting", "--json"])
    assert answer.output.count("vibe_created") == 1
    sql = runner.invoke(create_app(["db"]), ["db", "sql", "--context", "user"]).output
    assert sql.startswith('CREATE SCHEMA IF NOT EXISTS "user";')
    assert 'SET LOCAL search_path = "user"' in (
        runner.invoke(create_app(["db"]), ["db", "grant", "--sql", "--relay", "r", "--context", "user"]).output
    )
