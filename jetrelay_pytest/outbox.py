"""The outbox of a test: the published events, and calls of handlers for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import ModuleType
from typing import Any, Final
from uuid import uuid4

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer.functions import PythonEventHandler, Unknown
from consumer.handlers import HandlerRegistry, Poison, load
from jetrelay_pytest.calls import (
    InMemory,
    Sessions,
    Transactions,
    call,
    call_async,
    call_each,
    call_each_async,
)
from jetrelay_pytest.expectations import check_columns, expect, holds, plain
from relay import Event, Outbox
from relay.adapters.postgres.captured_rows import capturing
from relay.commands.outgoing import outgoing
from relay.domain.envelopes import handler_request
from relay.domain.errors import InvalidHandler
from relay.domain.limits import DEFAULT_MAX_PAYLOAD_BYTES
from relay.domain.model import HandlerResult, OutboxEvent, Verdict
from relay.domain.routing import Routing
from relay.events import registration_of
from relay.execution.calls import PreparedCall
from relay.ports import HandlerRequest, OutboxRow
from relay.testing import Clock, MemoryOutbox

_ENVELOPE: Final = "handler"
#: No function of a test has a time limit.
_LONG: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class PublishedEvent:
    """An event of a committed transaction. ``row``: all its columns, as they would be in the table."""

    row: OutboxEvent

    @property
    def event_type(self) -> str:
        """The type of the event."""
        return self.row.event_type

    @property
    def payload(self) -> Any:
        """The payload as JSON values."""
        return json.loads(self.row.payload)

    def __str__(self) -> str:
        return f"{self.row.event_type} v{self.row.event_version} {self.row.payload}"


class OutboxInMemory(InMemory):
    """The events that transactions have committed, in their order. Tests may read ``events``.

    Events that were rolled back are not here. ``context``: the producer's name, for the subject that handlers see.
    """

    def __init__(self, context: str = "test") -> None:
        super().__init__()
        self.context = context
        self.events: list[PublishedEvent] = []

    def add(self, row: OutboxEvent) -> None:
        """Keep an event that was committed."""
        self.events.append(PublishedEvent(row))

    def clear(self) -> None:
        """Forget all events, for example those of the preparation of a test."""
        self.events.clear()
        self._done.clear()

    # --- what was published ---

    def assert_published(
        self,
        event: str | type[BaseModel] | BaseModel,
        payload: Mapping[str, Any] | None = None,
        *,
        times: int | None = 1,
        **columns: Any,
    ) -> PublishedEvent:
        """Check that an event was committed ``times``, or at least once for None; returns the last one.

        ``event``: its type, its class, or the whole event, whose payload is compared as well. ``payload``: fields
        that it must have, among others. ``columns``: what else it must have, as `OutboxEvent` names it:
        ``aggregate_id``, ``partition_key``, ``correlation_id``, ``headers`` …
        Raises AssertionError, which shows what was committed.
        """
        __tracebackhide__ = True
        if times == 0:
            raise ValueError("times is at least 1; see assert_not_published")
        return self._expect(event, payload, times, columns)[-1]

    def assert_not_published(
        self, event: str | type[BaseModel] | BaseModel, payload: Mapping[str, Any] | None = None, **columns: Any
    ) -> None:
        """Check that no such event was committed; see `assert_published`."""
        __tracebackhide__ = True
        self._expect(event, payload, 0, columns)

    def assert_nothing_published(self) -> None:
        """Check that no event was committed at all."""
        __tracebackhide__ = True
        expect("any event", self.events, 0, lambda _: True)

    def _expect(
        self, event: Any, payload: Mapping[str, Any] | None, times: int | None, columns: Mapping[str, Any]
    ) -> list[PublishedEvent]:
        __tracebackhide__ = True
        check_columns(OutboxEvent, columns)
        kind, version, whole = _named(event)
        part = plain(payload or {})

        def fits(it: PublishedEvent) -> bool:
            return (
                it.event_type == kind
                and version in (None, it.row.event_version)
                and (whole is None or it.payload == whole)
                and holds(it.payload, part)
                and all(holds(getattr(it.row, name), value) for name, value in columns.items())
            )

        expected = [kind, *(f"{it}" for it in (whole, part, {**columns}) if it)]
        return expect(" ".join(expected), self.events, times, fits)

    # --- what handlers do with it ---

    def drain(
        self,
        handlers: str | ModuleType | HandlerRegistry,
        *,
        subscription: str | None = None,
        sessions: Sessions = Session,
        async_sessions: Sessions = AsyncSession,
        delayed: bool = False,
    ) -> int:
        """Call the functions of a module for every event that is due, and for those that they publish in turn.

        Returns the number of calls. Each call has a transaction of its own, of ``sessions`` or, for coroutines, of
        ``async_sessions``: a sessionmaker; without one, a session without a database. An event without a function
        there is for others, and is skipped. ``delayed``: also events that are not due yet. ``subscription``: call
        what handles its messages; needed if functions name subscriptions.

        `drain` raises what a function raises. The transaction is rolled back, and the event is due again: the next
        `drain` is its next attempt. Raises Poison for a payload that does not fit the function.
        """
        transactions = Transactions(sessions, async_sessions)
        return call_each(self._due(_of(handlers, subscription), transactions, delayed=delayed))

    async def drain_async(
        self,
        handlers: str | ModuleType | HandlerRegistry,
        *,
        subscription: str | None = None,
        sessions: Sessions = Session,
        async_sessions: Sessions = AsyncSession,
        delayed: bool = False,
    ) -> int:
        """Do what `drain` does, in a test that is a coroutine."""
        transactions = Transactions(sessions, async_sessions)
        return await call_each_async(self._due(_of(handlers, subscription), transactions, delayed=delayed))

    def deliver(
        self,
        handlers: str | ModuleType | HandlerRegistry,
        event: Event | BaseModel,
        *,
        subscription: str | None = None,
        sessions: Sessions = Session,
        async_sessions: Sessions = AsyncSession,
    ) -> None:
        """Call the function for an event of another service, once. It is not among ``events``.

        Raises what the function raises, and Poison if there is none for this event.
        """
        call(self._delivery(_of(handlers, subscription), event, Transactions(sessions, async_sessions)))

    async def deliver_async(
        self,
        handlers: str | ModuleType | HandlerRegistry,
        event: Event | BaseModel,
        *,
        subscription: str | None = None,
        sessions: Sessions = Session,
        async_sessions: Sessions = AsyncSession,
    ) -> None:
        """Do what `deliver` does, in a test that is a coroutine."""
        await call_async(
            self._delivery(_of(handlers, subscription), event, Transactions(sessions, async_sessions))
        )

    def _delivery(
        self, handlers: HandlerRegistry, event: Event | BaseModel, transactions: Transactions
    ) -> PreparedCall:
        row = _committed(self.context, event)
        prepared = self._prepared(_handler(handlers, transactions, "dead-letter"), row, 1)
        assert prepared is not None  # without a function it is poison
        return prepared

    def _due(
        self, handlers: HandlerRegistry, transactions: Transactions, *, delayed: bool
    ) -> Iterator[PreparedCall]:
        """Yield the calls of events that are due. Each event is for the functions of other modules, too."""
        handler = _handler(handlers, transactions, "skip")
        due = (it for it in self.events if delayed or _is_due(it.row))
        return self._each(due, partial(self._prepared, handler), handler.registry.name)

    def _prepared(self, handler: PythonEventHandler, row: OutboxEvent, attempt: int) -> PreparedCall | None:
        """Return the call for an event, or None. Raises Poison, and what an upcaster raises."""
        prepared = handler.prepare(_request(row, self.context, attempt))
        if isinstance(prepared, HandlerResult):
            if prepared.verdict is Verdict.REFUSED:
                raise Poison(prepared.detail)
            return None
        return prepared


def _named(event: str | type[BaseModel] | BaseModel) -> tuple[str, int | None, Any]:
    """Return the type of an event, its version if that is known, and its whole payload if it was given."""
    if isinstance(event, str):
        return event, None, None
    kind = event if isinstance(event, type) else type(event)
    registration = registration_of(kind)
    if registration is None:
        raise TypeError(f"{kind.__name__} is not registered: decorate it with @event or @command")
    return registration.event_type, registration.event_version, plain(event) if kind is not event else None


def _of(handlers: str | ModuleType | HandlerRegistry, subscription: str | None) -> HandlerRegistry:
    """Return what a subscription calls. Raises InvalidHandler, also if the test must name one."""
    if not isinstance(handlers, HandlerRegistry):
        handlers = load(handlers if isinstance(handlers, str) else handlers.__name__)
    if subscription is not None:
        return replace(handlers.of(subscription), name=f"{handlers.name} for {subscription}")
    if handlers.named:
        raise InvalidHandler(
            f"functions of {handlers.name} are for one subscription", hint=f"subscription={min(handlers.named)!r}"
        )
    return handlers


def _handler(handlers: HandlerRegistry, transactions: Transactions, unknown: Unknown) -> PythonEventHandler:
    test_transactions: Any = transactions
    return PythonEventHandler(handlers, test_transactions, timeout=_LONG, unknown=unknown)


def _committed(context: str, event: Event | BaseModel) -> OutboxEvent:
    """Return the row of an event that is not among those of the test."""
    rows: list[Any] = []
    with capturing(rows.extend), Session() as session, session.begin():
        Outbox(context, undeclared=True).add(session, event)
    return rows[0]  # type: ignore[no-any-return]


def _is_due(row: OutboxEvent) -> bool:
    return row.available_at is None or row.available_at <= datetime.now(UTC)


def _request(row: OutboxEvent, context: str, attempt: int) -> HandlerRequest:
    """Send an event through the wire's form and back, as a handler gets it."""
    message = outgoing(
        _stored(row),
        routing=Routing(context=context),
        envelope=_ENVELOPE,
        max_payload=DEFAULT_MAX_PAYLOAD_BYTES,
    )
    prepared = handler_request(_ENVELOPE, message.subject, message.headers, message.body)
    return HandlerRequest(
        message_id=prepared.event.message_id,
        subject=message.subject,
        event_type=prepared.event.event_type,
        event_version=prepared.event.event_version,
        correlation_id=prepared.event.correlation_id,
        attempt=attempt,
        body=prepared.body,
        headers=message.headers,
        token=uuid4(),
        originals=prepared.event.originals,
        idempotency_key=prepared.idempotency_key,
        actor=prepared.event.actor,
        traceparent=prepared.event.traceparent,
    )


def _stored(row: OutboxEvent) -> OutboxRow:
    memory = MemoryOutbox(Clock(datetime.now(UTC)))
    memory.add(row)
    return memory.events[str(row.id)].row
