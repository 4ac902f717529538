"""Reads the files of an archive again, and compares them with the record in the database."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from relay.commands import batchfile
from relay.domain.archive import ArchiveDamaged, ArchiveKind, Manifest, folder
from relay.ports import ArchiveTables, ColdStore


@dataclass(frozen=True, slots=True)
class FileCheck:
    """One checked file. ``error`` None: it is as the manifest says. ``left_over``: no batch names it."""

    file: str
    error: str | None = None
    left_over: bool = False


async def read_back(store: ColdStore, manifest: Manifest) -> Sequence[UUID]:
    """The ids in a batch's file. Raises ArchiveDamaged if it is missing, or is not what the manifest says."""
    with batchfile.spool() as file:
        if not await store.get(manifest.file, file):
            raise ArchiveDamaged(f"{manifest.file} is missing")
        contents = await asyncio.to_thread(batchfile.read, file, manifest.kind)
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
    stored = io.BytesIO()
    try:
        await read_back(store, manifest)
    except ArchiveDamaged as error:
        return error.message
    if not await store.get(manifest.name, stored):
        return f"{manifest.name} is missing; the next run writes it"
    return None if stored.getvalue() == manifest.text() else f"{manifest.name} differs from the record"
