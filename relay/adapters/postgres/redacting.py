"""Finds values in the rows of a context's tables, whatever the column, and redacts them there.

A table is read by the places of its rows, part by part: so a statement takes a moment, whatever the size of the
table, and no index is needed. A row that somebody else has locked is left for the next pass.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, LiteralString
from uuid import UUID

from psycopg import sql
from psycopg.errors import InsufficientPrivilege, IntegrityError
from psycopg.rows import dict_row

from relay.adapters.postgres.pool import Connection, Source, query
from relay.adapters.postgres.row_operations import audit
from relay.domain.disclosure import first_line
from relay.domain.errors import MalformedMessage, SchemaMissing
from relay.domain.large import Reference
from relay.domain.limits import PAYLOAD
from relay.domain.operators import Operator
from relay.domain.redaction import Redaction

#: The word for it in the audit log.
REDACT: Final = "personal.redact"
#: A part of a table has so many pages at first, and then as many as are read in the time.
_PAGES: Final = 64
_MOST_PAGES: Final = 8_192
_PART_S: Final = 0.3
#: How many rows are in memory, and locked, at a time.
_ROWS: Final = 20
_LIKE: Final = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_"})
_TEXTS: Final = sql.SQL("concat_ws(chr(10), {}) LIKE ANY (%(likes)s::text[])")
_BYTES: Final = sql.SQL(
    "EXISTS (SELECT FROM unnest(%(bytes)s::bytea[]) AS part (bytes) WHERE position(part.bytes IN {}) > 0)"
)
_ANY_TYPE: Final = sql.SQL("coalesce(%(type)s::text, '') IS NOT NULL")
_OF_TYPE: Final = sql.SQL("(%(type)s::text IS NULL OR {} = %(type)s::text)")
_LOOK: Final = sql.SQL("""
SELECT ctid::text
FROM {}
WHERE ctid >= %(first)s::tid AND ctid < %(last)s::tid AND {} AND ({})
""")
_READ: Final = sql.SQL("""
SELECT ctid::text AS tid, ({id})::text AS row_id, ({type})::text AS row_type, coalesce({over}, false) AS over,
       coalesce({busy}, false) AS busy, {columns}
FROM {table}
WHERE ctid = ANY (%(tids)s::tid[])
{lock}
""")
_WORKING: Final = sql.SQL("SELECT {id}::text FROM {table} WHERE {id}::text = ANY (%(ids)s::text[]) AND {busy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactedColumns:
    """A table with what may be about a person. The columns are text, arrays of texts, JSON or bytes.

    ``payload``: columns of which only wanted fields count. ``body``: a message. ``free``: the other columns.
    ``keys``: columns that order rows or find them: they change only where ``over`` is true. ``type``: the type of
    the event or task. ``busy``: whether somebody works with what the row was.
    """

    payload: Sequence[str] = ()
    body: Sequence[str] = ()
    free: Sequence[str] = ()
    keys: Sequence[str] = ()
    type: LiteralString | None = None
    id: LiteralString = "NULL"
    over: LiteralString = "true"
    busy: LiteralString = "false"

    @property
    def columns(self) -> Sequence[str]:
        """All columns."""
        return (*self.payload, *self.body, *self.free, *self.keys)


#: What may be about a person. A test knows why all other columns are not.
PLACES: Final[Mapping[str, RedactedColumns]] = {
    "outbox_events": RedactedColumns(
        payload=("payload",),
        free=("headers", "publish_error", "attempt_log"),
        keys=("aggregate_id", "partition_key", "topic", "originals"),
        type="event_type",
        id="id",
        over="published_at IS NOT NULL",
    ),
    "inbox_messages": RedactedColumns(
        body=("body",),
        free=("headers", "last_error", "attempt_log", "dead_letter_reason"),
        keys=("subject", "partition_key", "order_key", "originals"),
        type="event_type",
        id="message_id",
        over="processed_at IS NOT NULL",
        busy="claimed_until > clock_timestamp()",
    ),
    "task_outbox": RedactedColumns(
        payload=("payload",),
        free=("metadata", "last_error", "attempt_log"),
        keys=("concurrency_key", "originals"),
        type="type",
        id="id",
        over="finished_at IS NOT NULL",
        busy="claimed_until > clock_timestamp()",
    ),
    "dead_letters": RedactedColumns(
        body=("original",),
        free=("headers", "reason", "note", "correction", "subject", "originals"),
        type="event_type",
        id="id",
    ),
    "inbox_replays": RedactedColumns(free=("note", "error"), keys=("key",), id="id", over="state <> 'running'"),
    "parked_keys": RedactedColumns(free=("reason",), keys=("order_key",), id="message_id", over="false"),
    "scheduled_jobs": RedactedColumns(free=("error",)),
    "scheduled_runs": RedactedColumns(free=("error",), id="id"),
    "relay_wakeup": RedactedColumns(free=("brake_reason",)),
    "audit_log": RedactedColumns(free=("ids", "note", "about"), id="id"),
    "selections": RedactedColumns(free=("ids", "wanted"), id="id"),
    "alerts": RedactedColumns(free=("reason", "about", "subject"), id="id"),
    "alert_conditions": RedactedColumns(free=("reason",), keys=("subject",), over="false"),
    "handler_circuits": RedactedColumns(free=("reason", "witnesses")),
    "controls": RedactedColumns(free=("reason",)),
    "subject_keys": RedactedColumns(keys=("subject",), id="id", over="forgotten_at IS NOT NULL"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedRow:
    """A row that has a value. ``columns``: what is in the columns that have it.

    ``left``: those that cannot change. ``busy``: somebody works with what the row was before.
    """

    table: str
    id: str | None
    type: str | None
    columns: Mapping[str, str]
    left: Sequence[str] = ()
    busy: bool = False


@dataclass(slots=True)
class TableCount:
    """What was found in a table. ``locked``: how many rows others had locked.

    ``working``: rows that were redacted while somebody worked with what they were. ``left``: how many keep a value
    in a key. ``refused``: why nothing may be changed here.
    """

    rows: int = 0
    locked: int = 0
    working: list[str] = field(default_factory=list)
    left: int = 0
    refused: str | None = None


class PostgresRedaction:
    """The tables of one context. All methods raise DatabaseUnreachable and SchemaMissing."""

    def __init__(self, source: Source, wanted: Redaction) -> None:
        self._source, self._wanted = source, wanted

    async def find(self, table: str) -> AsyncIterator[MatchedRow]:
        """The rows of a table that have a value. Changes and locks nothing."""
        scanned = await self._table(table)
        async for tids in self._candidates(scanned):
            async with self._source() as conn:
                rows = await scanned.read(conn, tids)
            for row in rows:
                found, _ = self._judge(scanned, row)
                if found is not None:
                    yield found

    async def redact(self, table: str) -> TableCount:
        """Redact a table once, a few rows at a time. May be repeated."""
        scanned, count = await self._table(table), TableCount()
        async for tids in self._candidates(scanned):
            try:
                await self._redact(scanned, tids, count)
            except InsufficientPrivilege as error:
                count.refused = f"no right to change it: {first_line(error)}"
                break
        return count

    async def working(self, table: str, ids: Collection[str]) -> set[str]:
        """Those of these rows with which somebody still works."""
        place = PLACES[table]
        asked = _WORKING.format(id=sql.SQL(place.id), busy=sql.SQL(place.busy), table=sql.Identifier(table))
        async with self._source() as conn:
            rows = await (await conn.execute(asked, {"ids": list(ids)})).fetchall()
        return {id for (id,) in rows}

    async def streams(self) -> Sequence[str]:
        """The streams that events were published to."""
        async with self._source() as conn:
            return [name for (name,) in await query(conn, "outbox/ledger_streams")]

    async def known(self, ids: Sequence[UUID]) -> set[UUID]:
        """Those events that are in the outbox."""
        async with self._source() as conn:
            return {id for (id,) in await query(conn, "personal/known_events", ids=list(ids))}

    async def changed(self, references: Sequence[Reference]) -> Mapping[UUID, Reference]:
        """What to refer to instead, by the event, where a large payload is not any more what a reference says."""
        terms = {"ids": [it.id for it in references], "digests": [it.sha256 for it in references]}
        async with self._source() as conn:
            rows = await query(conn, "personal/changed_payloads", **terms)
        by_id = {it.id: it for it in references}
        return {id: replace(by_id[id], size=size, sha256=sha256) for id, size, sha256 in rows}

    async def references(self) -> Sequence[Reference]:
        """Those of messages in the inbox that are not processed."""
        async with self._source() as conn:
            rows = await query(conn, "personal/waiting_references", header=PAYLOAD)
        found = []
        for (text,) in rows:
            with suppress(MalformedMessage):
                found.append(Reference.read(text))
        return found

    async def refer(self, changed: Mapping[Reference, Reference]) -> TableCount:
        """Have messages of the inbox refer to what large payloads are now."""
        count = TableCount()
        try:
            for old, new in changed.items():
                async with self._source() as conn, conn.transaction():
                    terms = {"header": PAYLOAD, "old": old.text, "new": new.text}
                    [(rows,)] = await query(conn, "personal/refer", **terms)
                    count.rows += rows
        except InsufficientPrivilege as error:
            count.refused = f"no right to change it: {first_line(error)}"
        return count

    async def erase(self, stream: str, found: Sequence[tuple[int, UUID | None, bool]]) -> Mapping[int, bool]:
        """Note that messages will be erased from a stream: their sequences and events.

        The third of each: its event is published again, if it is at this place. Returns by sequence those that may
        be erased now, and whether their events are published again.
        """
        seqs, ids, again = zip(*found, strict=True)
        terms = {"stream": stream, "seqs": list(seqs), "ids": list(ids), "again": list(again)}
        async with self._source() as conn, conn.transaction():
            rows = await query(conn, "personal/erase", **terms)
        return dict(rows)

    async def certify(self, by: Operator, certificate: str) -> None:
        """Write what was done into the audit log."""
        async with self._source() as conn, conn.transaction():
            await audit(conn, REDACT, [certificate], by)

    async def certificates(self) -> Sequence[tuple[str, Mapping[str, Any], datetime]]:
        """Who has redacted before, and what the audit log says of it."""
        async with self._source() as conn:
            return await query(conn, "personal/certificates", action=REDACT)

    async def _redact(self, table: _Table, tids: Sequence[str], count: TableCount) -> None:
        try:
            async with self._source() as conn, conn.transaction():
                rows = await table.read(conn, tids, lock=True)
                judged = [(row, *self._judge(table, row)) for row in rows]
                for row, _, new in judged:
                    if new:
                        await table.change(conn, row["tid"], new)
        except IntegrityError:
            if len(tids) == 1:
                count.left += 1
                return
            for tid in tids:
                await self._redact(table, [tid], count)
            return
        found = [it for _, it, _ in judged if it is not None]
        count.locked += len(tids) - len(rows)
        count.working += [str(it.id) for it in found if it.busy]
        count.rows += sum(bool(new) for _, _, new in judged)
        count.left += sum(bool(it.left) for it in found)

    async def _table(self, name: str) -> _Table:
        async with self._source() as conn:
            found = await query(conn, "personal/table", table=name)
        if not found:
            raise SchemaMissing(f"the database has no table {name}", hint="run: relay db upgrade")
        return _Table(name, PLACES[name], *found[0])

    async def _candidates(self, table: _Table) -> AsyncIterator[Sequence[str]]:
        """The places of rows that may have a value, a few at a time."""
        first, pages = 0, _PAGES
        terms = {
            "likes": [f"%{it.translate(_LIKE)}%" for it in self._wanted.texts],
            "bytes": [it.encode() for it in self._wanted.texts],
            "type": self._wanted.type,
        }
        while first < table.pages:
            begun = time.monotonic()
            part = {"first": f"({first},0)", "last": f"({first + pages},0)"}
            async with self._source() as conn:
                tids = [tid for (tid,) in await (await conn.execute(table.look, terms | part)).fetchall()]
            first += pages
            faster = time.monotonic() - begun < _PART_S / 2
            pages = min(2 * pages, _MOST_PAGES) if faster else max(pages // 2, 1)
            for begin in range(0, len(tids), _ROWS):
                yield tids[begin : begin + _ROWS]

    def _judge(self, table: _Table, row: Mapping[str, Any]) -> tuple[MatchedRow | None, Mapping[str, Any]]:
        """What a row has, and its new values."""
        old = {name: row[name] for name in table.place.columns if row[name] is not None}
        new = {name: it for name, value in old.items() if (it := self._redacted(table, name, value)) != value}
        if not new:
            return None, {}
        left = [] if row["over"] else [name for name in new if name in table.place.keys]
        shown = {name: _shown(old[name]) for name in new}
        found = MatchedRow(
            table=table.name, id=row["row_id"], type=row["row_type"], columns=shown, left=left, busy=row["busy"]
        )
        return found, {name: value for name, value in new.items() if name not in left}

    def _redacted(self, table: _Table, name: str, value: Any) -> Any:
        if name in table.place.payload:
            return self._wanted.payload(value)
        if isinstance(value, bytes):
            return self._wanted.body(value)
        if isinstance(value, list):
            return [self._wanted.text(it) for it in value]
        return self._wanted.free(value) if table.types[name] == "jsonb" else self._wanted.text(value)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table as it is in the database, and statements for it."""

    name: str
    place: RedactedColumns
    pages: int
    types: Mapping[str, str]

    @property
    def look(self) -> sql.Composed:
        """Where rows of a part are that may have a value."""
        texts = [it for it in self.place.columns if it not in self.place.body]
        joined = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(it)) for it in texts)
        has: list[sql.Composable] = [_TEXTS.format(joined)]
        has += [_BYTES.format(sql.Identifier(it)) for it in self.place.body]
        narrowed = _ANY_TYPE if self.place.type is None else _OF_TYPE.format(sql.Identifier(self.place.type))
        return _LOOK.format(sql.Identifier(self.name), narrowed, sql.SQL(" OR ").join(has))

    async def read(self, conn: Connection, tids: Sequence[str], *, lock: bool = False) -> list[dict[str, Any]]:
        """Rows at these places: those that are still there, and with ``lock`` only those that are free."""
        place = self.place
        asked = _READ.format(
            id=sql.SQL(place.id),
            type=sql.SQL(place.type or "NULL"),
            over=sql.SQL(place.over),
            busy=sql.SQL(place.busy),
            columns=sql.SQL(", ").join(map(self._read, place.columns)),
            table=sql.Identifier(self.name),
            lock=sql.SQL("FOR UPDATE SKIP LOCKED" if lock else ""),
        )
        async with conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(asked, {"tids": list(tids)})
            return await cursor.fetchall()

    def _read(self, name: str) -> sql.Composable:
        column = sql.Identifier(name)
        return sql.SQL("{0}::text AS {0}").format(column) if self.types[name] == "jsonb" else column

    async def change(self, conn: Connection, tid: str, new: Mapping[str, Any]) -> None:
        """Give a locked row new values."""
        assigned = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(it), sql.Placeholder(it)) + sql.SQL(f"::{self.types[it]}")
            for it in new
        )
        changed = sql.SQL("UPDATE {} SET {} WHERE ctid = %(tid)s::tid").format(sql.Identifier(self.name), assigned)
        await conn.execute(changed, {**new, "tid": tid})


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else ", ".join(value)
