"""What tests of tasks share: a context's tasks, a registry of the test's own, and whoever runs them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row
from pydantic import BaseModel

from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.tasks import PostgresTasks
from relay.adapters.postgres.transactions import HandlerTransactions
from relay.domain.facts import Fact
from relay.domain.tasks import ClaimedTask, TaskRef
from relay.execution.calls import PreparedCall
from relay.execution.prefetch import USUAL_LIMITS, PrefetchLimits
from relay.execution.runners import Completions, RunInThread, RunOnLoop
from tasks import schedule, task
from tasks.deliver import DeliverTasks
from tasks.registry import TaskRegistry
from tasks.task_rows import TaskKey, TaskRows
from tasks.worker import Tasks as OnLoop
from tasks.worker import TaskWorker
from tests.integration.python_handling import RunningLoop

EFFECT = "INSERT INTO effects (task_id, n) VALUES ('{}', {})"


class Mail(BaseModel):
    n: int
    to: str = "ann"


@dataclass
class Tasks:
    """The tasks of one database. Use `tasking`."""

    url: str
    registry: TaskRegistry = field(default_factory=TaskRegistry)
    facts: list[Fact] = field(default_factory=list)
    woken: list[TaskRef] = field(default_factory=list)
    sent: list[TaskRef] = field(default_factory=list)
    capacity: int = 1_000
    later: list[tuple[UUID, timedelta]] = field(default_factory=list)
    replaced: list[threading.Thread] = field(default_factory=list)
    #: What the process has fetched and not begun.
    waiting: list[TaskRef] = field(default_factory=list)
    #: Whether tasks are run as a Dramatiq worker's threads run them.
    threads: bool = False
    #: Whether those find each task claimed.
    ahead: bool = False
    limits: PrefetchLimits = USUAL_LIMITS
    tasks: PostgresTasks = field(init=False)
    transactions: HandlerTransactions = field(init=False)
    rows: TaskRows = field(init=False)
    completions: Completions[TaskKey, ClaimedTask, PreparedCall] = field(init=False)
    runner: OnLoop = field(init=False)
    deliverer: DeliverTasks = field(init=False)
    loop: RunningLoop = field(init=False)
    directs: dict[str, RunInThread[TaskKey, ClaimedTask, PreparedCall]] = field(default_factory=dict)

    def register(self, function: Callable[..., Any], task_type: str = "mail", **options: Any) -> None:
        task(task_type, into=self.registry, **options)(function)

    def schedule(self, *payloads: Any, task_type: str = "mail", **options: Any) -> list[UUID]:
        with psycopg.connect(self.url) as connection:
            return [schedule(connection, task_type, p, within=self.registry, **options) for p in payloads]

    async def run(self, id: UUID, task_type: str = "mail") -> timedelta | None:
        key, handler = TaskKey(id, task_type), self.registry.find(task_type)
        try:
            if not self.threads:
                return await self.runner.run(key)
            direct = self.direct(handler.queue if handler else "default")
            if self.ahead and handler is not None:
                task = TaskRef(id, task_type, handler.queue, handler.priority)
                await asyncio.to_thread(self.claim_ahead, task)
            return await asyncio.to_thread(direct.run, key)
        finally:
            await self.completions.drain()

    def claim_ahead(self, *waiting: TaskRef) -> None:
        """Claim tasks of a queue as under load, together with one that turns out to be gone."""
        ahead = self.direct(waiting[0].queue).prefetch
        self.waiting = list(waiting)
        while ahead._size <= len(waiting):
            ahead._capacity()
        assert ahead.claim(TaskKey(uuid4(), waiting[0].type)) is None
        self.waiting = []

    def direct(self, queue: str = "default") -> RunInThread[TaskKey, ClaimedTask, PreparedCall]:
        """What runs the tasks of a queue in threads."""
        if queue not in self.directs:

            async def later(task: TaskKey, delay: timedelta) -> None:
                self.later.append((task.id, delay))

            def waiting(limit: int) -> list[TaskKey]:
                ours = [TaskKey(task.id, task.type) for task in self.waiting if task.queue == queue]
                return [key for key in ours if (terms := self.rows.terms(key)) and terms.prefetch][:limit]

            self.directs[queue] = RunInThread(
                rows=self.rows,
                on_loop=self.runner,
                completions=self.completions,
                transactions=self.transactions,
                loop=self.loop,
                replace_thread=self.replaced.append,
                later=later,
                waiting=waiting,
                limits=self.limits,
            )
        return self.directs[queue]

    async def deliver(self) -> int:
        return await self.deliverer.once(await self.tasks.pending_queues())

    async def query(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        async with await psycopg.AsyncConnection.connect(
            self.url, autocommit=True, row_factory=dict_row
        ) as connection:
            cursor = await connection.execute(sql, parameters)
            return await cursor.fetchall() if cursor.description else []

    async def row(self, id: UUID) -> dict[str, Any]:
        [row] = await self.query("SELECT * FROM task_outbox WHERE id = %s", id)
        return row

    async def effects(self) -> list[UUID]:
        return [row["task_id"] for row in await self.query("SELECT task_id FROM effects ORDER BY n")]

    async def make_due(self, id: UUID) -> None:
        """Let the back-off be over."""
        await self.query("UPDATE task_outbox SET next_attempt_at = now() WHERE id = %s", id)

    async def lose(self) -> None:
        """Have every delivered task been enqueued a minute ago, and every claim run out."""
        await self.query(
            "UPDATE task_outbox SET enqueued_at = now() - interval '1 minute',"
            " claimed_until = now() - interval '1 second' WHERE status = 'delivered'"
        )

    def reported(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def worker(self, **options: Any) -> TaskWorker:
        """A polling worker on the same registry, looking often."""
        return TaskWorker("sea", self.tasks, self.facts.append, **{"threads": 4, "poll": 0.02, **options})

    def runner_of(self, worker: TaskWorker) -> OnLoop:
        rows = self.rows_of(worker.put)
        return RunOnLoop(rows, Completions(rows, self.loop.loop).settle)

    def rows_of(self, wake: Callable[[Sequence[TaskRef]], Any]) -> TaskRows:
        return TaskRows(
            context="sea",
            tasks=self.tasks,
            registry=self.registry,
            transactions=self.transactions,
            wake=wake,
            facts=self.facts.append,
            size=8,
        )


@asynccontextmanager
async def tasking(url: str) -> AsyncIterator[Tasks]:
    tasks = Tasks(url)
    await tasks.query("CREATE TABLE effects (task_id uuid, n int)")

    async def wake(refs: Sequence[TaskRef]) -> None:
        tasks.woken.extend(refs)

    async def put(refs: Sequence[TaskRef]) -> None:
        tasks.sent.extend(refs)

    async def capacity(_queue: str) -> int:
        return tasks.capacity

    async with Pool(url, max_size=12, application_name="tasking") as pool:
        tasks.tasks = PostgresTasks(pool)
        tasks.transactions = HandlerTransactions(url, limit=timedelta(seconds=20), application_name="tasking")
        tasks.loop, tasks.rows = RunningLoop(), tasks.rows_of(wake)
        tasks.completions = Completions(tasks.rows, tasks.loop.loop, pause=0.0)
        tasks.runner = RunOnLoop(tasks.rows, tasks.completions.settle)
        tasks.deliverer = DeliverTasks("sea", tasks.tasks, capacity, put, tasks.facts.append)
        try:
            yield tasks
        finally:
            await tasks.transactions.close()
