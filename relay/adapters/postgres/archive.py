"""ArchiveTables on one context's database: which rows may leave their table, and which batches have left."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from psycopg.rows import dict_row

from relay.adapters.postgres.pool import Connection, Source, query
from relay.adapters.postgres.row_operations import audit
from relay.adapters.postgres.sql import statement
from relay.domain.archive import ArchivedRow, ArchiveKind, Manifest
from relay.domain.expiry import NEVER, in_words
from relay.domain.operators import Operator

#: How many rows are in memory at a time. A row may be as large as the broker's largest message. So a page is small
#: until the rows read so far show that more of their size take at most `_PAGE_CHARS`.
_PAGE_ROWS: Final = 50
_LARGE_PAGE_ROWS: Final = 250
_PAGE_CHARS: Final = 2 * 1024**2
_STREAMS: Final = {ArchiveKind.OUTBOX: "outbox/ledger_streams", ArchiveKind.INBOX: "archive/inbox_streams"}


class _ArchiveBatch:
    """The transaction that locks a batch."""

    def __init__(self, conn: Connection, kind: ArchiveKind, number: int, wanted: dict[str, Any]) -> None:
        self.number = number
        self._conn, self._kind, self._wanted = conn, kind, wanted

    async def rows(self) -> AsyncGenerator[Sequence[ArchivedRow], None]:
        async with self._conn.cursor("archive") as cursor:
            await cursor.execute(statement(f"archive/archive_{self._kind}"), self._wanted)
            size = _PAGE_ROWS
            while page := await cursor.fetchmany(size):
                rows = [ArchivedRow(*row) for row in page]
                yield rows
                fitting = _PAGE_CHARS // max(len(row.line) for row in rows)
                size = max(_PAGE_ROWS, min(2 * size, fitting, _LARGE_PAGE_ROWS))

    async def remove(self, ids: Sequence[UUID], manifest: Manifest, by: Operator) -> int:
        which = {"ids": list(ids), "number": manifest.number}
        deleted = await self._conn.execute(statement(f"archive/delete_{self._kind}"), which)
        await self._conn.execute(statement("archive/record"), asdict(manifest))
        await audit(self._conn, "archive", [manifest.file], by)
        return deleted.rowcount


class PostgresArchive:
    """Allows one batch at a time in a database, by an advisory lock of the batch's transaction."""

    def __init__(self, source: Source, context: str) -> None:
        self._source = source
        self._context = context

    async def streams(self, kind: ArchiveKind) -> Sequence[str]:
        if kind not in _STREAMS:
            return []
        return [name for (name,) in await self._all(_STREAMS[kind])]

    @asynccontextmanager
    async def open(
        self, kind: ArchiveKind, streams: Sequence[str], after: timedelta, limit: int
    ) -> AsyncIterator[_ArchiveBatch | None]:
        async with self._source() as conn, conn.transaction():
            await conn.execute(statement("archive/begin"))
            [(locked,)] = await query(conn, "archive/lock")
            if not locked:
                yield None
                return
            [(number,)] = await query(conn, "archive/next", kind=kind)
            yield _ArchiveBatch(conn, kind, number, {"streams": list(streams), "after": after, "limit": limit})

    async def waiting(
        self, kind: ArchiveKind, streams: Sequence[str], after: timedelta
    ) -> tuple[int, datetime | None, datetime | None]:
        [found] = await self._all(f"archive/archivable_{kind}", streams=list(streams), after=after)
        return tuple(found)

    async def batches(self, *, unannounced: bool = False) -> Sequence[Manifest]:
        every = {"newest": False, "limit": None, "offset": 0}
        return await self._manifests("archive/batches", unannounced=unannounced, **every)

    async def part(self, limit: int, offset: int, *, newest: bool) -> Sequence[Manifest]:
        """Some of the batches, in order or the newest first."""
        part = {"newest": newest, "limit": limit, "offset": offset}
        return await self._manifests("archive/batches", unannounced=False, **part)

    async def announced(self, manifest: Manifest) -> None:
        async with self._source() as conn:
            key = {"kind": manifest.kind, "number": manifest.number}
            await conn.execute(statement("archive/mark_announced"), key)

    async def unannounce(self, manifest: Manifest) -> bool:
        """See `relay.commands.rewrite_archive`."""
        key = {"kind": manifest.kind, "number": manifest.number, "sha256": manifest.sha256}
        async with self._source() as conn:
            changed = await conn.execute(statement("archive/unannounce"), key)
        return bool(changed.rowcount)

    async def rewrite(self, old: Manifest, new: Manifest, by: Operator) -> bool:
        """See `relay.commands.rewrite_archive`."""
        terms = {
            "kind": old.kind,
            "number": old.number,
            "former": old.sha256,
            "sha256": new.sha256,
            "size": new.size,
        }
        async with self._source() as conn, conn.transaction():
            changed = await conn.execute(statement("archive/rewrite"), terms)
            if changed.rowcount:
                await audit(conn, "archive.redact", [old.file, new.file], by)
        return bool(changed.rowcount)

    async def rewritten(self) -> Sequence[str]:
        """See `relay.commands.rewrite_archive`."""
        return [name for (name,) in await self._all("archive/rewritten")]

    async def expired(self, keep: timedelta) -> Sequence[Manifest]:
        return await self._manifests("archive/expired", keep=keep)

    async def delete(self, manifest: Manifest, ids: Sequence[UUID], by: Operator) -> None:
        key = {"kind": manifest.kind, "number": manifest.number}
        async with self._source() as conn, conn.transaction():
            marked = await conn.execute(statement("archive/mark_deleted"), key)
            if manifest.kind is ArchiveKind.INBOX:
                await conn.execute(statement("archive/forget"), {"ids": list(ids), "number": manifest.number})
            if marked.rowcount:
                await audit(conn, "archive.delete", [manifest.file], by)

    async def gone(self, manifest: Manifest) -> None:
        async with self._source() as conn:
            key = {"kind": manifest.kind, "number": manifest.number}
            await conn.execute(statement("archive/mark_gone"), key)

    async def restore(self, kind: ArchiveKind, lines: Sequence[str], source: str, by: Operator) -> int:
        async with self._source() as conn, conn.transaction():
            restored = await conn.execute(statement(f"archive/restore_{kind}"), {"lines": list(lines)})
            await audit(conn, "archive.restore", [source], by)
        return restored.rowcount

    async def replay(self, lines: Sequence[str], by: Operator, expires_in: timedelta | None = None) -> int:
        async with self._source() as conn, conn.transaction():
            await conn.execute(statement("archive/restore_outbox"), {"lines": list(lines)})
            ids = [id for (id,) in await query(conn, "archive/replayable", lines=list(lines))]
            if ids:
                await conn.execute(statement("outbox/replay"), {"ids": ids})
                if expires_in is not None:
                    terms = {"ids": ids, "expires_in": None if expires_in == NEVER else expires_in}
                    await conn.execute(statement("outbox/set_expiry"), terms)
                    by = replace(by, about={**by.about, "expires_in": in_words(expires_in)})
                await audit(conn, "outbox.replay", ids, by)
        return len(ids)

    async def _manifests(self, name: str, **parameters: Any) -> Sequence[Manifest]:
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement(name), parameters)
            rows = await cursor.fetchall()
        return [Manifest(**row | {"context": self._context, "kind": ArchiveKind(row["kind"])}) for row in rows]

    async def _all(self, name: str, **parameters: Any) -> list[Any]:
        async with self._source() as conn:
            return await query(conn, name, **parameters)
