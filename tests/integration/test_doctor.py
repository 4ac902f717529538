"""`relay doctor` against real servers: what each of them says of itself, and that nothing changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
import redis
from nats.js.api import StorageType
from nats.js.errors import NotFoundError
from typer.testing import CliRunner, Result

from relay.adapters.jetstream import topology
from relay.adapters.jetstream.connection import connect_once
from relay.adapters.postgres import grants
from relay.adapters.postgres.inspection import Blocked, DatabaseDetails, look, look_closely
from relay.adapters.redis_inspection import listens
from relay.cli import create_app
from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from relay.devstack.ports import free_port
from relay.domain.findings import ProcessKind
from relay.ops.doctor import databases
from relay.ops.doctor.databases import blocked
from relay.ops.queries import Diagnose, queries
from relay.settings import Settings
from tests.integration.deployed import LockedValkey
from tests.waiting import wait_for


@pytest.fixture
def settings(database_url: str, nats_server: NatsServer, valkey: ValkeyServer) -> Settings:
    """A context `doc` that handles its own events, on servers that are well."""
    handler = f"http://127.0.0.1:{free_port()}/handle"
    subscription = {"stream": "DOC_EVENTS", "filter_subject": "doc.event.>", "handler": handler}
    return Settings.model_validate(
        {
            "nats_url": nats_server.url,
            "nats": {"monitor": nats_server.monitor_url},
            "redis_url": valkey.url,
            "redis_namespace": "doctor",
            "contexts": {"doc": {"database_url": database_url, "subscriptions": {"own": subscription}}},
        }
    )


@pytest.fixture(autouse=True)
def streams(settings: Settings) -> Iterator[None]:
    async def change(*, create: bool) -> None:
        async with connect_once(settings.nats_url.get_secret_value()) as js:
            for stream in settings.streams():
                try:
                    await js.delete_stream(stream.name)
                except NotFoundError:
                    continue
            if create:
                await topology.ensure(js, settings.streams(), settings.consumers())

    asyncio.run(change(create=True))
    yield
    asyncio.run(change(create=False))


def codes(settings: Settings, process: ProcessKind | None = None) -> list[str]:
    """The findings, the worst first."""
    found = asyncio.run(queries(settings).ask_async(Diagnose(close=True, process=process))).unwrap()
    return [finding.code for finding in found.findings]


def test_servers_that_are_well_lack_the_processes_only(settings: Settings) -> None:
    assert codes(settings) == ["HANDLER_UNREACHABLE", "NO_SCHEDULER", "NO_WORKER"]


def test_what_a_database_holds_up_is_found(settings: Settings, database_url: str) -> None:
    with psycopg.connect(database_url, application_name="forgetful") as idle:
        idle.execute("ALTER TABLE task_outbox SET (autovacuum_enabled = off)")
        idle.commit()
        idle.execute("SELECT count(*) FROM outbox_events")
        at_once = timedelta(0)
        details = asyncio.run(look_closely(database_url, idle=at_once, old=at_once))
        idle.rollback()
        assert not asyncio.run(look_closely(database_url, idle=at_once)).idle
    assert [session.name for session in details.idle] == ["forgetful"]
    assert [table.name for table in details.tables if not table.autovacuum] == ["task_outbox"]
    assert (details.pooler, details.leader, details.hidden, details.lacking) == ("", None, 0, [])
    assert abs(details.state.ahead) < 60
    assert details.state.tables.pending == ()
    assert 0 < details.state.sessions < details.state.room
    assert "NOT_VACUUMED" in codes(settings)


def test_a_role_that_may_too_little_is_told_what_it_lacks(
    settings: Settings, postgres: PostgresServer, database_url: str, request: pytest.FixtureRequest
) -> None:
    with postgres.connect() as administrator:
        administrator.execute("CREATE ROLE narrow LOGIN PASSWORD 'narrow'")
        request.addfinalizer(lambda: _drop_role(postgres, database_url))
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("GRANT USAGE ON SCHEMA public TO narrow")
        owner.execute("GRANT SELECT ON relay_alembic_version, scheduler_lease TO narrow")
        url = database_url.replace(postgres.url.split("@")[0], "postgresql://narrow:narrow")
        details = asyncio.run(look_closely(url))
    assert "UPDATE on outbox_events" in details.lacking
    assert "SELECT on scheduler_lease" not in details.lacking
    assert details.hidden > 0


#: What a role is given, and of that, what is more than a producer needs.
GIVEN = {
    "GRANT SELECT ON outbox_events, inbox_messages TO wide": [],
    "GRANT INSERT (id, payload) ON outbox_events TO wide": [],
    "GRANT INSERT ON outbox_events TO wide": ["INSERT on outbox_events"],
    "GRANT INSERT (seq) ON outbox_events TO wide": ["INSERT on outbox_events (seq)"],
    "GRANT UPDATE (published_at) ON outbox_events TO wide": ["UPDATE on outbox_events (published_at)"],
    "GRANT DELETE, TRUNCATE ON task_outbox TO wide": ["DELETE on task_outbox", "TRUNCATE on task_outbox"],
    "GRANT INSERT ON dead_letters TO wide": ["INSERT on dead_letters"],
    "GRANT INSERT, SELECT ON processed_events TO wide": ["INSERT on processed_events"],
    "GRANT TRIGGER ON outbox_events TO wide": ["TRIGGER on outbox_events"],
    "GRANT UPDATE ON outbox_events TO PUBLIC": ["UPDATE on outbox_events"],
}


@pytest.fixture
def wide(postgres: PostgresServer, database_url: str) -> Iterator[psycopg.Connection]:
    """What the owner of the tables does with the role of a producer, which has the rights of one."""
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("CREATE ROLE wide LOGIN")
        owner.execute("CREATE ROLE fleet LOGIN")
        grants.grant(database_url, ["fleet"], ["wide"])
        yield owner
        owner.execute("DROP OWNED BY wide, fleet")
        owner.execute("DROP ROLE wide, fleet")


@pytest.mark.parametrize("given", GIVEN)
def test_a_role_that_may_too_much_is_named_with_what_mends_it(
    settings: Settings, wide: psycopg.Connection, database_url: str, given: str
) -> None:
    assert "RIGHTS_BEYOND" not in codes(settings)
    wide.execute(given.encode())
    details, role = asyncio.run(look_closely(database_url)), "PUBLIC" if "PUBLIC" in given else "wide"
    assert details.beyond == ({role: GIVEN[given]} if GIVEN[given] else {})
    for finding in databases.others_rights("doc", details):
        command = finding.remedy.removeprefix("run as the owner: ")
        if command.startswith("REVOKE"):
            wide.execute(command.encode())
        else:
            assert command == "relay db grant --application wide"
            grants.grant(database_url, [], ["wide"])
    assert asyncio.run(look_closely(database_url)).beyond == {}


@pytest.mark.parametrize("given", ["ALL ON ALL TABLES IN SCHEMA public TO wide", "pg_write_all_data TO wide"])
def test_a_role_with_all_rights_is_no_role_of_the_fleet(
    wide: psycopg.Connection, database_url: str, given: str
) -> None:
    wide.execute(f"GRANT {given}".encode())
    wide.execute(b"GRANT ALL ON ALL FUNCTIONS IN SCHEMA public TO wide")
    details = asyncio.run(look_closely(database_url))
    [finding] = databases.others_rights("doc", details)
    assert "the role wide may do more than a producer" in finding.text
    assert finding.remedy.endswith(" wide")


def _drop_role(postgres: PostgresServer, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute("DROP OWNED BY narrow")
        owner.execute("DROP ROLE narrow")


def test_streams_and_consumers_that_are_otherwise_are_found(settings: Settings) -> None:
    async def remake() -> None:
        async with connect_once(settings.nats_url.get_secret_value()) as js:
            await js.delete_stream("DOC_EVENTS")
            await js.delete_stream("DOC_DLQ")
            await js.add_stream(name="DOC_EVENTS", subjects=["doc.other.>"], storage=StorageType.MEMORY)

    asyncio.run(remake())
    found = codes(settings, ProcessKind.WORKER)
    assert {"STREAM_MISSING", "CONSUMER_MISSING", "FILTER_OUTSIDE"} <= set(found)
    assert {"STREAM_IN_MEMORY", "STREAM_DROPS", "TOPOLOGY_DIFFERS"} <= set(found)


def test_redis_that_evicts_is_found_and_a_worker_is_seen(settings: Settings, valkey: ValkeyServer) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        seconds, _ = client.time()
        client.zadd("doctor:__heartbeats__", {"worker": seconds * 1000})
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            found = codes(settings)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
            client.delete("doctor:__heartbeats__")
    assert "QUEUE_EVICTS" in found
    assert "NO_WORKER" not in found


def test_the_user_of_the_deployment_may_ask_redis_everything(settings: Settings, server_directory: Path) -> None:
    with LockedValkey(server_directory) as locked:
        mine = settings.model_copy(update={"redis_url": type(settings.redis_url)(locked.url)})
        mine = mine.model_copy(update={"redis_namespace": "relay"})
        assert "QUEUE_UNKNOWN" not in codes(mine)


def test_an_address_is_tried_without_a_request() -> None:
    async def both() -> tuple[str, str]:
        async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await listens("127.0.0.1", port), await listens("127.0.0.1", free_port())

    answering, refusing = asyncio.run(both())
    assert answering == ""
    assert refusing


# --- the command ---


def run(settings: Settings, tmp_path: Path, *arguments: str, handler: str = "python:json") -> Result:
    subscription = f'stream = "DOC_EVENTS"\nfilter_subject = "doc.event.>"\nhandler = "{handler}"\n'
    (tmp_path / "relay.toml").write_text(f"[contexts.doc]\n[contexts.doc.subscriptions.own]\n{subscription}")
    assert settings.nats.monitor is not None
    environment = {
        "RELAY_CONFIG": str(tmp_path / "relay.toml"),
        "DATABASE_URL": settings.contexts["doc"].database_url.get_secret_value(),
        "NATS_URL": settings.nats_url.get_secret_value(),
        "RELAY_NATS__MONITOR": settings.nats.monitor.get_secret_value(),
        "REDIS_URL": settings.redis_url.get_secret_value(),
        "RELAY_REDIS_NAMESPACE": "doctor",
    }
    return CliRunner().invoke(create_app(("doctor",)), ["doctor", *arguments], env=environment)


def test_the_command_says_what_to_change_and_its_status_whether_somebody_must_act(
    settings: Settings, tmp_path: Path
) -> None:
    result = run(settings, tmp_path)
    assert result.exit_code == 0, result.output
    assert "warning  NO_WORKER  redis" in result.stdout
    assert "→ run: dramatiq relay.actors" in result.stdout
    assert "2 warning." in result.stdout
    assert run(settings, tmp_path, "--strict").exit_code == 1
    refused = run(settings, tmp_path, "--json", handler="python:no_such_module_of_test")
    assert refused.exit_code == 1
    [first, *_] = json.loads(refused.stdout)["findings"]
    assert (first["code"], first["severity"]) == ("MODULE_MISSING", "error")


def test_who_holds_the_lock_that_a_handler_waits_for_is_named(settings: Settings, database_url: str) -> None:
    """Also if it is a lock on a table of the application."""
    name = "jetrelay-handle-doc"
    with (
        psycopg.connect(database_url, application_name="a migration") as holder,
        psycopg.connect(database_url, application_name=name) as handler,
        ThreadPoolExecutor(1) as aside,
    ):
        holder.execute("CREATE TABLE orders (n INT)")
        holder.commit()
        holder.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        waiting = aside.submit(handler.execute, "INSERT INTO orders VALUES (1)")

        def found() -> list[Blocked]:
            return [*asyncio.run(look_closely(database_url, waiting=timedelta())).blocked]

        wait_for("the handler waits", found)
        [it] = found()
        assert (it.name, it.pid) == (name, handler.info.backend_pid)
        assert (it.holder, it.blocker) == ("a migration", holder.info.backend_pid)
        assert not asyncio.run(look_closely(database_url)).blocked
        holder.rollback()
        waiting.result(30)
    assert not found()
    [finding] = blocked("postgresql doc", DatabaseDetails(state=asyncio.run(look(database_url)), blocked=[it]))
    assert finding.code == "SESSION_BLOCKED"
    assert f"pg_terminate_backend({it.blocker})" in finding.remedy
