"""Deletes batches that have been kept long enough. It touches no row of a table."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import timedelta
from uuid import UUID

from relay.domain.archive import ArchiveDamaged, ArchiveKind, Manifest
from relay.domain.operators import Operator
from relay.ports import ArchiveTables, ColdStore

#: Reads the ids of a batch. Raises ArchiveDamaged.
Read = Callable[[Manifest], Awaitable[Sequence[UUID]]]


async def expire(
    tables: ArchiveTables, store: ColdStore, keep: timedelta, read: Read, by: Operator
) -> AsyncGenerator[Manifest, None]:
    """Delete batches whose newest row ended longer than ``keep`` ago; yield each when its files are gone.

    The record is marked first, so that nobody uses the batch any more. Then the manifest is removed, and last the
    file, which is part of the archive only by its manifest. After a crash in between, the next run removes the
    rest.
    """
    for manifest in await tables.expired(keep):
        await tables.delete(manifest, await _ids(manifest, read), by)
        await store.delete(manifest.name)
        await store.delete(manifest.file)
        await tables.gone(manifest)
        yield manifest


async def _ids(manifest: Manifest, read: Read) -> Sequence[UUID]:
    """The messages that the inbox need not recognise any more. It recognises those of a damaged file for ever."""
    if manifest.kind is not ArchiveKind.INBOX:
        return []
    try:
        return await read(manifest)
    except ArchiveDamaged:
        return []
