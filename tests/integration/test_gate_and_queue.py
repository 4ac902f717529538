"""Gates keep jobs of one duty from piling up; the queue hands a job over at once and costs nothing while idle."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import dramatiq
import pytest
import redis
from dramatiq.middleware import Retries

from relay.adapters import gate as gate_module
from relay.adapters import redis as redis_module
from relay.adapters import workers
from relay.adapters.gate import Entry, Gates
from relay.adapters.redis import RelayBroker, create_broker
from relay.adapters.workers import WorkerRuntime
from relay.bootstrap import job
from relay.devstack import ValkeyServer
from relay.domain.errors import QueueUnreachable
from tests.integration.publishing import eventually

pytestmark = pytest.mark.anyio

NOWHERE = "redis://127.0.0.1:9/0"


# --- gates ---


@pytest.fixture
async def gates(valkey: ValkeyServer) -> AsyncIterator[Gates]:
    gates = Gates(valkey.url, f"test-{uuid4().hex}")
    yield gates
    await gates.aclose()


def life(valkey: ValkeyServer, gates: Gates, duty: str = "pull") -> int:
    """How long a gate stays shut, in milliseconds; negative when it is open."""
    return int(redis.Redis.from_url(valkey.url).pttl(gates._key(duty)))


async def opened(gates: Gates, duty: str = "pull", *, force: bool = False) -> str:
    token = await gates.open(duty, force=force)
    assert token is not None
    return token


async def test_a_renewal_that_is_under_way_does_not_shut_the_gate_again(
    gates: Gates, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "TTL", timedelta(seconds=0.03))
    token, renew, under_way = await opened(gates), gates._renew, asyncio.Event()

    async def slow(duty: str, token: str, _: timedelta) -> bool:
        if asyncio.current_task() is not here:
            under_way.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                # Too late: it was sent.
                await asyncio.sleep(0.1)
        return await renew(duty, token, timedelta(seconds=60))

    here, before = asyncio.current_task(), asyncio.all_tasks()
    monkeypatch.setattr(gates, "_renew", slow)
    async with gates.hold("pull", token):
        await under_way.wait()
    await gates.close("pull", token)
    assert life(valkey, gates) < 0
    assert asyncio.all_tasks() == before


async def test_a_gate_lets_one_job_through(gates: Gates) -> None:
    tokens = await asyncio.gather(*(gates.open("pull") for _ in range(8)))
    assert len([token for token in tokens if token is not None]) == 1
    assert await gates.open("pull") is None
    assert await gates.open("publish") is not None  # each duty has a gate of its own


async def test_a_job_is_in_its_queue_when_its_gate_is_open_and_once_only(
    gates: Gates, valkey: ValkeyServer
) -> None:
    broker = create_broker(valkey.url, namespace=gates._namespace, middleware=[])

    def send(token: str) -> Entry:
        return broker.entry(job("q", "note", token))

    tokens = [await gates.open("pull", send=send) for _ in range(3)]
    tokens.append(await gates.open("pull", send=send, force=True))
    assert [token is None for token in tokens] == [False, True, True, False]
    ran: list[str] = []
    dramatiq.actor(ran.append, broker=broker, actor_name="note", queue_name="q")
    with working(broker):
        await eventually("it has run", lambda: ran == [tokens[0], tokens[3]])


async def test_force_takes_a_gate_over_and_the_former_job_finds_out(gates: Gates) -> None:
    former = await opened(gates)
    latter = await opened(gates, force=True)
    async with gates.hold("pull", former) as ours:
        assert not ours
    async with gates.hold("pull", latter) as ours:
        assert ours


async def test_a_gate_whose_job_died_opens_by_itself(gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "TTL", timedelta(milliseconds=100))
    await opened(gates)
    await eventually("it is open", lambda: gates.open("pull"), 10)


async def test_a_job_closes_its_own_gate_only(gates: Gates, valkey: ValkeyServer) -> None:
    former = await opened(gates)
    latter = await opened(gates, force=True)
    await gates.close("pull", former)
    assert await gates.open("pull") is None
    await gates.close("pull", latter)
    assert await gates.open("pull") is not None


async def test_a_gate_stays_shut_as_long_as_its_job_runs(gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "TTL", timedelta(milliseconds=600))
    token = await opened(gates)
    loop = asyncio.get_running_loop()
    async with gates.hold("pull", token) as ours:
        assert ours
        end = loop.time() + 1.5
        while loop.time() < end:
            assert await gates.open("pull") is None
            await asyncio.sleep(0.02)
    await eventually("it is open again", lambda: gates.open("pull"), 10)


async def test_a_job_whose_gate_was_flushed_takes_it_again(gates: Gates, valkey: ValkeyServer) -> None:
    token = await opened(gates)
    redis.Redis.from_url(valkey.url).delete(gates._key("pull"))
    async with gates.hold("pull", token) as ours:
        assert ours
        assert await gates.open("pull") is None


async def test_a_job_in_back_off_keeps_its_gate_unless_it_lost_it(gates: Gates, valkey: ValkeyServer) -> None:
    former = await opened(gates)
    await gates.back_off("pull", former)
    assert life(valkey, gates) > 60_000  # longer than Dramatiq's longest back-off
    await opened(gates, force=True)
    await gates.back_off("pull", former)
    assert 0 < life(valkey, gates) <= 6_000


async def test_without_redis_jobs_run_and_none_can_be_sent() -> None:
    gates = Gates(NOWHERE, "test")
    async with gates.hold("pull", "token") as ours:
        assert ours
    await gates.close("pull", "token")
    await gates.back_off("pull", "token")
    with pytest.raises(QueueUnreachable) as caught:
        await gates.open("pull")
    assert caught.value.code == "QUEUE_UNREACHABLE"
    await gates.aclose()


async def test_redis_lost_while_a_job_runs_does_not_end_the_job(
    own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "TTL", timedelta(milliseconds=90))
    gates = Gates(own_valkey.url, "test")
    token = await opened(gates)
    async with gates.hold("pull", token) as ours:
        await asyncio.to_thread(own_valkey.kill)
        await asyncio.to_thread(own_valkey.start)
        await eventually("its keeper has shut the gate again", lambda: life(own_valkey, gates) > 0, 10)
        assert ours
    await gates.aclose()


# --- the queue ---


@contextmanager
def working(broker: RelayBroker, threads: int = 2) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, worker_threads=threads, worker_timeout=100)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(timeout=20_000)


def fresh_broker(url: str, middleware: Sequence[Any] = ()) -> RelayBroker:
    return create_broker(url, namespace=f"test-{uuid4().hex}", middleware=list(middleware))


def soon(what: str, condition: Callable[[], Any], seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)
    return result


def test_jobs_enqueued_together_are_run_in_order_and_leave_nothing_behind(valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(valkey.url), []
    dramatiq.actor(ran.append, broker=broker, actor_name="note", queue_name="q")
    broker.enqueue_many([job("q", "note", n) for n in range(200)])
    with working(broker, threads=1):
        soon("all have run", lambda: len(ran) == 200)
        assert ran == list(range(200))
        soon("all are acknowledged", lambda: not broker.client.hlen(f"{broker.namespace}:q.msgs"))
    left = [key.decode() for key in broker.client.scan_iter(f"{broker.namespace}:*")]
    assert not [key for key in left if "heartbeats" not in key]


def test_a_delayed_job_runs_when_it_is_due(valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(valkey.url), []
    actor = dramatiq.actor(lambda: ran.append(time.monotonic()), broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        start = time.monotonic()
        broker.enqueue(actor.message(), delay=400)
        soon("it has run", lambda: ran)
    assert 0.39 <= ran[0] - start < 10


def test_a_failed_job_comes_back_by_the_retries_middleware(valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(valkey.url, [Retries(min_backoff=10, max_backoff=20)]), []

    def stumble() -> None:
        ran.append(1)
        if len(ran) < 3:
            raise dramatiq.errors.Retry(delay=50)

    actor = dramatiq.actor(stumble, broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        actor.send()
        soon("it has run three times", lambda: len(ran) == 3)


def calls(client: Any) -> dict[str, int]:
    stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(found["calls"]) for name, found in stats.items()}


def test_a_busy_worker_fetches_and_acknowledges_many_at_a_time(own_valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(own_valkey.url), []
    dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")
    broker.enqueue_many([job("q", "n") for _ in range(400)])
    broker.client.config_resetstat()
    with working(broker, threads=8):
        soon("all are acknowledged", lambda: not broker.client.hlen(f"{broker.namespace}:q.msgs"))
    scripts = calls(broker.client)["evalsha"]
    assert scripts < 400, "a script to fetch and one to acknowledge for each job would be 800"


def test_a_consumer_of_quick_jobs_fetches_more_ahead_until_they_are_slow(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_OFTEN", "_SELDOM"):
        monkeypatch.setattr(redis_module, name, 3600.0)
    broker = fresh_broker(valkey.url)
    dramatiq.actor(lambda: None, broker=broker, actor_name="n", queue_name="q")
    broker.enqueue_many([job("q", "n") for _ in range(600)])
    consumer = broker.consume("q", prefetch=4)

    def take() -> None:
        message = next(consumer)
        if message is not None:
            consumer.ack(message)

    for _ in range(300):
        take()
    assert consumer.prefetch == 128
    consumer._fetched_at -= 2 * 3600
    while consumer.message_cache:
        take()
    take()
    assert consumer.prefetch == 4
    consumer.close()


def test_a_lone_job_is_fetched_once_and_nothing_after_it(own_valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(own_valkey.url), []
    dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        for count in (1, 2):
            broker.client.config_resetstat()
            broker.enqueue_many([job("q", "n")])
            soon("it has run", lambda n=count: len(ran) == n)
            soon("it is acknowledged", lambda: not broker.client.hlen(f"{broker.namespace}:q.msgs"))
        assert calls(broker.client)["evalsha"] == 2, "one script fetches it, one acknowledges it"


def test_acknowledgements_that_redis_did_not_take_are_sent_again(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.05)
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.05)
    broker, ran, cut = fresh_broker(valkey.url), [], []
    acknowledge = broker.ack_many

    def stumble(queue_name: str, ids: Sequence[str]) -> None:
        if len(cut) < 3:
            cut.append(ids)
            raise redis.exceptions.ConnectionError("cut")
        acknowledge(queue_name, ids)

    monkeypatch.setattr(broker, "ack_many", stumble)
    dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")
    broker.enqueue_many([job("q", "n") for _ in range(50)])
    with working(broker):
        soon("all are acknowledged", lambda: not broker.client.hlen(f"{broker.namespace}:q.msgs"))
    assert (len(ran), len(cut)) == (50, 3)


def test_an_idle_worker_waits_instead_of_asking_and_starts_a_job_at_once(
    own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_module, "_WAIT", 4.0)
    broker, ran = fresh_broker(own_valkey.url), []
    actor = dramatiq.actor(lambda: ran.append(time.monotonic()), broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        actor.send()
        soon("it is awake", lambda: ran)
        soon("that is done with", lambda: not broker.client.hlen(f"{broker.namespace}:q.msgs"))
        broker.client.config_resetstat()
        start = time.monotonic()
        soon("it waits", lambda: calls(broker.client).get("blmove", 0) >= 3)
        # One wait in four seconds on the queue and one on its delay queue, which holds nothing.
        assert time.monotonic() - start > 0.8
        others = {name: n for name, n in calls(broker.client).items() if name not in {"info", "blmove"}}
        # Each of the two queues may be due for its upkeep once: a script and three commands inside it.
        assert sum(others.values()) <= 8, others
        start = time.monotonic()
        actor.send()
        soon("it has run", lambda: len(ran) == 2)
        assert ran[1] - start < 3  # less than a wait lasts: the wait ended early


def test_a_delay_queue_is_looked_at_often_only_while_something_is_delayed(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, ran, waits = fresh_broker(valkey.url), [], []
    block = broker.client.blmove

    def noted(source: str, target: str, wait: float, *ends: Any) -> Any:
        waits.append((source.rpartition(":")[2], wait))
        return block(source, target, wait, *ends)

    monkeypatch.setattr(broker.client, "blmove", noted)
    monkeypatch.setattr(redis_module, "_WAIT", 0.3)
    monkeypatch.setattr(redis_module, "_DELAY_WAIT", 0.02)
    actor = dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        soon("it waits", lambda: waits.count(("q.DQ", 0.3)) > 2)
        assert ("q.DQ", 0.02) not in waits
        broker.enqueue(actor.message(), delay=400)
        soon("it looks often", lambda: ("q.DQ", 0.02) in waits)
        soon("it has run", lambda: ran)
        del waits[:]
        soon("it waits again", lambda: waits.count(("q.DQ", 0.3)) > 2)
    assert ("q", 0.02) not in waits


def test_a_worker_outlives_a_restart_of_redis(own_valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(own_valkey.url), []
    dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        own_valkey.kill()
        with pytest.raises(QueueUnreachable):
            broker.enqueue_many([job("q", "n")])
        own_valkey.start()
        broker.enqueue_many([job("q", "n")])
        soon("it has run", lambda: ran)


def test_jobs_that_hang_take_no_thread_of_other_queues(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "use_uvloop", lambda: None)  # it would stay on for the tests that follow
    release, hanging, ran = threading.Event(), [], []
    quiesced = threading.Event()

    async def nothing() -> None:
        return

    async def hang() -> None:
        hanging.append(1)
        await asyncio.to_thread(release.wait, 30)

    async def run() -> None:
        ran.append(1)

    runtime = WorkerRuntime(start=nothing, stop=nothing, quiesce=quiesced.set, budgets={"slow": 1})
    broker = fresh_broker(valkey.url, [runtime])
    dramatiq.actor(hang, broker=broker, actor_name="hang", queue_name="slow", priority=0)
    dramatiq.actor(run, broker=broker, actor_name="run", queue_name="q", priority=10)
    with working(broker, threads=1):
        broker.enqueue_many([job("slow", "hang") for _ in range(4)])
        soon("one hangs", lambda: hanging)
        broker.enqueue_many([job("q", "run") for _ in range(5)])
        soon("the others run", lambda: len(ran) == 5)
        assert len(hanging) == 1
        release.set()
        soon("the rest had its turn", lambda: len(hanging) == 4)
    assert quiesced.is_set()


def test_a_pull_job_looks_for_its_servers_every_few_seconds(tmp_path: Path) -> None:
    """Promise 8, recovery within ten seconds: Dramatiq's own back-off would grow to a minute."""
    (tmp_path / "relay.toml").write_text('[contexts.sea]\ndatabase_url = "postgresql://127.0.0.1:9/sea"\n')
    code = "from consumer.actors import pull_messages as p; print(p.options['max_backoff'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"RELAY_CONFIG": str(tmp_path / "relay.toml"), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["5000"], done.stderr
