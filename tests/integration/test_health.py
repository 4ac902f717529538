"""`relay health` against servers that are well, away, or not ready."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from nats.aio.client import Client, ServerVersion
from nats.js.api import DiscardPolicy, PersistMode, StorageType
from nats.js.errors import NotFoundError
from typer.testing import CliRunner, Result

from relay.adapters.jetstream import topology
from relay.adapters.jetstream.connection import connect_once
from relay.cli import create_app
from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from relay.devstack.ports import free_port
from relay.ops.doctor import databases
from relay.settings import Settings
from tests.secured import GuardedNats

SEA = Settings.model_validate({"contexts": {"sea": {"database_url": "postgresql://x/sea"}}})


@pytest.fixture
def health(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer, tmp_path: Path
) -> Callable[..., Result]:
    (tmp_path / "relay.toml").write_text("[contexts.sea]\n")

    def run(*arguments: str, **changes: str) -> Result:
        environment = {
            "RELAY_CONFIG": str(tmp_path / "relay.toml"),
            "DATABASE_URL": database_url,
            "NATS_URL": nats_server.url,
            "RELAY_NATS__MONITOR": nats_server.monitor_url,
            "REDIS_URL": valkey.url,
            **changes,
        }
        return CliRunner().invoke(create_app(), ["health", *arguments], env=environment)

    return run


@pytest.fixture(autouse=True)
def topology_of_sea(nats_server: NatsServer) -> Iterator[None]:
    """The streams of the context, as `relay streams ensure` makes them."""
    asyncio.run(ensured(nats_server))
    yield
    asyncio.run(removed(nats_server, *(spec.name for spec in SEA.streams())))


async def ensured(server: NatsServer, **options: str) -> None:
    async with connect_once(server.url, **options) as js:
        await topology.ensure(js, SEA.streams(), SEA.consumers())


async def removed(server: NatsServer, *names: str) -> None:
    async with connect_once(server.url) as js:
        for name in names:
            with suppress(NotFoundError):
                await js.delete_stream(name)


def down(result: Result) -> list[str]:
    return [found["server"] for found in json.loads(result.stdout) if not found["healthy"]]


def findings(result: Result) -> list[dict[str, str]]:
    return [finding for examined in json.loads(result.stdout) for finding in examined["findings"]]


def codes(result: Result) -> list[str]:
    return [finding["code"] for finding in findings(result)]


def test_all_is_well(health: Callable[..., Result]) -> None:
    result = health()
    assert result.exit_code == 0
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["ok", "postgresql"],
        ["ok", "nats"],
        ["ok", "redis"],
    ]


def test_a_full_outbox_is_a_warning(health: Callable[..., Result], database_url: str) -> None:
    full = "UPDATE relay_wakeup SET brake = 'refuse', brake_reason = 'sea is full', brake_until = 'infinity'"
    with psycopg.connect(database_url) as conn:
        conn.execute(full)
    assert health().exit_code == 0
    result = health("--strict")
    assert result.exit_code == 1
    assert "warn postgresql sea" in result.stdout
    assert "sea is full" in result.stdout
    assert codes(health("--json")) == ["OUTBOX_FULL"]


def test_the_place_of_an_archive_is_asked_and_a_short_time_is_warned_of(
    health: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "relay.toml").write_text(
        f'[contexts.sea]\n[contexts.sea.archive]\nafter = "10d"\ndirectory = "{tmp_path}/cold"\n'
    )
    assert down(health("--json")) == ["archive sea"]
    (tmp_path / "cold").mkdir()
    assert f"{tmp_path}/cold " in health().stdout
    assert codes(health("--json")) == ["ARCHIVE_TIME"]


def test_a_consumer_that_forgets_ids_before_their_events_are_deleted_is_warned(
    health: Callable[..., Result], tmp_path: Path
) -> None:
    archive = f'[contexts.{{}}.archive]\nafter = "90d"\ndirectory = "{tmp_path}"\nkeep = "{{}}"\n'
    reads = '[contexts.{0}]\ndatabase_url = "postgresql://127.0.0.1:1/{0}"\n[contexts.{0}.subscriptions.{0}]\n'
    reads += 'stream = "SEA_EVENTS"\nfilter_subject = "sea.>"\nhandler = "http://h/"\n'
    kept = [archive.format("sea", "3y"), archive.format("port", "2y"), archive.format("quay", "3y")]
    (tmp_path / "relay.toml").write_text("".join([*kept, reads.format("port"), reads.format("quay")]))
    found = findings(health("--json"))
    assert [it["subject"] for it in found if it["code"] == "ARCHIVE_KEEP"] == ["archive port"]


@pytest.mark.parametrize(
    ("variable", "scheme", "server"),
    [
        ("DATABASE_URL", "postgresql", "postgresql sea"),
        ("NATS_URL", "nats", "nats"),
        ("REDIS_URL", "redis", "redis"),
    ],
)
def test_a_server_that_is_away_is_named(
    health: Callable[..., Result], variable: str, scheme: str, server: str
) -> None:
    result = health("--json", **{variable: f"{scheme}://u:secret@127.0.0.1:{free_port()}/x"})
    assert result.exit_code == 1
    assert down(result) == [server]
    assert "secret" not in result.output


def test_a_database_without_our_tables_is_not_well(
    health: Callable[..., Result], postgres: PostgresServer, request: pytest.FixtureRequest
) -> None:
    url = postgres.create_database("test_health_empty")
    request.addfinalizer(lambda: postgres.drop_database("test_health_empty"))
    result = health(DATABASE_URL=url)
    assert result.exit_code == 1
    assert "DOWN postgresql sea" in result.stdout
    assert codes(health("--json", DATABASE_URL=url)) == ["TABLES_OLD"]


def test_a_stream_that_is_missing_is_named_with_the_remedy(
    health: Callable[..., Result], nats_server: NatsServer
) -> None:
    asyncio.run(removed(nats_server, "SEA_DLQ"))
    result = health()
    assert result.exit_code == 1
    [line] = [line for line in result.stdout.splitlines() if line.startswith("DOWN")]
    assert "stream SEA_DLQ" in line
    assert line.endswith("; run: relay streams ensure")
    assert health("--for", "scheduler").exit_code == 0
    assert health("--for", "worker").exit_code == 1


def test_consumers_that_are_missing_are_named_with_the_remedy(
    health: Callable[..., Result], tmp_path: Path
) -> None:
    subscription = 'stream = "SEA_EVENTS"\nfilter_subject = "sea.event.>"\nhandler = "http://127.0.0.1:9/handle"'
    (tmp_path / "relay.toml").write_text(f"[contexts.sea]\n[contexts.sea.subscriptions.own]\n{subscription}\n")
    result = health("--json")
    assert down(result) == ["nats"]
    found = findings(result)
    assert {it["code"] for it in found} == {"CONSUMER_MISSING"}
    assert "consumer SEA_EVENTS/sea__own" in {it["subject"] for it in found}
    assert all(it["remedy"] for it in found)


def test_a_process_is_asked_for_what_it_needs_only(health: Callable[..., Result]) -> None:
    away = f"127.0.0.1:{free_port()}"
    broken = {"NATS_URL": f"nats://{away}", "REDIS_URL": f"redis://{away}/0"}
    assert [health("--for", kind, **broken).exit_code for kind in ("tasks", "application")] == [0, 0]
    assert down(health("--json", "--for", "scheduler", **broken)) == ["redis"]
    assert down(health("--json", **broken)) == ["nats", "redis"]


# --- what may lose what was confirmed ---


def warnings(result: Result, server: str) -> list[str]:
    [found] = [found for found in json.loads(result.stdout) if found["server"] == server]
    return list(found["warnings"])


def test_development_servers_give_no_reason_to_warn(health: Callable[..., Result]) -> None:
    result = health("--json", "--strict")
    assert result.exit_code == 0
    assert [found["warnings"] for found in json.loads(result.stdout)] == [[], [], []]
    assert codes(result) == []


def test_a_database_that_may_lose_commits_is_warned_of(health: Callable[..., Result], database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off".encode())
    result = health()
    assert result.exit_code == 0
    [warning] = [line for line in result.stdout.splitlines() if line.startswith("warn")]
    assert "synchronous_commit is off" in warning
    assert health("--strict").exit_code == 1


def test_a_database_older_than_any_that_was_tried_is_warned_of(
    health: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "TESTED", 99)
    assert codes(health("--json")) == ["DATABASE_OLD"]


@pytest.mark.parametrize("sync", ["2m", "10s"])
def test_a_nats_server_that_writes_later_is_warned_of(
    health: Callable[..., Result], server_directory: Path, sync: str
) -> None:
    with NatsServer(server_directory, sync=sync) as server:
        changes = {"NATS_URL": server.url, "RELAY_NATS__MONITOR": server.monitor_url}
        asyncio.run(ensured(server))
        result = health("--json", **changes)
        assert result.exit_code == 0
        [warning] = warnings(result, "nats")
        assert warning.startswith(f"sync_interval is {120 if sync == '2m' else 10} s")
        assert health("--strict", **changes).exit_code == 1


def test_what_cannot_be_found_out_is_told_and_no_warning(health: Callable[..., Result]) -> None:
    for monitor in ("", f"http://127.0.0.1:{free_port()}/s3cret"):
        result = health("--strict", RELAY_NATS__MONITOR=monitor)
        assert result.exit_code == 0
        assert "s3cret" not in result.stdout
        assert codes(health("--json", RELAY_NATS__MONITOR=monitor)) == ["SYNC_UNKNOWN"]


@contextmanager
def made(server: NatsServer, **options: object) -> Iterator[None]:
    """A stream SEA_EVENTS as somebody else has made it."""

    async def make() -> None:
        await removed(server, "SEA_EVENTS")
        async with connect_once(server.url) as js:
            await js.add_stream(name="SEA_EVENTS", subjects=["sea.event.>"], **options)

    asyncio.run(make())
    yield


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"storage": StorageType.MEMORY, "discard": DiscardPolicy.NEW}, ["STREAM_IN_MEMORY"]),
        ({"discard": DiscardPolicy.OLD}, ["STREAM_DROPS"]),
        ({"persist_mode": PersistMode.ASYNC, "discard": DiscardPolicy.NEW}, ["STREAM_EARLY"]),
        ({"discard": DiscardPolicy.NEW}, []),
    ],
)
def test_a_stream_that_may_lose_messages_is_warned_of(
    health: Callable[..., Result], nats_server: NatsServer, options: dict[str, object], expected: list[str]
) -> None:
    with made(nats_server, **options):
        result = health("--json")
    assert codes(result) == expected
    assert len(warnings(result, "nats")) == len(expected)


def test_a_stream_that_is_nearly_full_is_warned_of(health: Callable[..., Result], nats_server: NatsServer) -> None:
    async def fill(count: int) -> None:
        async with connect_once(nats_server.url) as js:
            for _ in range(count):
                await js.publish("sea.event.a.v1")

    with made(nats_server, discard=DiscardPolicy.NEW, max_msgs=10):
        asyncio.run(fill(8))
        assert warnings(health("--json"), "nats") == []
        asyncio.run(fill(1))
        [finding] = findings(health("--json"))
    assert (finding["code"], finding["subject"]) == ("STREAM_FULL", "stream SEA_EVENTS")
    assert "90%" in finding["text"]


@pytest.mark.parametrize(("version", "warned"), [("2.13.9", True), ("2.14.0", False), ("3.0.0", False)])
def test_an_old_nats_server_is_warned_of(
    health: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, version: str, warned: bool
) -> None:
    monkeypatch.setattr(Client, "connected_server_version", ServerVersion(version))
    found = warnings(health("--json"), "nats")
    assert [f"nats-server {version}" in warning for warning in found] == ([True] if warned else [])


class Clustered(NatsServer):
    """One of two servers."""

    route, other = 0, 0

    def _configuration(self) -> str:
        cluster = f'name: c, listen: "127.0.0.1:{self.route}", routes: ["nats://127.0.0.1:{self.other}"]'
        named = super()._configuration().replace("server_name: jetrelay-dev", f"server_name: n{self.route}")
        return f"{named}cluster {{ {cluster} }}\n"


def test_one_replica_in_a_cluster_is_warned_of(health: Callable[..., Result], server_directory: Path) -> None:
    one, two = Clustered(server_directory / "1"), Clustered(server_directory / "2")
    one.route, one.other = free_port(), free_port()
    two.route, two.other = one.other, one.route
    try:
        one.launch()
        two.launch()
        one.wait()
        two.wait()
        asyncio.run(ensured(one))
        with made(one, discard=DiscardPolicy.NEW):
            found = codes(health("--json", NATS_URL=one.url, RELAY_NATS__MONITOR=one.monitor_url))
    finally:
        one.stop()
        two.stop()
    assert found == ["STREAM_ALONE"] * len(SEA.streams())


def test_credentials_that_are_not_accepted_are_no_server_that_is_away(
    health: Callable[..., Result], server_directory: Path, postgres: PostgresServer
) -> None:
    with GuardedNats(server_directory, 'authorization { token: "s3cret" }') as guarded:
        result = health("--json", NATS_URL=guarded.url, NATS_TOKEN="wr0ng")
        asyncio.run(ensured(guarded, token="s3cret"))
        assert health("--json", NATS_URL=guarded.url, NATS_TOKEN="s3cret").exit_code == 0
    assert (down(result), codes(result)) == (["nats"], ["BROKER_REFUSED"])
    assert "wr0ng" not in result.output


def test_a_permission_that_is_missing_is_named(health: Callable[..., Result], server_directory: Path) -> None:
    guard = "authorization { users: [{user: u, password: p, permissions: {publish: [none]}}] }"
    with GuardedNats(server_directory, guard) as guarded:
        result = health("--json", NATS_URL=guarded.url, NATS_USER="u", NATS_PASSWORD="p")
    [found] = [found for found in json.loads(result.stdout) if found["server"] == "nats"]
    assert codes(result) == ["BROKER_REFUSED"]
    assert found["detail"].endswith("publish $JS.API.INFO")
