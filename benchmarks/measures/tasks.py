"""How fast scheduled tasks are done (Strategy B), and how fast the relay brings them to Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import psycopg
import redis

from benchmarks.figures import Reference, Row
from benchmarks.layouts import DELIVERING, WORKING
from benchmarks.stage import Stage
from benchmarks.turns import Case, take_turns, wait_until
from benchmarks.workload import fill_tasks

_UNIT: Final = "tasks/s"
_QUEUE: Final = "relay:relay-task-default"
_UNFINISHED: Final = "SELECT EXISTS (SELECT FROM task_outbox WHERE status IN ('pending', 'delivered'))"


def run(stage: Stage) -> Iterator[Row]:
    """Measure both beside bare Dramatiq."""
    count = stage.sizes.tasks
    cases: dict[str, Case] = {
        "bare Dramatiq": lambda: stage.bare().rate(count),
        "actor.send": lambda: stage.bare().send_rate(count),
        "relay to Redis": partial(_deliver, stage),
        "schedule to done": partial(_work, stage),
    }
    runs = take_turns(stage, "tasks", _UNIT, cases)
    bare, sent = Reference("(d) bare Dramatiq, 2 × 8", runs["bare Dramatiq"]), runs["actor.send"]
    done, delivered = runs["schedule to done"], runs["relay to Redis"]
    yield Row(measure="tasks, schedule → done", unit=_UNIT, runs=done, reference=bare, at_least=0.5)
    loop = Reference("actor.send in a loop", sent)
    yield Row(measure="tasks, relay to Redis alone", unit=_UNIT, runs=delivered, reference=loop, at_least=2)


def _deliver(stage: Stage) -> float:
    """Tasks per second from their commit until all are in Redis."""
    url, count = stage.fleet(DELIVERING).url("tasked"), stage.sizes.tasks
    queue = redis.Redis.from_url(stage.stack.valkey.url)

    def empty() -> None:
        queue.delete(_QUEUE, f"{_QUEUE}.msgs")

    def delivered(_: psycopg.Connection[Any], expected: int) -> bool:
        return queue.llen(_QUEUE) >= expected

    try:
        return _timed(url, count, delivered, empty)
    finally:
        _forget(url)
        empty()


def _work(stage: Stage) -> float:
    """Tasks per second from their commit until all are completed."""
    url, count = stage.fleet(WORKING).url("tasked"), stage.sizes.tasks
    found = _timed(url, count, _finished, lambda: None)
    with psycopg.connect(url, autocommit=True) as connection:
        completed = "SELECT count(*) FROM task_outbox WHERE status = 'completed'"
        if (row := connection.execute(completed).fetchone()) != (count,):
            raise SystemExit(f"{row} of {count} tasks were completed")
    return found


def _finished(connection: psycopg.Connection[Any], _: int) -> bool:
    with connection.transaction():
        return connection.execute(_UNFINISHED).fetchone() == (False,)


def _timed(
    url: str, count: int, over: Callable[[psycopg.Connection[Any], int], bool], empty: Callable[[], None]
) -> float:
    """Tasks per second from the commit of ``count`` tasks until it is ``over``."""
    seconds = 0.0
    for size in (20, count):  # the first few show that scheduler and workers are at work
        _forget(url)
        empty()
        with psycopg.connect(url) as connection:
            fill_tasks(connection, size)
            connection.commit()
            start = time.perf_counter()
            wait_until("the tasks are through", partial(over, connection, size), every=0.02)
            seconds = time.perf_counter() - start
    return count / seconds


def _forget(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE task_outbox CASCADE")
