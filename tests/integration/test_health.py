"""`relay health` against servers that are well, away, or not ready."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from relay.cli import create_app
from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from relay.devstack.ports import free_port
from tests.secured import GuardedNats

ROOT = Path(__file__).parents[2]


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
            "REDIS_URL": valkey.url,
            **changes,
        }
        return CliRunner().invoke(create_app(), ["health", *arguments], env=environment)

    return run


def down(result: Result) -> list[str]:
    return [found["server"] for found in json.loads(result.stdout) if not found["healthy"]]


def test_all_is_well(health: Callable[..., Result]) -> None:
    result = health()
    assert result.exit_code == 0
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["ok", "postgresql"],
        ["ok", "nats"],
        ["ok", "redis"],
    ]


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
    assert "run: relay db upgrade" in result.stdout


def test_credentials_that_are_not_accepted_are_no_server_that_is_away(
    health: Callable[..., Result], server_directory: Path, postgres: PostgresServer
) -> None:
    with GuardedNats(server_directory, 'authorization { token: "s3cret" }') as guarded:
        result = health("--json", NATS_URL=guarded.url, NATS_TOKEN="wr0ng")
        assert health("--json", NATS_URL=guarded.url, NATS_TOKEN="s3cret").exit_code == 0
    assert down(result) == ["nats"]
    [found] = [found for found in json.loads(result.stdout) if found["server"] == "nats"]
    assert found["detail"].startswith("NATS refuses the credentials: 'Authorization Violation'")
    assert "wr0ng" not in result.output


def test_a_permission_that_is_missing_is_named(health: Callable[..., Result], server_directory: Path) -> None:
    guard = "authorization { users: [{user: u, password: p, permissions: {publish: [none]}}] }"
    with GuardedNats(server_directory, guard) as guarded:
        result = health("--json", NATS_URL=guarded.url, NATS_USER="u", NATS_PASSWORD="p")
    [found] = [found for found in json.loads(result.stdout) if found["server"] == "nats"]
    assert found["detail"].endswith("grant it: publish $JS.API.INFO")
