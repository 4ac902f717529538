"""Delivery of due tasks: to Redis in Strategy B, to this process in Strategy A (§2.7).

A queue gets no more than it has capacity for. The rest waits in the table, ordered by priority. There an urgent
task can still overtake it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from relay.adapters.postgres.tasks import PostgresTasks
from relay.domain.facts import FactSink, TasksDelivered
from relay.domain.tasks import TaskRef
from relay.failpoints import reach

_BATCH_TASKS: Final = 300
#: How soon to look again while the queues are full, in seconds. The pause doubles up to the longest one.
_PAUSE_S: Final = 0.02
_MAX_PAUSE_S: Final = 0.5

#: Returns how many tasks a queue can take now.
Capacity = Callable[[str], Awaitable[int]]
#: Puts tasks into their queues; returns when they are stored. Raises QueueUnreachable.
Put = Callable[[Sequence[TaskRef]], Awaitable[None]]


class DeliverTasks:
    """Delivers tasks. Safe to repeat and to run several times at once: the table's locks decide."""

    def __init__(self, context: str, tasks: PostgresTasks, capacity: Capacity, put: Put, facts: FactSink) -> None:
        self._context = context
        self._tasks = tasks
        self._capacity = capacity
        self._put = put
        self._facts = facts

    async def drain(self, go_on: Callable[[], bool]) -> None:
        """Deliver until nothing is due. Raises DatabaseUnreachable and QueueUnreachable."""
        pause = _PAUSE_S
        while go_on() and (queues := await self._tasks.pending_queues()):
            if await self.once(queues):
                pause = _PAUSE_S
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_S)

    async def once(self, queues: Sequence[str]) -> int:
        """Deliver one batch to each of ``queues``; returns how many tasks were delivered."""
        count = 0
        for queue in queues:
            capacity = await self._capacity(queue)
            if capacity > 0:
                count += await self._fill(queue, min(capacity, _BATCH_TASKS))
        return count

    async def _fill(self, queue: str, limit: int) -> int:
        """Commit tasks as delivered after the queue confirms (§2.7); a crash in between delivers them twice."""
        async with self._tasks.deliver(queue, limit) as tasks:
            if not tasks:
                return 0
            await self._put(tasks)
            reach("after_task_enqueue")
        self._report(queue, len(tasks), again=False)
        return len(tasks)

    async def sweep(self) -> int:
        """Deliver tasks again that should have begun by now; returns how many tasks were delivered.

        It delivers only what a queue has capacity for, because a task that waits in a long queue looks lost too.
        """
        count = 0
        for queue in await self._tasks.overdue_queues():
            capacity = await self._capacity(queue)
            lost = await self._tasks.overdue(queue, min(capacity, _BATCH_TASKS)) if capacity > 0 else []
            if lost:
                await self._put(lost)
                self._report(queue, len(lost), again=True)
            count += len(lost)
        return count

    def _report(self, queue: str, count: int, *, again: bool) -> None:
        self._facts(TasksDelivered(context=self._context, queue=queue, count=count, again=again))
