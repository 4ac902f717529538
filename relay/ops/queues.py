"""Operators' questions about the queues in Redis, and their actions on dead jobs.

Redis only wakes workers up: the tables hold the truth. If a deleted job is needed, it is sent again. All contexts
share the queues. What is done to a job is in the audit log of the context that the job names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Annotated, Any, Final, TypeAlias

from dramatiq import Message
from pydantic import Field

from relay import jobs
from relay.adapters.dramatiq.gates import Gates
from relay.adapters.dramatiq.queues import JobQueues
from relay.adapters.postgres.paging import counted
from relay.adapters.postgres.pool import Source
from relay.adapters.postgres.row_operations import Refusal, audit
from relay.bus import Command, CommandBus, Query, QueryBus
from relay.credentials import redis_options
from relay.domain.errors import RelayError, TooMany, UnknownMessage, UnknownQueue, UnreadableMessage
from relay.domain.operators import Operator, Outcome
from relay.domain.queues import JobPage, JobState, QueueView
from relay.ops.requests import ListTaskQueues, Rows
from relay.settings import ContextSettings, Settings

Sources: TypeAlias = Callable[[ContextSettings], AbstractAsyncContextManager[Source]]
#: A job, dead or not; None for one that cannot be read.
_Dead: TypeAlias = Mapping[str, Message[Any] | None]
#: How many queues of tasks are shown, each by itself, and how many are looked at.
_MAX_SHOWN: Final = 100
_MAX_COUNTED: Final = 3_000
_OF_TASKS: Final = re.compile(rf"{jobs.task_queue('')}[a-z0-9_-]{{1,40}}\Z")


class ListQueues(Query[Sequence[QueueView]]):
    """How many jobs each queue has: those of the fleet, and those of tasks that have not ended.

    Of many queues of tasks it shows a hundred, and the others together.
    """


class ListJobs(Query[JobPage]):
    """Jobs of a queue. ``after``: ``next`` of the page before. Raises UnknownQueue."""

    queue: str
    state: JobState
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    after: Annotated[str, Field(pattern=r"^[0-9]{1,18}$")] | None = None


class FindDeadJobs(Query[tuple[str, Sequence[str]]]):
    """Which of these jobs are dead, and the context whose audit log records an act on them.

    ``ids`` None: all of the queue. Raises UnknownQueue, UnknownMessage if none is dead, and TooMany.
    """

    queue: str
    ids: Sequence[str] | None = None
    limit: Rows = 1_000


class _ActOnJobs(Command[Outcome]):
    """``ids`` None: all dead jobs of the queue; nothing is done if there are more than ``limit``.

    ``home``: the context whose audit log records the whole act, besides what the others record of theirs. It has
    the selection.
    """

    queue: str
    ids: Sequence[str] | None = None
    limit: Rows = 1_000
    home: str | None = None
    by: Operator


class RequeueJobs(_ActOnJobs):
    """Run dead jobs again, with new attempts. Raises UnknownQueue and TooMany."""


class DeleteJobs(_ActOnJobs):
    """Remove dead jobs. Their rows stay as they are. Raises UnknownQueue and TooMany."""


def answer_for_queues(bus: QueryBus, settings: Settings) -> QueryBus:
    """Have a bus that answers `ListTaskQueues` answer these queries; returns the bus."""

    async def of_tasks(context: str) -> Sequence[str]:
        # A database that does not answer hides no queue of the others.
        with suppress(RelayError):
            return (await bus.ask_async(ListTaskQueues(context=context))).unwrap()
        return ()

    @bus.handles(ListQueues)
    async def count(_query: ListQueues) -> Sequence[QueueView]:
        own, names = [*jobs.QUEUES, jobs.task_queue()], dict[str, None]()
        for found in await asyncio.gather(*map(of_tasks, settings.contexts)):
            names |= dict.fromkeys(map(jobs.task_queue, found))
        others = [it for it in names if it not in own]
        known = [it for it in others if _OF_TASKS.match(it)][:_MAX_COUNTED]
        async with _looking(settings) as queues:
            counted = await queues.count([*own, *known])
        return [*counted[: len(own)], *_folded(counted[len(own) :], len(others))]

    @bus.handles(ListJobs)
    async def page(query: ListJobs) -> JobPage:
        _check(query.queue)
        async with _looking(settings) as queues:
            return await queues.page(query.queue, query.state, query.limit, query.after)

    @bus.handles(FindDeadJobs)
    async def find(query: FindDeadJobs) -> tuple[str, Sequence[str]]:
        _check(query.queue)
        async with _looking(settings) as queues:
            dead = await _chosen(queues, query)
        if not dead:
            raise UnknownMessage("no job of these is dead in the queue", hint="relay queues jobs QUEUE")
        by_context = _by_context(dead, dead, settings.contexts)
        return max(by_context, key=lambda name: len(by_context[name])), [*dead]

    return bus


def carry_out_for_queues(bus: CommandBus, settings: Settings, sources: Sources) -> CommandBus:
    """Have a bus carry out these commands; returns the bus."""

    @bus.handles(RequeueJobs)
    async def requeue(command: RequeueJobs) -> Outcome:
        return await _act(command, "queues.requeue", requeue=True)

    @bus.handles(DeleteJobs)
    async def delete(command: DeleteJobs) -> Outcome:
        return await _act(command, "queues.delete", requeue=False)

    async def _act(command: _ActOnJobs, action: str, *, requeue: bool) -> Outcome:
        _check(command.queue)
        async with _looking(settings) as queues:
            dead = await _chosen(queues, command)
            wanted = [id for id, message in dead.items() if message is not None or not requeue]
            done, deed, by = list[str](), None, command.by
            if command.home is not None and wanted:
                refused = [*_refused(command, dead, wanted)]
                deed, by = await _record(command.home, action, command.queue, wanted, by, refused), by.besides
            for context, ids in _by_context(dead, wanted, settings.contexts).items():
                # The entry first, so that no action is without one. It stays if Redis then does not answer.
                if context != command.home:
                    await _record(context, action, command.queue, ids, by)
                if requeue:
                    done += await queues.requeue(
                        command.queue, {id: it for id in ids if (it := dead[id]) is not None}
                    )
                else:
                    done += await queues.delete(command.queue, ids)
        return Outcome(tuple(done), tuple(_refused(command, dead, done)), deed)

    async def _record(
        context: str, action: str, queue: str, ids: Sequence[str], by: Operator, refused: Sequence[Refusal] = ()
    ) -> int:
        async with sources(settings.contexts[context]) as source, source() as conn, conn.transaction():
            return await audit(conn, action, [f"{queue}/{id}" for id in ids], by, refused)

    return bus


def _folded(counted: Sequence[QueueView], names: int) -> Iterable[QueueView]:
    """The queues of tasks, at most `_MAX_SHOWN`, those with jobs first; then one entry for all other names.

    Whoever may insert tasks may invent names. No worker serves one that no queue can have.
    """
    shown = sorted(counted, key=lambda it: not (it.waiting or it.delayed or it.in_flight or it.dead))[:_MAX_SHOWN]
    yield from sorted(shown, key=lambda it: it.name)
    if names > len(shown):
        rest = [it for it in counted if it not in shown]
        yield QueueView(
            name=f"{names - len(shown)} more names of tasks",
            waiting=sum(it.waiting for it in rest),
            delayed=sum(it.delayed for it in rest),
            in_flight=sum(it.in_flight for it in rest),
            dead=sum(it.dead for it in rest),
        )


async def _chosen(queues: JobQueues, command: _ActOnJobs | FindDeadJobs) -> _Dead:
    if command.ids is not None:
        return await queues.dead(command.queue, list(dict.fromkeys(command.ids)))
    ids = await queues.dead_ids(command.queue, command.limit + 1)
    if len(ids) > command.limit:
        raise TooMany(f"{counted(len(ids))} are dead and the limit is {command.limit}", hint="raise --limit")
    return await queues.dead(command.queue, ids)


def _by_context(dead: _Dead, ids: Iterable[str], contexts: Mapping[str, Any]) -> Mapping[str, list[str]]:
    """Divide jobs by the contexts whose audit logs record them: the first context, if a job names none."""
    found = dict[str, list[str]]()
    for id in ids:
        message = dead[id]
        named = (message and jobs.context_of(message)) or ""
        found.setdefault(named if named in contexts else next(iter(contexts)), []).append(id)
    return found


def _refused(command: _ActOnJobs, dead: _Dead, done: Sequence[str]) -> Iterable[tuple[str, RelayError]]:
    for id in dict.fromkeys(dead if command.ids is None else command.ids):
        if id in done:
            continue
        if id in dead and dead[id] is None:
            yield id, UnreadableMessage("is no message of Dramatiq", hint="delete it")
        else:
            yield id, UnknownMessage("no job of this id is dead in the queue", hint="relay queues jobs QUEUE")


def _check(queue: str) -> None:
    if queue not in jobs.QUEUES and not _OF_TASKS.match(queue):
        raise UnknownQueue(f"there is no queue {queue[:80]!r}", field="queue", hint="relay queues list")


@asynccontextmanager
async def _looking(settings: Settings) -> AsyncIterator[JobQueues]:
    # A job that is not text must not keep the others from being shown.
    options = {**redis_options(settings), "encoding_errors": "replace"}
    gates = Gates(settings.redis_url.get_secret_value(), settings.redis_namespace, **options)
    try:
        yield JobQueues(gates.client, settings.redis_namespace)
    finally:
        await gates.aclose()
