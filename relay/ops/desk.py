"""Answers the queries of `relay.ops.rows` and carries out its commands: one implementation for all who ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from relay.adapters.postgres.actions import Actions
from relay.adapters.postgres.archive import PostgresArchive
from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.incidents import PostgresIncidents, PostgresParkedKeys
from relay.adapters.postgres.messages import PostgresMessageOperations
from relay.adapters.postgres.operating import PostgresOutboxOperations, PostgresTaskOperations
from relay.adapters.postgres.paging import Page, Row
from relay.adapters.postgres.pool import Source
from relay.adapters.postgres.pool import query as select
from relay.adapters.postgres.schedule import PostgresSchedule
from relay.bus import CommandBus, QueryBus
from relay.domain.archive import Manifest
from relay.domain.errors import InvalidRequest, of_context
from relay.domain.operators import Outcome
from relay.domain.schedule import Schedule, UnknownJob
from relay.ops import rows
from relay.settings import ContextSettings

#: Lends the database of a context. Raises DatabaseUnreachable.
Sources: TypeAlias = Callable[[ContextSettings], AbstractAsyncContextManager[Source]]
#: Groups are counted among so many of the newest rows.
MAX_GROUPED: Final = 10_000
#: Delivered tasks that are due in a year, too.
_EVEN_LATER: Final = timedelta(days=-365)

_STORES: Final[Mapping[type[Any], type[Any]]] = {
    rows.FindEvents: PostgresOutboxOperations,
    rows.GetEvent: PostgresOutboxOperations,
    rows.FindMessages: PostgresMessageOperations,
    rows.GetMessage: PostgresMessageOperations,
    rows.FindIncidents: PostgresIncidents,
    rows.GetIncident: PostgresIncidents,
    rows.FindTasks: PostgresTaskOperations,
    rows.GetTask: PostgresTaskOperations,
}
_ACTIONS: Final[Mapping[type[rows.Act], tuple[type[Any], str]]] = {
    rows.RetryEvents: (PostgresOutboxOperations, "retry"),
    rows.ReplayEvents: (PostgresOutboxOperations, "replay"),
    rows.RetryMessages: (PostgresMessageOperations, "retry"),
    rows.RequeueIncidents: (PostgresIncidents, "requeue"),
    rows.DiscardIncidents: (PostgresIncidents, "discard"),
    rows.ResolveIncidents: (PostgresIncidents, "resolve"),
    rows.RetryTasks: (PostgresTaskOperations, "retry"),
    rows.CancelTasks: (PostgresTaskOperations, "cancel"),
}


class Desk:
    """The databases of contexts, and buses over them. All raise UnknownContext, and DatabaseUnreachable."""

    def __init__(self, contexts: Mapping[str, ContextSettings], sources: Sources) -> None:
        self._contexts = contexts
        self._sources = sources

    def _lend(self, context: str) -> AbstractAsyncContextManager[Source]:
        return self._sources(of_context(self._contexts, context))

    def answer(self, bus: QueryBus) -> QueryBus:
        """Have a bus answer the queries about rows; returns the bus."""
        bus.handles(rows.ReadBacklog)(self._backlog)
        bus.handles(rows.GroupIncidents)(self._grouping(PostgresIncidents))
        bus.handles(rows.GroupMessages)(self._grouping(PostgresMessageOperations))
        bus.handles(rows.ListParked)(self._parked)
        bus.handles(rows.ListTaskQueues)(self._task_queues)
        bus.handles(rows.ReadSchedule)(self._schedule)
        bus.handles(rows.ListBatches)(self._batches)
        bus.handles(rows.ReadAudit)(self._audit)
        for query, store in _STORES.items():
            bus.handles(query)(self._finding(store) if issubclass(query, rows.Find) else self._getting(store))
        return bus

    def commands(self) -> CommandBus:
        """Return the bus that carries out the commands on rows."""
        bus = CommandBus()
        for command, (store, action) in _ACTIONS.items():
            bus.handles(command)(self._acting(store, action))
        bus.handles(rows.ReleaseKeys)(self._release)
        bus.handles(rows.RunJob)(self._run)
        bus.handles(rows.PauseJob)(self._pause)
        bus.handles(rows.ResumeJob)(self._pause)
        return bus

    async def _backlog(self, query: rows.ReadBacklog) -> rows.Backlog:
        async with self._lend(query.context) as source:
            reader, limits = PostgresBacklogReader(source), self._contexts[query.context].inbox_limits
            outbox, inbox = await reader.outbox_backlog(), await reader.inbox_backlog()
            return outbox, inbox, await reader.brake(), await reader.full_inboxes(limits)

    async def _parked(self, query: rows.ListParked) -> Sequence[Row]:
        async with self._lend(query.context) as source:
            return await PostgresParkedKeys(source).list()

    async def _task_queues(self, query: rows.ListTaskQueues) -> Sequence[str]:
        async with self._lend(query.context) as source, source() as conn:
            pending = await select(conn, "tasks/pending_queues")
            delivered = await select(conn, "tasks/delivered_queues", grace=_EVEN_LATER)
        return sorted({queue for (queue,) in (*pending, *delivered)})

    async def _release(self, command: rows.ReleaseKeys) -> Outcome:
        async with self._lend(command.context) as source:
            return await PostgresParkedKeys(source).release(command.keys, command.subscription, command.by)

    async def _schedule(self, query: rows.ReadSchedule) -> Schedule:
        async with self._lend(query.context) as source:
            return await PostgresSchedule(source).schedule()

    async def _run(self, command: rows.RunJob) -> datetime:
        async with self._lend(command.context) as source:
            schedule = PostgresSchedule(source)
            if (requested_at := await schedule.request(command.name, command.by)) is not None:
                return requested_at
            raise await _unknown(schedule, command.name)

    async def _pause(self, command: rows.PauseJob | rows.ResumeJob) -> None:
        async with self._lend(command.context) as source:
            schedule = PostgresSchedule(source)
            if not await schedule.pause(command.name, command.by, pause=isinstance(command, rows.PauseJob)):
                raise await _unknown(schedule, command.name)

    async def _batches(self, query: rows.ListBatches) -> Sequence[Manifest]:
        async with self._lend(query.context) as source:
            return await PostgresArchive(source, query.context).batches()

    async def _audit(self, query: rows.ReadAudit) -> Sequence[Row]:
        async with self._lend(query.context) as source:
            return await Actions(source).find(query.model_dump(exclude={"context"}))

    def _finding(self, store: type[Any]) -> Callable[[rows.Find], Awaitable[Page[Row]]]:
        async def find(query: rows.Find) -> Page[Row]:
            async with self._lend(query.context) as source:
                how = {"before": query.before, "short": not query.thorough}
                found: Page[Row] = await store(source).find(query.wanted, query.limit, **how)
                return found

        return find

    def _grouping(self, store: type[Any]) -> Callable[[Any], Awaitable[rows.Groups]]:
        async def group(query: Any) -> rows.Groups:
            async with self._lend(query.context) as source:
                groups: rows.Groups = await store(source).groups(
                    query.wanted, MAX_GROUPED, short=not query.thorough
                )
                return groups

        return group

    def _getting(self, store: type[Any]) -> Callable[[rows.Get], Awaitable[Row | None]]:
        async def get(query: rows.Get) -> Row | None:
            async with self._lend(query.context) as source:
                found: Row | None = await store(source).get(query.id)
                return found

        return get

    def _acting(self, store: type[Any], action: str) -> Callable[[rows.Act], Awaitable[Outcome]]:
        async def act(command: rows.Act) -> Outcome:
            async with self._lend(command.context) as source:
                return await _act(store(source), action, command)

        return act


async def _unknown(schedule: PostgresSchedule, name: str) -> UnknownJob:
    known = ", ".join(job.name for job in (await schedule.schedule()).jobs) or "none"
    return UnknownJob(f"no job is called {name[:200]!r}", field="name", hint=f"scheduled: {known}")


async def _act(store: Any, action: str, command: rows.Act) -> Outcome:
    ids = await _chosen(store, command) if command.ids is None else command.ids
    outcome: Outcome = await getattr(store, action)(ids, command.by)
    if outcome.refused and command.wanted is not None:
        page = await store.find(command.wanted, command.limit)
        outcome = outcome.refusing({str(found["id"]) for found in page.items})
    return outcome


async def _chosen(store: Any, command: rows.Act) -> list[Any]:
    if command.wanted is None:
        raise InvalidRequest("say which: ids or a filter")
    page: Page[Row] = await store.find(command.wanted, command.limit)
    return [found["id"] for found in page.all_of(command.limit)]
