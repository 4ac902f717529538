"""Finds the rows of a chain in all contexts, in tables and archives. Only reads.

It begins with the id that was asked for. Each row names others: its correlation, its cause. So it searches again,
until nothing new is found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

from relay.adapters.postgres.archive import PostgresArchive
from relay.adapters.postgres.bounded import CELL
from relay.adapters.postgres.life import KINDS, LIMIT, Row, Rows, read
from relay.adapters.postgres.pool import Source
from relay.bootstrap import cold_store
from relay.commands.coldrows import ColdRows, archived_subject
from relay.domain.archive import ArchiveKind, RowFilter
from relay.domain.errors import RelayError
from relay.domain.identity import ID, Identity, known_originals
from relay.domain.life import LifeSearch
from relay.domain.limits import PAYLOAD
from relay.domain.moments import EARLIEST, LATEST, moment, nearest
from relay.domain.traceparent import TRACEPARENT, find
from relay.settings import ContextSettings

#: A life has at most so many rows, of all contexts and kinds.
MOST: Final = 3_000
#: A chain is followed for at most so many links.
_MAX_ROUNDS: Final = 20
#: How often the archives are read, because rows found there may name more.
_MAX_READINGS: Final = 3
#: How long a chain may have lasted before its first known row, if its beginning is not known.
_LONGEST: Final = timedelta(days=30)
#: The version of UUIDs that begin with the time when they were made.
_WITH_TIME: Final = 7
_ARCHIVED: Final = {"events": ArchiveKind.OUTBOX, "messages": ArchiveKind.INBOX, "tasks": ArchiveKind.TASKS}
#: The column of each kind that other rows name as their cause.
_KEYS: Final = {"events": "id", "messages": "message_id", "incidents": "message_id", "tasks": "id", "runs": None}
#: Columns that are not shown, and may be large.
_BODIES: Final = {"payload", "headers", "metadata"}
_TIMES: Final = ("occurred_at", "received_at", "created_at", "recorded_at", "opened_at")

#: Lends the database of a context. Raises DatabaseUnreachable.
Sources: TypeAlias = Callable[[ContextSettings], AbstractAsyncContextManager[Source]]
#: Is called with how many batches were read, and of how many.
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Gathered:
    """The rows by context and kind, each with its column ``archived``; and which contexts could not be asked."""

    rows: dict[str, dict[str, dict[Any, Row]]] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    count: int = 0

    def add(self, context: str, found: Rows, *, archived: bool = False) -> None:
        """Take rows, as many as there may be. A row of a table stands for its archived copy."""
        mine = self.rows.setdefault(context, {kind: {} for kind in KINDS})
        for kind, rows in found.items():
            self.cut = self.cut or (not archived and len(rows) >= LIMIT)
            for row in rows:
                key = row["message_id"] if kind == "messages" else row["id"]
                if key not in mine[kind]:
                    if self.count >= MOST:
                        self.cut = True
                        return
                    self.count += 1
                elif archived:
                    continue
                mine[kind][key] = {**row, "archived": archived}

    def all(self, kind: str) -> Iterator[tuple[str, Row]]:
        """All rows of a kind, with their contexts."""
        return ((context, row) for context, kinds in self.rows.items() for row in kinds[kind].values())

    @property
    def empty(self) -> bool:
        """Whether nothing but actions was found."""
        return not any(True for kind in _KEYS for _ in self.all(kind))


async def gather(
    contexts: Mapping[str, ContextSettings],
    sources: Sources,
    asked: str,
    *,
    archive: bool,
    progress: Progress,
    patience: float | None = None,
) -> Gathered:
    """Find everything about an id. Never raises for a context that cannot be read: it is ``unread``.

    ``patience``: how long archives are read, in seconds; None without a limit.
    """
    found = Gathered()
    wanted = await _tables(contexts, sources, LifeSearch.of(asked), found)
    if not archive:
        return found
    try:
        async with asyncio.timeout(patience):
            await _archives(contexts, sources, asked, wanted, found, progress)
    except TimeoutError:
        found.unread["archives"] = f"not read to the end within {patience:g} s; relay explain {asked} reads all"
    return found


async def _archives(
    contexts: Mapping[str, ContextSettings],
    sources: Sources,
    asked: str,
    wanted: LifeSearch,
    found: Gathered,
    progress: Progress,
) -> None:
    for _ in range(_MAX_READINGS):
        since = _since(asked, found)
        for context in contexts.values():
            await _archive(context, sources, wanted, since, found, progress)
        if found.cut or (more := _grown(wanted, found)) == wanted:
            break
        wanted = await _tables(contexts, sources, more, found)


async def _tables(
    contexts: Mapping[str, ContextSettings], sources: Sources, wanted: LifeSearch, found: Gathered
) -> LifeSearch:
    """Search the tables until nothing new is found; return what was searched at last."""
    for _ in range(_MAX_ROUNDS):
        reachable = {name: context for name, context in contexts.items() if name not in found.unread}
        answers = await asyncio.gather(*(_ask(sources(context), wanted) for context in reachable.values()))
        for name, answer in zip(reachable, answers, strict=True):
            if isinstance(answer, RelayError):
                found.unread[name] = str(answer)
            else:
                found.add(name, answer)
        if found.cut or (more := _grown(wanted, found)) == wanted:
            break
        wanted = more
    return wanted


async def _ask(database: AbstractAsyncContextManager[Source], wanted: LifeSearch) -> Rows | RelayError:
    try:
        async with database as source:
            return await read(source, wanted)
    except RelayError as error:
        return error


def _grown(wanted: LifeSearch, found: Gathered) -> LifeSearch:
    """What to search, now that these rows are known."""
    rows = [(kind, row) for kind in _KEYS for _, row in found.all(kind)]
    keys = {row[key] for kind, row in rows if (key := _KEYS[kind])}
    correlations = {row["correlation_id"] for _, row in rows if row["correlation_id"]}
    causes = {row["causation_id"] for _, row in rows if row.get("causation_id")}
    sources = {row["source_id"] for _, row in rows if row.get("source_id")}
    # Handlers of a message without a correlation begin a chain of their own.
    begun = {row[key] for kind, row in rows if (key := _KEYS[kind]) and row["correlation_id"] is None}
    numbers = {str(row["id"]) for kind, row in rows if kind == "incidents"}
    texts = {text for _, row in rows for text in known_originals(row.get("originals")).values()}
    return wanted.and_(
        ids=keys | causes | sources,
        correlations=correlations,
        causes=begun,
        texts={*map(str, keys), *numbers, *texts},
    )


# --- archives ---


def _since(asked: str, found: Gathered) -> datetime | None:
    """Batches that ended before this time are not read. None if no time is known, and all must be read.

    A UUIDv7 of an operation tells when its chain began. Otherwise some of the chain may have ended before what is
    known of it.
    """
    rows = [row for kind in _KEYS for _, row in found.all(kind)]
    begun = [_made(row["correlation_id"]) for row in rows]
    if rows and (known := [at for at in begun if at is not None]) and len(known) == len(rows):
        return min(known)
    times = [row[name] for row in rows for name in _TIMES if row.get(name)]
    times += filter(None, [_made(Identity.of(asked).uuid)])
    return max(min(times), EARLIEST + _LONGEST) - _LONGEST if times else None


def _made(id: UUID | None) -> datetime | None:
    """When a UUIDv7 was made."""
    if id is None or id.version != _WITH_TIME:
        return None
    try:
        return nearest(datetime.fromtimestamp((id.int >> 80) / 1000, UTC))
    except (ValueError, OverflowError):  # anybody may write an id, and most of them lie far ahead
        return LATEST


async def _archive(
    context: ContextSettings,
    sources: Sources,
    wanted: LifeSearch,
    since: datetime | None,
    found: Gathered,
    progress: Progress,
) -> None:
    name = context.name
    if (store := cold_store(context.archive)) is None or name in found.unread:
        return
    try:
        async with sources(context) as source:
            cold = ColdRows(
                PostgresArchive(source, name), store, lambda row: archived_subject(context.routing, row)
            )
            for kind, archived in _ARCHIVED.items():
                rows = cold.read(archived, RowFilter(since=since), lambda row: _wants(wanted, row), progress)
                async with aclosing(rows):
                    async for row in rows:
                        found.add(name, {kind: [_read(row)]}, archived=True)
                        if found.count >= MOST:
                            return
    except RelayError as error:
        found.unread[f"archive of {name}"] = str(error)


def _wants(wanted: LifeSearch, row: Mapping[str, Any]) -> bool:
    """Whether an archived row, whose ids are text, is one that is looked for."""
    places = ((row.get("published_stream"), row.get("published_seq")), (row.get("stream"), row.get("stream_seq")))
    return (
        row.get("message_id", row.get("id")) in wanted.texts
        or known_originals(row.get("originals")).get(ID) in wanted.texts
        or (row["correlation_id"] is not None and UUID(row["correlation_id"]) in wanted.correlations)
        or (row["causation_id"] is not None and UUID(row["causation_id"]) in wanted.causes)
        or wanted.place in places
    )


def _read(row: Mapping[str, Any]) -> Row:
    """An archived row as `life` reads it from a table: ids and times instead of texts, and its ``traceparent``."""
    ids = {
        name: UUID(row[name])
        for name in ("id", "message_id", "source_id", "correlation_id", "causation_id")
        if row.get(name)
    }
    times = {name: moment(it) for name, it in row.items() if name.endswith("_at") and it}
    texts = {
        name: it[: CELL.prose] if isinstance(it, str) else it for name, it in row.items() if name not in _BODIES
    }
    return {**texts, **ids, **times, "traceparent": _carried(row), "payload_at": _payload_at(row)}


def _payload_at(row: Mapping[str, Any]) -> object:
    headers = row.get("headers")
    return headers.get(PAYLOAD) if isinstance(headers, Mapping) else None


def _carried(row: Mapping[str, Any]) -> object:
    """The ``traceparent`` of an archived row. Other programs write headers, too, so they may be anything."""
    headers, metadata = row.get("headers"), row.get("metadata")
    if isinstance(headers, Mapping):
        return find(headers)
    return metadata.get(TRACEPARENT) if isinstance(metadata, Mapping) else None
