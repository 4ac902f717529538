"""Strategy A: this process polls and runs tasks, for a service without Redis (building blocks §2.7).

TaskRegistry, claims and limits are the same as with Dramatiq, so both may work on one table.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from typing import Final, TypeAlias

from relay.adapters.postgres.tasks import PostgresTasks
from relay.concurrency import is_cancelled
from relay.domain.controls import Controls, What, uncontrolled
from relay.domain.errors import Outage
from relay.domain.facts import FactSink, OutageSeen
from relay.domain.tasks import ClaimedTask, TaskRef
from relay.execution.calls import PreparedCall
from relay.execution.runners import RunRow
from tasks.deliver import DeliverTasks
from tasks.task_rows import TaskKey

#: How often to look for lost tasks, in seconds.
_SWEEP_INTERVAL_S: Final = 1.0

#: How often to look for alerts to send, in seconds.
_ALERT_INTERVAL_S: Final = 3.0

#: What runs a context's tasks on the event loop.
Tasks: TypeAlias = RunRow[TaskKey, ClaimedTask, PreparedCall]

_log = logging.getLogger("relay.tasks")


class TaskWorker:
    """Runs the tasks of one context, at most ``threads`` of a queue at once.

    ``queues``: the queues to serve, None for all. ``poll``: how long to wait when nothing is due, in seconds.
    """

    def __init__(
        self,
        context: str,
        tasks: PostgresTasks,
        facts: FactSink,
        send_alerts: Callable[[], Awaitable[object]] | None = None,
        *,
        threads: int,
        queues: Sequence[str] | None = None,
        poll: float = 0.25,
        served: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._context = context
        self._tasks = tasks
        self._facts = facts
        self._send_alerts = send_alerts
        self._threads = threads
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._begun = Counter[str]()
        self._queues = queues
        self._poll = poll
        self._deliver = DeliverTasks(context, tasks, self._capacity, self.put, facts, served)
        #: What operators have paused: the tasks of such a queue stay in the table.
        self.controls: Callable[[], Awaitable[Controls]] = uncontrolled
        self._running: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._stop = asyncio.Event()
        self._freed = asyncio.Event()

    async def run(self, run: Tasks) -> None:
        """Poll until `stop`. In an outage, wait and go on."""
        self._run = run
        looks, swept, loop = 0, 0.0, asyncio.get_running_loop()
        while not self._stop.is_set():
            moved = 0
            try:
                moved = await self._look(looks)
                if loop.time() - swept > _SWEEP_INTERVAL_S:
                    await self._deliver.sweep()
                    swept = loop.time()
            except Outage as error:
                self._facts(OutageSeen(context=self._context, server="postgresql", error=error.explanation))
            looks += 1
            if not moved:
                await self._wait()

    async def tell(self) -> None:
        """Send alerts until cancelled: no scheduler may run beside this process."""
        while self._send_alerts is not None and not is_cancelled():
            try:
                await self._send_alerts()
            except Outage as error:
                self._facts(OutageSeen(context=self._context, server="postgresql", error=error.explanation))
            await asyncio.sleep(_ALERT_INTERVAL_S)

    def stop(self) -> None:
        """Take no more tasks."""
        self._stop.set()
        self._freed.set()
        for timer in self._timers:
            timer.cancel()

    async def drain(self, grace: timedelta) -> int:
        """Wait for the running tasks; returns how many did not end in time. Their claims expire."""
        _, left = await asyncio.wait(self._running, timeout=grace.total_seconds()) if self._running else ((), ())
        for task in left:
            task.cancel()
        return len(left)

    async def put(self, tasks: Sequence[TaskRef]) -> None:
        """Start tasks; each claims its row first."""
        for task in tasks:
            self._begin(task)

    async def _look(self, looks: int) -> int:
        """Take due tasks. Each time another queue comes first, so that no queue starves the others."""
        queues = await self._tasks.pending_queues()
        first = looks % len(queues) if queues else 0
        return await self._deliver.once([*queues[first:], *queues[:first]])

    async def _capacity(self, queue: str) -> int:
        if self._queues is not None and queue not in self._queues:
            return 0
        if (await self.controls()).is_paused(What.TASK_QUEUE, queue):
            return 0
        return self._threads - self._begun[queue]

    async def _wait(self) -> None:
        """Wait until a task ends, or until the next poll."""
        self._freed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._freed.wait(), self._poll)

    def _begin(self, task: TaskRef) -> None:
        if self._stop.is_set():
            return
        running = asyncio.get_running_loop().create_task(self._attempt(task))
        self._running.add(running)
        self._begun[task.queue] += 1
        running.add_done_callback(lambda running: self._ended(running, task.queue))

    def _ended(self, running: asyncio.Task[None], queue: str) -> None:
        self._running.discard(running)
        self._begun[queue] -= 1
        self._freed.set()

    async def _attempt(self, task: TaskRef) -> None:
        try:
            # A retry comes when its delay is over, even if no slot is free.
            async with self._slots.setdefault(task.queue, asyncio.Semaphore(self._threads)):
                delay = await self._run.run(TaskKey(task.id, task.type))
        except Outage as error:
            # The row keeps its claim until the lease is over; the sweep brings it back.
            self._facts(OutageSeen(context=self._context, server="postgresql", error=error.explanation))
            return
        except Exception:
            _log.exception("task %s could not be run", task.id)
            return
        if delay is not None and not self._stop.is_set():
            self._later(delay, task)

    def _later(self, delay: timedelta, task: TaskRef) -> None:
        """Try again after a delay. If this process ends before, another worker's sweep does it."""

        def begin() -> None:
            self._timers.discard(timer)
            self._begin(task)

        timer = asyncio.get_running_loop().call_later(delay.total_seconds(), begin)
        self._timers.add(timer)
