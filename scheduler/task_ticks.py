"""The ticks of background tasks (Strategy B): deliver due tasks to Redis, and again those that Redis lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias

from relay import jobs
from relay.adapters.postgres.wakeup import TASKS
from relay.bootstrap import Application
from relay.domain.errors import DatabaseUnreachable
from relay.domain.facts import OutageSeen
from scheduler.hints import Hints

_DELIVER: Final = timedelta(milliseconds=250)
_SWEEP: Final = timedelta(seconds=1)
#: The module whose actors serve these ticks. A fleet without it uses Strategy A or has no tasks.
_ACTORS: Final = "tasks.actors"

#: Enqueues a job of a duty unless one is outstanding.
Send: TypeAlias = Callable[[jobs.Duty], Awaitable[bool]]
#: Name, interval and what to do.
Row: TypeAlias = tuple[str, timedelta, Callable[[], Awaitable[object]]]


def task_ticks(application: Application, send: Send, context: str) -> Iterator[Row]:
    """Yield the ticks of one context, as rows for the table of jobs."""
    if _ACTORS in application.settings.actor_modules:
        deliver, sweep = jobs.DELIVER_TASKS.of(context), jobs.SWEEP_TASKS.of(context)
        yield deliver.key, _DELIVER, DeliverTick(application, send, deliver).tick
        yield sweep.key, _SWEEP, partial(_sweep, application, send, sweep)


class DeliverTick:
    """Sends a job if a task is due. An idle context costs one query, and workers nothing."""

    def __init__(self, application: Application, send: Send, duty: jobs.Duty) -> None:
        self._wakeup, self._facts = application.context(duty.context).wakeup, application.facts
        self._send, self._duty = send, duty
        self._hints = Hints(duty.context, self._poll, application.facts)

    async def tick(self) -> None:
        """Poll once. An outage raises nothing, because the next tick polls again."""
        self._wakeup.listen(TASKS, self._hints)
        await self._poll()

    async def _poll(self) -> bool:
        """Send a job if a task is due; returns whether the task is left to an outstanding job."""
        try:
            due = await self._wakeup.tasks_due()
        except DatabaseUnreachable as error:
            self._facts(OutageSeen(context=self._duty.context, server="postgresql", error=error.message))
            return False
        return due and not await self._send(self._duty)


async def _sweep(application: Application, send: Send, duty: jobs.Duty) -> None:
    """Send a job if a task should have begun by now. Raises DatabaseUnreachable."""
    if await application.context(duty.context).wakeup.tasks_overdue():
        await send(duty)
