"""The ticks of background tasks (Strategy B): bring what is due to Redis, and bring what Redis lost again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias

from relay.adapters.postgres.tasks import PostgresTasks
from relay.bootstrap import UPKEEP_QUEUE, Application
from relay.domain.errors import DatabaseUnreachable
from relay.domain.facts import OutageSeen

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
        yield f"deliver_tasks:{context}", _DELIVER, partial(_deliver, application, send, context)
        duty = f"sweep_tasks:{context}"
        yield duty, _SWEEP, partial(send, duty, UPKEEP_QUEUE, "sweep_tasks", context)


async def _deliver(application: Application, send: Send, context: str) -> None:
    """Send a job if a task is due: an idle context costs a look, and no worker anything."""
    try:
        due = await PostgresTasks(application.context(context).pool).pending_queues()
    except DatabaseUnreachable as error:
        application.facts(OutageSeen(context=context, server="postgresql", error=error.message))
        return
    if due:
        await send(f"deliver_tasks:{context}", UPKEEP_QUEUE, "deliver_tasks", context)
