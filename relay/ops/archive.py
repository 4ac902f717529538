"""Operators' questions and commands about a context's archive: verify files, restore rows, replay events.

The command line waits as long as it takes. Over HTTP each has a limit, and says what to run instead beyond it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from relay.adapters.postgres.archive import PostgresArchive
from relay.adapters.postgres.pool import Source
from relay.bootstrap import cold_store
from relay.bus import Command, CommandBus, Query, QueryBus
from relay.commands.archive import FileCheck, verify
from relay.commands.coldrows import ColdRows, Progress, archived_subject
from relay.domain.archive import ArchiveKind, ArchiveOff, Manifest, RowFilter
from relay.domain.errors import InvalidRequest, TooMany, of_context
from relay.domain.identity import Identity, check_id
from relay.domain.operators import Operator
from relay.domain.topology import is_pattern
from relay.ports import ColdStore
from relay.settings import ContextSettings, Settings
from relay.settings.values import format_duration

Sources: TypeAlias = Callable[[ContextSettings], AbstractAsyncContextManager[Source]]


class VerifyArchive(Query[Sequence[FileCheck]]):
    """Whether each file holds what its manifest says. Raises TooMany if there are more files than ``limit``.

    ``files``: only these; raises InvalidRequest if no batch has one of them. ``kind``: only of this table.
    ``since`` (included) and ``until`` (excluded): only files that may have rows which ended then. Without any of
    these: all files, and also those that no batch names.
    """

    context: str
    limit: int
    files: Sequence[str] = ()
    kind: ArchiveKind | None = None
    since: datetime | None = None
    until: datetime | None = None

    def chooses(self, batch: Manifest) -> bool:
        """Whether the file of a batch is read."""
        return (
            (not self.files or batch.file in self.files)
            and self.kind in (None, batch.kind)
            and RowFilter(since=self.since, until=self.until).may_be_in(batch)
        )

    @property
    def narrowed(self) -> bool:
        """Whether it is not for all files."""
        return bool(self.files) or (self.kind, self.since, self.until) != (None, None, None)


class BindArchived(Query[RowFilter]):
    """A filter that finds only what is in the archive now: rows that are archived later are left."""

    context: str
    kind: ArchiveKind
    wanted: RowFilter


class CountArchived(Query[int]):
    """How many archived rows a filter selects. Raises InvalidRequest for a filter that cannot be."""

    context: str
    kind: ArchiveKind
    wanted: RowFilter


class RestoreArchived(Command[int]):
    """Put rows back into their table, as they were; answers how many were not there. Nothing is sent.

    ``limit``: nothing is done if more are selected; None: they were counted.
    """

    context: str
    kind: ArchiveKind
    wanted: RowFilter
    limit: int | None
    by: Operator


class ReplayArchived(Command[int]):
    """Publish events once more, to every consumer of the stream; answers how many. ``limit``: as above.

    Those whose time is over are left, unless they get a new one by ``expires_in``. Raises Stale if all are.
    """

    context: str
    wanted: RowFilter
    limit: int | None
    expires_in: timedelta | None = None
    by: Operator


def row_filter(kind: ArchiveKind, ids: Iterable[str], values: Mapping[str, Any], field: str = "{}") -> RowFilter:
    """The filter of archived rows. ``values``: of the filters of `ARCHIVED`. ``field``: how an error names one.

    Raises InvalidRequest and InvalidKey.
    """
    subject, correlation = values["subject"], values["correlation_id"]
    if subject is not None and (kind is ArchiveKind.TASKS or not is_pattern(subject)):
        raise InvalidRequest(
            "is not a pattern of subjects, or tasks have no subject", field=field.format("subject")
        )
    return RowFilter(
        ids=frozenset(_uuid(it, "ids") for it in ids),
        subject=subject,
        type=values["type"],
        key=values["key"],
        correlation=None if correlation is None else _uuid(correlation, field.format("correlation_id")),
        since=values["since"],
        until=values["until"],
    )


def _uuid(text: str, field: str) -> UUID:
    return Identity.of(str(check_id(text, field).value)).uuid


def forgetful(settings: Settings, producer: str) -> Sequence[str]:
    """Say which consumers of a context no longer recognise old messages, and would handle them again."""
    return [
        f"{name} deletes its archive after {format_duration(keep)}, with the ids of what it has handled; older"
        " events it would handle again"
        for name, context in settings.contexts.items()
        if (keep := context.archive.keep) is not None and producer in settings.outlived(name)
    ]


class ArchiveHandlers:
    """The archives of contexts. ``patience``: how long reading files may take, in seconds; None without a limit.

    All raise UnknownContext, ArchiveOff, ArchiveDamaged, DatabaseUnreachable, StoreUnreachable, and TooMany.
    """

    def __init__(
        self,
        contexts: Mapping[str, ContextSettings],
        sources: Sources,
        *,
        patience: float | None = None,
        progress: Progress = lambda _done, _of: None,
    ) -> None:
        self._contexts, self._sources = contexts, sources
        self._patience, self._progress = patience, progress

    def answer(self, bus: QueryBus) -> QueryBus:
        """Register the answers of the queries with a bus; returns the bus."""
        bus.handles(VerifyArchive)(self._verify)
        bus.handles(BindArchived)(self._bind)
        bus.handles(CountArchived)(self._count)
        return bus

    def carry_out(self, bus: CommandBus) -> CommandBus:
        """Register the commands with a bus; returns the bus."""
        bus.handles(RestoreArchived)(self._restore)
        bus.handles(ReplayArchived)(self._replay)
        return bus

    async def _verify(self, query: VerifyArchive) -> Sequence[FileCheck]:
        async with self._opened(query.context) as (tables, store, _), self._in_time("relay archive verify"):
            names = {it.file for it in await tables.batches() if query.chooses(it)}
            if (files := len(names)) > query.limit:
                raise TooMany(f"{files} files and the limit is {query.limit}", hint="relay archive verify")
            if missing := next((it for it in query.files if it not in names), None):
                raise InvalidRequest(f"no batch has {missing!r}", field="files", hint="relay archive list")
            chosen = query.chooses if query.narrowed else None
            return [found async for found in verify(query.context, tables, store, chosen)]

    async def _count(self, query: CountArchived) -> int:
        async with self._opened(query.context) as (_, _, rows), self._in_time("narrow it with since and until"):
            return await rows.count(query.kind, query.wanted, self._progress)

    async def _bind(self, query: BindArchived) -> RowFilter:
        async with self._opened(query.context) as (tables, _, _):
            return await _bound(tables, query.kind, query.wanted)

    async def _restore(self, command: RestoreArchived) -> int:
        async with self._opened(command.context) as (tables, _, rows):
            wanted = await self._bounded(tables, rows, command.kind, command)
            return await rows.restore(command.kind, wanted, command.by, self._progress)

    async def _replay(self, command: ReplayArchived) -> int:
        async with self._opened(command.context) as (tables, _, rows):
            wanted = await self._bounded(tables, rows, ArchiveKind.OUTBOX, command)
            return await rows.replay(wanted, command.by, self._progress, command.expires_in)

    async def _bounded(
        self, tables: PostgresArchive, rows: ColdRows, kind: ArchiveKind, command: RestoreArchived | ReplayArchived
    ) -> RowFilter:
        """Refuse a request that is too large, before anything is changed; returns a filter of what was counted."""
        if command.limit is None:
            return command.wanted
        wanted = await _bound(tables, kind, command.wanted)
        async with self._in_time("narrow it with since and until, or use relay archive"):
            count = await rows.count(kind, wanted, self._progress)
        if count > command.limit:
            raise TooMany(f"{count} match and the limit is {command.limit}", hint="narrow it or raise the limit")
        return wanted

    @asynccontextmanager
    async def _opened(self, name: str) -> AsyncIterator[tuple[PostgresArchive, ColdStore, ColdRows]]:
        context = of_context(self._contexts, name)
        if (store := cold_store(context.archive)) is None:
            raise ArchiveOff(f"{name} has no archive", hint=f"[contexts.{name}.archive] after = …, directory = …")
        async with self._sources(context) as source:
            tables = PostgresArchive(source, name)
            yield tables, store, ColdRows(tables, store, partial(archived_subject, context.routing))

    @asynccontextmanager
    async def _in_time(self, instead: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._patience):
                yield
        except TimeoutError:
            text = f"the archive is too large to be read within {self._patience:g} s"
            raise TooMany(text, hint=instead) from None


async def _bound(tables: PostgresArchive, kind: ArchiveKind, wanted: RowFilter) -> RowFilter:
    numbers = [it.number for it in await tables.batches() if it.kind is kind]
    return wanted if wanted.newest is not None else replace(wanted, newest=max(numbers, default=0))
