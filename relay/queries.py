"""Queries that the API, the command line, the console and the metrics share (SDS-047 §5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from relay.domain.backlogs import InboxBacklog, OutboxBacklog
from relay.domain.errors import RelayError, TooMany, of_context
from relay.domain.identity import Id

Item = TypeVar("Item")


class SchemaMissing(RelayError):
    """The database lacks some or all of our tables: it has not been migrated."""

    code = "SCHEMA_MISSING"


class BacklogReader(Protocol):
    """The read model of one context. It takes no locks.

    Each call reads one snapshot. Both raise DatabaseUnreachable, and SchemaMissing when the database is not
    migrated.
    """

    async def outbox_backlog(self) -> OutboxBacklog:
        """Read outbox_events WHERE published_at IS NULL."""

    async def inbox_backlog(self) -> InboxBacklog:
        """Read inbox_messages WHERE processed_at IS NULL."""


@dataclass(frozen=True, slots=True)
class GetOutboxBacklog:
    """QRY-050. ``readers``: one for each context, by its name."""

    readers: Mapping[str, BacklogReader]

    async def __call__(self, context: str) -> OutboxBacklog:
        """Ask the reader of ``context``. Raises UnknownContext and what the reader raises."""
        return await of_context(self.readers, context).outbox_backlog()


@dataclass(frozen=True, slots=True)
class GetInboxBacklog:
    """QRY-051. ``readers`` by the name of their context."""

    readers: Mapping[str, BacklogReader]

    async def __call__(self, context: str) -> InboxBacklog:
        """Ask the reader of ``context``. Raises UnknownContext and what the reader raises."""
        return await of_context(self.readers, context).inbox_backlog()


# --- what operators look at -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """The newest matching items, and the number of all matches."""

    items: Sequence[Item]
    total: int

    def all_of(self, limit: int) -> Sequence[Item]:
        """Return the items, oldest first, if they are all the matches. Raises TooMany if they are not.

        An action on only a part of the selection would silently leave out the rest.
        """
        if self.total > len(self.items):
            raise TooMany(
                f"{self.total} match and the limit is {limit}", hint="narrow the selection or raise --limit"
            )
        return self.items[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Selects outbox events. A field that is None excludes nothing.

    ``statuses``: waiting, failing, dead, published. ``since`` (included) and ``until`` (excluded) bound
    occurred_at. ``error`` is a part of the text.
    """

    statuses: list[str]
    event_type: str | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    correlation_id: Id | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None
