"""A few jobs that the enqueuing process can begin at once make no detour; Redis holds each all the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
import pytest

from relay.adapters.dramatiq.broker import RelayBroker
from relay.adapters.dramatiq.runtime import WorkerRuntime
from relay.adapters.dramatiq.work_queue import LoopActor
from relay.devstack import ValkeyServer
from tests.integration.queueing import calls, fresh_broker, working
from tests.jobs import job
from tests.waiting import wait_for


class Process:
    """A process with a worker of eight threads, whose jobs run until they are let go."""

    def __init__(self, url: str, namespace: str | None = None) -> None:
        self.ran, self.go_on = list[Any](), threading.Event()
        runtime = WorkerRuntime(start=_nothing, quiesce=lambda: None, stop=_nothing, budgets={}, uvloop=False)
        runtime.on_loop["on_loop"] = LoopActor(self._on_loop)
        self.broker = fresh_broker(url, [runtime])
        self.broker.namespace = namespace or self.broker.namespace
        for name, function in (("in_thread", self._in_thread), ("on_loop", self._on_loop)):
            dramatiq.actor(function, broker=self.broker, actor_name=name, queue_name="q")

    def _in_thread(self, number: int) -> None:
        self.ran.append(number)
        assert self.go_on.wait(60)

    async def _on_loop(self, number: int) -> None:
        self.ran.append(number)

    def length(self) -> int:
        """How many jobs wait in Redis for somebody to fetch them."""
        return int(self.broker.client.llen(f"{self.broker.namespace}:q"))

    def held(self) -> int:
        """How many jobs Redis holds."""
        return int(self.broker.client.hlen(f"{self.broker.namespace}:q.msgs"))


async def _nothing() -> None:
    return


@contextmanager
def running(process: Process) -> Iterator[Process]:
    with working(process.broker, threads=8):
        wait_for("it fetches", lambda: process.broker.here is not None and _fetches(process.broker))
        try:
            yield process
        finally:
            process.go_on.set()


def _fetches(broker: RelayBroker) -> bool:
    return bool(broker.client.zscore(f"{broker.namespace}:__heartbeats__", broker.broker_id))


@pytest.mark.parametrize("actor", ["in_thread", "on_loop"])
def test_one_that_can_begin_at_once_is_never_in_the_queue_and_is_held_until_it_has_run(
    own_valkey: ValkeyServer, actor: str
) -> None:
    process = Process(own_valkey.url)
    with running(process):
        process.broker.enqueue_many([job("q", actor, 1)])
        wait_for("it runs", lambda: process.ran == [1])
        if actor == "in_thread":
            assert process.held() == 1
        process.go_on.set()
        wait_for("it is acknowledged", lambda: process.held() == 0)
        assert "rpush" not in calls(process.broker.client)
        assert not process.broker.client.exists(process.broker._acks("q"))


def test_what_a_process_took_and_did_not_finish_is_given_to_others(valkey: ValkeyServer) -> None:
    """As what it had fetched."""
    process = Process(valkey.url)
    with running(process):
        process.broker.enqueue_many([job("q", "in_thread", 1)])
        wait_for("it runs", lambda: process.ran == [1])
        process.broker.take_over(process.broker.broker_id)
        wait_for("somebody runs it again", lambda: process.ran == [1, 1])


def test_many_are_for_all_processes_and_so_is_what_comes_while_this_one_is_busy(valkey: ValkeyServer) -> None:
    process = Process(valkey.url)
    with running(process):
        seen: list[int] = []
        process.broker.here = _Watched(process.broker.here, seen)
        for count in (2, 2, 1, 1, 1):
            before = len(process.ran)
            process.broker.enqueue_many([job("q", "in_thread", 9) for _ in range(count)])
            wait_for("they run", lambda before=before, count=count: len(process.ran) == before + count)
        assert seen == [2, 1], "at most a quarter of the free threads: of eight, of six, of four, of three, of two"


class _Watched:
    """Notes how many are taken at a time."""

    def __init__(self, here: Any, seen: list[int]) -> None:
        self._here, self._seen = here, seen

    def has_room(self, messages: Any) -> bool:
        return bool(self._here.has_room(messages))

    def begin(self, messages: Any) -> None:
        self._seen.append(len(messages))
        self._here.begin(messages)
