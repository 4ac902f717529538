"""The archive in memory: cold storage, and the tables that rows leave."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import BytesIO
from typing import IO
from uuid import UUID

from relay.domain.archive import ArchiveConflict, ArchivedRow, ArchiveKind, Manifest, StoreUnreachable
from relay.domain.errors import DatabaseUnreachable
from relay.domain.operators import Operator
from relay.testing.clock import Clock


class MemoryColdStore:
    """Files by name. Tests may read ``files``."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.down = False

    @property
    def _files(self) -> dict[str, bytes]:
        if self.down:
            raise StoreUnreachable("the store in memory is down")
        return self.files

    async def put(self, name: str, content: IO[bytes]) -> None:
        content.seek(0)
        read = content.read()
        if self._files.setdefault(name, read) != read:
            raise ArchiveConflict(f"{name} exists already, with other content")

    async def get(self, name: str, into: IO[bytes]) -> bool:
        if (content := self._files.get(name)) is not None:
            shutil.copyfileobj(BytesIO(content), into)
        return content is not None

    async def delete(self, name: str) -> None:
        self._files.pop(name, None)

    async def names(self, prefix: str) -> Sequence[str]:
        return sorted(name for name in self._files if name.startswith(prefix))


@dataclass(slots=True)
class _MemoryBatch:
    number: int
    leaving: Sequence[ArchivedRow]
    removed: Sequence[UUID] = ()
    manifest: Manifest | None = None

    async def rows(self) -> AsyncGenerator[Sequence[ArchivedRow], None]:
        for row in self.leaving:
            yield [row]

    async def remove(self, ids: Sequence[UUID], manifest: Manifest, by: Operator) -> int:
        self.removed = [row.id for row in self.leaving if row.id in ids]
        self.manifest = manifest
        return len(self.removed)


class MemoryArchive:
    """The tables of a context: ``tables`` has the rows of each kind, each with its stream."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.tables: dict[ArchiveKind, list[tuple[str | None, ArchivedRow]]] = defaultdict(list)
        self.down = False
        self._batches: dict[tuple[ArchiveKind, int], Manifest] = {}
        self._numbers: dict[ArchiveKind, int] = defaultdict(int)
        self._announced: set[tuple[ArchiveKind, int]] = set()
        self._deleted: dict[tuple[ArchiveKind, int], Manifest] = {}
        #: Messages that the inbox recognises although their rows are archived, and the batch of each.
        self.remembered: dict[UUID, int] = {}
        #: Events that will be published again.
        self.replayed: list[UUID] = []
        self._is_open = False

    @property
    def _tables(self) -> dict[ArchiveKind, list[tuple[str | None, ArchivedRow]]]:
        if self.down:
            raise DatabaseUnreachable("the tables in memory are down")
        return self.tables

    def _old(self, kind: ArchiveKind, streams: Sequence[str], after: timedelta) -> list[ArchivedRow]:
        rows, before = self._tables[kind], self.clock.now - after
        old = [row for stream, row in rows if row.at < before and (stream is None or stream in streams)]
        return sorted(old, key=lambda row: (row.at, row.id))

    async def streams(self, kind: ArchiveKind) -> Sequence[str]:
        return sorted({stream for stream, _ in self._tables[kind] if stream is not None})

    @asynccontextmanager
    async def open(
        self, kind: ArchiveKind, streams: Sequence[str], after: timedelta, limit: int
    ) -> AsyncIterator[_MemoryBatch | None]:
        leaving = self._old(kind, streams, after)[:limit]
        if self._is_open:
            yield None
            return
        self._is_open = True
        try:
            batch = _MemoryBatch(self._numbers[kind] + 1, leaving)
            yield batch
            if batch.manifest is not None:
                self._tables[kind] = [it for it in self._tables[kind] if it[1].id not in batch.removed]
                self._batches[kind, batch.number] = batch.manifest
                self._numbers[kind] = batch.number
                if kind is ArchiveKind.INBOX:
                    numbers = {id: max(batch.number, self.remembered.get(id, 0)) for id in batch.removed}
                    self.remembered |= numbers
        finally:
            self._is_open = False

    async def waiting(
        self, kind: ArchiveKind, streams: Sequence[str], after: timedelta
    ) -> tuple[int, datetime | None, datetime | None]:
        times = [row.at for row in self._old(kind, streams, after)]
        return len(times), min(times, default=None), max(times, default=None)

    async def batches(self, *, unannounced: bool = False) -> Sequence[Manifest]:
        _ = self._tables
        keys = sorted(self._batches)
        return [self._batches[key] for key in keys if not (unannounced and key in self._announced)]

    async def announced(self, manifest: Manifest) -> None:
        _ = self._tables
        self._announced.add((manifest.kind, manifest.number))

    async def expired(self, keep: timedelta) -> Sequence[Manifest]:
        _ = self._tables
        old = {key: it for key, it in self._batches.items() if it.last_at < self.clock.now - keep}
        manifests = {key: it for key, it in old.items() if key in self._announced} | self._deleted
        return [manifests[key] for key in sorted(manifests)]

    async def delete(self, manifest: Manifest, ids: Sequence[UUID], by: Operator) -> None:
        _ = self._tables
        key = manifest.kind, manifest.number
        self._deleted[key] = self._batches.pop(key, manifest)
        if manifest.kind is ArchiveKind.INBOX:
            for id in ids:
                if self.remembered.get(id, manifest.number) <= manifest.number:
                    self.remembered.pop(id, None)

    async def gone(self, manifest: Manifest) -> None:
        _ = self._tables
        self._deleted.pop((manifest.kind, manifest.number), None)

    async def restore(self, kind: ArchiveKind, lines: Sequence[str], source: str, by: Operator) -> int:
        there = {row.id for _, row in self._tables[kind]}
        rows = [json.loads(line) for line in lines]
        new = [
            ArchivedRow(UUID(row[kind.key]), kind.ended(row), line) for row, line in zip(rows, lines, strict=True)
        ]
        added = [row for row in new if row.id not in there]
        self._tables[kind] += [(None, row) for row in added]
        return len(added)

    async def replay(self, lines: Sequence[str], by: Operator, _expires_in: timedelta | None = None) -> int:
        ids = [UUID(json.loads(line)["id"]) for line in lines]
        new = [id for id in ids if id not in self.replayed]
        self.replayed += new
        return len(new)
