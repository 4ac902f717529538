"""The ports of the archive: a store for files, and the tables with the rows. Each docstring is the contract."""

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
    """Files that are written once and never changed. All methods raise StoreUnreachable."""

    async def put(self, name: str, content: IO[bytes]) -> None:
        """Store a file completely or not at all. It is durable on return.

        It may be repeated with the same content. Raises ArchiveConflict if the name has other content.
        """

    async def get(self, name: str, into: IO[bytes]) -> bool:
        """Copy a file to ``into``. False if there is no such file."""

    async def names(self, prefix: str) -> Sequence[str]:
        """The names that start with ``prefix``, in order, including files that were never finished."""


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
        """The committed batches, in order. ``unannounced``: only those whose manifest may be missing."""

    async def announced(self, manifest: Manifest) -> None:
        """Record that the manifest is stored."""
