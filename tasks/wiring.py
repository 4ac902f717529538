"""How the parts of a context's tasks are put together on a worker. Each is built once, on its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final, TypeAlias

import dramatiq

from relay import jobs
from relay.adapters.onloop import leave_place
from relay.adapters.postgres.tasks import PostgresTasks
from relay.adapters.postgres.transactions import HandlerTransactions
from relay.adapters.redis import delayed
from relay.adapters.workers import event_loop
from relay.domain.tasks import ClaimedTask, TaskRef
from relay.execution.calls import PreparedCall
from relay.execution.in_thread import RunInThread
from relay.execution.on_loop import RunOnLoop
from relay.worker import application, broker, runtime, settings
from tasks.forward import DeliverTasks
from tasks.registry import registry
from tasks.rows import TaskKey, TaskRows

#: How many tasks of a context and a queue run at once in a process without a worker thread. Tasks past their
#: time limit count too.
_CALLS: Final = 32

InThread: TypeAlias = RunInThread[TaskKey, ClaimedTask, PreparedCall]


@cache
def _tasks(context: str) -> PostgresTasks:
    return PostgresTasks(application.context(context).pool)


@cache
def _transactions(context: str) -> HandlerTransactions:
    # A default only: each task's own limit comes with its settlement.
    transactions = HandlerTransactions(
        application.context(context).settings.database_url.get_secret_value(),
        limit=timedelta(minutes=1),
        size=_CALLS,
        application_name=f"jetrelay-tasks-{context}",
    )
    application.on_stop.append(transactions.close)
    return transactions


@cache
def _rows(context: str) -> TaskRows:
    async def wake(tasks: Sequence[TaskRef]) -> None:
        await _put(context, tasks)

    return TaskRows(
        context,
        _tasks(context),
        registry,
        _transactions(context),
        wake,
        application.facts,
        size=_CALLS,
        error_text=application.context(context).settings.error_detail == "text",
    )


@cache
def on_loop(context: str) -> RunOnLoop[TaskKey, ClaimedTask, PreparedCall]:
    """What runs the tasks of a context on the event loop."""
    run = RunOnLoop(_rows(context), asyncio.get_running_loop(), answered=leave_place)
    application.on_stop.append(run.drain)
    return run


@cache
def in_thread(context: str, queue: str) -> InThread:
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
        found = runtime.ahead(jobs.task_queue(queue), context, ours, limit)
        return [_key(message) for message in found]

    async def make() -> InThread:
        # On the loop, because everything that threads share is built there.
        run = RunInThread(on_loop(context), rows, _transactions(context), loop, runtime.relieve, later, waiting)
        application.on_quiesce.append(run.prefetch.close)
        return run

    return loop.run_coroutine(make())


def _key(message: dramatiq.Message[Any]) -> TaskKey:
    task_type, id = jobs.task_of(message)
    return TaskKey(id, task_type)


@cache
def deliver(context: str) -> DeliverTasks:
    """What brings the due tasks of a context to Redis."""

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
