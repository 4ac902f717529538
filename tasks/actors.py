"""Strategy B: the task actors, loaded by ``relay.actors``. Arguments are names and ids, never content."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final
from uuid import UUID

from relay import jobs
from relay.domain.errors import Outage
from relay.domain.tasks import DEFAULT_PRIORITY, DEFAULT_QUEUE
from relay.worker import actor, application, broker, budgets, on_loop, periodic, row_actor, try_again
from tasks import wiring
from tasks.registry import registry
from tasks.rows import TaskKey, in_thread

#: How many seconds a delivery job runs. It ends before its gate opens by itself.
_TURN: Final = 3.0


def _declare(queue: str) -> None:
    """Serve a queue with its own ``--threads`` threads, so that slow mail does not delay reports.

    Each context has a share of a queue.
    """
    budgets[jobs.task_queue(queue)] = None
    broker.declare_queue(jobs.task_queue(queue))


_declare(DEFAULT_QUEUE)
registry.watch(_declare)


def _needs_thread(_context: str, task_type: str) -> bool:
    return in_thread(registry.find(task_type))


@row_actor(jobs.RUN_TASK, jobs.task_queue(), priority=DEFAULT_PRIORITY)
def run_task(context: str, task_type: str, task_id: str) -> None:
    """Make one attempt at a task by a plain function, in this thread."""
    handler = registry.find(task_type)
    queue = DEFAULT_QUEUE if handler is None else handler.queue
    # In an outage the row keeps its claim until the lease is over; the sweep brings it back.
    with suppress(Outage):
        try_again(wiring.in_thread(context, queue).run(TaskKey(UUID(task_id), task_type)))


@on_loop(jobs.RUN_TASK, unless=_needs_thread)
async def run_task_on_loop(context: str, task_type: str, task_id: str) -> None:
    """Make one attempt at a task by a coroutine, or at one whose type has limits, on the event loop."""
    with suppress(Outage):
        try_again(await wiring.on_loop(context).run(TaskKey(UUID(task_id), task_type)))


@actor(jobs.DELIVER_TASKS, priority=5, max_retries=0)
async def deliver_tasks(context: str, token: str) -> None:
    """Bring the due tasks of a context to Redis."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _TURN
    async with periodic(jobs.DELIVER_TASKS.of(context), token) as ours:
        if ours:
            await wiring.deliver(context).drain(lambda: not application.stopping and loop.time() < end)


@actor(jobs.SWEEP_TASKS, priority=5, max_retries=0)
async def sweep_tasks(context: str, token: str) -> None:
    """Deliver again what should be in a queue and is not: Redis was flushed, or a worker died."""
    async with periodic(jobs.SWEEP_TASKS.of(context), token) as ours:
        if ours:
            await wiring.deliver(context).sweep()
