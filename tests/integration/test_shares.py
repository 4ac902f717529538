"""Fair shares of a queue: however much of others hangs or waits in Redis, who comes late goes on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import dramatiq
import pytest
from dramatiq.asyncio import get_event_loop_thread, set_event_loop_thread
from dramatiq.middleware import Retries

from relay.adapters.dramatiq.broker import Capacity, RelayBroker, delayed
from relay.adapters.dramatiq.runtime import WorkerRuntime
from relay.adapters.dramatiq.shares import SHARE
from relay.devstack import ValkeyServer
from tests.integration.queueing import fresh_broker, working
from tests.jobs import job
from tests.waiting import wait_for


class Fleet:
    """Workers on one queue. Messages of a share that hangs wait for ``release``. ``ran``: what is done."""

    def __init__(self, url: str) -> None:
        self.url, self.release = url, threading.Event()
        self.begun, self.ran = Counter[str](), list[tuple[str, int]]()
        self.workers: list[dramatiq.Worker] = []
        self.broker = self.make()

    def make(self, namespace: str | None = None) -> RelayBroker:
        async def nothing() -> None:
            return

        runtime = WorkerRuntime(start=nothing, stop=nothing, quiesce=lambda: None, budgets={}, uvloop=False)
        broker = fresh_broker(self.url, [Retries(min_backoff=10), runtime])
        broker.namespace = namespace or broker.namespace
        dramatiq.actor(self.work, broker=broker, actor_name="work", queue_name="q")
        return broker

    def work(self, share: str, number: int) -> None:
        self.begun[share] += 1
        if share.startswith("hang"):
            self.release.wait(60)
        self.ran.append((share, number))

    def send(self, share: str, count: int) -> None:
        self.broker.enqueue_many([self.message(share, number) for number in range(count)])

    def message(self, share: str, number: int) -> dramatiq.Message[Any]:
        return job("q", "work", share, number).copy(options={SHARE: share})

    @contextmanager
    def at_work(self, *, processes: int = 1, threads: int = 4) -> Iterator[None]:
        with ExitStack() as stack:
            brokers = [self.broker, *(self.make(self.broker.namespace) for _ in range(processes - 1))]
            for broker in brokers:
                self.workers.append(stack.enter_context(working(broker, threads)))
                # dramatiq knows one event loop a process. Each worker stops its own.
                stack.callback(set_event_loop_thread, get_event_loop_thread())
            stack.callback(self.release.set)
            yield

    def left(self) -> int:
        return int(self.broker.client.hlen(f"{self.broker.namespace}:q.msgs"))

    def numbers(self, share: str) -> list[int]:
        return [number for found, number in self.ran if found == share]


@pytest.fixture
def fleet(valkey: ValkeyServer) -> Fleet:
    return Fleet(valkey.url)


def test_a_share_goes_on_behind_thousands_of_messages_of_shares_that_hang(fleet: Fleet) -> None:
    hanging = [f"hang {n}" for n in range(20)]
    with fleet.at_work(processes=2):
        for share in hanging:
            fleet.send(share, 200)
        wait_for("all places are taken", lambda: sum(fleet.begun.values()) >= 8)
        fleet.send("quick", 50)
        wait_for("the other share is done", lambda: len(fleet.numbers("quick")) == 50)
        assert not fleet.release.is_set()
        # And what comes now, the others put aside, goes first.
        fleet.send("late", 50)
        wait_for("the one after it is done", lambda: len(fleet.numbers("late")) == 50)
        fleet.release.set()
        wait_for("all are done", lambda: len(fleet.ran) == 20 * 200 + 100, seconds=60)
        wait_for("all are acknowledged", lambda: not fleet.left())
    assert all(sorted(fleet.numbers(share)) == [*range(200)] for share in hanging)


def test_what_was_put_aside_is_for_every_worker_and_in_order(fleet: Fleet) -> None:
    with fleet.at_work(threads=1):
        fleet.send("hang", 300)
        wait_for("one hangs", lambda: fleet.begun["hang"])
        fleet.send("quick", 1)
        wait_for("the other is done", lambda: fleet.ran)
        assert fleet.broker.backlog("q", "hang") > 200
        fleet.release.set()
    assert fleet.broker.client.exists(f"{fleet.broker.namespace}:q.deferred:hang")
    done = len(fleet.ran)
    other = Fleet(fleet.url)
    other.broker.namespace = fleet.broker.namespace
    other.release.set()
    with other.at_work(threads=1):
        wait_for("the other worker has done the rest", lambda: len(other.ran) == 301 - done)
        wait_for("all are acknowledged", lambda: not other.left())
    # What was fetched when the first worker stopped came back to the end; what had been put aside keeps its order.
    deferred = [number for number in other.numbers("hang") if number > max(fleet.numbers("hang")) + 16]
    assert deferred == sorted(deferred)
    left = [key.decode() for key in other.broker.client.scan_iter(f"{other.broker.namespace}:q*")]
    assert left == []


def test_what_a_worker_has_fetched_and_not_begun_is_for_others_as_soon_as_it_stops(fleet: Fleet) -> None:
    fleet.send("quick", 6)
    consumer = fleet.broker.consume("q", prefetch=8, timeout=100)
    begun = next(consumer)
    assert begun.args == ("quick", 0)
    assert fleet.broker.backlog("q") == 0, "it has fetched all"
    consumer.close()
    assert fleet.broker.backlog("q") == 5
    with fleet.at_work():
        wait_for("the others are done", lambda: sorted(fleet.numbers("quick")) == [1, 2, 3, 4, 5])


def test_what_was_put_aside_is_seen_when_the_first_fetch_is_the_broker_s_own(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fetch in a thousand is, by chance, and knows the queue alone."""
    fleet.send("hang", 2)
    hung = Capacity(least=1, most=1)
    hung.add("id", "hang", 1.0)
    own = iter([False, True])
    monkeypatch.setattr(fleet.broker, "_should_do_maintenance", lambda _: next(own, False))
    assert fleet.broker.fetch("q", hung) == (False, True, [])
    fleet.release.set()
    with fleet.at_work(threads=1):
        wait_for("they are done", lambda: fleet.numbers("hang") == [0, 1])


def test_a_share_that_is_alone_is_worked_off_in_order(fleet: Fleet) -> None:
    fleet.send("quick", 2_000)
    with fleet.at_work(threads=1):
        wait_for("all are done", lambda: len(fleet.ran) == 2_000, seconds=60)
        wait_for("all are acknowledged", lambda: not fleet.left())
    assert fleet.numbers("quick") == [*range(2_000)]


def test_no_more_is_fetched_of_a_share_that_is_alone_than_there_is_room_for(fleet: Fleet) -> None:
    """So nothing of it is put aside while it is quick."""
    fleet.send("quick", 300)
    fleet.broker.maintenance_chance = 0
    capacity, fetched = Capacity(least=8, most=128), 0
    while fetched < 300:
        _, deferred, found = fleet.broker.fetch("q", capacity)
        assert (bool(found), deferred) == (True, False)
        ids = [str(fetched + number) for number in range(len(found))]
        for id in ids:
            capacity.add(id, "quick", 1 + fetched / 10_000)
        for id in ids:
            capacity.release(id)
        fetched += len(found)


def test_a_message_that_comes_back_later_is_of_the_same_share(fleet: Fleet) -> None:
    """As a retry does."""
    with fleet.at_work(threads=1):
        fleet.send("hang", 40)
        wait_for("one hangs", lambda: fleet.begun["hang"])
        fleet.broker.enqueue_many([delayed(fleet.message("quick", 1), timedelta(milliseconds=300))])
        fleet.broker.enqueue(fleet.message("quick", 2), delay=300)
        wait_for("both are done", lambda: sorted(fleet.numbers("quick")) == [1, 2])
        fleet.broker.enqueue(fleet.message("hang", 41), delay=10)
        wait_for("it is put aside", lambda: fleet.broker.backlog("q", "hang") >= 25)


def test_how_long_a_share_waits_counts_what_is_put_aside_of_it(fleet: Fleet) -> None:
    with fleet.at_work(threads=1):
        fleet.send("hang", 100)
        wait_for("one hangs", lambda: fleet.begun["hang"])
        fleet.send("quick", 1)
        wait_for("the other is done", lambda: fleet.ran)
        wait_for("it waits", lambda: fleet.broker.head_waits("q", "hang") > timedelta(milliseconds=50))
        assert fleet.broker.head_waits("q", "quick") == timedelta(0)


# --- how much is fetched ahead ---


def test_a_share_has_room_again_when_a_part_of_what_it_holds_is_done() -> None:
    capacity = Capacity(least=8, most=128)
    for number in range(8):
        capacity.add(str(number), "a", 1.0)
    assert (capacity.full(), capacity.free()) == ({"a"}, {"a": 0})
    assert not capacity.release("0")
    assert capacity.release("1"), "that makes a quarter"
    assert (capacity.full(), capacity.free()) == (set(), {"a": 2})
    assert not capacity.release("2"), "it had room before"
    assert not capacity.release("2"), "it is known no longer"
    assert len(capacity) == 5
