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

from relay.actors import application, broker, budgets, chore, runtime, settings
from relay.adapters.onloop import outcome
from relay.adapters.postgres.handling import HandlerTransactions
from relay.adapters.postgres.tasks import PostgresTasks
from relay.adapters.redis import delayed
from relay.adapters.shares import SHARE
from relay.adapters.workers import event_loop
from relay.bootstrap import UPKEEP_QUEUE
from relay.domain.errors import Outage
from relay.domain.tasks import DEFAULT_PRIORITY, DEFAULT_QUEUE, TaskRef
from tasks.direct import RunDirectly, in_thread
from tasks.forward import DeliverTasks
from tasks.registry import registry
from tasks.run import RunTask

#: A delivering job makes room for the next one before its gate opens by itself.
_TURN: Final = 3.0
#: How many tasks of a context and a queue run at once in a process without a thread of the worker's, those that
#: outlived their time limit included.
_CALLS: Final = 32


def queue_name(queue: str) -> str:
    """The Dramatiq queue of a task queue, for ``dramatiq -Q``."""
    return f"relay-task-{queue}"


def _declare(queue: str) -> None:
    """Serve a queue, with as many threads of its own as ``--threads`` says: slow mail holds up no report.

    Of a queue each context has its share.
    """
    budgets[queue_name(queue)] = None
    broker.declare_queue(queue_name(queue))


_declare(DEFAULT_QUEUE)
registry.watch(_declare)


@dramatiq.actor(queue_name=queue_name(DEFAULT_QUEUE), priority=DEFAULT_PRIORITY, max_retries=None)
def run_task(context: str, task_type: str, task_id: str) -> None:
    """Make one attempt at a task. The row owns the retry, Dramatiq's Retries middleware times it."""
    try:
        # Coroutines, and types with limits, the loop has run before they come here.
        found = outcome()
        delay = found() if found else _direct(context).run(UUID(task_id), task_type)
    except Outage:
        # The row keeps its claim until the lease is over; the sweep brings it back.
        return
    if delay is not None:
        raise Retry(delay=int(delay / timedelta(milliseconds=1)))


class _OnLoop:
    """Tasks that need no thread of the worker's: the loop runs them."""

    def takes(self, _context: str, task_type: str, *_: str) -> bool:
        return not in_thread(registry.find(task_type))

    async def run(
        self, _leave: Callable[[], None], context: str, task_type: str, task_id: str
    ) -> timedelta | None:
        return await _run(context).run(UUID(task_id), task_type)


runtime.on_loop["run_task"] = _OnLoop()


@dramatiq.actor(queue_name=UPKEEP_QUEUE, priority=5, max_retries=0)
async def deliver_tasks(context: str, token: str) -> None:
    """Bring the due tasks of a context to Redis."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _TURN
    async with chore(f"deliver_tasks:{context}", token):
        await _deliver(context).drain(lambda: not application.stopping and loop.time() < end)


@dramatiq.actor(queue_name=UPKEEP_QUEUE, priority=5, max_retries=0)
async def sweep_tasks(context: str, token: str) -> None:
    """Deliver again what should be in a queue and is not: Redis was flushed, or a worker died."""
    async with chore(f"sweep_tasks:{context}", token):
        await _deliver(context).sweep()


@cache
def _tasks(context: str) -> PostgresTasks:
    return PostgresTasks(application.context(context).pool)


@cache
def _run(context: str) -> RunTask:
    async def wake(tasks: Sequence[TaskRef]) -> None:
        await _put(context, tasks)

    # The limit is that of each task, which comes with its settlement.
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
        await asyncio.to_thread(broker.enqueue_many, [delayed(_message(context, task), delay)])

    def waiting(queue: str, fits: Callable[[str], bool], limit: int) -> list[UUID]:
        def ours(message: dramatiq.Message[Any]) -> bool:
            return message.actor_name == run_task.actor_name and fits(message.args[1])

        return [UUID(message.args[2]) for message in runtime.ahead(queue_name(queue), context, ours, limit)]

    async def make() -> RunDirectly:
        # On the loop, like all that others share.
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
        """Nothing while over half of the window is taken: a few tasks at a time would cost a transaction each."""
        window = settings.task_window
        room = window - await asyncio.to_thread(broker.backlog, queue_name(queue), context)
        return room if room >= window / 2 else 0

    return DeliverTasks(context, _tasks(context), room, put, application.facts)


async def _put(context: str, tasks: Sequence[TaskRef]) -> None:
    if tasks:
        await asyncio.to_thread(broker.enqueue_many, [_message(context, task) for task in tasks])


def _message(context: str, task: TaskRef) -> dramatiq.Message[Any]:
    return dramatiq.Message(
        queue_name=queue_name(task.queue),
        actor_name=run_task.actor_name,
        args=(context, task.type, str(task.id)),
        kwargs={},
        options={SHARE: context, "task_priority": task.priority},
    )
