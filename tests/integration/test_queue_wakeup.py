"""All consumers of a process wait on one connection, and learn of a job at once."""

from __future__ import annotations

import threading
import time

import dramatiq
import pytest
import redis

from relay.adapters.dramatiq.broker import FetchTimes
from relay.adapters.dramatiq.shares import DEFERRED, SHARE
from relay.adapters.dramatiq.wakeup import Wakeups, WakeupTimes
from relay.devstack import ValkeyServer
from tests.integration.queueing import calls, fresh_broker, working
from tests.jobs import job
from tests.waiting import wait_for


def test_an_idle_worker_asks_nothing(own_valkey: ValkeyServer) -> None:
    times = FetchTimes(idle=0.02, upkeep_waits=1_000_000)
    broker, ran = fresh_broker(own_valkey.url, times=times, wakeup_times=WakeupTimes(ping_every=0.3)), []
    actor = dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")

    def rests() -> bool:
        broker.client.config_resetstat()
        wait_for("it shows signs of life", lambda: calls(broker.client).get("ping", 0) >= 2)
        return not calls(broker.client).keys() - {"ping", "info", "config|resetstat"}

    with working(broker):
        actor.send()
        wait_for("it has run", lambda: ran)
        wait_for("its waits begin and end, and it asks nothing", rests)


def test_an_idle_worker_starts_a_job_at_once(own_valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(own_valkey.url, times=FetchTimes(idle=4.0)), []
    actor = dramatiq.actor(lambda: ran.append(time.monotonic()), broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        for count in (1, 2):
            # Once for the delay queue, and once for the queue before each job.
            wait_for("it waits", lambda n=count: calls(broker.client).get("exists", 0) > n)
            start = time.monotonic()
            actor.send()
            wait_for("it has run", lambda n=count: len(ran) == n)
            assert ran[-1] - start < 3, "less than a wait lasts: it ended early"


def test_all_queues_of_a_process_wait_on_one_connection(own_valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(own_valkey.url), []
    for number in range(20):
        dramatiq.actor(ran.append, broker=broker, actor_name=f"n{number}", queue_name=f"q{number}")
    with working(broker):
        for number in range(20):
            broker.enqueue_many([job(f"q{number}", f"n{number}", number)])
            broker.enqueue(job(f"q{number}", f"n{number}", number), delay=10)
        wait_for("all have run", lambda: len(ran) == 40)
        with redis.Redis.from_url(own_valkey.url) as client:
            assert len(client.client_list()) - 1 <= 5, "four for commands, one that waits"


def test_a_worker_starts_what_others_have_put_aside_though_the_queue_is_empty(valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(valkey.url, times=FetchTimes(upkeep_waits=1_000_000)), []
    dramatiq.actor(ran.append, broker=broker, actor_name="n", queue_name="q")

    def put_aside(number: int) -> None:
        key, identity, data = broker.entry(job("q", "n", number).copy(options={SHARE: "slow"}))
        broker.client.hset(f"{key}.msgs", identity, data)
        broker.client.rpush(f"{key}{DEFERRED}:slow", identity)
        broker.client.sadd(f"{key}{DEFERRED}", "slow")

    put_aside(1)
    with working(broker):
        wait_for("one that begins to work does it", lambda: ran == [1])
        put_aside(2)
        wait_for("and so does one that waits", lambda: ran == [1, 2])


def test_an_address_that_asks_for_the_older_protocol_changes_nothing(own_valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(f"{own_valkey.url}?protocol=2"), []
    actor = dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        wait_for("it waits", lambda: calls(broker.client).get("exists", 0) >= 2)
        actor.send()
        wait_for("it has run", lambda: ran)


def test_a_user_without_client_tracking_waits_on_more_connections(own_valkey: ValkeyServer) -> None:
    with redis.Redis.from_url(own_valkey.url) as client:
        client.acl_setuser("default", enabled=True, categories=["+@all"], commands=["-client|tracking"])
    broker, ran = fresh_broker(own_valkey.url), []
    actor = dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        wait_for("it waits", lambda: calls(broker.client).get("blmove", 0) >= 2)
        actor.send()
        wait_for("it has run", lambda: ran)


class NotedWakeups(Wakeups):
    """Notes each wait: the queue, and its limit in seconds."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.waits: list[tuple[str, float]] = []

    def wait(self, key: str, woken: threading.Event, seconds: float) -> bool:
        self.waits.append((key.rpartition(":")[2], seconds))
        return super().wait(key, woken, seconds)


def test_a_delay_queue_is_looked_at_often_only_while_something_is_delayed(valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(valkey.url, times=FetchTimes(idle=0.3, busy=0.02)), []
    broker.wakeups = noted = NotedWakeups(valkey.url)
    waits = noted.waits
    actor = dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        wait_for("it waits", lambda: waits.count(("q.DQ", 0.3)) > 2)
        assert ("q.DQ", 0.02) not in waits
        broker.enqueue(actor.message(), delay=400)
        wait_for("it looks often", lambda: ("q.DQ", 0.02) in waits)
        wait_for("it has run", lambda: ran)
        del waits[:]
        wait_for("it waits again", lambda: waits.count(("q.DQ", 0.3)) > 2)
    assert ("q", 0.02) not in waits


def test_a_redis_that_falls_silent_is_noticed_and_jobs_run_when_it_answers(
    own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.05)
    # Whoever asks at that moment notices it too, but says so in other words: nobody asks in the next seconds.
    quick = WakeupTimes(ping_every=0.1, silence=0.5)
    broker, ran = fresh_broker(own_valkey.url, times=FetchTimes(idle=5.0), wakeup_times=quick), []
    actor = dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="n", queue_name="q")
    with working(broker):
        wait_for("it waits", lambda: calls(broker.client).get("exists", 0) >= 2)
        own_valkey.pause()
        wait_for("the silence is noticed", lambda: "no answer within" in caplog.text)
        own_valkey.resume()
        actor.send()
        wait_for("it has run", lambda: ran)
