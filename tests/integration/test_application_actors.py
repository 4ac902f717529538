"""Actors of an application run on the fleet's broker as on Dramatiq's: what they send, its end, its results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq.errors import BrokerConnectionError
from dramatiq.message import Message
from dramatiq.middleware import Middleware, Pipelines, Retries
from dramatiq.rate_limits import ConcurrentRateLimiter, WindowRateLimiter
from dramatiq.rate_limits.backends import RedisBackend as Limits
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend as Kept

from relay.adapters.dramatiq.broker import RelayBroker
from relay.devstack import ValkeyServer
from tests.hostile_errors import HOSTILE
from tests.integration.queueing import fresh_broker, working
from tests.waiting import wait_for


def waiting(broker: RelayBroker, queue: str) -> set[str]:
    found: Any = broker.client.lrange(f"{broker.namespace}:{queue}", 0, -1)
    return {id.decode() for id in found}


def dead(broker: RelayBroker, queue: str = "q") -> set[str]:
    found: Any = broker.client.zrange(f"{broker.namespace}:{queue}.XQ", 0, -1)
    return {id.decode() for id in found}


def test_who_sends_a_message_learns_under_which_id_it_waits(valkey: ValkeyServer) -> None:
    broker = fresh_broker(valkey.url)
    actor = dramatiq.actor(lambda: None, broker=broker, actor_name="n", queue_name="q")
    sent, late = actor.send(), actor.send_with_options(delay=60_000)
    assert waiting(broker, "q") == {sent.options["redis_message_id"]}
    assert (late.queue_name, waiting(broker, "q.DQ")) == ("q.DQ", {late.options["redis_message_id"]})


def test_a_message_for_nobody_is_dead_under_the_id_that_its_sender_knows(valkey: ValkeyServer) -> None:
    broker = fresh_broker(valkey.url)
    broker.declare_queue("q")
    sent = broker.enqueue(Message(queue_name="q", actor_name="nobody", args=(), kwargs={}, options={}))
    with working(broker):
        wait_for("it is dead", lambda: dead(broker) == {sent.options["redis_message_id"]})


@pytest.mark.parametrize("step", ["do_ack", "do_nack"])
@pytest.mark.parametrize(
    "error",
    [
        BrokerConnectionError("cut"),
        redis.exceptions.ConnectionError("cut"),
        redis.exceptions.TimeoutError("no answer"),
        redis.exceptions.ReadOnlyError("a replica"),
        redis.exceptions.ResponseError("OOM command not allowed"),
    ],
    ids=lambda it: type(it).__name__ if isinstance(it, Exception) else it,
)
def test_the_end_of_a_message_that_redis_did_not_note_is_told_again(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.05)
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.05)
    broker, outstanding = fresh_broker(valkey.url, [Retries(max_retries=0)]), list[int]()

    def end() -> None:
        if step == "do_nack":
            raise RuntimeError

    actor = dramatiq.actor(end, broker=broker, actor_name="n", queue_name="q")
    told = getattr(broker, step)
    with working(broker) as worker:
        thread = worker.consumers["q"]
        wait_for("it consumes", lambda: thread.consumer is not None)
        consumer: Any = thread.consumer

        def stumble(*words: Any) -> None:
            outstanding.append(consumer.outstanding_message_count)
            told(*words)
            if len(outstanding) == 1:
                raise error

        monkeypatch.setattr(broker, step, stumble)
        actor.send()
        wait_for("it is told again", lambda: len(outstanding) > 1)
        wait_for("nothing is left", lambda: broker.do_qsize("q") == 0)
        worker.join()
    assert outstanding[:2] == [1, 0]


class Interrupting(Middleware):
    """Raises what is no Exception, whatever it is told of."""

    def __init__(self, error: Callable[[], BaseException], first: Callable[[str], bool]) -> None:
        self._error, self._first = error, first

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith(("before_", "after_")):
            return super().__getattribute__(name)

        def hear(*_: Any, **__: Any) -> None:
            if self._first(name):
                raise self._error()

        return hear


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit", "GeneratorExit", "TimeIsUp", "Furious"])
def test_what_middleware_raises_ends_no_thread_of_a_worker(valkey: ValkeyServer, error: str) -> None:
    told, done, made = set[str](), set[int](), HOSTILE[error]

    def first(name: str) -> bool:
        """Once for each signal, outside of the main thread, as its Ctrl-C is meant."""
        if name in told or threading.current_thread() is threading.main_thread():
            return False
        told.add(name)
        return True

    broker = fresh_broker(valkey.url, [Retries(min_backoff=1, max_backoff=1), Interrupting(made, first)])
    failed = set[int]()

    def work(number: int) -> None:
        if number % 2 and number not in failed:
            failed.add(number)
            raise made()
        done.add(number)

    actor = dramatiq.actor(work, broker=broker, actor_name="n", queue_name="q")
    with working(broker) as worker:
        for number in range(8):
            actor.send(number)
        wait_for("all are done", lambda: len(done) == 8)
        assert all(thread.is_alive() for thread in (*worker.workers, *worker.consumers.values()))
    assert {"before_process_message", "after_process_message", "before_ack", "after_ack"} <= told


def test_a_queue_that_is_flushed_is_empty_also_of_what_was_deferred(valkey: ValkeyServer) -> None:
    broker = fresh_broker(valkey.url)
    broker.declare_queue("q")
    key = f"{broker.namespace}:q"
    broker.client.hset(f"{key}.msgs", "share|1", b"{}")
    broker.client.sadd(f"{key}.deferred", "share")
    broker.client.rpush(f"{key}.deferred:share", "share|1")
    broker.flush_all()
    assert not list(broker.client.scan_iter(f"{key}*"))


def test_results_and_pipelines_pass_through_redis(valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(url=valkey.url)
    broker = fresh_broker(valkey.url, [Retries(), Pipelines(), Results(backend=kept)])
    # What asks for a result asks the broker of the process for its backend.
    monkeypatch.setattr("dramatiq.broker.global_broker", broker)

    @dramatiq.actor(broker=broker, queue_name="q", store_results=True)
    def add(left: int, right: int) -> int:
        return left + right

    with working(broker):
        assert kept.get_result(add.send(1, 2), block=True, timeout=60_000) == 3
        chain = (add.message(1, 2) | add.message(3) | add.message(4)).run()
        assert chain.get_result(block=True, timeout=60_000) == 10
        group = dramatiq.group([add.message(n, n) for n in range(5)]).run()
        assert list(group.get_results(block=True, timeout=60_000)) == [0, 2, 4, 6, 8]


def test_rate_limiters_in_redis_hold_actors_back_and_let_them_go(valkey: ValkeyServer) -> None:
    backend, broker = Limits(url=valkey.url), fresh_broker(valkey.url, [Retries(min_backoff=20, max_backoff=50)])
    alone = ConcurrentRateLimiter(backend, f"{broker.namespace}:alone", limit=1)
    window = WindowRateLimiter(backend, f"{broker.namespace}:window", limit=2, window=60)
    running, most, ran, lock = list[int](), list[int](), list[int](), threading.Lock()

    @dramatiq.actor(broker=broker, queue_name="q", max_retries=None)
    def work(number: int) -> None:
        with alone.acquire():
            with lock:
                running.append(number)
                most.append(len(running))
            running.remove(number)
            ran.append(number)

    with working(broker, threads=4):
        for number in range(10):
            work.send(number)
        wait_for("all have run", lambda: sorted(ran) == list(range(10)))
    assert max(most) == 1
    admitted = []
    for _ in range(4):
        with window.acquire(raise_on_failure=False) as free:
            admitted.append(free)
    assert admitted == [True, True, False, False]
