"""Reads that the API, the command line, the console and the metrics share (SDS-047 §5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from relay.domain.errors import RelayError, UnknownContext


class SchemaMissing(RelayError):
    """The database does not have our tables, or not all of them: it has not been migrated."""

    code = "SCHEMA_MISSING"


@dataclass(frozen=True, slots=True)
class OutboxBacklog:
    """What waits to be published.

    ``count`` events neither published nor dead, the oldest of which happened at ``oldest_at``, that is
    ``oldest_age_seconds`` ago by the database's clock (0 when none waits). ``dead`` more are
    unrecoverable and wait for an operator.
    """

    count: int
    oldest_at: datetime | None
    oldest_age_seconds: float
    dead: int


@dataclass(frozen=True, slots=True)
class InboxBacklog:
    """What waits to be handled.

    ``count`` messages neither processed nor dead-lettered, the oldest of which came at ``oldest_at``,
    that is ``oldest_age_seconds`` ago by the database's clock (0 when none waits). Of them,
    ``failed_attempts`` were tried more than three times. ``dead_lettered`` more have ended.
    """

    count: int
    oldest_at: datetime | None
    oldest_age_seconds: float
    failed_attempts: int
    dead_lettered: int


class BacklogReader(Protocol):
    """The read model of one context. Takes no locks; each call is one snapshot.

    Both raise DatabaseUnreachable, and SchemaMissing when the database is not migrated.
    """

    async def outbox_backlog(self) -> OutboxBacklog:
        """Read outbox_events WHERE published_at IS NULL."""

    async def inbox_backlog(self) -> InboxBacklog:
        """Read inbox_messages WHERE processed_at IS NULL."""


@dataclass(frozen=True, slots=True)
class GetOutboxBacklog:
    """QRY-050. ``readers`` by the name of their context."""

    readers: Mapping[str, BacklogReader]

    async def __call__(self, context: str) -> OutboxBacklog:
        """Ask the reader of ``context``. Raises UnknownContext and what the reader raises."""
        return await _reader(self.readers, context).outbox_backlog()


@dataclass(frozen=True, slots=True)
class GetInboxBacklog:
    """QRY-051. ``readers`` by the name of their context."""

    readers: Mapping[str, BacklogReader]

    async def __call__(self, context: str) -> InboxBacklog:
        """Ask the reader of ``context``. Raises UnknownContext and what the reader raises."""
        return await _reader(self.readers, context).inbox_backlog()


def _reader(readers: Mapping[str, BacklogReader], context: str) -> BacklogReader:
    if context not in readers:
        known = ", ".join(readers) or "none"
        raise UnknownContext(f"no context is called {context[:80]!r}", hint=f"known: {known}")
    return readers[context]
