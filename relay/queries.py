"""Queries that the API, the command line, the console and the metrics share (SDS-047 §5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from relay.domain.errors import RelayError, TooMany, UnknownContext
from relay.domain.facts import Fact

Item = TypeVar("Item")


class SchemaMissing(RelayError):
    """The database lacks some or all of our tables: it has not been migrated."""

    code = "SCHEMA_MISSING"


@dataclass(frozen=True, slots=True)
class OutboxBacklog:
    """The events that are not published (QRY-050).

    ``count`` events are not published; the oldest of them occurred at ``oldest_at``. ``dead`` of them cannot be
    published and wait for an operator. ``waiting`` of them will be published; the oldest has waited for
    ``waiting_age_seconds`` by the database's clock (0 when there is none).
    """

    count: int
    oldest_at: datetime | None
    waiting: int
    waiting_age_seconds: float
    dead: int


@dataclass(frozen=True, slots=True)
class InboxBacklog:
    """The messages that are not processed (QRY-051).

    ``count`` messages are not processed; the oldest of them was received at ``oldest_at``. ``dead`` of them are
    dead letters. ``waiting`` of them will be handled; the oldest has waited for ``waiting_age_seconds`` by the
    database's clock (0 when there is none). ``failed_attempts`` of those that wait were tried more than three
    times.
    """

    count: int
    oldest_at: datetime | None
    waiting: int
    waiting_age_seconds: float
    failed_attempts: int
    dead: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """How late publishing is: the ``seconds`` since the earliest overdue event was due; 0 if none is overdue."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBacklog:
    """The tasks that wait to be run.

    ``count`` tasks are due and not finished, the oldest for ``oldest_age_seconds`` (0 when there is none).
    ``delayed`` tasks are due later. ``failed`` tasks wait for an operator.
    """

    count: int
    oldest_age_seconds: float
    delayed: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What of a subscription waits for an operator: ``count`` items, the oldest for ``oldest_age_seconds``.

    ``kind``: the class of the incidents.
    """

    subscription: str | None
    kind: str | None = None
    count: int
    oldest_age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionBacklog:
    """What of a subscription waits to be handled: ``count`` messages, neither processed nor dead-lettered.

    The oldest was received ``oldest_age_seconds`` ago. ``failed_attempts`` messages were tried more than three
    times.
    """

    subscription: str | None
    count: int
    oldest_age_seconds: float
    failed_attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlogs:
    """Everything that waits in a context."""

    outbox: OutboxBacklog
    overdue: Overdue
    inbox: Sequence[SubscriptionBacklog]
    tasks: TaskBacklog
    incidents: Sequence[Waiting]
    parked: Sequence[Waiting]


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogsSampled(Fact):
    """The backlogs of a context. The leading scheduler counts them at intervals for the metrics."""

    backlogs: Backlogs


class BacklogReader(Protocol):
    """The read model of one context. It takes no locks.

    Each call reads one snapshot; `backlogs` reads one snapshot for each part.
    All methods raise DatabaseUnreachable, and SchemaMissing when the database is not migrated.
    """

    async def outbox_backlog(self) -> OutboxBacklog:
        """Read outbox_events WHERE published_at IS NULL."""

    async def inbox_backlog(self) -> InboxBacklog:
        """Read inbox_messages WHERE processed_at IS NULL."""

    async def backlogs(self) -> Backlogs:
        """Read all backlogs, per subscription where there is one."""


@dataclass(frozen=True, slots=True)
class GetOutboxBacklog:
    """QRY-050. ``readers``: one for each context, by its name."""

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

    statuses: tuple[str, ...]
    ids: tuple[UUID, ...] | None = None
    event_type: str | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    correlation_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEventView:
    """An outbox event as an operator sees it, without its payload."""

    id: str
    seq: int
    aggregate_type: str
    aggregate_id: str
    event_type: str
    event_version: int
    occurred_at: datetime
    correlation_id: str | None
    causation_id: str | None
    partition_key: str
    topic: str | None
    published_at: datetime | None
    publish_attempts: int
    publish_error: str | None
    available_at: datetime | None
    dead_at: datetime | None
    published_stream: str | None
    published_seq: int | None
    generation: int
    status: str


@dataclass(frozen=True, slots=True)
class OutboxEventDetail:
    """All details of one event. ``history``: what operators did to it, oldest first."""

    event: OutboxEventView
    headers: Mapping[str, Any]
    payload: str
    history: Sequence[Mapping[str, Any]]
