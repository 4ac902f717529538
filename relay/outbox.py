"""The outbox for application code: record events in the transaction of the change that they report.

outbox = Outbox("vibespro")
with Session(engine) as session, session.begin():
    session.add(vibe)
    outbox.add(session, VibeCreated(vibe_id=vibe.id, title=vibe.title))
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, overload
from uuid import UUID

from pydantic import BaseModel
from uuid_utils.compat import uuid7

from relay.adapters.postgres.cancelling import cancel
from relay.adapters.postgres.captured_rows import capture
from relay.adapters.postgres.enqueue import cancelling
from relay.adapters.postgres.targets import AsyncTarget, SyncTarget, then, write
from relay.bus import RequestContext
from relay.bus.context import created
from relay.domain.actor import ACTOR_ID, ACTOR_KIND, Actor
from relay.domain.errors import InvalidHeader, InvalidKey, InvalidTimestamp, UnknownContext
from relay.domain.identity import Id, Identity, identified
from relay.domain.large import REFERENCE_BYTES, check_large
from relay.domain.limits import (
    DEFAULT_MAX_PAYLOAD_BYTES,
    MAX_KEY_BYTES,
    WIRE_RESERVE_BYTES,
    check_headers,
    check_schema,
    check_size,
    encode_payload,
)
from relay.domain.model import Lifespan, OutboxEvent
from relay.domain.ordering import UNORDERED, default_key
from relay.domain.personal import OVERHEAD_BYTES, Masters, Personal, PersonalFields, encrypt, places
from relay.domain.routing import Routing
from relay.domain.subject import MAX_SUBJECT_CHARS, check_token
from relay.domain.traceparent import TRACEPARENT, Trace, find
from relay.events import AGGREGATE, Event, as_event, plain
from relay.settings import (
    declared_contexts,
    declared_payload_limit,
    declared_personal,
    declared_topics,
    needed_masters,
)

_SMALL_NUMBER = re.compile(r"[0-9]e-([0-9]{2,3})(?![0-9])")

#: Twice the longest subject, and the longest key with three bytes for each of its bytes.
_MAX_OVERHEAD_BYTES: Final = 2 * MAX_SUBJECT_CHARS + 3 * (2 * MAX_KEY_BYTES + 1)
#: The six characters "1e-999" count as 6 + 999 bytes. A character of any other text counts as four at most.
_MAX_CHAR_BYTES: Final = 999 // len("1e-999") + 2


class Outbox:
    """The outbox of one bounded context.

    ``context``: its name as in relay.toml, the beginning of its subjects. The target, not the name, chooses the
    database. A name that an existing relay.toml (``RELAY_CONFIG``, or in the working directory) does not declare
    is refused with UnknownContext, unless ``undeclared`` is true. A topic that is none of its streams or routes is
    refused with ForeignSubject. ``schema``: where its tables are; by default the
    search_path of the target finds them. ``max_payload``: the broker's limit in bytes for a whole message; 1 MiB.
    With ``payload_limit`` in relay.toml a payload may have 64 MB.

    The outbox never commits, and nothing is published before the caller's transaction does. Events of a SQLAlchemy
    session are written when it commits, those of a connection at once, and those of an asynchronous connection
    when they are awaited, or else before its next command.
    """

    def __init__(
        self,
        context: str,
        *,
        schema: str | None = None,
        max_payload: int = DEFAULT_MAX_PAYLOAD_BYTES,
        undeclared: bool = False,
    ) -> None:
        self.context = check_token(context, "context")
        topics = None if undeclared else _declared(context)
        self._schema = check_schema(schema)
        self._routing = Routing(context=context, streams={} if topics is None else {"": topics})
        self._max_payload = max_payload
        self._personal = {} if undeclared else declared_personal(context)
        self._payload_limit = None if undeclared else declared_payload_limit(context)
        self._masters: Masters | None = None
        # A payload shorter than this always fits: no character takes more bytes than _MAX_CHAR_BYTES.
        self._surely_fits = (max_payload - 2 * WIRE_RESERVE_BYTES - _MAX_OVERHEAD_BYTES) // _MAX_CHAR_BYTES

    @overload
    def add(
        self,
        target: SyncTarget,
        event: Event | BaseModel,
        *,
        deliver_at: datetime | timedelta | None = None,
        expires_at: datetime | None = None,
        expires_in: timedelta | None = None,
    ) -> UUID: ...
    @overload
    def add(
        self,
        target: AsyncTarget,
        event: Event | BaseModel,
        *,
        deliver_at: datetime | timedelta | None = None,
        expires_at: datetime | None = None,
        expires_in: timedelta | None = None,
    ) -> Awaitable[UUID]: ...
    def add(
        self,
        target: SyncTarget | AsyncTarget,
        event: Event | BaseModel,
        *,
        deliver_at: datetime | timedelta | None = None,
        expires_at: datetime | None = None,
        expires_in: timedelta | None = None,
    ) -> UUID | Awaitable[UUID]:
        """Record ``event`` in the open transaction of ``target`` and return the id of its row.

        For an event whose id is text, that is the UUID that stands for the text. ``deliver_at``: it is
        published at this time, or so long after the transaction began. ``expires_at``: if it is not
        published or handled before this time, nobody gets it; ``expires_in``: so long after it is due. These go
        before what ``event`` says.

        With an asynchronous target, await the result. If you forget that, the connection writes the event before
        its next command. If it cannot, it commits nothing. Raises InvalidEvent or a subclass, with a code and the
        field at fault, UnsupportedTarget and NoTransaction. Errors that only the database finds are raised when
        the row is written; for a session, that is at its commit: DuplicateMessage, FutureEvent by the database's
        clock, WriteConflict and SchemaMissing.
        """
        if deliver_at is not None or expires_at is not None or expires_in is not None:
            event = _timed(as_event(event), deliver_at, expires_at, expires_in)
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

    @overload
    def cancel(self, target: SyncTarget, *, id: Id | None = ..., key: str | None = ...) -> Sequence[UUID]: ...
    @overload
    def cancel(
        self, target: AsyncTarget, *, id: Id | None = None, key: str | None = None
    ) -> Awaitable[Sequence[UUID]]: ...
    def cancel(
        self, target: SyncTarget | AsyncTarget, *, id: Id | None = None, key: str | None = None
    ) -> Sequence[UUID] | Awaitable[Sequence[UUID]]:
        """Take an event back that has not left, or all of a partition key, in the open transaction of ``target``.

        Returns the ids of the rows that it has cancelled: none if they have left, or are over. It waits for a
        publisher that has one in work. Nobody gets them once the transaction commits; after a rollback they go on.
        Events that the transaction itself has added may be cancelled, too. Raises InvalidKey unless one of ``id``
        and ``key`` is given, UnsupportedTarget, NoTransaction, and WriteConflict in a transaction whose snapshot
        is older than the publication.
        """
        if (id is None) is (key is None):
            raise InvalidKey("say which: by id, or by key", field="id")
        ids = None if id is None else [Identity.of(id).uuid if isinstance(id, str) else id]
        return cancel(target, *cancelling(ids, key, self._schema))

    def _row(self, event: Event) -> OutboxEvent:
        """Fill in the missing values and check everything."""
        request = RequestContext.current()
        (id, correlation_id, causation_id), originals = identified(
            uuid7() if event.id is None else event.id,
            request.correlation_id if event.correlation_id is None else event.correlation_id,
            request.causation_id if event.causation_id is None else event.causation_id,
        )
        payload = encode_payload(plain(event.payload))
        personal = event.personal
        if self._personal and personal is None:
            personal = self._personal.get(event.event_type)
        key = event.partition_key
        if key is AGGREGATE:
            key = default_key(event.aggregate_type, event.aggregate_id)
        elif key == UNORDERED:
            raise InvalidKey("must be a non-empty string", field="partition_key", hint="None opts out of ordering")
        row = OutboxEvent(
            id=id,
            aggregate_type=event.aggregate_type,
            aggregate_id=event.aggregate_id,
            event_type=event.event_type,
            event_version=event.event_version,
            payload=payload,
            occurred_at=event.occurred_at,
            correlation_id=correlation_id,
            causation_id=causation_id,
            partition_key=UNORDERED if key is None else key,
            topic=event.topic,
            headers=_headers(event, id, request),
            available_at=event.available_at,
            originals=originals,
            stream=event.stream,
            schema=self._schema,
            personal=None if personal is None else self._encrypting(personal, payload),
        )
        if event.deliver_at is not None or event.expires_at is not None or event.expires_in is not None:
            row = _with_times(row, event)
        row.check_not_future(datetime.now(UTC))
        self._check_size(row)
        return row

    def _encrypting(self, fields: PersonalFields, payload: str) -> Personal | None:
        """What encrypts the personal values of a payload; None if it has none. Raises ConfigurationError."""
        content = json.loads(payload)
        if not places(content, fields) or capture() is not None:  # a test that takes rows wants to read them
            return None
        subject = fields.subject_of(content)
        self._masters = self._masters or needed_masters()
        return Personal(self.context, subject, fields, self._masters)

    def _check_size(self, row: OutboxEvent) -> None:
        if row.personal is not None:
            row = replace(row, payload=_as_large(row.payload, row.personal), personal=None)
        if not row.headers and not row.originals and row.topic is None and len(row.payload) < self._surely_fits:
            return
        subject = self._routing.subject(row.event_type, row.event_version, row.topic)
        headers = sum(len(name) + len(value) + 4 for name, value in row.headers.items())
        # The second reserve is for the envelope around the payload. The envelope repeats the subject. A header
        # repeats the key, and there a byte of the key may take three.
        around = 2 * len(subject) + 3 * len(row.partition_key.encode()) + headers + WIRE_RESERVE_BYTES
        # A text may stand in two headers and in the body, where a byte takes one, three and two.
        around += 6 * sum(len(text.encode()) for text in row.originals.values())
        # PostgreSQL writes small numbers in full: 1e-300 takes three hundred digits.
        zeros = sum(map(int, _SMALL_NUMBER.findall(row.payload)))
        size = len(row.payload.encode()) + zeros
        if self._payload_limit is not None and size > self._payload_limit:
            check_large(size)
            size = 2 * REFERENCE_BYTES
        check_size(size + around, self._max_payload)


def _as_large(payload: str, personal: Personal) -> str:
    """A payload of the size that it will have when it is encrypted."""
    content = json.loads(payload)
    nobody = UUID(int=0)
    encrypt(places(content, personal.fields), personal.context, nobody, lambda it, _: it + bytes(OVERHEAD_BYTES))
    return json.dumps(content)


def _declared(context: str) -> Sequence[str] | None:
    """The patterns of topics of a context; None if they are not known. Raises UnknownContext."""
    declared = declared_contexts()
    if declared is None:
        return None
    if context not in declared[1]:
        path, names = declared
        raise UnknownContext(
            f"{path} declares no context {context!r}",
            field="context",
            hint=f"it declares {', '.join(sorted(names))}; undeclared=True allows those of another configuration",
        )
    return declared_topics(context)


def _acting(actor: Actor, headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers of an event, with the actor of the request if they name none."""
    return headers if ACTOR_ID in headers or ACTOR_KIND in headers else {**headers, **actor.headers}


def _headers(event: Event, id: UUID, request: RequestContext) -> Mapping[str, str]:
    """The headers of an event, with the actor and the trace of the request if they name none."""
    check_headers(event.headers)
    headers = event.headers if request.actor is None else _acting(request.actor, event.headers)
    if find(headers) is not None:
        return headers
    traceparent = created(request, event.event_type, id)
    return headers if traceparent is None else _traced(headers, traceparent)


def _traced(headers: Mapping[str, str], traceparent: str) -> Mapping[str, str]:
    """The headers of an event in a trace. A trace never makes an event fail: without room it is left out."""
    trace = Trace.parse(traceparent)
    if trace is None or any(name.lower() == TRACEPARENT for name in headers):
        return headers
    more = {**headers, TRACEPARENT: trace.value}
    try:
        check_headers(more)
    except InvalidHeader:
        return headers
    return more


def _timed(
    event: Event,
    deliver_at: datetime | timedelta | None,
    expires_at: datetime | None,
    expires_in: timedelta | None,
) -> Event:
    """The event with the times that are given, which go before its own."""
    if deliver_at is not None:
        event = replace(event, deliver_at=deliver_at, available_at=None)
    if expires_at is not None or expires_in is not None:
        event = replace(event, expires_at=expires_at, expires_in=expires_in)
    return event


def _with_times(row: OutboxEvent, event: Event) -> OutboxEvent:
    """Raises InvalidTimestamp."""
    due = event.deliver_at
    if due is not None and not isinstance(due, datetime | timedelta):
        raise InvalidTimestamp("must be a datetime or a timedelta", field="deliver_at")
    if due is not None and event.available_at is not None:
        raise InvalidTimestamp("is given beside deliver_at", field="available_at", hint="give one of the two")
    delay = due if isinstance(due, timedelta) else None
    timing = Lifespan(delay, event.expires_at, event.expires_in)
    at = due if isinstance(due, datetime) else event.available_at
    return replace(row, available_at=at, timing=None if timing == Lifespan() else timing)


def _only(ids: Sequence[UUID]) -> UUID:
    return ids[0]
