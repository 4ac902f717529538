"""The outbox for application code: record events in the transaction of the change that they report.

outbox = Outbox("vibespro")
with Session(engine) as session, session.begin():
    session.add(vibe)
    outbox.add(session, VibeCreated(vibe_id=vibe.id, title=vibe.title))
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, overload
from uuid import UUID

from pydantic import BaseModel
from uuid_utils.compat import uuid7

from relay.adapters.postgres.targets import AsyncTarget, SyncTarget, then, write
from relay.bus import RequestContext
from relay.domain.errors import InvalidKey, InvalidPayload
from relay.domain.limits import DEFAULT_MAX_PAYLOAD, MAX_KEY_BYTES, WIRE_RESERVE, check_size, encode_payload
from relay.domain.model import OutboxEvent
from relay.domain.ordering import UNORDERED, default_key
from relay.domain.routing import Routing
from relay.domain.subject import MAX_SUBJECT, check_token
from relay.events import AGGREGATE, Event, as_event

_SMALL_NUMBER = re.compile(r"[0-9]e-([0-9]{2,3})(?![0-9])")

#: Twice the longest subject, and the longest key with three bytes for each of its bytes.
_LONGEST_AROUND: Final = 2 * MAX_SUBJECT + 3 * (2 * MAX_KEY_BYTES + 1)
#: The six characters "1e-999" count as 6 + 999 bytes. A character of any other text counts as four at most.
_LONGEST_CHARACTER: Final = 999 // len("1e-999") + 2


class Outbox:
    """The outbox of one bounded context.

    ``max_payload``: the broker's limit in bytes for a whole message; nats-server's default is 1 MiB.

    The outbox never commits. No event is published before the caller's transaction commits. Events added
    to a SQLAlchemy session are written when it commits. Events added to a connection are written at once.
    """

    def __init__(self, context: str, *, max_payload: int = DEFAULT_MAX_PAYLOAD) -> None:
        self.context = check_token(context, "context")
        self._routing = Routing(context=context)
        self._max_payload = max_payload
        # A payload shorter than this always fits: no character takes more bytes than _LONGEST_CHARACTER.
        self._surely_fits = (max_payload - 2 * WIRE_RESERVE - _LONGEST_AROUND) // _LONGEST_CHARACTER

    @overload
    def add(self, target: SyncTarget, event: Event | BaseModel) -> UUID: ...
    @overload
    def add(self, target: AsyncTarget, event: Event | BaseModel) -> Awaitable[UUID]: ...
    def add(self, target: SyncTarget | AsyncTarget, event: Event | BaseModel) -> UUID | Awaitable[UUID]:
        """Record ``event`` in the open transaction of ``target`` and return its id.

        With an asynchronous target, await the result. Raises InvalidEvent or a subclass, with a code and the
        field at fault, UnsupportedTarget and NoTransaction. Errors that only the database finds are raised when
        the row is written; for a session, that is at its commit: DuplicateMessage, FutureEvent by the database's
        clock, WriteConflict and SchemaMissing.
        """
        return then(self.add_many(target, [event]), _only)

    @overload
    def add_many(self, target: SyncTarget, events: Iterable[Event | BaseModel]) -> Sequence[UUID]: ...
    @overload
    def add_many(self, target: AsyncTarget, events: Iterable[Event | BaseModel]) -> Awaitable[Sequence[UUID]]: ...
    def add_many(
        self, target: SyncTarget | AsyncTarget, events: Iterable[Event | BaseModel]
    ) -> Sequence[UUID] | Awaitable[Sequence[UUID]]:
        """Record ``events`` in their order, in one statement. All events are checked before one is written."""
        rows = [self._row(as_event(event)) for event in events]
        ids: Sequence[UUID] = [row.id for row in rows]
        return write(target, rows, ids)

    def _row(self, event: Event) -> OutboxEvent:
        """Fill in the missing values and check everything."""
        request = RequestContext.current()
        payload = encode_payload(_plain(event.payload))
        key = event.partition_key
        if key is AGGREGATE:
            key = default_key(event.aggregate_type, event.aggregate_id)
        elif key == UNORDERED:
            raise InvalidKey("must be a non-empty string", field="partition_key", hint="None opts out of ordering")
        row = OutboxEvent(
            id=uuid7() if event.id is None else event.id,
            aggregate_type=event.aggregate_type,
            aggregate_id=event.aggregate_id,
            event_type=event.event_type,
            event_version=event.event_version,
            payload=payload,
            occurred_at=event.occurred_at,
            correlation_id=request.correlation_id if event.correlation_id is None else event.correlation_id,
            causation_id=request.causation_id if event.causation_id is None else event.causation_id,
            partition_key=UNORDERED if key is None else key,
            topic=event.topic,
            headers=event.headers,
            available_at=event.available_at,
        )
        row.check_not_future(datetime.now(UTC))
        self._check_size(row)
        return row

    def _check_size(self, row: OutboxEvent) -> None:
        if not row.headers and row.topic is None and len(row.payload) < self._surely_fits:
            return
        subject = self._routing.subject(row.event_type, row.event_version, row.topic)
        headers = sum(len(name) + len(value) + 4 for name, value in row.headers.items())
        # The second reserve is for the envelope around the payload. The envelope repeats the subject. A header
        # repeats the key, and there a byte of the key may take three.
        around = 2 * len(subject) + 3 * len(row.partition_key.encode()) + headers + WIRE_RESERVE
        # PostgreSQL writes small numbers in full: 1e-300 takes three hundred digits.
        zeros = sum(map(int, _SMALL_NUMBER.findall(row.payload)))
        check_size(len(row.payload.encode()) + zeros + around, self._max_payload)


def _plain(payload: object) -> object:
    if not isinstance(payload, BaseModel):
        return payload
    try:
        return payload.model_dump(mode="json")
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(str(error), field="payload") from error


def _only(ids: Sequence[UUID]) -> UUID:
    return ids[0]
