"""A run of the archive that stops at a named step: killed, or with its connection to PostgreSQL cut.

``python -m tests.integration.archive_crash DATABASE_URL NATS_URL ROOT CONTEXT STEP`` is the killed one. It
archives and deletes what was kept for 99 days, or restores or replays events.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

from relay.adapters.coldstore import FolderStore
from relay.adapters.postgres.archive import PostgresArchive
from relay.commands.coldrows import ColdRows
from relay.domain.archive import ArchiveKind, RowFilter
from tests.integration.archiving import ANN, Archive
from tests.integration.publishing import Relay

#: Every step of a batch, in order.
STEPS = (
    "locked",
    "written in part",
    "written",
    "stored",
    "read back",
    "removed",
    "committed",
    "manifest in part",
    "manifest stored",
    "announced",
)
#: Every step of a deletion, after which something is different.
DELETING = ("marked", "manifest deleted", "file deleted")
KEEP = timedelta(days=99)
Stop = Callable[[str], None]


class _Torn:
    """A file that stops whoever copies it after the first byte."""

    def __init__(self, content: IO[bytes], stop: Callable[[], None]) -> None:
        self._content, self._stop = content, stop

    def seek(self, *arguments: int) -> int:
        return self._content.seek(*arguments)

    def read(self, _size: int = -1) -> bytes:
        if self._content.tell():
            self._stop()
        return self._content.read(1)


class Store(FolderStore):
    """A folder that stops around its files."""

    def __init__(self, root: Path, stop: Stop, torn: str = "") -> None:
        super().__init__(root)
        self._stop, self._torn = stop, torn

    async def put(self, name: str, content: Any) -> None:
        step = "manifest" if name.endswith(".json") else "written"
        if step == "written":
            self._stop("written")
        if self._torn == f"{step} in part":
            content = _Torn(content, lambda: self._stop(f"{step} in part"))
        await super().put(name, content)
        self._stop("manifest stored" if step == "manifest" else "stored")

    async def delete(self, name: str) -> None:
        await super().delete(name)
        self._stop("manifest deleted" if name.endswith(".json") else "file deleted")

    async def get(self, name: str, into: IO[bytes]) -> bool:
        found = await super().get(name, into)
        if found and name.endswith(".gz"):
            self._stop("read back")
        return found


class _Batch:
    def __init__(self, batch: Any, stop: Stop) -> None:
        self._batch, self._stop, self.number = batch, stop, batch.number
        self.removed = 0

    async def rows(self) -> Any:
        async for page in self._batch.rows():
            self._stop("locked")
            yield page

    async def remove(self, *arguments: Any) -> int:
        self.removed = await self._batch.remove(*arguments)
        self._stop("removed")
        return self.removed


class Tables(PostgresArchive):
    """Tables that stop around their transaction."""

    def __init__(self, source: Any, context: str, stop: Stop) -> None:
        super().__init__(source, context)
        self._stop = stop

    @asynccontextmanager
    async def open(self, *arguments: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        async with super().open(*arguments) as batch:
            found = batch and _Batch(batch, self._stop)
            yield found
        if found and found.removed:
            self._stop("committed")

    async def announced(self, manifest: Any) -> None:
        await super().announced(manifest)
        self._stop("announced")

    async def delete(self, *arguments: Any) -> None:
        await super().delete(*arguments)
        self._stop("marked")

    async def restore(self, *arguments: Any) -> int:
        restored = await super().restore(*arguments)
        self._stop("restored in part")
        return restored

    async def replay(self, *arguments: Any) -> int:
        replayed = await super().replay(*arguments)
        self._stop("replayed in part")
        return replayed


def kill_at(wanted: str) -> Stop:
    def stop(step: str) -> None:
        if step == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    return stop


async def _main(url: str, nats_url: str, root: str, context: str, step: str) -> None:
    async with Relay(url, nats_url, context) as relay:
        archive, stop = Archive(relay, Path(root)), kill_at(step)
        tables, store = Tables(relay.pool.connection, context, stop), Store(Path(root), stop, step)
        rows = ColdRows(tables, store, lambda _row: None)
        if step == "restored in part":
            await rows.restore(ArchiveKind.OUTBOX, RowFilter(), ANN, lambda _done, _of: None)
        elif step == "replayed in part":
            await rows.replay(RowFilter(), ANN, lambda _done, _of: None)
        else:
            keep = KEEP if step in DELETING else None
            await archive.command(store, tables, keep=keep, rows=60).run(ANN)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
