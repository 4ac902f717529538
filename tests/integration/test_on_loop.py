"""Messages that the event loop of a worker takes: within the budget of their queue, and ended as any other."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import dramatiq
import pytest
from dramatiq.errors import Retry
from dramatiq.middleware import Middleware, MiddlewareError, Retries, SkipMessage, TimeLimit

from relay.adapters.dramatiq.broker import RelayBroker
from relay.adapters.dramatiq.runtime import WorkerRuntime
from relay.adapters.dramatiq.shares import SHARE
from relay.adapters.dramatiq.work_queue import LoopActor
from relay.devstack import ValkeyServer
from relay.domain.members import Usage
from tests.integration.queueing import fresh_broker
from tests.jobs import job
from tests.waiting import wait_for

around: ContextVar[str] = ContextVar("around", default="nothing")


class Service:
    """An actor of the loop: each call waits for the gate. ``answer`` makes what it returns, or raises."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.calls: list[str] = []
        self.under_way = self.most = 0
        self.answer: Callable[[str], Any] = lambda name: name

    def takes(self, name: str) -> bool:
        return not name.startswith("thread")

    async def run(self, name: str) -> Any:
        self.calls.append(name)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        while not self.gate.is_set():  # noqa: ASYNC110 - the test is in another thread
            await asyncio.sleep(0.005)
        self.under_way -= 1
        return self.answer(name)


class Rig:
    """A worker with two threads. ``ended``: the thread that ended each message, and its result."""

    def __init__(self, url: str) -> None:
        self.service, self.ended, self.stopped = Service(), [], threading.Event()

        async def nothing() -> None:
            return

        self.runtime = WorkerRuntime(
            start=nothing, stop=nothing, quiesce=self.stopped.set, budgets={}, uvloop=False
        )
        self.runtime.on_loop["ask"] = LoopActor(self.service.run, self.service.takes)
        self.runtime.on_loop["wait"] = LoopActor(self.service.run, waits=True)
        self.around: list[tuple[str, str]] = []
        around = Around(self.around, self.ended)
        self.broker: RelayBroker = fresh_broker(url, [Retries(min_backoff=10), around, self.runtime])
        dramatiq.actor(self.ask, broker=self.broker, actor_name="ask", queue_name="q", priority=10)
        dramatiq.actor(self.ask, broker=self.broker, actor_name="wait", queue_name="duties")
        self.worker = dramatiq.Worker(self.broker, worker_threads=2, worker_timeout=50)
        self.worker.queue_prefetch = 16

    def ask(self, name: str) -> None:
        """Process what is not for the loop."""

    def send(self, *names: str, share: str = "") -> None:
        messages = [job("q", "ask", name) for name in names]
        self.broker.enqueue_many([message.copy(options={SHARE: share}) for message in messages])

    @property
    def names(self) -> list[str]:
        return sorted(name for _, name, _ in self.ended)

    @property
    def kept(self) -> int:
        """How many messages Redis still holds."""
        return int(self.broker.client.hlen(f"{self.broker.namespace}:q.msgs"))


class Around(Middleware):
    def __init__(self, seen: list[tuple[str, str]], ended: list[tuple[threading.Thread, str, Any]]) -> None:
        self.seen, self.ended = seen, ended

    def before_process_message(self, _: Any, message: Any) -> None:
        self.seen.append(("before", message.args[0]))

    def after_process_message(self, _: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
        self.seen.append((type(exception).__name__, message.args[0]))
        if exception is None:
            self.ended.append((threading.current_thread(), message.args[0], result))


@pytest.fixture
def rig(valkey: ValkeyServer) -> Iterator[Rig]:
    rig = Rig(valkey.url)
    rig.worker.start()
    yield rig
    rig.service.gate.set()
    if not rig.stopped.is_set():
        rig.worker.stop()
    rig.broker.close()
    gc.unfreeze()


def test_as_many_are_under_way_as_there_are_threads_and_none_of_those_waits(rig: Rig) -> None:
    rig.send(*"abcdef")
    wait_for("two are under way", lambda: len(rig.service.calls) == 2)
    blocked = [thread for thread in rig.worker.workers if thread.work_queue._thread_shares.get(thread.ident)]
    assert not blocked
    rig.service.gate.set()
    wait_for("all are ended", lambda: rig.names == list("abcdef"))
    assert rig.service.most == 2
    assert len({thread for thread, _, _ in rig.ended}) == 1
    assert [found for _, _, found in rig.ended] == [name for _, name, _ in rig.ended]
    wait_for("all are acknowledged", lambda: not rig.kept)


def test_the_loop_and_the_threads_do_not_wait_for_each_other(rig: Rig) -> None:
    rig.send("a", "b", "c", "thread")
    wait_for("two are under way", lambda: len(rig.service.calls) == 2)
    wait_for("a thread has ended the other kind", lambda: rig.names == ["thread"])
    rig.service.gate.set()
    wait_for("all are ended", lambda: rig.names == ["a", "b", "c", "thread"])
    [(thread, found)] = [(thread, found) for thread, name, found in rig.ended if name == "thread"]
    assert (found, thread in {it for it, name, _ in rig.ended if name == "a"}) == (None, False)
    assert rig.service.most == 2


def test_calls_make_a_worker_busy_and_what_mostly_waits_does_not(rig: Rig) -> None:
    duties = [job("duties", "wait", f"d{n}").copy(options={SHARE: f"pull:{n}"}) for n in range(5)]
    rig.broker.enqueue_many(duties)
    wait_for("all duties are under way", lambda: len(rig.service.calls) == 5)
    assert rig.runtime.usage() == Usage(threads=2, busy=0, doing={"duties": 5})
    rig.send("a", share="sea/one")
    rig.send("b", "c", "d", share="sea/two")
    wait_for("the calls are under way", lambda: len(rig.service.calls) == 8)
    doing = {"duties": 5, "sea/two": 2, "sea/one": 1}
    wait_for("one waits", lambda: rig.runtime.usage() == Usage(threads=2, busy=2, waiting=1, doing=doing))


def test_what_waits_for_a_slot_is_known_by_its_share(rig: Rig) -> None:
    rig.send(*"abcde", share="sea/one")
    rig.send("f", "g", "h", share="sea/two")
    wait_for("all others wait", lambda: (usage := rig.runtime.usage()) is not None and usage.waiting == 4)

    def ahead(share: str, limit: int) -> list[str]:
        return [it.args[0] for it in rig.runtime.ahead("q", share, lambda it: it.actor_name == "ask", limit)]

    assert (sorted(ahead("sea/one", 9)), ahead("sea/two", 9), ahead("sea", 9)) == (["c", "d", "e"], ["h"], [])
    assert ahead("sea/one", 1) == ["c"]


def test_each_share_has_places_of_its_own(rig: Rig) -> None:
    rig.send(*(f"hangs {n}" for n in range(60)), share="hanging")
    wait_for("as many hang as there are threads", lambda: len(rig.service.calls) == 2)
    rig.send("a", "b", "c", share="quick")
    wait_for("the other share is under way", lambda: sorted(rig.service.calls[2:]) == ["a", "b"])
    rig.service.gate.set()
    wait_for("all are ended", lambda: len(rig.ended) == 63)
    assert rig.service.most == 4
    wait_for("all are acknowledged", lambda: not rig.kept)


def test_nothing_around_a_message_is_left_around_the_next(rig: Rig) -> None:
    def answer(name: str) -> str:
        found = around.get()
        around.set(name)
        return found

    rig.service.answer = answer
    rig.service.gate.set()
    rig.send(*"abcdef")
    wait_for("all are ended", lambda: len(rig.ended) == 6)
    assert {found for _, _, found in rig.ended} == {"nothing"}


def test_what_the_loop_raises_the_actor_raises(rig: Rig) -> None:
    def answer(name: str) -> str:
        if len(rig.service.calls) == 1:
            raise Retry(delay=20)
        if len(rig.service.calls) == 2:
            raise ValueError(name)
        return "third time"

    rig.service.answer = answer
    rig.service.gate.set()
    rig.send("a")
    wait_for("it has been ended", lambda: rig.ended)
    assert (rig.service.calls, rig.ended[0][2]) == (["a", "a", "a"], "third time")
    expected = ["before", "Retry", "before", "ValueError", "before", "NoneType"]
    wait_for("the middleware has heard of it", lambda: [kind for kind, _ in rig.around] == expected)


def test_middleware_is_around_the_call(rig: Rig) -> None:
    rig.send("a")
    wait_for("it is under way", lambda: rig.service.calls)
    assert rig.around == [("before", "a")]
    rig.service.gate.set()
    wait_for("it is ended", lambda: rig.around == [("before", "a"), ("NoneType", "a")])


def test_what_middleware_skips_is_not_called(rig: Rig) -> None:
    class Skip(Middleware):
        def before_process_message(self, _: Any, message: Any) -> None:
            if message.args[0] == "b":
                raise SkipMessage

    rig.broker.add_middleware(Skip())
    rig.service.gate.set()
    rig.send(*"abc")
    wait_for("the others are ended", lambda: rig.names == ["a", "c"])
    wait_for("all are acknowledged", lambda: not rig.kept)
    assert sorted(rig.service.calls) == ["a", "c"]


def test_middleware_that_breaks_a_rule_fails_the_message(rig: Rig) -> None:
    class Refuse(Middleware):
        refused = False

        def before_process_message(self, _: Any, message: Any) -> None:
            if not self.refused:
                self.refused = True
                raise MiddlewareError("not now")

    rig.broker.add_middleware(Refuse())
    rig.service.gate.set()
    rig.send("a")
    wait_for("it is tried again", lambda: rig.names == ["a"])
    assert ("MiddlewareError", "a") in rig.around
    assert rig.service.calls == ["a"]


def test_nobody_interrupts_the_loop(rig: Rig) -> None:
    """A time limit would raise in the thread of the loop, in the middle of what is not its message."""
    limit = TimeLimit(time_limit=100, interval=10)
    rig.broker.add_middleware(limit)
    limit.after_worker_boot(rig.broker, rig.worker)
    rig.send("a")
    wait_for("it is under way", lambda: rig.service.calls)
    assert not limit.manager.deadlines
    rig.service.gate.set()
    wait_for("it is ended", lambda: rig.names == ["a"])


def test_the_collector_passes_over_what_was_there_when_the_worker_began(rig: Rig) -> None:
    assert gc.get_freeze_count() > 10_000


def test_arguments_that_do_not_fit_are_the_actors_to_refuse(rig: Rig) -> None:
    rig.broker.enqueue_many([job("q", "ask", "a", "b")])
    wait_for("a thread has refused it", lambda: ("TypeError", "a") in rig.around)
    assert not rig.service.calls


def test_a_worker_that_stops_ends_what_is_under_way_and_gives_back_the_rest(rig: Rig) -> None:
    rig.send(*"abcdefgh")
    wait_for("two are under way", lambda: len(rig.service.calls) == 2)
    wait_for("the others have been fetched", lambda: rig.worker.work_queue.unfinished_tasks == 8)
    stopping = threading.Thread(target=rig.worker.stop)
    stopping.start()
    assert rig.stopped.wait(20)
    stopping.join(0.3)
    assert stopping.is_alive()
    rig.service.gate.set()
    stopping.join(20)
    assert not stopping.is_alive()
    assert (rig.names, rig.kept) == (["a", "b"], 6)
    assert rig.broker.backlog("q") == 6


def test_a_thread_that_nobody_has_told_ends_with_the_worker(rig: Rig) -> None:
    """One that takes the place of another may begin when all others have just been told."""
    threads = [thread for thread in rig.worker.workers if thread is not rig.worker.work_queue.loop]
    rig.worker.work_queue.hurry()
    for thread in threads:
        thread.join(20)
    assert not [thread for thread in threads if thread.is_alive()]
