"""What the archive needs from outside: a place for files, and the tables that rows leave."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import IO, Protocol
from uuid import UUID

from relay.domain.archive import ArchivedRow, ArchiveKind, Manifest
from relay.domain.operators import Operator


class ColdStore(Protocol):
    """Files that are written once and never changed. All methods raise StoreUnreachable."""

    async def put(self, name: str, content: IO[bytes]) -> None:
        """Store a file completely or not at all. It is durable on return.

        It may be repeated with the same content. Raises ArchiveConflict if the name has other content.
        """

    async def get(self, name: str, into: IO[bytes]) -> bool:
        """Copy a file to ``into``. False if there is no such file."""

    async def names(self, prefix: str) -> Sequence[str]:
        """The names that start with ``prefix``, in order, including files that were never finished."""

    async def delete(self, name: str) -> None:
        """Delete a file for good. It may be repeated, and the file may be absent."""


class OpenBatch(Protocol):
    """Rows of one kind, locked in one transaction. Leaving it commits; an exception rolls it back."""

    #: One more than the last batch that was committed.
    number: int

    def rows(self) -> AsyncGenerator[Sequence[ArchivedRow], None]:
        """The rows, oldest first, a few at a time. A row that was returned is locked."""

    async def remove(self, ids: Sequence[UUID], manifest: Manifest, by: Operator) -> int:
        """Delete rows, and record their batch and the operator; return how many rows were deleted."""


class ArchiveTables(Protocol):
    """The tables of one context. All methods raise DatabaseUnreachable.

    They use only rows that ended longer than ``after`` ago and, in outbox and inbox, only rows of ``streams``.
    """

    async def streams(self, kind: ArchiveKind) -> Sequence[str]:
        """The streams that the rows belong to. Tasks belong to no stream."""

    def open(
        self, kind: ArchiveKind, streams: Sequence[str], after: timedelta, limit: int
    ) -> AbstractAsyncContextManager[OpenBatch | None]:
        """Begin a batch. None while another process has an open batch in this context."""

    async def waiting(
        self, kind: ArchiveKind, streams: Sequence[str], after: timedelta
    ) -> tuple[int, datetime | None, datetime | None]:
        """The number of rows that can be archived, and their first and last time. Takes no lock."""

    async def batches(self, *, unannounced: bool = False) -> Sequence[Manifest]:
        """The committed batches, in order. ``unannounced``: only batches whose manifest may be missing."""

    async def announced(self, manifest: Manifest) -> None:
        """Record that the manifest is stored."""

    async def expired(self, keep: timedelta) -> Sequence[Manifest]:
        """Batches whose newest row ended longer than ``keep`` ago, and deleted ones that may not be gone yet."""

    async def delete(self, manifest: Manifest, ids: Sequence[UUID], by: Operator) -> None:
        """Take a batch out of the archive, forget its messages, and record who did it. It may be repeated."""

    async def gone(self, manifest: Manifest) -> None:
        """Record that the files of a deleted batch are deleted."""

    async def restore(self, kind: ArchiveKind, lines: Sequence[str], source: str, by: Operator) -> int:
        """Put archived rows back into their table; return how many it lacked.

        Records ``source`` and the operator.
        """

    async def replay(self, lines: Sequence[str], by: Operator, expires_in: timedelta | None = None) -> int:
        """Put archived events back and mark them to be published again, under the next generation.

        ``expires_in``: they expire so long from now on; `NEVER`: not at all.

        An event that is in its table and was replayed since, or is not published, stays as it is. Returns how many
        will be published again. So it may be repeated.
        """
