"""What a killed predecessor may leave behind: processes, files about them, half a data directory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from relay.devstack import DevStack, PostgresServer, Server, ServerFailed, StackBusy, ValkeyServer
from relay.devstack.as_root import server_account
from tests.integration.devstack_support import living, works
from tests.waiting import wait_for


@pytest.fixture
def bystander(server_directory: Path) -> Iterator[psutil.Popen]:
    """A process that is none of ours, run by the account that runs PostgreSQL, naming our directory."""
    account = server_account()
    user = {"user": account.uid, "group": account.gid, "extra_groups": []} if account else {}
    process = psutil.Popen(["/bin/sh", "-c", "read line", str(server_directory)], stdin=subprocess.PIPE, **user)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("same_start", [True, False], ids=["no name of ours", "pid used again"])
def test_a_stale_state_file_does_not_kill_a_foreign_process(
    server: Server, bystander: psutil.Popen, same_start: bool
) -> None:
    server.stop()
    created = bystander.create_time()
    if same_start:
        bystander = psutil.Process()  # pytest: it does not name the directory
        created = bystander.create_time()
    else:
        created -= 3600  # it names the directory, but it is not the process we started
    state = {"pid": bystander.pid, "created": created, "port": server.port}
    (server.directory / "server.json").write_text(json.dumps(state))
    server.start()
    assert living([bystander])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": null, "created": 1, "port": 1}', '{"pid": 99999999}'])
def test_a_damaged_state_file_is_ignored(own_valkey: ValkeyServer, text: str) -> None:
    own_valkey.stop()
    (own_valkey.directory / "server.json").write_text(text)
    own_valkey.start()
    assert works(own_valkey)


def test_a_second_object_on_the_directory_replaces_the_process_and_takes_its_port(server: Server) -> None:
    with type(server)(server.directory) as successor:
        assert not server.running
        assert successor.url == server.url
        assert works(successor)


def test_a_stale_postmaster_pid_naming_a_live_process_does_not_stop_postgres(
    own_postgres: PostgresServer, bystander: psutil.Popen
) -> None:
    [lock_file] = own_postgres.directory.rglob("postmaster.pid")
    lines = lock_file.read_text().splitlines()
    own_postgres.kill()
    lock_file.write_text("\n".join([str(bystander.pid), *lines[1:]]) + "\n")
    own_postgres.start()
    assert works(own_postgres)
    assert living([bystander])


def test_backends_without_a_postmaster_are_ended(own_postgres: PostgresServer) -> None:
    family = psutil.Process(own_postgres.pid).children(recursive=True)
    own_postgres.pause()  # frozen, they cannot notice that the postmaster is gone
    os.kill(own_postgres.pid, signal.SIGKILL)
    wait_for("it has ended", lambda: not own_postgres.running)
    assert living(family)
    own_postgres.start()
    assert not living(family)
    assert works(own_postgres)


def test_a_postmaster_is_found_without_its_state_file(own_postgres: PostgresServer) -> None:
    (own_postgres.directory / "server.json").unlink()
    with PostgresServer(own_postgres.directory) as successor:
        assert not own_postgres.running
        assert works(successor)


def test_a_half_written_cluster_is_made_anew(own_postgres: PostgresServer) -> None:
    own_postgres.kill()
    [marker] = own_postgres.directory.rglob("initdb.finished")
    marker.unlink()
    (marker.parent / "data" / "global" / "pg_control").unlink()
    own_postgres.start()
    assert works(own_postgres)


def test_an_interrupted_initdb_is_repeated(server_directory: Path) -> None:
    program = f"from relay.devstack import PostgresServer; PostgresServer({str(server_directory)!r}).start()"
    child = subprocess.Popen([sys.executable, "-c", program])
    wait_for("initdb writes", lambda: any(server_directory.rglob("pg_wal")))
    child.kill()
    child.wait()
    assert not any(server_directory.rglob("initdb.finished"))
    with PostgresServer(server_directory) as server:
        assert works(server)


# --- the whole stack ---

OWNER = """
import sys, time
from relay.devstack import DevStack
stack = DevStack(sys.argv[1])
stack.start()
if "pause" in sys.argv:
    for server in stack.servers:
        server.pause()
print(*(server.pid for server in stack.servers), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def owner_of_a_stack(directory: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A process that runs a stack until its input ends, and the servers it started."""
    command = [sys.executable, "-c", OWNER, str(directory), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        servers = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
        assert len(servers) == 3
        try:
            yield owner, servers
        finally:
            owner.kill()
            for server in servers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    server.kill()


def test_a_stack_starts_stops_and_starts_again_on_its_ports(server_directory: Path) -> None:
    with DevStack(server_directory) as stack:
        first = [server.url for server in stack.servers]
        assert all(works(server) for server in stack.servers)
        stack.start()
    assert not any(server.running for server in stack.servers)
    stack.stop()
    with DevStack(server_directory) as stack:
        assert [server.url for server in stack.servers] == first


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
def test_servers_end_with_a_killed_parent(server_directory: Path) -> None:
    with owner_of_a_stack(server_directory) as (owner, servers):
        owner.kill()
        owner.wait()
        wait_for("they have ended", lambda: not living(servers))


def test_servers_end_with_an_interpreter_that_forgot_to_stop_them(server_directory: Path) -> None:
    with owner_of_a_stack(server_directory) as (owner, servers):
        assert owner.stdin
        owner.stdin.close()
        assert owner.wait(30) == 0
        wait_for("they have ended", lambda: not living(servers))


def test_servers_that_outlived_a_killed_parent_are_ended_before_a_new_start(server_directory: Path) -> None:
    with owner_of_a_stack(server_directory, "pause") as (owner, servers):
        owner.kill()
        owner.wait()
        assert len(living(servers)) == 3  # frozen, they cannot end by themselves
        with DevStack(server_directory) as stack:
            assert not living(servers)
            assert all(works(server) for server in stack.servers)


def test_one_process_at_a_time_runs_a_stack_in_a_directory(server_directory: Path) -> None:
    with owner_of_a_stack(server_directory) as (owner, servers):
        with pytest.raises(StackBusy, match=f"process {owner.pid} "):
            DevStack(server_directory).start()
        assert len(living(servers)) == 3
    with DevStack(server_directory) as stack:
        assert works(stack.valkey)


def test_a_stack_of_which_one_server_fails_leaves_none_running(server_directory: Path) -> None:
    stack = DevStack(server_directory)
    stack.postgres = PostgresServer(server_directory / "postgres", settings={"max_conections": "5"})
    with pytest.raises(ServerFailed):
        stack.start()
    assert not any(server.running for server in stack.servers)
    with DevStack(server_directory):
        pass  # the directory is free again
