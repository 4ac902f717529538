"""Answers the queries of `relay.ops.requests` and carries out its commands: one implementation for all callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryFile
from typing import IO, Any, Final, TypeAlias
from uuid import UUID

from relay.adapters.postgres.actions import Actions
from relay.adapters.postgres.archive import PostgresArchive
from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.controls import PostgresControls
from relay.adapters.postgres.history import PostgresHistory
from relay.adapters.postgres.incidents import PostgresParkedKeys
from relay.adapters.postgres.paging import WINDOW, Page, Row
from relay.adapters.postgres.pool import Source
from relay.adapters.postgres.pool import query as select
from relay.adapters.postgres.replays import PostgresReplays
from relay.adapters.postgres.running import running
from relay.adapters.postgres.schedule import PostgresSchedule
from relay.bus import CommandBus, QueryBus
from relay.bus.errors import NothingFound
from relay.domain.archive import Manifest
from relay.domain.controls import LONGEST, Control, Limit, UnknownControl, What, check_name
from relay.domain.errors import InvalidRequest, NotUndoable, of_context
from relay.domain.history import SPANS, ContextHistory, LastHour
from relay.domain.operators import Outcome, Selected
from relay.domain.schedule import CronRun, Schedule, UnknownJob
from relay.domain.work import control_fields
from relay.ops import requests
from relay.ops.kinds import KINDS, undoing
from relay.settings import ContextSettings, SubscriptionSettings
from relay.settings.urls import hide_url

#: Lends the database of a context. Raises DatabaseUnreachable.
Sources: TypeAlias = Callable[[ContextSettings], AbstractAsyncContextManager[Source]]
#: So many whole payloads are read at the same time: each may take the server a second, and this disk a gigabyte.
_PAYLOADS: Final = 2
#: How many names an error lists.
_NAMED: Final = 50
#: Groups are counted among this many of the newest rows.
MAX_GROUPED: Final = 10_000
#: How many rows besides those that were counted an act looks at: it leaves them, and says how many there are.
_MORE: Final = 1_000
#: Delivered tasks count too if they are due within a year.
_EVEN_LATER: Final = timedelta(days=-365)


class RowHandlers:
    """The databases of contexts, and buses over them. All raise UnknownContext, and DatabaseUnreachable.

    ``window``: how many rows a short look reads in each order.
    """

    def __init__(self, contexts: Mapping[str, ContextSettings], sources: Sources, window: int = WINDOW) -> None:
        self._contexts, self._sources, self._window = contexts, sources, window
        self._reading = asyncio.Semaphore(_PAYLOADS)

    def _lend(self, context: str) -> AbstractAsyncContextManager[Source]:
        return self._sources(of_context(self._contexts, context))

    def answer(self, bus: QueryBus) -> QueryBus:
        """Register the answers of the queries about rows with a bus; returns the bus."""
        bus.handles(requests.ReadBacklog)(self._backlog)
        bus.handles(requests.FindRows)(self._find)
        bus.handles(requests.GroupRows)(self._group)
        bus.handles(requests.GetRow)(self._get)
        bus.handles(requests.ReadPayload)(self._payload)
        bus.handles(requests.ListParked)(self._parked)
        bus.handles(requests.ListTaskQueues)(self._task_queues)
        bus.handles(requests.ReadSchedule)(self._schedule)
        bus.handles(requests.ListControls)(self._controls)
        bus.handles(requests.ListSubscriptions)(self._subscriptions)
        bus.handles(requests.ReadRunning)(self._running)
        bus.handles(requests.ReadRuns)(self._runs)
        bus.handles(requests.ListBatches)(self._batches)
        bus.handles(requests.ReadAudit)(self._audit)
        bus.handles(requests.ListReplays)(self._replays)
        bus.handles(requests.ReadHistory)(self._history)
        bus.handles(requests.ReadLastHour)(self._last_hour)
        bus.handles(requests.GetDeed)(self._deed)
        bus.handles(requests.GetSelection)(self._selection)
        return bus

    def commands(self) -> CommandBus:
        """Return the bus that carries out the commands on rows."""
        bus = CommandBus()
        bus.handles(requests.ActOnRows)(self._act)
        bus.handles(requests.KeepSelection)(self._keep)
        bus.handles(requests.UndoDeed)(self._undo)
        bus.handles(requests.ReleaseKeys)(self._release)
        bus.handles(requests.RunJob)(self._run)
        bus.handles(requests.StartReplay)(self._start_replay)
        bus.handles(requests.StopReplay)(self._stop_replay)
        bus.handles(requests.PauseJob)(self._pause)
        bus.handles(requests.ResumeJob)(self._pause)
        bus.handles(requests.PauseControl)(self._hold)
        bus.handles(requests.ResumeControl)(self._resume)
        bus.handles(requests.LimitControl)(self._limit)
        bus.handles(requests.RestoreLimit)(self._restore)
        return bus

    async def _backlog(self, query: requests.ReadBacklog) -> requests.Backlog:
        async with self._lend(query.context) as source:
            reader, limits = PostgresBacklogReader(source), self._contexts[query.context].inbox_limits
            outbox, inbox = await reader.outbox_backlog(), await reader.inbox_backlog()
            return outbox, inbox, await reader.brake(), await reader.full_inboxes(limits)

    async def _parked(self, query: requests.ListParked) -> Sequence[Row]:
        async with self._lend(query.context) as source:
            return await PostgresParkedKeys(source).list(query.limit, query.offset, query.subscription)

    async def _task_queues(self, query: requests.ListTaskQueues) -> Sequence[str]:
        async with self._lend(query.context) as source, source() as conn:
            pending = await select(conn, "tasks/pending_queues")
            delivered = await select(conn, "tasks/delivered_queues", grace=_EVEN_LATER)
        return sorted({queue for (queue,) in (*pending, *delivered)})

    async def _release(self, command: requests.ReleaseKeys) -> Outcome:
        async with self._lend(command.context) as source:
            keys = PostgresParkedKeys(source)
            return await keys.release(command.keys, command.subscription, command.by, command.counted)

    async def _replays(self, query: requests.ListReplays) -> Sequence[Row]:
        async with self._lend(query.context) as source:
            return await PostgresReplays(source).list(query.limit, query.id)

    async def _start_replay(self, command: requests.StartReplay) -> int:
        known = of_context(self._contexts, command.context).subscriptions
        if command.subscription not in known:
            text = f"{command.context} has no subscription {command.subscription[:80]!r}"
            raise InvalidRequest(text, field="subscription", hint=f"known: {', '.join(known) or 'none'}")
        async with self._lend(command.context) as source:
            asked = command.model_dump(exclude={"context", "by"})
            return await PostgresReplays(source).start(**asked, by=command.by)

    async def _stop_replay(self, command: requests.StopReplay) -> None:
        async with self._lend(command.context) as source:
            await PostgresReplays(source).stop(command.id, command.by)

    async def _schedule(self, query: requests.ReadSchedule) -> Schedule:
        async with self._lend(query.context) as source:
            return await PostgresSchedule(source).schedule(query.limit, query.offset)

    async def _running(self, query: requests.ReadRunning) -> requests.RunsNow:
        settings = of_context(self._contexts, query.context)
        limits = {name: it.handler_timeout.total_seconds() for name, it in settings.subscriptions.items()}
        async with self._lend(query.context) as source:
            leader = (await PostgresSchedule(source).schedule(limit=1)).leader
            return requests.RunsNow(await running(source, query.context, limits), leader)

    async def _runs(self, query: requests.ReadRuns) -> Sequence[CronRun]:
        async with self._lend(query.context) as source:
            schedule = PostgresSchedule(source)
            if query.asked is not None:
                found = await schedule.answering(query.name, query.asked)
                runs: Sequence[CronRun] = () if found is None else (found,)
            else:
                runs = await schedule.runs(query.name, query.limit)
            if not runs and not await schedule.knows(query.name):
                raise await _unknown(schedule, query.name)
            return runs

    async def _run(self, command: requests.RunJob) -> datetime:
        async with self._lend(command.context) as source:
            schedule = PostgresSchedule(source)
            if (requested_at := await schedule.request(command.name, command.by)) is not None:
                return requested_at
            raise await _unknown(schedule, command.name)

    async def _pause(self, command: requests.PauseJob | requests.ResumeJob) -> None:
        async with self._lend(command.context) as source:
            schedule = PostgresSchedule(source)
            if not await schedule.pause(command.name, command.by, pause=isinstance(command, requests.PauseJob)):
                raise await _unknown(schedule, command.name)

    async def _controls(self, query: requests.ListControls) -> Sequence[Control]:
        async with self._lend(query.context) as source:
            return await PostgresControls(source).in_force()

    async def _subscriptions(self, query: requests.ListSubscriptions) -> Sequence[Row]:
        if query.name is not None:
            self._check(query.context, What.SUBSCRIPTION, query.name)
        known = of_context(self._contexts, query.context).subscriptions
        async with self._lend(query.context) as source:
            found = [it for it in await PostgresControls(source).in_force() if it.what is What.SUBSCRIPTION]
        names = known if query.name is None else [query.name]
        return [
            {
                "name": name,
                **control_fields([it for it in found if it.name == name]),
                **subscription_settings(known[name]),
            }
            for name in names
        ]

    async def _hold(self, command: requests.PauseControl) -> Control:
        self._check(command.context, command.what, command.name)
        async with self._lend(command.context) as source:
            end = _end(command.lasting, command.until)
            return await PostgresControls(source).pause(command.what, command.name, end, command.by)

    async def _resume(self, command: requests.ResumeControl) -> bool:
        """A subscription that the configuration names no more can be resumed, too."""
        check_name(command.what, command.name)
        async with self._lend(command.context) as source:
            return await PostgresControls(source).resume(command.what, command.name, command.by)

    async def _limit(self, command: requests.LimitControl) -> Limit:
        self._check(command.context, command.what, command.name)
        async with self._lend(command.context) as source:
            end = _end(command.lasting, command.until)
            controls = PostgresControls(source)
            return await controls.limit(command.what, command.name, command.limit, end, command.by)

    async def _restore(self, command: requests.RestoreLimit) -> Limit:
        check_name(command.what, command.name)
        async with self._lend(command.context) as source:
            before = await PostgresControls(source).restore(command.what, command.name, command.by)
        if before is None:
            raise UnknownControl(
                f"{command.name[:80]!r} was never limited", field="name", hint="relay controls list"
            )
        return before

    def _check(self, context: str, what: What, name: str) -> None:
        check_subject(of_context(self._contexts, context), what, name)

    async def _batches(self, query: requests.ListBatches) -> Sequence[Manifest]:
        async with self._lend(query.context) as source:
            archive = PostgresArchive(source, query.context)
            return await archive.part(query.limit, query.offset, newest=query.newest)

    async def _audit(self, query: requests.ReadAudit) -> Sequence[Row]:
        async with self._lend(query.context) as source:
            return await Actions(source).find(query.model_dump(exclude={"context"}))

    async def _history(self, query: requests.ReadHistory) -> ContextHistory:
        async with self._lend(query.context) as source:
            history = PostgresHistory(source)
            return await history.read(query.context, SPANS[query.span], query.of, query.name)

    async def _last_hour(self, query: requests.ReadLastHour) -> LastHour:
        async with self._lend(query.context) as source:
            return await PostgresHistory(source).last_hour()

    async def _find(self, query: requests.FindRows) -> Page[Row]:
        async with self._store(query.kind, query.context) as store:
            how = {"before": query.before, "short": not query.thorough, "oldest": query.oldest}
            page: Page[Row] = await store.find(query.wanted, query.limit, **how)
            return page

    async def _group(self, query: requests.GroupRows) -> requests.Groups:
        async with self._store(query.kind, query.context) as store:
            groups: requests.Groups = await store.groups(query.wanted, MAX_GROUPED, short=not query.thorough)
            return groups

    async def _get(self, query: requests.GetRow) -> Row | None:
        async with self._store(query.kind, query.context) as store:
            row: Row | None = await store.get(query.id, body=query.payload)
            return row

    async def _payload(self, query: requests.ReadPayload) -> IO[bytes] | None:
        """Read it whole before anybody gets a byte of it: who reads slowly holds a file, and no connection."""
        file = TemporaryFile()  # noqa: SIM115 - who reads it closes it
        try:
            async with self._reading, self._store(query.kind, query.context) as store:
                found = await store.payload(query.id, file)
        except BaseException:
            file.close()
            raise
        if found is None:
            file.close()
            return None
        file.seek(0)
        return file

    async def _act(self, command: requests.ActOnRows) -> Outcome:
        """Do what was asked, at most: only to the rows that were counted, if they fit as they did then."""
        action = KINDS[command.kind].action(command.action)
        async with self._store(command.kind, command.context) as store:
            bound = await _bound(store, command)
            by = replace(command.by, about={**command.by.about, **bound.about})
            outcome: Outcome = await getattr(store, action.name)(bound.ids, by, **command.arguments)
            if outcome.refused and command.wanted is not None:
                page = await store.find(command.wanted, len(bound.ids) + _MORE)
                outcome = outcome.refusing({str(row["id"]) for row in page.items})
            return replace(outcome, left=bound.left, gone=bound.gone)

    async def _undo(self, command: requests.UndoDeed) -> Outcome:
        """Take back what an act did, where no later act has changed it."""
        async with self._lend(command.context) as source:
            actions = Actions(source)
            if (found := await actions.rows_of(command.id)) is None:
                raise NothingFound(f"{command.context} has no act {command.id}", hint="relay audit list")
            word, ids, changed = found
            if (undone := await actions.undone_by(command.id)) is not None:
                raise NotUndoable(f"was undone by act {undone}")
            kind, action = undoing(word)
            later = NotUndoable("a later act has changed it")
            refused = tuple((id, later) for id in ids if id in changed)
            keys = [kind.key(id) for id in ids if id not in changed]
            by = replace(command.by, undoes=command.id, about={"changed": len(refused)} if refused else {})
            store: Any = kind.store(source, self._window)
            outcome: Outcome = await getattr(store, action.name)(keys, by)
            return replace(outcome, refused=(*outcome.refused, *refused))

    async def _keep(self, command: requests.KeepSelection) -> UUID:
        async with self._lend(command.context) as source:
            return await Actions(source).keep(command.selected)

    async def _selection(self, query: requests.GetSelection) -> Selected:
        async with self._lend(query.context) as source:
            return await Actions(source).selected(query.id)

    async def _deed(self, query: requests.GetDeed) -> Row | None:
        async with self._lend(query.context) as source:
            return await Actions(source).deed(query.id)

    @asynccontextmanager
    async def _store(self, kind: str, context: str) -> AsyncIterator[Any]:
        async with self._lend(context) as source:
            yield KINDS[kind].store(source, self._window)


async def _unknown(schedule: PostgresSchedule, name: str) -> UnknownJob:
    known = ", ".join(job.name for job in (await schedule.schedule(_NAMED)).jobs) or "none"
    return UnknownJob(f"no job is called {name[:200]!r}", field="name", hint=f"scheduled: {known}")


def check_subject(context: ContextSettings, what: What, name: str) -> None:
    """Raise InvalidRequest for a bad name, and UnknownControl for a subscription that there is not."""
    check_name(what, name)
    known = context.subscriptions
    if what is What.SUBSCRIPTION and name not in known:
        hint = f"there are: {', '.join([*known][:_NAMED]) or 'none'}"
        raise UnknownControl(f"no subscription is called {name[:80]!r}", field="name", hint=hint)


def subscription_settings(it: SubscriptionSettings) -> Row:
    """What relay.toml says of a subscription, without passwords."""
    return {
        "handler": hide_url(it.handler),
        "stream": it.stream,
        "durable": it.durable,
        "filter_subject": it.filter_subject,
        "settle": it.settle,
        "order": it.order,
        "max_ack_pending": it.max_ack_pending,
        "max_attempts": it.max_attempts,
        "configured_limit": str(it.limit) if it.limit else None,
    }


def _end(lasting: timedelta | None, until: datetime | None) -> datetime | None:
    """When a control ends. Raises InvalidRequest."""
    if lasting is None:
        return until
    if until is not None:
        raise InvalidRequest("say how long, or until when, not both", field="until")
    if not timedelta() < lasting <= LONGEST:
        raise InvalidRequest(f"must be more than nothing and at most {LONGEST.days} days", field="for")
    return datetime.now(UTC) + lasting


@dataclass(frozen=True, slots=True)
class _Bound:
    """The rows that an act is for. ``left``: others that fit its filter. ``gone``: those that do not any more."""

    ids: Sequence[Any]
    left: int = 0
    gone: int = 0

    @property
    def about(self) -> Mapping[str, int]:
        return {name: many for name, many in (("left", self.left), ("gone", self.gone)) if many}


async def _bound(store: Any, command: requests.ActOnRows) -> _Bound:
    if command.wanted is None:
        if command.ids is None:
            raise InvalidRequest("say which: ids or a filter")
        return _Bound(command.ids)
    if command.ids is None:
        page: Page[Row] = await store.find(command.wanted, command.limit)
        return _Bound([row["id"] for row in page.all_of(command.limit)])
    page = await store.find(command.wanted, len(command.ids) + _MORE)
    found = {str(row["id"]) for row in page.items}
    fitting = [id for id in command.ids if str(id) in found]
    left = page.total - len(fitting)
    if page.total > len(page.items):  # some of them may lie behind the page: the rule of the action decides
        return _Bound(command.ids, left)
    return _Bound(fitting, left, len(command.ids) - len(fitting))
