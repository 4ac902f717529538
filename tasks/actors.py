"""Strategy B: the task actors, loaded by ``relay.actors``. Arguments are names and ids, never content."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final
from uuid import UUID

import dramatiq
from dramatiq.errors import Retry

from relay import jobs
from relay.adapters.onloop import outcome
from relay.adapters.postgres.handling import HandlerTransactions
from relay.adapters.postgres.tasks import PostgresTasks
from relay.adapters.redis import delayed
from relay.adapters.workers import event_loop
from relay.domain.errors import Outage
from relay.domain.tasks import DEFAULT_PRIORITY, DEFAULT_QUEUE, TaskRef
from relay.worker import actor, application, broker, budgets, periodic, runtime, settings
from tasks.direct import RunDirectly, in_thread
from tasks.forward import DeliverTasks
from tasks.registry import registry
from tasks.run import RunTask

#: How many seconds a delivery job runs. It ends before its gate opens by itself.
_TURN: Final = 3.0
#: How many tasks of a context and a queue run at once in a process without a worker thread. Tasks past their
#: time limit count too.
_CALLS: Final = 32


def _declare(queue: str) -> None:
    """Serve a queue with its own ``--threads`` threads, so that slow mail does not delay reports.

    Each context has a share of a queue.
    """
    budgets[jobs.task_queue(queue)] = None
    broker.declare_queue(jobs.task_queue(queue))


_declare(DEFAULT_QUEUE)
registry.watch(_declare)


@dramatiq.actor(
    actor_name=jobs.RUN_TASK, queue_name=jobs.task_queue(), priority=DEFAULT_PRIORITY, max_retries=None
)
def run_task(context: str, task_type: str, task_id: str) -> None:
    """Make one attempt at a task. The row owns the retry; Dramatiq's Retries middleware times it."""
    try:
        # The event loop has run coroutines, and types with limits, before this actor runs.
        found = outcome()
        delay = found() if found else _direct(context).run(UUID(task_id), task_type)
    except Outage:
        # The row keeps its claim until the lease is over; the sweep brings it back.
        return
    if delay is not None:
        raise Retry(delay=int(delay / timedelta(milliseconds=1)))


class _OnLoop:
    """Tasks that need no worker thread: the event loop runs them."""

    def takes(self, _context: str, task_type: str, *_: str) -> bool:
        return not in_thread(registry.find(task_type))

    async def run(
        self, _leave: Callable[[], None], context: str, task_type: str, task_id: str
    ) -> timedelta | None:
        return await _run(context).run(UUID(task_id), task_type)


runtime.on_loop[jobs.RUN_TASK] = _OnLoop()


@actor(jobs.DELIVER_TASKS, priority=5, max_retries=0)
async def deliver_tasks(context: str, token: str) -> None:
    """Bring the due tasks of a context to Redis."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _TURN
    async with periodic(jobs.DELIVER_TASKS.of(context), token) as ours:
        if ours:
            await _deliver(context).drain(lambda: not application.stopping and loop.time() < end)


@actor(jobs.SWEEP_TASKS, priority=5, max_retries=0)
async def sweep_tasks(context: str, token: str) -> None:
    """Deliver again what should be in a queue and is not: Redis was flushed, or a worker died."""
    async with periodic(jobs.SWEEP_TASKS.of(context), token) as ours:
        if ours:
            await _deliver(context).sweep()


@cache
def _tasks(context: str) -> PostgresTasks:
    return PostgresTasks(application.context(context).pool)


@cache
def _run(context: str) -> RunTask:
    async def wake(tasks: Sequence[TaskRef]) -> None:
        await _put(context, tasks)

    # A default only: each task's own limit comes with its settlement.
    transactions = HandlerTransactions(
        application.context(context).settings.database_url.get_secret_value(),
        limit=timedelta(minutes=1),
        size=_CALLS,
        application_name=f"jetrelay-tasks-{context}",
    )
    application.on_stop.append(transactions.close)
    return RunTask(
        context,
        _tasks(context),
        registry,
        transactions,
        wake,
        application.facts,
        size=_CALLS,
        error_text=application.context(context).settings.error_detail == "text",
    )


@cache
def _direct(context: str) -> RunDirectly:
    loop = event_loop()

    async def later(task: TaskRef, delay: timedelta) -> None:
        await asyncio.to_thread(broker.enqueue_many, [delayed(jobs.run_task(context, task), delay)])

    def waiting(queue: str, fits: Callable[[str], bool], limit: int) -> list[UUID]:
        def ours(message: dramatiq.Message[Any]) -> bool:
            return message.actor_name == jobs.RUN_TASK and fits(jobs.task_of(message)[0])

        found = runtime.ahead(jobs.task_queue(queue), context, ours, limit)
        return [jobs.task_of(message)[1] for message in found]

    async def make() -> RunDirectly:
        # On the loop, because everything that threads share is built there.
        one, tasks = _run(context), _tasks(context)
        direct = RunDirectly(one, tasks, registry, loop, runtime.relieve, later, waiting)
        application.on_quiesce.append(direct.give_back)
        application.on_stop.append(direct.finished.drain)
        return direct

    return loop.run_coroutine(make())


@cache
def _deliver(context: str) -> DeliverTasks:
    async def put(tasks: Sequence[TaskRef]) -> None:
        await _put(context, tasks)

    async def room(queue: str) -> int:
        """Return the room of a queue; 0 while over half is taken, because small deliveries cost a transaction."""
        window = settings.task_window
        room = window - await asyncio.to_thread(broker.backlog, jobs.task_queue(queue), context)
        return room if room >= window / 2 else 0

    return DeliverTasks(context, _tasks(context), room, put, application.facts)


async def _put(context: str, tasks: Sequence[TaskRef]) -> None:
    if tasks:
        await asyncio.to_thread(broker.enqueue_many, [jobs.run_task(context, task) for task in tasks])
