"""Redacts rows of the archive: writes the files anew that have what is to be forgotten.

The new file is stored and read back before anything names it. Then the manifest of the old one goes, the record
changes, and the new manifest comes: whatever dies in between, a file and its record fit each other, and the next
run of the archive writes a manifest that is missing. The old file goes last. If that failed, the audit log still
names it, and the next run of this deletes it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from relay.commands import batchfile
from relay.commands.archive import read_back
from relay.domain.archive import ArchiveConflict, ArchiveDamaged, ArchiveKind, Manifest
from relay.domain.foreign_json import read_json
from relay.domain.operators import Operator
from relay.domain.redaction import Redaction
from relay.ports import ColdStore


class RewrittenBatches(Protocol):
    """The record of the batches of one context. All methods raise DatabaseUnreachable."""

    async def batches(self, *, unannounced: bool = False) -> Sequence[Manifest]:
        """See `ArchiveTables`."""

    async def announced(self, manifest: Manifest) -> None:
        """See `ArchiveTables`."""

    async def unannounce(self, manifest: Manifest) -> bool:
        """Record that the manifest may be missing. False if the record is not this one any more."""

    async def rewrite(self, old: Manifest, new: Manifest, by: Operator) -> bool:
        """Record another file for a batch, and who wrote it. False if the record is not ``old`` any more."""

    async def rewritten(self) -> Sequence[str]:
        """The files that were replaced since ever."""


@dataclass(frozen=True, slots=True)
class RedactedFile:
    """A file that was written anew, and in how many of its rows something was redacted."""

    kind: ArchiveKind
    file: str
    rows: int


class RedactArchive:
    """The archive of one context. All methods raise ArchiveDamaged, DatabaseUnreachable and StoreUnreachable."""

    def __init__(self, tables: RewrittenBatches, store: ColdStore, wanted: Redaction) -> None:
        self._tables, self._store, self._wanted = tables, store, wanted

    async def find(self) -> AsyncIterator[tuple[Manifest, Mapping[str, Any]]]:
        """The archived rows that have a value, each with its batch. Changes nothing."""
        for manifest in await self._tables.batches():
            with batchfile.spool() as file:
                if not await batchfile.fetch(self._store, manifest.file, file, manifest.size):
                    if manifest in await self._tables.batches():
                        raise ArchiveDamaged(f"{manifest.file} is missing", hint="relay archive verify")
                    continue
                found = batchfile.lines(file, manifest)
                while (line := await asyncio.to_thread(self._next, found, manifest.kind)) is not None:
                    yield manifest, read_json(line)

    async def redact(self, by: Operator) -> AsyncIterator[RedactedFile]:
        """Write the files anew that have a value. May be repeated."""
        await self._delete_former()
        for manifest in await self._tables.batches():
            if rows := await self._redact(manifest, by):
                yield RedactedFile(manifest.kind, manifest.file, rows)

    async def _redact(self, manifest: Manifest, by: Operator) -> int:
        with batchfile.spool() as file, batchfile.spool() as into:
            if not await batchfile.fetch(self._store, manifest.file, file, manifest.size):
                return 0
            found = batchfile.lines(file, manifest)
            if await asyncio.to_thread(self._next, found, manifest.kind) is None:
                return 0
            change = self._changing(manifest.kind)
            new, rows = await asyncio.to_thread(batchfile.rewrite, file, manifest, into, change)
            await self._store.put(new.file, into)
        if await read_back(self._store, new) != await read_back(self._store, manifest):
            raise ArchiveDamaged(f"{new.file} does not hold the rows of {manifest.file}")
        if not await self._tables.unannounce(manifest):
            return 0
        await self._store.delete(manifest.name)
        if not await self._tables.rewrite(manifest, new, by):
            return 0
        await self._announce(new)
        await self._store.delete(manifest.file)
        return rows

    async def _announce(self, manifest: Manifest) -> None:
        """Store the manifest. A run of the archive may have stored the former one meanwhile."""
        try:
            await self._store.put(manifest.name, io.BytesIO(manifest.text()))
        except ArchiveConflict:
            await self._store.delete(manifest.name)
            await self._store.put(manifest.name, io.BytesIO(manifest.text()))
        await self._tables.announced(manifest)

    async def _delete_former(self) -> None:
        """Delete files that were replaced and are still there, because something died."""
        present = {it.file for it in await self._tables.batches()}
        for name in await self._tables.rewritten():
            if name not in present:
                await self._store.delete(name)

    def _changing(self, kind: ArchiveKind) -> Callable[[str], str]:
        def change(line: str) -> str:
            if not self._wanted.may_be_in(line.encode()):
                return line
            if self._wanted.type is not None and read_json(line).get(kind.type) != self._wanted.type:
                return line
            return self._wanted.anything(line)

        return change

    def _next(self, lines: Any, kind: ArchiveKind) -> str | None:
        """The next line that has a value. Blocks."""
        change = self._changing(kind)
        for line in lines:
            old = line.decode()
            if change(old) != old:
                return str(old)
        return None
