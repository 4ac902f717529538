"""Archive: moves old rows from their tables to cold storage (MicroDAO §17).

The order of the steps makes it safe. Rows are locked, written to a file whose name follows from its content, and
read back. Only then the rows that were read back are deleted, in the transaction that locked them, which also
records the batch. The manifest is written after the commit. So after a crash the rows are still in their table, or
in a file that the record names. A file that no manifest names is the rest of a crash, and not part of the archive.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from relay.commands import batchfile
from relay.commands.batchfile import BatchFile
from relay.commands.reconcile import AuditedStream, StreamAuditor
from relay.domain.archive import (
    ArchiveBusy,
    ArchiveConflict,
    ArchiveDamaged,
    ArchiveError,
    ArchiveKind,
    Manifest,
    folder,
)
from relay.domain.facts import ArchiveFailed, ArchiveHeld, BatchDeleted, FactSink, RowsArchived
from relay.domain.operators import Operator
from relay.ports import ArchiveTables, ColdStore, OpenBatch

#: How long one scheduled run lasts, in seconds. The next run continues.
RUN_S: Final = 300.0
SCHEDULER: Final = Operator("scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """A batch keeps its rows locked until it is stored. So it has at most so many rows or uncompressed bytes."""

    rows: int = 20_000
    size: int = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivableRows:
    """How many rows of a kind can be archived now, and the times of the oldest and the newest."""

    context: str
    kind: ArchiveKind
    rows: int
    first_at: datetime | None
    last_at: datetime | None


@dataclass(frozen=True, slots=True)
class HeldStream:
    """A stream whose rows are not archived, and why."""

    kind: ArchiveKind
    stream: str
    reason: str


@dataclass(frozen=True, slots=True)
class FileCheck:
    """One checked file. ``error`` None: it is as the manifest says. ``left_over``: no batch names it."""

    file: str
    error: str | None = None
    left_over: bool = False


@dataclass(slots=True)
class ArchiveReport:
    """The result of a run, or what a run would do. ``deleted``: batches that were kept long enough."""

    context: str
    batches: list[Manifest] = field(default_factory=list)
    deleted: list[Manifest] = field(default_factory=list)
    waiting: list[ArchivableRows] = field(default_factory=list)
    held: list[HeldStream] = field(default_factory=list)


class ArchiveRows:
    """The archive of one context. A run may be repeated. Of two runs at the same time, one is refused."""

    def __init__(
        self,
        context: str,
        after: timedelta,
        tables: ArchiveTables,
        store: ColdStore,
        auditor: StreamAuditor,
        facts: FactSink,
        *,
        keep: timedelta | None = None,
        limits: BatchLimits | None = None,
    ) -> None:
        self._context, self._after, self._keep = context, after, keep
        self._tables, self._store, self._auditor = tables, store, auditor
        self._facts = facts
        self._limits = limits or BatchLimits()

    async def tick(self, go_on: Callable[[], bool]) -> None:
        """The scheduled run, with a time limit. Raises outages and ArchiveBusy; other errors become facts."""
        end = time.monotonic() + RUN_S
        try:
            await self.run(SCHEDULER, lambda: go_on() and time.monotonic() < end)
        except ArchiveBusy:
            # The other process may be dead, and the database may not know that yet.
            raise
        except ArchiveError as error:
            self._facts(ArchiveFailed(context=self._context, error=str(error)))

    async def run(
        self,
        by: Operator,
        go_on: Callable[[], bool] = lambda: True,
        on_batch: Callable[[Manifest], None] = lambda _: None,
    ) -> ArchiveReport:
        """Archive old rows, a batch of each kind in turn, while ``go_on`` returns True. Then delete old batches.

        Raises ArchiveBusy, ArchiveConflict, ArchiveDamaged, BrokerUnreachable, DatabaseUnreachable and
        StoreUnreachable. Batches that are already committed stay committed.
        """
        report = ArchiveReport(self._context)
        for manifest in await self._tables.batches(unannounced=True):
            await self._announce(manifest)
        left = [(kind, await self._past(kind, report)) for kind in ArchiveKind]
        while left:
            for each in [*left]:
                done = await self._batch(*each, by) if go_on() else None
                if done is None:
                    left.remove(each)
                else:
                    report.batches.append(done)
                    on_batch(done)
        if self._keep is not None and go_on():
            for manifest in await self._tables.expired(self._keep):
                await self._delete(manifest, by)
                report.deleted.append(manifest)
                self._facts(BatchDeleted(context=self._context, kind=manifest.kind, file=manifest.file))
        return report

    async def look(self) -> ArchiveReport:
        """Count what a run would archive. Changes nothing, locks nothing."""
        report = ArchiveReport(self._context)
        for kind in ArchiveKind:
            rows, first, last = await self._tables.waiting(kind, await self._past(kind, report), self._after)
            found = ArchivableRows(context=self._context, kind=kind, rows=rows, first_at=first, last_at=last)
            report.waiting.append(found)
        if self._keep is not None:
            report.deleted += await self._tables.expired(self._keep)
        return report

    def verify(self) -> AsyncIterator[FileCheck]:
        """Read every file again. Compare it with its manifest, and the manifest with the record."""
        return verify(self._context, self._tables, self._store)

    async def _past(self, kind: ArchiveKind, report: ArchiveReport) -> list[str]:
        """The streams that no longer hold messages of rows that are old enough. Report the other streams."""
        past = []
        for stream in await self._tables.streams(kind):
            reason = held_back(await self._auditor.state(stream), self._after)
            if reason is None:
                past.append(stream)
            else:
                report.held.append(HeldStream(kind, stream, reason))
                self._facts(ArchiveHeld(context=self._context, kind=kind, stream=stream, reason=reason))
        return past

    async def _batch(self, kind: ArchiveKind, streams: Sequence[str], by: Operator) -> Manifest | None:
        """Archive one batch; None if no row is old enough."""
        async with self._tables.open(kind, streams, self._after, self._limits.rows) as batch:
            if batch is None:
                raise ArchiveBusy(
                    f"another process archives {self._context} now", hint="try again when it has ended"
                )
            with batchfile.spool() as file:
                draft = await self._write(batch, BatchFile(file))
                if not draft.ids:
                    return None
                manifest = await asyncio.to_thread(draft.finish, self._context, kind, batch.number)
                await self._refuse_existing(manifest)
                await self._store.put(manifest.file, file)
            # Delete only the rows that were read back.
            ids = await read_back(self._store, manifest)
            if ids != draft.ids or await batch.remove(ids, manifest, by) != len(ids):
                raise ArchiveDamaged(f"{manifest.file} does not hold the rows that are locked")
        await self._announce(manifest)
        return manifest

    async def _write(self, batch: OpenBatch, draft: BatchFile) -> BatchFile:
        """Write rows to a file. A page is compressed while the next one comes, so that both cores work."""
        writing = asyncio.ensure_future(asyncio.sleep(0))
        try:
            async with aclosing(batch.rows()) as pages:
                async for rows in pages:
                    await writing
                    if draft.size >= self._limits.size:
                        break  # a row that is locked and not written stays in its table
                    writing = asyncio.ensure_future(asyncio.to_thread(draft.write, rows))
        finally:
            await writing  # also after a failure, because the thread uses the file
        return draft

    async def _refuse_existing(self, manifest: Manifest) -> None:
        """Refuse a name that has a manifest. Our batch is not committed, so another database wrote it."""
        try:
            existing = await batchfile.fetch(self._store, manifest.name, io.BytesIO(), 2 * len(manifest.text()))
        except ArchiveDamaged:
            existing = True
        if existing:
            raise ArchiveConflict(
                f"{manifest.name} exists already, and another database has written it",
                hint="give each database a directory of its own; "
                "after a restore, move away the files that relay archive verify names",
            )

    async def _announce(self, manifest: Manifest) -> None:
        """Store the manifest of a committed batch. It may be repeated."""
        await self._store.put(manifest.name, io.BytesIO(manifest.text()))
        await self._tables.announced(manifest)
        self._facts(
            RowsArchived(
                context=self._context,
                kind=manifest.kind,
                file=manifest.file,
                rows=manifest.rows,
                first_at=manifest.first_at,
                last_at=manifest.last_at,
            )
        )

    async def _delete(self, manifest: Manifest, by: Operator) -> None:
        """Delete a batch. It may be repeated: after a crash in between, the next run deletes the rest.

        The record is marked first, so that nobody uses the batch any more. The file is part of the archive only by
        its manifest, so the manifest goes before it.
        """
        await self._tables.delete(manifest, await self._forgotten(manifest), by)
        await self._store.delete(manifest.name)
        await self._store.delete(manifest.file)
        await self._tables.gone(manifest)

    async def _forgotten(self, manifest: Manifest) -> Sequence[UUID]:
        """The messages that the inbox then forgets. It never forgets those of a file that cannot be read."""
        if manifest.kind is not ArchiveKind.INBOX:
            return []
        try:
            return await read_back(self._store, manifest)
        except ArchiveDamaged:
            return []


def held_back(state: AuditedStream | None, after: timedelta) -> str | None:
    """Why rows of a stream must stay; None if they may be archived.

    While a stream keeps a message, the message can be redelivered, and then the inbox must know it. If the stream
    loses the message, only the outbox can publish it again.
    """
    if state is None:
        return "the stream does not exist, so it is not known for how long it keeps messages"
    if state.max_age is None:
        return "the stream keeps messages for ever; give it a max_age"
    if state.max_age >= after:
        return f"the stream keeps messages for {state.max_age}; archive.after must be longer"
    return None


# --- the files, read again ---


async def read_back(store: ColdStore, manifest: Manifest) -> Sequence[UUID]:
    """The ids in a batch's file. Raises ArchiveDamaged if it is missing, or is not what the manifest says."""
    with batchfile.spool() as file:
        if not await batchfile.fetch(store, manifest.file, file, manifest.size):
            raise ArchiveDamaged(f"{manifest.file} is missing")
        contents = await asyncio.to_thread(batchfile.read, file, manifest)
    batchfile.check(contents, manifest)
    return contents.ids


async def verify(
    context: str, tables: ArchiveTables, store: ColdStore, chosen: Callable[[Manifest], bool] | None = None
) -> AsyncIterator[FileCheck]:
    """Read every file again. Compare it with its manifest, and the manifest with the record.

    ``chosen`` selects batches: only their files are read. Without it, files that no batch names are found too.
    """
    for manifest in await tables.batches():
        if chosen is not None and not chosen(manifest):
            continue
        error = await _doubt(store, manifest)
        if error is None or manifest in await tables.batches():  # else it was deleted meanwhile
            yield FileCheck(manifest.file, error)
    if chosen is not None:
        return
    folders = [folder(context, kind) for kind in ArchiveKind]
    names = [name for prefix in folders for name in await store.names(prefix)]
    # Read the record after the names, so that it includes batches that were committed meanwhile.
    known = {name for batch in await tables.batches() for name in (batch.file, batch.name)}
    for name in names:
        if name not in known:
            yield FileCheck(name, left_over=True)


async def _doubt(store: ColdStore, manifest: Manifest) -> str | None:
    stored, said = io.BytesIO(), manifest.text()
    try:
        await read_back(store, manifest)
        if not await batchfile.fetch(store, manifest.name, stored, 2 * len(said)):
            return f"{manifest.name} is missing; the next run writes it"
    except ArchiveDamaged as error:
        return error.message
    return None if stored.getvalue() == said else f"{manifest.name} differs from the record"
