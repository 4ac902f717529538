"""Delivery of due tasks: to Redis in Strategy B, to this process in Strategy A (§2.7).

A queue gets no more than it has capacity for. The rest waits in the table, ordered by priority. There an urgent
task can still overtake it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from relay.adapters.postgres.tasks import PostgresTasks
from relay.domain.controls import Controls, What, uncontrolled
from relay.domain.facts import FactSink, TasksDelivered
from relay.domain.tasks import TaskRef
from relay.failpoints import reach

_BATCH_TASKS: Final = 300
#: How many queues that no function names get tasks in one round. Anybody who writes tasks may invent such names.
_MAX_OTHERS: Final = 20
#: The first pause while the queues are full, in seconds. It doubles up to `_MAX_PAUSE_S`.
_PAUSE_S: Final = 0.02
_MAX_PAUSE_S: Final = 0.5

#: Returns how many tasks a queue can take now.
Capacity = Callable[[str], Awaitable[int]]
#: Puts tasks into their queues; returns when they are stored. Raises QueueUnreachable.
Put = Callable[[Sequence[TaskRef]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DeliverTasks:
    """Delivers tasks. Safe to repeat and to run several times at once: the table's locks decide.

    ``served``: the queues of the functions that this process knows. They come first in every round; the others
    take turns. ``controls``: what operators have paused; the tasks of such a queue stay in the table.
    """

    context: str
    tasks: PostgresTasks
    capacity: Capacity
    put: Put
    facts: FactSink
    served: Callable[[], Collection[str]] = frozenset
    controls: Callable[[], Awaitable[Controls]] = uncontrolled
    #: The last of the other queues that had its turn: among those with due tasks, and with lost ones.
    _last: dict[bool, str] = field(default_factory=dict)

    async def drain(self, go_on: Callable[[], bool]) -> None:
        """Deliver until nothing is due. Raises DatabaseUnreachable and QueueUnreachable."""
        pause = _PAUSE_S
        while go_on() and (queues := await self.tasks.pending_queues()):
            if await self.once(queues):
                pause = _PAUSE_S
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_S)

    async def once(self, queues: Sequence[str]) -> int:
        """Deliver one batch to each of ``queues`` whose turn it is; returns how many tasks were delivered."""
        count, controls = 0, await self.controls()
        for queue in self._turn([it for it in queues if not controls.is_paused(What.TASK_QUEUE, it)]):
            capacity = await self.capacity(queue)
            if capacity > 0:
                count += await self._fill(queue, min(capacity, _BATCH_TASKS))
        return count

    def _turn(self, queues: Sequence[str], *, lost: bool = False) -> Sequence[str]:
        served, last = self.served(), self._last.get(lost, "")
        others = sorted((it for it in queues if it not in served), key=lambda it: (it <= last, it))[:_MAX_OTHERS]
        self._last[lost] = others[-1] if others else last
        return [*(it for it in queues if it in served), *others]

    async def _fill(self, queue: str, limit: int) -> int:
        """Commit tasks as delivered after the queue confirms (§2.7); a crash in between delivers them twice."""
        async with self.tasks.deliver(queue, limit) as tasks:
            if not tasks:
                return 0
            await self.put(tasks)
            reach("after_task_enqueue")
        self._report(queue, len(tasks), again=False)
        return len(tasks)

    async def sweep(self) -> int:
        """Deliver tasks again that should have begun by now; returns how many tasks were delivered.

        It delivers only what a queue has capacity for, because a task that waits in a long queue looks lost too.
        """
        count = 0
        for queue in self._turn(await self.tasks.overdue_queues(), lost=True):
            capacity = await self.capacity(queue)
            lost = await self.tasks.overdue(queue, min(capacity, _BATCH_TASKS)) if capacity > 0 else []
            if lost:
                await self.put(lost)
                self._report(queue, len(lost), again=True)
            count += len(lost)
        return count

    def _report(self, queue: str, count: int, *, again: bool) -> None:
        self.facts(TasksDelivered(context=self.context, queue=queue, count=count, again=again))
