"""The ticks of background tasks (Strategy B): bring what is due to Redis, and bring what Redis lost again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias

from relay.adapters.postgres.wakeup import TASKS
from relay.bootstrap import UPKEEP_QUEUE, Application
from relay.domain.errors import DatabaseUnreachable
from relay.domain.facts import OutageSeen
from scheduler.hints import Hints

_DELIVER: Final = timedelta(milliseconds=250)
_SWEEP: Final = timedelta(seconds=1)
#: The module whose actors serve these ticks; a fleet without it runs its tasks otherwise, or has none.
_ACTORS: Final = "tasks.actors"

#: Enqueues a job of a duty, given queue, actor and context, unless one is outstanding.
Send: TypeAlias = Callable[..., Awaitable[bool]]
#: Name, interval and what to do.
Tick: TypeAlias = tuple[str, timedelta, Callable[[], Awaitable[object]]]


def task_ticks(application: Application, send: Send, context: str) -> Iterator[Tick]:
    """Yield the ticks of one context, as rows for the table of jobs."""
    if _ACTORS in application.settings.actor_modules:
        yield f"deliver_tasks:{context}", _DELIVER, DeliverTick(application, send, context).tick
        yield f"sweep_tasks:{context}", _SWEEP, partial(_sweep, application, send, context)


class DeliverTick:
    """Sends a job if a task is due: an idle context costs a look, and no worker anything."""

    def __init__(self, application: Application, send: Send, context: str) -> None:
        self._wakeup, self._facts = application.context(context).wakeup, application.facts
        self._send, self._context = send, context
        self._hints = Hints(context, self._poll, application.facts)

    async def tick(self) -> None:
        """One poll. Never raises for an outage: the next tick comes anyway."""
        self._wakeup.listen(TASKS, self._hints)
        await self._poll()

    async def _poll(self) -> bool:
        """Send a job if a task is due; returns whether it is left to one that is outstanding already."""
        context = self._context
        try:
            due = await self._wakeup.tasks_due()
        except DatabaseUnreachable as error:
            self._facts(OutageSeen(context=context, server="postgresql", error=error.message))
            return False
        return due and not await self._send(f"deliver_tasks:{context}", UPKEEP_QUEUE, "deliver_tasks", context)


async def _sweep(application: Application, send: Send, context: str) -> None:
    """Send a job if a task should have begun by now. Raises DatabaseUnreachable."""
    if await application.context(context).wakeup.tasks_overdue():
        await send(f"sweep_tasks:{context}", UPKEEP_QUEUE, "sweep_tasks", context)
