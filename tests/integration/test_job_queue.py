"""The queue hands a job over at once and costs nothing while idle."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq.middleware import Retries

from relay.adapters.dramatiq.broker import Capacity, FetchTimes, RelayBroker, create_broker
from relay.adapters.dramatiq.gates import LONGEST_BACKOFF
from relay.adapters.dramatiq.runtime import WorkerRuntime
from relay.devstack import ValkeyServer
from relay.domain.errors import QueueUnreachable
from tests.integration.queueing import calls, fresh_broker, working
from tests.jobs import job
from tests.waiting import wait_for

pytestmark = pytest.mark.anyio

NOWHERE = "redis://127.0.0.1:9/0"


def test_jobs_enqueued_together_are_run_in_order_and_leave_nothing_behind(valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(valkey.url), []
    dramatiq.actor(ran.append, broker=broker, actor_name="note", queue_name="q")
    broker.enqueue_many([job("q", "note", n) for n in range(200)])
    with working(broker, threads=1):
        wait_for("all have run", lambda: len(ran) == 200)
        assert ran == list(range(200))
        wait_for("all are acknowledged", lambda: not broker.client.hlen(f"{broker.namespace}:q.msgs"))
    left = [key.decode() for key in broker.client.scan_iter(f"{broker.namespace}:*")]
    assert not [key for key in left if "heartbeats" not in key]


def test_what_a_worker_left_behind_is_taken_over_and_run(valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(valkey.url), []
    dramatiq.actor(ran.append, broker=broker, actor_name="note", queue_name="q")
    broker.enqueue_many([job("q", "note", n) for n in range(3)])
    left = create_broker(valkey.url, namespace=broker.namespace, middleware=[])
    left.broker_id = "gone"
    assert len(left.fetch("q", Capacity(2, 2))[2]) == 2
    with working(broker):
        wait_for("the rest has run", lambda: ran == [2])
        broker.take_over("somebody")
        broker.take_over("gone")
        wait_for("all have run", lambda: sorted(ran) == [0, 1, 2])
        wait_for("all are acknowledged", lambda: not broker.client.hlen(f"{broker.namespace}:q.msgs"))
        broker.take_over("gone")
    assert len(ran) == 3, "once"
    assert not broker.client.exists(f"{broker.namespace}:__acks__.gone.q")


def test_without_redis_nothing_is_taken_over() -> None:
    broker = create_broker(NOWHERE, namespace="test", middleware=[])
    broker.declare_queue("q")
    with pytest.raises(QueueUnreachable):
        broker.take_over("gone")


def test_a_worker_that_is_about_to_end_leaves_to_others_what_it_has_not_begun(valkey: ValkeyServer) -> None:
    """It may take seconds. What it had fetched, or fetches then, would wait for its end."""
    release, ran = threading.Event(), list[tuple[str, int]]()

    async def nothing() -> None:
        return

    def process(name: str, namespace: str | None = None) -> RelayBroker:
        def work(number: int) -> None:
            if number == 0:
                release.wait(60)
            ran.append((name, number))

        runtime = WorkerRuntime(start=nothing, stop=nothing, quiesce=lambda: None, budgets={}, uvloop=False)
        broker = fresh_broker(valkey.url, [runtime] if namespace is None else [])
        broker.namespace = namespace or broker.namespace
        dramatiq.actor(work, broker=broker, actor_name="work", queue_name="q")
        return broker

    first = process("first")
    first.enqueue_many([job("q", "work", number) for number in range(2)])
    worker = dramatiq.Worker(first, worker_threads=1, worker_timeout=100)
    worker.start()
    acks = f"{first.namespace}:__acks__.{first.broker_id}.q"
    wait_for("it has fetched all", lambda: first.client.scard(acks) == 2)
    held: Any = worker.work_queue
    wait_for("it has begun one", lambda: (held.usage().busy, held.usage().waiting) == (1, 1))
    ending = threading.Thread(target=worker.stop)
    ending.start()
    wait_for("it is about to end", first.ending.is_set)
    first.enqueue_many([job("q", "work", 2)])
    with working(process("second", first.namespace)):
        wait_for("another has run the others", lambda: sorted(ran) == [("second", 1), ("second", 2)])
        release.set()
        ending.join()
    assert ran[-1] == ("first", 0)


def test_a_delayed_job_runs_when_it_is_due(valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(valkey.url), []
    actor = dramatiq.actor(lambda: ran.append(time.monotonic()), broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        start = time.monotonic()
        broker.enqueue(actor.message(), delay=400)
        wait_for("it has run", lambda: ran)
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
        wait_for("it has run three times", lambda: len(ran) == 3)


def test_a_busy_worker_fetches_and_acknowledges_many_at_a_time(own_valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(own_valkey.url), []
    dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")
    broker.enqueue_many([job("q", "n") for _ in range(400)])
    broker.client.config_resetstat()
    with working(broker, threads=8):
        wait_for("all are acknowledged", lambda: not broker.client.hlen(f"{broker.namespace}:q.msgs"))
    scripts = calls(broker.client)["evalsha"]
    assert scripts < 400, "a script to fetch and one to acknowledge for each job would be 800"


def test_a_consumer_of_quick_jobs_fetches_more_ahead_until_they_are_slow(valkey: ValkeyServer) -> None:
    broker = fresh_broker(valkey.url, times=FetchTimes(often=3600.0, seldom=3600.0))
    dramatiq.actor(lambda: None, broker=broker, actor_name="n", queue_name="q")
    broker.enqueue_many([job("q", "n") for _ in range(600)])
    consumer = broker.consume("q", prefetch=4)

    def take() -> None:
        message = next(consumer)
        if message is not None:
            consumer.ack(message)

    for _ in range(300):
        take()
    pace = consumer.capacity.pace("")
    assert pace.prefetch == 128
    while consumer.message_cache:
        take()
    pace.fetched_at -= 2 * 3600
    take()
    assert pace.prefetch == 4
    consumer.close()


def test_a_lone_job_is_fetched_once_and_nothing_after_it(own_valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(own_valkey.url), []
    dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        # The first one also waits for the look that a new worker takes at what others put aside.
        for count in (1, 2, 3):
            broker.client.config_resetstat()
            broker.enqueue_many([job("q", "n")])
            wait_for("it has run", lambda n=count: len(ran) == n)
            wait_for("it is acknowledged", lambda: not broker.client.hlen(f"{broker.namespace}:q.msgs"))
        assert calls(broker.client)["evalsha"] == 2, "one script fetches it, one acknowledges it"


def test_acknowledgements_that_redis_did_not_take_are_sent_again(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.05)
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.05)
    broker, ran, cut = fresh_broker(valkey.url), [], []
    acknowledge = broker.do_ack

    def stumble(queue_name: str, *ids: str) -> None:
        if len(cut) < 3:
            cut.append(ids)
            raise redis.exceptions.ConnectionError("cut")
        acknowledge(queue_name, *ids)

    monkeypatch.setattr(broker, "do_ack", stumble)
    dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")
    broker.enqueue_many([job("q", "n") for _ in range(50)])
    with working(broker):
        wait_for("all are acknowledged", lambda: not broker.client.hlen(f"{broker.namespace}:q.msgs"))
    assert (len(ran), len(cut)) == (50, 3)


def test_a_worker_outlives_a_restart_of_redis(own_valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(own_valkey.url), []
    dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        own_valkey.kill()
        with pytest.raises(QueueUnreachable):
            broker.enqueue_many([job("q", "n")])
        own_valkey.start()
        broker.enqueue_many([job("q", "n")])
        wait_for("it has run", lambda: ran)


def test_jobs_that_hang_take_no_thread_of_other_queues(valkey: ValkeyServer) -> None:
    release, hanging, ran = threading.Event(), [], []
    quiesced = threading.Event()

    async def nothing() -> None:
        return

    async def hang() -> None:
        hanging.append(1)
        await asyncio.to_thread(release.wait, 30)

    async def run() -> None:
        ran.append(1)

    runtime = WorkerRuntime(start=nothing, stop=nothing, quiesce=quiesced.set, budgets={"slow": 1}, uvloop=False)
    broker = fresh_broker(valkey.url, [runtime])
    dramatiq.actor(hang, broker=broker, actor_name="hang", queue_name="slow", priority=0)
    dramatiq.actor(run, broker=broker, actor_name="run", queue_name="q", priority=10)
    with working(broker, threads=1):
        broker.enqueue_many([job("slow", "hang") for _ in range(4)])
        wait_for("one hangs", lambda: hanging)
        broker.enqueue_many([job("q", "run") for _ in range(5)])
        wait_for("the others run", lambda: len(ran) == 5)
        assert len(hanging) == 1
        release.set()
        wait_for("the rest had its turn", lambda: len(hanging) == 4)
    assert quiesced.is_set()


def test_threads_wait_for_a_connection_and_none_is_refused(valkey: ValkeyServer) -> None:
    """redis-py's own pool raises "Too many connections" for one thread too many, which looks like an outage."""
    client, count = fresh_broker(valkey.url).client, 40
    together = threading.Barrier(count)

    def wait(_: int) -> None:
        together.wait(30)
        client.blpop("nothing", timeout=0.05)

    with ThreadPoolExecutor(count) as threads:
        assert [*threads.map(wait, range(count))] == [None] * count
    assert len(client.connection_pool._connections) <= 4


def test_the_age_of_the_head_is_by_the_clock_of_redis_alone(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host ten minutes behind enqueues: the sweep must not take its messages for ten minutes old."""
    broker = fresh_broker(valkey.url)
    assert broker.head_waits("q") == timedelta(0)
    with monkeypatch.context() as behind:
        clock = time.time
        behind.setattr(time, "time", lambda: clock() - 600)
        other = create_broker(valkey.url, namespace=broker.namespace, middleware=[])
        other.enqueue_many([job("q", "n")])
        dramatiq.actor(lambda: None, broker=other, actor_name="n", queue_name="retried").send()
    assert broker.head_waits("q") < timedelta(seconds=30)
    assert broker.head_waits("retried") < timedelta(seconds=30)
    wait_for("it has waited", lambda: broker.head_waits("q") >= timedelta(milliseconds=100))


def test_the_head_that_does_not_say_when_it_came_delays_no_sweep(valkey: ValkeyServer) -> None:
    broker = fresh_broker(valkey.url)
    key, identity, data = broker.entry(job("q", "n"))
    broker.client.hset(f"{key}.msgs", identity, data)
    broker.client.rpush(key, identity)
    assert broker.head_waits("q") == timedelta(0)


@pytest.mark.parametrize(
    "actor", ["from consumer.actors import pull_messages as p", "from relay.actors import publish_shard as p"]
)
def test_a_job_that_waits_for_a_server_is_back_before_its_gate_opens(tmp_path: Path, actor: str) -> None:
    """Promise 8, recovery within ten seconds: Dramatiq's own back-off would grow to a week."""
    (tmp_path / "relay.toml").write_text('[contexts.sea]\ndatabase_url = "postgresql://127.0.0.1:9/sea"\n')
    done = subprocess.run(
        [sys.executable, "-c", f"{actor}; print(p.options['backoff'].maximum.total_seconds())"],
        env={"RELAY_CONFIG": str(tmp_path / "relay.toml"), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.split() == [str(LONGEST_BACKOFF.total_seconds())], done.stderr
