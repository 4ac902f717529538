"""Each server from its wheel: every verb, and what becomes of the data."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import nats
import psutil
import psycopg
import pytest
import redis

from relay.devstack import NatsServer, PostgresServer, Server, ServerFailed, ServerNotUp, ValkeyServer, http_checks
from relay.devstack.ports import free_port
from tests.integration.devstack_support import KINDS, living, works
from tests.waiting import wait_for

# --- verbs ---


def test_a_started_server_works_and_a_stopped_one_is_gone(server: Server) -> None:
    pid = server.pid
    assert server.running
    assert works(server)
    server.stop()
    assert not server.running
    assert not psutil.pid_exists(pid)
    assert not works(server)
    with pytest.raises(ServerNotUp):
        server.pid  # noqa: B018
    server.stop()


def test_starting_a_running_server_changes_nothing(server: Server) -> None:
    pid = server.pid
    server.start()
    assert server.pid == pid


def test_a_restart_keeps_the_port_and_replaces_the_process(server: Server) -> None:
    pid, url = server.pid, server.url
    server.restart()
    assert server.pid != pid
    assert server.url == url
    assert works(server)


def test_a_kill_takes_the_children_along_and_the_server_starts_again(server: Server) -> None:
    family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    port = server.port
    server.kill()
    assert not living(family)
    assert not server.running
    server.kill()
    server.start()
    assert server.port == port
    assert works(server)


def test_a_paused_server_keeps_its_connections_and_answers_nobody(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        server.pause()
        assert server.running
        assert not works(server)
        server.resume()
        wait_for("it works again", lambda: works(server))
        connection.settimeout(0.01)
        with contextlib.suppress(TimeoutError):
            assert connection.recv(1) != b""  # nats greets; nobody hangs up


def test_a_server_that_is_resumed_long_after_its_start_has_time_to_answer(server_directory: Path) -> None:
    hours = [0.0]
    looks = [True]

    class Looked(ValkeyServer):
        def answers(self) -> bool:
            return looks.pop()

    with Looked(server_directory, clock=lambda: 3_600 * hours[0]) as server:
        hours[0], looks[:] = 1.0, [True, False, False]
        server.wait()
        assert server.running
        assert looks == []


def test_a_pause_freezes_open_sessions_too(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.url) as connection, ThreadPoolExecutor() as pool:
        own_postgres.pause()
        answer = pool.submit(connection.execute, "SELECT 1")
        with pytest.raises(TimeoutError):
            answer.result(timeout=0.5)
        own_postgres.resume()
        assert answer.result(timeout=10).fetchone() == (1,)


@pytest.mark.parametrize("verb", ["stop", "kill", "restart"])
def test_a_paused_server_can_be_stopped_killed_and_restarted(server: Server, verb: str) -> None:
    family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    server.pause()
    started = time.monotonic()
    getattr(server, verb)()
    assert time.monotonic() - started < 15  # not by waiting until it has to be killed
    assert not living(family)


def test_a_server_outlives_the_thread_that_started_it(server: Server) -> None:
    thread = threading.Thread(target=server.restart)
    thread.start()
    thread.join()
    assert works(server)
    assert server.running


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_there_is_no_port_before_the_first_start(kind: type[Server], server_directory: Path) -> None:
    server = kind(server_directory)
    assert not server.running
    with pytest.raises(ServerNotUp):
        server.url  # noqa: B018


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_directory_may_have_any_name(kind: type[Server], server_directory: Path) -> None:
    with kind(server_directory / 'mine & "your\'s" ünï') as server:
        assert works(server)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_first_start_moves_on_when_its_port_is_taken_meanwhile(
    kind: type[Server], server_directory: Path
) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        ports = iter([taken.getsockname()[1]])

        class Unlucky(kind):  # type: ignore[misc, valid-type]
            def choose_port(self) -> int:
                return next(ports, None) or free_port()

        with Unlucky(server_directory) as server:
            assert server.port != taken.getsockname()[1]
            assert works(server)


def test_the_environment_of_the_shell_does_not_reach_a_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c fsync=off")
    server.restart()
    assert "PGOPTIONS" not in psutil.Process(server.pid).environ()


def test_a_server_that_cannot_start_shows_its_log(server_directory: Path) -> None:
    server = PostgresServer(server_directory, settings={"max_conections": "5"})
    with pytest.raises(ServerFailed, match='unrecognized configuration parameter "max_conections"'):
        server.start()
    assert not server.running


def test_a_server_that_does_not_answer_is_described_and_killed(server_directory: Path) -> None:
    server = ValkeyServer(server_directory)
    server.start()
    pid = server.pid
    server.pause()
    server.start_seconds = 0.0
    what = rf"did not answer within 0 s \(process {pid}, valkey-\w+, is stopped after [\d.]+ s of processor time\)"
    with pytest.raises(ServerFailed, match=what):
        server.wait()
    assert not server.running


def test_a_nats_server_that_does_not_answer_tells_what_it_waits_for(server_directory: Path) -> None:
    class Silent(NatsServer):
        silent = False

        def answers(self) -> bool:
            return not self.silent and super().answers()

    server = Silent(server_directory)
    server.start()
    server.pause()
    server.silent, server.start_seconds = True, 0.0
    with pytest.raises(ServerFailed, match=r"did not answer within 0 s[\s\S]+goroutine \d+"):
        server.wait()
    assert not server.running


def test_a_nats_server_is_not_asked_for_its_health_before_its_port_is_open(server_directory: Path) -> None:
    with NatsServer(server_directory) as server, socket.socket() as closed:
        monitor = urlsplit(server.monitor_url)
        server.stop()
        # Nobody listens there, and nobody else can.
        closed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        closed.bind((str(monitor.hostname), server.port))
        with socket.create_server((str(monitor.hostname), monitor.port or 0)) as endpoint:
            with pytest.raises(ConnectionRefusedError):
                server.answers()
            endpoint.setblocking(False)
            with pytest.raises(BlockingIOError):
                endpoint.accept()


def test_a_machine_that_sleeps_takes_no_time_from_a_server_that_starts(server_directory: Path) -> None:
    asleep: list[float] = []

    class Sleepy(ValkeyServer):
        def answers(self) -> bool:
            if asleep:
                return super().answers()
            asleep.append(3600.0)
            return False

    with Sleepy(server_directory, clock=lambda: time.monotonic() + sum(asleep)) as server:
        assert works(server)


# --- data ---


def test_committed_rows_survive_stop_and_kill(own_postgres: PostgresServer) -> None:
    def rows() -> int:
        with psycopg.connect(own_postgres.url) as connection:
            return connection.execute(
                "INSERT INTO kept VALUES (1) RETURNING (SELECT count(*) FROM kept)"
            ).fetchone()[0]

    with psycopg.connect(own_postgres.url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
    assert rows() == 0
    own_postgres.stop()
    own_postgres.start()
    assert rows() == 1
    own_postgres.stop("immediate")
    own_postgres.start()
    assert rows() == 2
    own_postgres.kill()
    own_postgres.start()
    assert rows() == 3


async def stored(url: str, publish: bytes | None = None) -> int:
    """Count the messages of a stream, larger on paper than small disks are, after adding one."""
    client = await nats.connect(url)
    try:
        jetstream = client.jetstream()
        await jetstream.add_stream(name="KEPT", subjects=["kept"], max_bytes=900_000_000_000)
        if publish:
            await jetstream.publish("kept", publish)
        return (await jetstream.stream_info("KEPT")).state.messages
    finally:
        await client.close()


@pytest.mark.parametrize("verb", ["stop", "kill"])
def test_acknowledged_messages_survive(own_nats: NatsServer, verb: str) -> None:
    assert asyncio.run(stored(own_nats.url, b"one")) == 1
    getattr(own_nats, verb)()
    own_nats.start()
    assert asyncio.run(stored(own_nats.url)) == 1


def test_valkey_forgets(own_valkey: ValkeyServer) -> None:
    with redis.Redis.from_url(own_valkey.url) as client:
        client.set("key", "value")
        own_valkey.restart()
        assert client.get("key") is None


def test_nothing_is_acknowledged_before_it_is_on_disk(own_postgres: PostgresServer, own_nats: NatsServer) -> None:
    with psycopg.connect(own_postgres.url) as connection:
        assert connection.execute(
            "SELECT current_setting('fsync'), current_setting('synchronous_commit')"
        ).fetchone() == ("on", "on")
    config = json.loads(http_checks.get(f"{own_nats.monitor_url}/jsz"))["config"]
    assert config["sync_always"] is True
    assert config["store_dir"].startswith(str(own_nats.directory))


def test_databases_are_copied_and_dropped_under_their_clients(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.create_database("original")) as connection:
        connection.execute("CREATE TABLE copied (n int)")
    with psycopg.connect(postgres.create_database("copy", template="original")) as connection:
        assert connection.execute("SELECT count(*) FROM copied").fetchone() == (0,)
        postgres.drop_database("copy")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    postgres.drop_database("original")
    postgres.drop_database("original")


def test_settings_win(server_directory: Path) -> None:
    with (
        PostgresServer(server_directory, settings={"max_connections": "17"}) as server,
        psycopg.connect(server.url) as connection,
    ):
        assert connection.execute("SHOW max_connections").fetchone() == ("17",)
