"""What tests of runs of cron jobs share: a table of runs, a bus whose handler a test sets, and workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.schedule import PostgresLease, PostgresSchedule
from relay.bus import Command, CommandBus
from relay.cron import Cron, CronRegistry
from relay.cron.expression import Expression
from relay.cron.run import CronRows, CronTimes, RunCron
from relay.domain.facts import Fact, FactSink
from relay.domain.retry import Backoff
from relay.domain.schedule import Due, RunState, WaitingRun
from relay.execution.runners import RunOnLoop
from tests.integration.publishing import query

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TICK = timedelta(milliseconds=1)


class Work(Command[None]):
    """What the cron jobs of these tests ask for."""

    at: datetime | None = None


def work() -> Work:
    return Work()


_TIMES = CronTimes()


class Bench:
    """A table of runs, a bus whose handler a test sets, and workers."""

    def __init__(self, pool: Pool, url: str) -> None:
        self.url = url
        self.lease = PostgresLease(pool.connection, uuid4(), "test")
        self.schedule = PostgresSchedule(pool.connection)
        self.facts: list[Fact] = []
        self.registry = CronRegistry()
        self.bus = CommandBus()
        self.done: list[Work] = []
        self.bus.handles(Work)(self._handle)
        self.handle: Callable[[Work], Any] = self.done.append
        self.declare()

    def _handle(self, command: Work) -> Any:
        return self.handle(command)

    def declare(self, name: str = "job", function: Callable[..., Any] = work, **options: Any) -> None:
        values = {"context": None, "misfire_grace": timedelta(days=1), "time_limit": timedelta(seconds=30)}
        job = Cron(
            name=name,
            expression=Expression("* * * * *"),
            function=function,
            bus=self.bus,
            **{"max_attempts": 3, **values, **options},
        )
        self.registry._jobs[name] = job

    async def open(self, name: str = "job", at: datetime = NOON) -> WaitingRun:
        await self.lease.take(timedelta(minutes=5))
        assert await self.lease.open(name, Due(at), uuid4()) is RunState.WAITING
        return WaitingRun(name, at)

    def worker(self, runs: Any = None, times: CronTimes = _TIMES, facts: FactSink | None = None) -> RunCron:
        backoff = Backoff(initial=TICK, maximum=TICK)
        rows = CronRows("sea", self.registry, runs or self.schedule, facts or self.facts.append, backoff, times)
        return RunOnLoop(rows, rows.settle)

    def row(self, at: datetime = NOON) -> dict[str, Any]:
        [row] = query(self.url, "SELECT * FROM scheduled_runs WHERE scheduled_for = %s", at)
        return row


@asynccontextmanager
async def benched(database_url: str) -> AsyncIterator[Bench]:
    pool = Pool(database_url, max_size=10, application_name="test")
    await pool.open()
    yield Bench(pool, database_url)
    await pool.close()
