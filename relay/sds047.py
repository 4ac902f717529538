"""The names of SDS-047 as the document writes them: its entities, values and ports, one row or message at a time.

For readers of the document, and for scripts. The fleet uses none of it: it works with batches under claims
(`relay.ports`), and methods for one row cost a round trip each. Both may work on the same rows: each method is one
transaction, and changes a row only while it is in the state that the document asks for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from psycopg.errors import UniqueViolation
from psycopg.rows import dict_row

from relay import ports
from relay.adapters.postgres.pool import Source
from relay.adapters.postgres.sql import statement
from relay.bus.context import RequestContext
from relay.domain.disclosure import clean
from relay.domain.errors import DuplicateMessage, InvalidEvent, InvalidTimestamp
from relay.domain.model import HandlerResult
from relay.ports import Delivery, JetStreamPublisher

__all__ = [
    "CorrelationContext",
    "EventHandler",
    "InboxMessage",
    "InboxRepository",
    "JetStreamConsumer",
    "JetStreamPublisher",
    "OutboxEvent",
    "OutboxRepository",
]

#: How long a fetch waits for its first message, and after how long a refused message comes again.
_WAIT: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEvent:
    """§2.1: a record of an event, with what became of it. `relay.Event` is what applications write.

    Raises InvalidEvent (POL-047-001). The table refuses an event of the future, by its own clock (POL-047-002).
    """

    id: UUID
    aggregate_type: str
    aggregate_id: str
    event_type: str
    event_version: int
    payload: Any
    occurred_at: datetime
    correlation_id: UUID | None = None
    causation_id: UUID | None = None
    published_at: datetime | None = None
    publish_attempts: int = 0
    publish_error: str | None = None

    def __post_init__(self) -> None:
        for name in ("id", "event_type"):
            if getattr(self, name) is None:
                raise InvalidEvent("is required", field=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxMessage:
    """§2.1: a receipt that makes handling repeatable. Raises InvalidTimestamp (POL-047-004)."""

    message_id: UUID
    subject: str
    received_at: datetime
    processed_at: datetime | None = None
    attempts: int = 0
    last_error: str | None = None

    def __post_init__(self) -> None:
        for name in ("received_at", "processed_at"):
            time = getattr(self, name)
            if time is not None and time.utcoffset() is None:
                raise InvalidTimestamp("has no time zone", field=name)
        if self.processed_at is not None and self.processed_at < self.received_at:
            raise InvalidTimestamp("is before received_at", field="processed_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationContext:
    """§2.2: the operation that a piece of work belongs to, and its direct cause. Both are optional."""

    correlation_id: UUID | None = None
    causation_id: UUID | None = None

    @contextmanager
    def use(self) -> Iterator[None]:
        """Let the events, tasks and log lines of a block carry these ids."""
        with RequestContext(correlation_id=self.correlation_id, causation_id=self.causation_id).use():
            yield


class OutboxRepository:
    """PORT-047-001 on the database of one context. All methods raise DatabaseUnreachable."""

    def __init__(self, source: Source) -> None:
        """``source``: lends a connection, as ``Application.context(name).pool.connection`` does."""
        self._source = source

    async def find_unpublished(self, limit: int = 100) -> Sequence[OutboxEvent]:
        """The first events that are not published, in their order. Claims nothing."""
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement("single/find_unpublished"), {"limit": limit})
            return [OutboxEvent(**row) for row in await cursor.fetchall()]

    async def mark_published(self, id: UUID) -> bool:
        """Set ``published_at`` and count the attempt. False if there is no such unpublished event.

        Waits for a publisher that has the event now. The row does not say where in the stream it is, so
        reconciliation cannot look after it.
        """
        return await self._change("single/mark_published", id=id)

    async def increment_attempts(self, id: UUID, error: str) -> bool:
        """Count an attempt and keep the error. False if there is no such unpublished event."""
        return await self._change("single/increment_attempts", id=id, error=clean(error)[:2_000])

    async def _change(self, name: str, **parameters: Any) -> bool:
        async with self._source() as conn:
            return (await conn.execute(statement(name), parameters)).rowcount == 1


class InboxRepository:
    """PORT-047-002 on the database of one context. All methods raise DatabaseUnreachable."""

    def __init__(self, source: Source) -> None:
        """``source``: as that of `OutboxRepository`."""
        self._source = source

    async def insert(self, msg: InboxMessage) -> None:
        """Store a receipt. Raises DuplicateMessage if its id is known (POL-047-003)."""
        values = {name: getattr(msg, name) for name in InboxMessage.__dataclass_fields__}
        try:
            async with self._source() as conn:
                await conn.execute(statement("single/insert"), values)
        except UniqueViolation as error:
            raise DuplicateMessage("the inbox has this message already", field="message_id") from error

    async def mark_processed(self, id: UUID) -> bool:
        """Set ``processed_at``. False if there is no such message that waits and that no worker handles now."""
        return await self._change("single/mark_processed", id=id)

    async def record_error(self, id: UUID, error: str) -> bool:
        """Count an attempt and keep the error. False as for `mark_processed`."""
        return await self._change("single/record_error", id=id, error=clean(error))

    async def _change(self, name: str, **parameters: Any) -> bool:
        async with self._source() as conn:
            return (await conn.execute(statement(name), parameters)).rowcount == 1


class JetStreamConsumer:
    """PORT-047-004 on one durable consumer. All methods raise BrokerUnreachable."""

    def __init__(self, consumer: ports.JetStreamConsumer, wait: timedelta = _WAIT) -> None:
        """``consumer``: ``Application.consumer(context, subscription)``. ``wait``: for the first message."""
        self._consumer, self._wait = consumer, wait

    async def fetch(self, batch: int) -> Sequence[Delivery]:
        """At most ``batch`` messages; none if none came."""
        return await self._consumer.fetch(batch, self._wait)

    async def ack(self, msg: Delivery) -> None:
        """Acknowledge a message."""
        await self._consumer.ack([msg.reply])

    async def nak(self, msg: Delivery) -> None:
        """Have a message delivered again, at once."""
        await self._consumer.nak([msg.reply], timedelta())


class EventHandler:
    """PORT-047-005: a handler that is given type and payload, and answers with a verdict."""

    def __init__(self, handler: ports.EventHandler, subject: str = "local.event.{name}.v1") -> None:
        """``handler``: of a subscription. ``subject``: what it is told; ``{name}`` stands for the type."""
        self._handler, self._subject = handler, subject

    async def handle(self, event_type: str, payload: Mapping[str, Any]) -> HandlerResult:
        """Call the handler once, as for version 1 of a new message. No retry, no row."""
        id, now = uuid4(), datetime.now(UTC)
        context, subject = RequestContext.current(), self._subject.format(name=event_type)
        body = {
            "message_id": str(id),
            "subject": subject,
            "event_type": event_type,
            "event_version": 1,
            "occurred_at": now.isoformat().replace("+00:00", "Z"),
            "correlation_id": None if context.correlation_id is None else str(context.correlation_id),
            "causation_id": None if context.causation_id is None else str(context.causation_id),
            "payload": payload,
        }
        correlation = context.correlation_id if isinstance(context.correlation_id, UUID) else None
        request = ports.HandlerRequest(
            id,
            subject,
            event_type,
            1,
            correlation,
            1,
            json.dumps(body).encode(),
            {},
            uuid4(),
            idempotency_key=str(id),
        )
        return await self._handler.handle(request)
