"""What the archive needs: a place for files, and tables whose rows go there. Each docstring is the contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import IO, Protocol
from uuid import UUID

from relay.commands.batchfile import ArchivedRow
from relay.commands.operate import Operator
from relay.domain.archive import ArchiveKind, Manifest


class ColdStore(Protocol):
    """Files that are written once and never changed. All raise StoreUnreachable."""

    async def put(self, name: str, content: IO[bytes]) -> None:
        """Store a file, whole or not at all; durable on return.

        Repeatable with the same content. Raises ArchiveConflict when the name holds another.
        """

    async def get(self, name: str, into: IO[bytes]) -> bool:
        """Copy a file to ``into``; False when there is none."""

    async def names(self, prefix: str) -> Sequence[str]:
        """The names that begin so, in their order, those of files that were never finished included."""


class OpenBatch(Protocol):
    """Rows of one kind, locked in one transaction. Leaving it commits, an exception rolls it back."""

    #: One more than the last batch that was committed.
    number: int

    def rows(self) -> AsyncGenerator[Sequence[ArchivedRow], None]:
        """The rows, oldest first, a few at a time; each is locked once it is here."""

    async def remove(self, ids: Sequence[UUID], manifest: Manifest, by: Operator) -> int:
        """Delete rows and record their batch and who did it; returns how many were deleted."""


class ArchiveTables(Protocol):
    """The tables of one context. All raise DatabaseUnreachable.

    Only rows whose end is longer than ``after`` ago are meant, and of outbox and inbox only those of ``streams``.
    """

    async def streams(self, kind: ArchiveKind) -> Sequence[str]:
        """The streams that rows belong to; tasks belong to none."""

    def open(
        self, kind: ArchiveKind, streams: Sequence[str], after: timedelta, limit: int
    ) -> AbstractAsyncContextManager[OpenBatch | None]:
        """Begin a batch; None while another process has one open in this context."""

    async def waiting(
        self, kind: ArchiveKind, streams: Sequence[str], after: timedelta
    ) -> tuple[int, datetime | None, datetime | None]:
        """Count, without a lock."""

    async def batches(self, *, unannounced: bool = False) -> Sequence[Manifest]:
        """The batches that were committed, in their order; or those of them whose manifest may be missing."""

    async def announced(self, manifest: Manifest) -> None:
        """Note that the manifest is stored."""
