"""Strategy B: the task actors, loaded by ``relay.actors``. Arguments are names and ids, never content."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache, partial
from typing import Any, Final, TypeAlias
from uuid import UUID

import dramatiq

from relay import jobs
from relay.adapters.dramatiq.broker import delayed
from relay.adapters.dramatiq.runtime import event_loop
from relay.adapters.postgres.tasks import PostgresTasks
from relay.adapters.postgres.transactions import HandlerTransactions
from relay.domain.errors import Outage
from relay.domain.history import Of
from relay.domain.tasks import DEFAULT_PRIORITY, DEFAULT_QUEUE, ClaimedTask, TaskRef
from relay.execution.calls import PreparedCall
from relay.execution.runners import Completions, RunInThread, RunOnLoop, RunRow
from relay.worker import (
    actor,
    application,
    broker,
    budgets,
    on_loop,
    periodic,
    row_actor,
    runtime,
    serves,
    settings,
    try_again,
)
from tasks.deliver import DeliverTasks
from tasks.registry import registry
from tasks.task_rows import TaskKey, TaskRows, in_thread

#: How many seconds a delivery job runs. It ends before its gate expires.
_SLICE_S: Final = 3.0
#: How many tasks of a context and a queue run at once on the event loop. Tasks past their time limit count too.
_MAX_CALLS: Final = 32

InThread: TypeAlias = RunInThread[TaskKey, ClaimedTask, PreparedCall]


def _declare(queue: str) -> None:
    """Serve a queue with its own ``--threads`` threads, so that slow mail does not delay reports.

    Each context has a share of a queue.
    """
    budgets[jobs.task_queue(queue)] = None
    broker.declare_queue(jobs.task_queue(queue))


_declare(DEFAULT_QUEUE)
registry.watch(_declare)
serves["tasks"] = lambda: sorted(registry.handlers)


def _needs_thread(_context: str, task_type: str) -> bool:
    return in_thread(registry.find(task_type))


@row_actor(jobs.RUN_TASK, jobs.task_queue(), priority=DEFAULT_PRIORITY)
def run_task(context: str, task_type: str, task_id: str) -> None:
    """Make one attempt at a task with a plain function, in this thread."""
    handler = registry.find(task_type)
    queue = DEFAULT_QUEUE if handler is None else handler.queue
    # In an outage the row keeps its claim until the lease is over; the sweep brings it back.
    with suppress(Outage):
        try_again(_thread_runner(context, queue).run(TaskKey(UUID(task_id), task_type)))


@on_loop(jobs.RUN_TASK, unless=_needs_thread)
async def run_task_on_loop(context: str, task_type: str, task_id: str) -> None:
    """Make one attempt at a task on the event loop: with a coroutine, or of a type with limits."""
    with suppress(Outage):
        try_again(await _loop_runner(context).run(TaskKey(UUID(task_id), task_type)))


@actor(jobs.DELIVER_TASKS, priority=5, max_retries=0)
async def deliver_tasks(context: str, token: str) -> None:
    """Send jobs for the due tasks of a context to Redis."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _SLICE_S
    async with periodic(jobs.DELIVER_TASKS.of(context), token) as ours:
        if ours:
            await _deliver(context).drain(lambda: not application.stopping and loop.time() < end)


@actor(jobs.SWEEP_TASKS, priority=5, max_retries=0)
async def sweep_tasks(context: str, token: str) -> None:
    """Deliver again what should be in a queue and is not: Redis was flushed, or a worker died."""
    async with periodic(jobs.SWEEP_TASKS.of(context), token) as ours:
        if ours:
            await _deliver(context).sweep()


# --- what the actors use: each object is built once, on the event loop of the worker ---


@cache
def _tasks(context: str) -> PostgresTasks:
    return PostgresTasks(application.context(context).pool)


@cache
def _transactions(context: str) -> HandlerTransactions:
    # A default only: each task's own limit comes with its settlement.
    return application.transactions(context, "tasks", limit=timedelta(minutes=1))


@cache
def _rows(context: str) -> TaskRows:
    return TaskRows(
        context=context,
        tasks=_tasks(context),
        registry=registry,
        transactions=_transactions(context),
        wake=partial(_put, context),
        facts=application.facts,
        tallies=application.tallies.of(context, Of.TASK),
        size=_MAX_CALLS,
        error_text=application.context(context).settings.error_detail == "text",
        controls=application.context(context).controls,
        opens=application.personal,
    )


@cache
def _completions(context: str) -> Completions[TaskKey, ClaimedTask, PreparedCall]:
    """What settles the tasks of a context."""
    completions = Completions(_rows(context), asyncio.get_running_loop())
    application.on_stop.append(completions.drain)
    return completions


@cache
def _loop_runner(context: str) -> RunRow[TaskKey, ClaimedTask, PreparedCall]:
    """What runs the tasks of a context on the event loop."""
    return RunOnLoop(_rows(context), _completions(context).settle)


@cache
def _thread_runner(context: str, queue: str) -> InThread:
    """What runs the tasks of a context and a queue in worker threads. Each queue prefetches at its own pace."""
    loop, rows = event_loop(), _rows(context)

    async def later(key: TaskKey, delay: timedelta) -> None:
        handler = registry.find(key.type)
        assert handler is not None
        task = TaskRef(key.id, key.type, queue, handler.priority)
        await asyncio.to_thread(broker.enqueue_many, [delayed(jobs.run_task(context, task), delay)])

    def ours(message: dramatiq.Message[Any]) -> bool:
        if message.actor_name != jobs.RUN_TASK:
            return False
        terms = rows.terms(_key(message))
        return terms is not None and terms.prefetch

    def waiting(limit: int) -> list[TaskKey]:
        return [_key(message) for message in runtime.ahead(jobs.task_queue(queue), context, ours, limit)]

    async def make() -> InThread:
        # On the loop, because everything that threads share is built there.
        run = RunInThread(
            rows=rows,
            on_loop=_loop_runner(context),
            completions=_completions(context),
            transactions=_transactions(context),
            loop=loop,
            replace_thread=runtime.replace_thread,
            later=later,
            waiting=waiting,
        )
        application.on_quiesce.append(run.prefetch.close)
        return run

    return loop.run_coroutine(make())


def _key(message: dramatiq.Message[Any]) -> TaskKey:
    task_type, id = jobs.task_of(message)
    return TaskKey(id, task_type)


@cache
def _deliver(context: str) -> DeliverTasks:
    """What sends jobs for the due tasks of a context to Redis."""

    async def capacity(queue: str) -> int:
        """Return how many tasks a queue can take; 0 while it is over half full: small deliveries cost much."""
        window = settings.task_window
        free = window - await asyncio.to_thread(broker.backlog, jobs.task_queue(queue), context)
        return free if free >= window / 2 else 0

    return DeliverTasks(
        context,
        _tasks(context),
        capacity,
        partial(_put, context),
        application.facts,
        registry.queues,
        application.context(context).controls.now,
    )


async def _put(context: str, tasks: Sequence[TaskRef]) -> None:
    if tasks:
        await asyncio.to_thread(broker.enqueue_many, [jobs.run_task(context, task) for task in tasks])
