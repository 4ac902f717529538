"""Restores rows of the archive to their tables, or publishes archived events again.

Nothing leaves the archive. The rows of each batch are one transaction, which may be repeated. So after an
interruption the same run can be started again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import IO, Any

from relay.commands import batchfile
from relay.domain.archive import ArchiveDamaged, ArchiveKind, Manifest, RowFilter, SubjectOf
from relay.domain.errors import InvalidSubject, Stale
from relay.domain.expiry import is_over
from relay.domain.foreign_json import read_json
from relay.domain.operators import LONGER, Operator
from relay.domain.routing import Routing
from relay.ports import ArchiveTables, ColdStore

#: Progress: how many batches are done, and of how many.
Progress = Callable[[int, int], None]
#: Whether an archived row is one of those that are chosen.
Fits = Callable[[Mapping[str, Any]], bool]


def archived_subject(routing: Routing, row: Mapping[str, Any]) -> str | None:
    """The subject of an archived message, or the subject that an archived event gets by today's routes."""
    if "topic" not in row:
        return row.get("subject")
    try:
        return routing.subject(row["event_type"], row["event_version"], row["topic"])
    except InvalidSubject:
        return None


class ColdRows:
    """Selected rows of one context's archive. ``subject``: the subject of an archived event.

    All methods raise ArchiveDamaged, DatabaseUnreachable and StoreUnreachable.
    """

    def __init__(self, tables: ArchiveTables, store: ColdStore, subject: SubjectOf) -> None:
        self._tables, self._store, self._subject = tables, store, subject

    async def count(self, kind: ArchiveKind, chosen: RowFilter, progress: Progress) -> int:
        """How many rows are selected. A row that was restored and archived again counts twice."""
        return sum([len(lines) async for _, lines in self._selected(kind, chosen, progress)])

    async def read(
        self, kind: ArchiveKind, chosen: RowFilter, fits: Fits, progress: Progress
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Selected rows that also fit, as they are in the archive, file by file."""
        async for _, lines in self._selected(kind, chosen, progress, fits):
            for line in lines:
                yield read_json(line)

    async def batches(
        self, kind: ArchiveKind, chosen: RowFilter, after: int
    ) -> AsyncGenerator[tuple[int, Sequence[Mapping[str, Any]]], None]:
        """Selected rows by the numbers of their batches, of those with a higher number than ``after``."""
        async for manifest, lines in self._selected(kind, chosen, lambda _done, _of: None, after=after):
            yield manifest.number, [read_json(line) for line in lines]

    async def restore(self, kind: ArchiveKind, chosen: RowFilter, by: Operator, progress: Progress) -> int:
        """Put rows back into their table, as they were; return how many the table lacked. Nothing is sent.

        The newest batches come first. So a row that was archived more than once gets its last state.
        """
        count = 0
        async for manifest, lines in self._selected(kind, chosen, progress, backwards=True):
            count += await self._tables.restore(kind, lines, manifest.file, by)
            by = by.besides  # the first batch has used the selection up
        return count

    async def replay(
        self, chosen: RowFilter, by: Operator, progress: Progress, expires_in: timedelta | None = None
    ) -> int:
        """Put events back and mark them to be published again, in their order; return how many.

        Events whose time is over stay in the archive, unless they get a new one by ``expires_in``. Raises Stale if
        no other is selected.
        """
        count, stale = 0, Counter[bool]()

        def fits(row: Mapping[str, Any]) -> bool:
            fresh = expires_in is not None or not is_over(row.get("expires_at"))
            stale[not fresh] += 1
            return fresh

        async for _, lines in self._selected(ArchiveKind.OUTBOX, chosen, progress, fits):
            if done := await self._tables.replay(lines, by, expires_in):
                count, by = count + done, by.besides
        if stale[True] and not stale[False]:
            raise Stale(f"their time is over: {stale[True]}", hint=LONGER)
        return count

    async def _selected(
        self,
        kind: ArchiveKind,
        chosen: RowFilter,
        progress: Progress,
        fits: Fits = lambda _: True,
        *,
        backwards: bool = False,
        after: int = 0,
    ) -> AsyncIterator[tuple[Manifest, Sequence[str]]]:
        batches = [
            it
            for it in await self._tables.batches()
            if it.kind is kind and it.number > after and chosen.may_be_in(it)
        ]
        if backwards:
            batches.reverse()
        for done, manifest in enumerate(batches):
            progress(done, len(batches))
            with batchfile.spool() as file:
                batch = await self._fetch(manifest, file)
                if batch is None:
                    continue  # a run has deleted it meanwhile
                found = batchfile.lines(file, batch)
                lines = await asyncio.to_thread(self._select, found, kind, chosen, fits)
            if lines:
                yield batch, lines
        progress(len(batches), len(batches))

    async def _fetch(self, manifest: Manifest, file: IO[bytes]) -> Manifest | None:
        """Fetch a batch, under another name if it was written anew meanwhile; None if it was deleted."""
        for wanted in (manifest, await self._now(manifest)):
            if wanted is None or await batchfile.fetch(self._store, wanted.file, file, wanted.size):
                return wanted
        raise ArchiveDamaged(f"{manifest.file} is missing", hint="relay archive verify")

    async def _now(self, manifest: Manifest) -> Manifest | None:
        same = (
            it for it in await self._tables.batches() if (it.kind, it.number) == (manifest.kind, manifest.number)
        )
        return next(same, None)

    def _select(self, lines: Iterator[bytes], kind: ArchiveKind, chosen: RowFilter, fits: Fits) -> list[str]:
        rows = ((line, read_json(line)) for line in lines)
        return [line.decode() for line, row in rows if chosen.fits(kind, row, self._subject) and fits(row)]
