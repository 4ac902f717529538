"""Every key of ours in Redis, with each foreign type, value and life: all goes on, or the key is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import dramatiq
import pytest
import redis
from dramatiq.middleware import Retries

from chaos.injections.broken_keys import TYPES
from relay.adapters.dramatiq.broker import RelayBroker
from relay.adapters.dramatiq.gates import Gates, QueueEntry, gate_key, routines_key, sent_key
from relay.adapters.members import Members, this_process
from relay.adapters.redis_inspection import look
from relay.adapters.redis_keys import fleet_keys, queue_keys
from relay.devstack import ValkeyServer
from tests.integration.queueing import fresh_broker, working
from tests.waiting import wait_for

pytestmark = pytest.mark.anyio

WHOLE: Final = {
    "queue_name": "q",
    "actor_name": "good",
    "args": [],
    "kwargs": {},
    "options": {},
    "message_id": "m",
    "message_timestamp": 1,
}


def foreign(client: Any, key: str, kind: str) -> None:
    command, *words = TYPES[kind]
    client.delete(key)
    client.execute_command(command, key, *words)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that has to begin anew never comes back: what waits for that is red."""
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 3_600)


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def broker(valkey: ValkeyServer, ran: list[str]) -> RelayBroker:
    broker = fresh_broker(valkey.url, [Retries()])

    def bad(_name: str) -> None:
        raise RuntimeError

    dramatiq.actor(ran.append, broker=broker, actor_name="good", queue_name="q")
    dramatiq.actor(bad, broker=broker, actor_name="bad", queue_name="q", max_retries=0)
    return broker


def queue_cases(broker: RelayBroker) -> Iterator[tuple[str, str]]:
    keys = {**fleet_keys(broker.namespace), **queue_keys(broker.namespace, "q", [broker.broker_id])}
    for key in [*keys, f"{broker.namespace}:q.deferred:share"]:
        yield from ((key, kind) for kind in TYPES)


@pytest.mark.usefixtures("at_once")
def test_jobs_go_on_whatever_type_a_key_of_their_queue_has(broker: RelayBroker, ran: list[str]) -> None:
    """The worker runs, and each key is replaced in turn; then a job, a delayed one and one that dies."""
    space = broker.namespace
    with working(broker):
        for key, kind in queue_cases(broker):
            broker.client.delete(f"{space}:q.XQ", f"{space}:q.XQ.msgs")
            if kind != "set" and key.endswith(":share"):
                broker.client.sadd(f"{space}:q.deferred", "share")
            foreign(broker.client, key, kind)
            name = f"{key} {kind}"
            for actor, delay in (("good", None), ("bad", None), ("good", 1)):
                broker.enqueue(broker.get_actor(actor).message(f"{name} {delay}"), delay=delay)
            wait_for(name, lambda name=name: {f"{name} None", f"{name} 1"} <= set(ran))  # type: ignore[misc]
            wait_for(f"{name}: dead", lambda: broker.client.zcard(f"{space}:q.XQ") >= 1)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", TYPES)
def test_a_worker_begins_although_all_its_keys_are_foreign(broker: RelayBroker, ran: list[str], kind: str) -> None:
    for key, it in queue_cases(broker):
        if it == kind:
            foreign(broker.client, key, kind)
    with working(broker):
        broker.enqueue_many([broker.get_actor("good").message("x")])
        wait_for("it has run", lambda: ran == ["x"])
        assert broker.head_waits("q", "share") == timedelta()
        assert broker.backlog("q", "share") <= 1, "a foreign id in a list is one of a job without content"
        broker.take_over("gone")


UNREADABLE: Final = {
    "no JSON": b"not JSON",
    "nothing": b"",
    "a number": b"5",
    "a list": b"[]",
    "null": b"null",
    "bytes": b"\xff\xfe",
    "an empty object": b"{}",
    "nesting": b"[" * 100_000,
    "digits": b'{"args": [' + b"9" * 5_000 + b"]}",
    "no args": json.dumps({**WHOLE, "args": 5}).encode(),
    "no kwargs": json.dumps({**WHOLE, "kwargs": []}).encode(),
    "no options": json.dumps({**WHOLE, "options": 5}).encode(),
    "options as a list": json.dumps({**WHOLE, "options": ["x"]}).encode(),
    "another queue": json.dumps({**WHOLE, "queue_name": "elsewhere"}).encode(),
    "an actor that is no name": json.dumps({**WHOLE, "actor_name": {}}).encode(),
    "an id that is no text": json.dumps({**WHOLE, "message_id": []}).encode(),
    "a share that is no text": json.dumps({**WHOLE, "options": {"share": {}}}).encode(),
    "a share of half a character": json.dumps({**WHOLE, "options": {"share": "\ud800"}}).encode(),
    "a long share": json.dumps({**WHOLE, "options": {"share": "x" * 100_000}}).encode(),
    "a priority that is none": json.dumps({**WHOLE, "options": {"task_priority": "high"}}).encode(),
}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("queue", ["q", "q.DQ"])
@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_job_that_nobody_can_read_is_dead_and_the_next_one_runs(
    broker: RelayBroker, ran: list[str], queue: str, text: bytes
) -> None:
    key = f"{broker.namespace}:{queue}"
    broker.client.hset(f"{key}.msgs", "odd", text)
    broker.client.rpush(key, "no-content", "odd")
    broker.enqueue(broker.get_actor("good").message("x"), delay=1 if queue == "q.DQ" else None)
    assert broker.head_waits("q") < timedelta(minutes=10)
    with working(broker):
        wait_for("the next one runs", lambda: ran == ["x"])
        wait_for("nothing is left", lambda: broker.do_qsize("q") == 0)
    assert broker.client.hget(f"{broker.namespace}:q.XQ.msgs", "odd") == text
    assert broker.client.zscore(f"{broker.namespace}:q.XQ", "odd")


async def opens(gates: Gates, duty: str, space: str) -> str | None:
    entry = lambda token: QueueEntry(f"{space}:q", uuid4().hex, json.dumps(WHOLE).encode())  # noqa: E731
    return await gates.open(duty, send=entry)


def duty_keys(space: str) -> list[str]:
    return [gate_key(space, "d"), routines_key(space, "d"), sent_key(space), f"{space}:q", f"{space}:q.msgs"]


async def test_duties_go_on_whatever_type_their_keys_have(valkey: ValkeyServer) -> None:
    client: Any = redis.Redis.from_url(valkey.url)
    for position in range(5):
        for kind in TYPES:
            space = f"test-{uuid4().hex}"
            gates, key = Gates(valkey.url, space), duty_keys(space)[position]
            foreign(client, key, kind)
            await gates.mend(["d"])
            client.pexpire(gate_key(space, "d"), 0)  # what is no token may live for one life of a gate
            token = await opens(gates, "d", space)
            assert token is not None, (key, kind)
            assert client.lindex(f"{space}:q", -1) != b"x"
            _, claimed = await gates.claim("d", {"r": timedelta(seconds=1)})
            assert claimed == ["r"], (key, kind)
            async with gates.hold("d", token) as held:
                assert held
            await gates.close("d", token)
            assert await opens(gates, "d", space), (key, kind)
            await gates.aclose()


@pytest.mark.parametrize("life_ms", [None, 10**6, 10**15])
@pytest.mark.parametrize("value", ["x", "", "done", "0" * 32 + ":0", "0" * 32 + ":0:waits"])
async def test_no_gate_holds_its_duty_up_for_ever(valkey: ValkeyServer, value: str, life_ms: int | None) -> None:
    space, client = f"test-{uuid4().hex}", redis.Redis.from_url(valkey.url)
    key = gate_key(space, "d")
    client.set(key, value, px=life_ms)
    gates = Gates(valkey.url, space)
    await gates.mend(["d"])
    left: Any = client.pttl(key)
    assert 0 < left <= (86_400_000 if value == "done" else 6_000)
    await gates.aclose()


@pytest.mark.parametrize("value", ["x", "nan", "inf", "-inf", "1e300", "-5", ""])
async def test_foreign_times_hold_up_nothing(valkey: ValkeyServer, value: str) -> None:
    space, client = f"test-{uuid4().hex}", redis.Redis.from_url(valkey.url)
    gates = Gates(valkey.url, space)
    client.hset(sent_key(space), "d", value)
    client.hset(routines_key(space, "d"), "r", value)
    client.hset(f"{space}:q.msgs", "head", '{"relay_enqueued":5}')
    client.rpush(f"{space}:q", "head")
    assert await opens(gates, "d", space)
    assert (await gates.claim("d", {"r": timedelta(seconds=1)}))[1] == ["r"]
    await gates.aclose()


@pytest.mark.parametrize("kind", TYPES)
async def test_processes_say_that_they_are_there_whatever_their_keys_hold(valkey: ValkeyServer, kind: str) -> None:
    space = f"test-{uuid4().hex}"
    client: Any = redis.asyncio.Redis.from_url(valkey.url, decode_responses=True)
    written = redis.Redis.from_url(valkey.url)
    for key in fleet_keys(space):
        foreign(written, key, kind)
    members = Members(client, space)
    await members.beat(this_process("worker", "me"))
    assert [it.member.id for it in await members.all()] == ["me"]
    written.zadd(f"{space}:members:publishing", {"forged": 1e18, "endless": "inf"})  # type: ignore[dict-item]
    written.zadd(f"{space}:members:beats", {"forged": 1e18})
    await members.beat(this_process("worker", "me"))
    assert (members.last_publishing, len(await members.all())) == (1, 1)
    await client.aclose()


@pytest.mark.parametrize("kind", TYPES)
async def test_a_key_of_another_type_is_named_as_long_as_nothing_has_replaced_it(
    valkey: ValkeyServer, kind: str
) -> None:
    space, client = f"test-{uuid4().hex}", redis.Redis.from_url(valkey.url)
    keys = {**fleet_keys(space), **queue_keys(space, "q"), sent_key(space): "HLEN"}
    keys |= {gate_key(space, "d"): "GET", routines_key(space, "d"): "HLEN"}
    theirs = {"ZCARD": "zset", "HLEN": "hash", "LLEN": "list", "SMEMBERS": "set", "GET": "string"}
    for key in keys:
        foreign(client, key, kind)
    state = await look(valkey.url, space, {}, ["q"], ["d"])
    assert set(state.wrong) == {key for key, reader in keys.items() if theirs[reader] != kind}
