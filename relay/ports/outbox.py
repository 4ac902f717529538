"""PORT-047-001: the events that wait, claimed by an open transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import UUID

from relay.domain.large import Reference
from relay.domain.policies import Published


class OutboxRow(NamedTuple):
    """A claimed event. Values that the publisher only passes on are text.

    ``payload`` is None if it is larger than any broker accepts.
    """

    id: str
    event_type: str
    event_version: int
    payload: str | None
    occurred_at: str
    correlation_id: str | None
    causation_id: str | None
    partition_key: str
    topic: str | None
    headers: str
    publish_attempts: int
    generation: int
    #: The texts of ids that are no UUIDs, as JSON.
    originals: str | None = None
    #: The stream that must store the event; None leaves it to the route.
    stream: str | None = None
    #: Its place among the events of its key: a later one has a larger number.
    seq: int = 0
    #: Until when it is worth publishing; None for a type's default or none, or for ever.
    expires_at: str | None = None


class Expiry(NamedTuple):
    """What became of an event that expires. ``seconds``: how long it has left; None for ever."""

    stale: bool
    expires_at: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class PublishFailure:
    """What to record when an event cannot be published. ``delay`` None means that the event is dead.

    ``counts``: False: attempts stay as they are, except that the first failure makes them 1.
    """

    id: str
    error: str
    delay: timedelta | None
    counts: bool = True


class ClaimedBatch(Protocol):
    """Rows held by one open transaction. Leaving the claim commits it; an exception rolls it back."""

    @property
    def rows(self) -> Sequence[OutboxRow]:
        """The claimed events, in the order in which they must be published."""

    @property
    def busy(self) -> Collection[int]:
        """The lanes that had due events; -1 stands for the events without order."""

    @property
    def more(self) -> bool:
        """Whether more events may be due: a lane has used its whole share, or the batch has reached its bytes."""

    @property
    def begun(self) -> float:
        """When the claim began, on the monotonic clock."""

    @property
    def references(self) -> Mapping[str, Reference]:
        """The events whose content stays where it is: their rows have a reference as the payload. Mostly none."""

    async def expire(self, events: Mapping[str, timedelta | None]) -> Mapping[str, Expiry]:
        """Settle those of these events that are stale, by the clock of the rows: nobody publishes them.

        The values: how long an event without a time of its own may be published after it is due. That is recorded.
        A row that cannot be updated is not in the answer.
        """

    async def mark_published(self, acks: Mapping[str, Published]) -> Mapping[str, datetime | str]:
        """Record the PubAck of each id in one statement.

        Returns for each id its ``published_at``, or why the row cannot be updated. Such a row does not stop the
        others.
        """

    async def increment_attempts(self, failures: Sequence[PublishFailure]) -> None:
        """Count an attempt for each id, record the error, and set the back-off or mark the event dead.

        A row that cannot be updated here either is not claimed again for an hour.
        """


class OutboxRepository(Protocol):
    """PORT-047-001. The claim transaction is the lease.

    Rows are locked until the claim ends. A killed process frees them at once. A paused process loses them
    after ``idle_in_transaction_session_timeout`` (5 s), and then its commit fails.
    """

    def find_unpublished(
        self, lanes: Sequence[int], limit: int, max_bytes: int
    ) -> AbstractAsyncContextManager[ClaimedBatch]:
        """Claim up to ``limit`` due rows of the lanes. Each key keeps its order; each lane has the same share.

        The batch ends with the row that brings it to ``max_bytes`` of text. No more is read from the database.
        The claim locks the lanes that are free, so no other claim holds rows of the same keys.
        Raises DatabaseUnreachable.
        """

    def find_one(self, event_id: UUID) -> AbstractAsyncContextManager[ClaimedBatch]:
        """Claim one event, even during its back-off. Waits for its lane. Empty if no such event is unpublished."""
