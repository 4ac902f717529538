"""The listener that makes spans of facts. When a batch or a call is over, a fact says what it did, with its times.

A batch has one span, with a link to the creation of each event. A call has one span, whose parent is the creation
of its message or task. Work outside of any trace, or in a trace that nobody records, has no span.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer

from relay.domain.facts import (
    Fact,
    HandlerAnswered,
    MessagesReceived,
    OutboxEventsPublished,
    TaskAnswered,
    Traced,
)
from relay.domain.traceparent import Trace
from relay.telemetry.spans import names
from relay.telemetry.spans.recorder import DONE, span_context, within

_SECOND: Final = 1_000_000_000

#: The id of the span that is made next, if a handler has got this id already.
_given: ContextVar[int | None] = ContextVar("relay_span_id", default=None)


class GivenIds(RandomIdGenerator):
    """Random ids, except for the span of a call: its handler got the id while the call ran."""

    def generate_span_id(self) -> int:
        """Return the id of the next span."""
        return _given.get() or super().generate_span_id()


class SpanFacts:
    """Makes spans. The tracer's provider must use `GivenIds`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._makers: Mapping[type[Fact], Callable[[Any], None]] = {
            OutboxEventsPublished: self._sent,
            MessagesReceived: self._received,
            HandlerAnswered: self._handled,
            TaskAnswered: self._worked,
        }

    def __call__(self, fact: Fact, /) -> None:
        """Make the span of a fact."""
        if (make := self._makers.get(type(fact))) is not None:
            make(fact)

    def _sent(self, fact: OutboxEventsPublished) -> None:
        subjects = {event.subject for event in fact.events}
        about: dict[str, Any] = {names.DESTINATION: subjects.pop()} if len(subjects) == 1 else {}
        about |= {names.CONTEXT: fact.context, names.BATCH_SIZE: len(fact.events)}
        traces = (event.traceparent for event in fact.events)
        self._batch(names.SEND, fact.context, traces, about, fact.begun, fact.begun + fact.seconds)

    def _received(self, fact: MessagesReceived) -> None:
        about = {
            names.CONTEXT: fact.context,
            names.BATCH_SIZE: fact.received,
            names.CONSUMER_GROUP: fact.subscription,
        }
        self._batch(names.RECEIVE, fact.subscription, fact.traces, about, fact.begun, time.time())

    def _batch(
        self,
        operation: str,
        name: str,
        traces: Iterable[str | None],
        about: dict[str, Any],
        begun: float,
        ended: float,
    ) -> None:
        found = (Trace.parse(value) for value in traces)
        links = [Link(span_context(it)) for it in found if it is not None and it.sampled]
        if not links:
            return
        about |= {
            names.SYSTEM: names.NATS,
            names.OPERATION_NAME: operation,
            names.OPERATION_TYPE: operation,
        }
        span = self._tracer.start_span(
            f"{operation} {name}",
            kind=SpanKind.CLIENT,
            attributes=about,
            links=links,
            start_time=_nanoseconds(begun),
        )
        span.end(_nanoseconds(ended))

    def _handled(self, fact: HandlerAnswered) -> None:
        about = {names.SYSTEM: names.NATS, names.CONSUMER_GROUP: fact.subscription, names.CONTEXT: fact.context}
        self._call(fact.subscription, fact.traced, about, fact.seconds)

    def _worked(self, fact: TaskAnswered) -> None:
        about = {names.SYSTEM: names.TASKS, names.CONTEXT: fact.context}
        self._call(fact.task_type, fact.traced, about, fact.seconds)

    def _call(self, name: str, traced: Traced | None, about: dict[str, Any], seconds: float) -> None:
        if traced is None:
            return
        parent, own = Trace.parse(traced.parent), Trace.parse(traced.span)
        if parent is None or own is None or not parent.sampled:
            return
        ended = time.time()
        token = _given.set(int(own.span_id, 16))
        try:
            span = self._tracer.start_span(
                f"{names.PROCESS} {name}",
                context=within(parent),
                kind=SpanKind.CONSUMER,
                attributes=about | _attributes(traced),
                start_time=_nanoseconds(ended - seconds),
            )
        finally:
            _given.reset(token)
        if traced.verdict not in DONE:
            span.set_status(Status(StatusCode.ERROR))
        span.end(_nanoseconds(ended))


def _attributes(traced: Traced) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        names.OPERATION_NAME: names.PROCESS,
        names.OPERATION_TYPE: names.PROCESS,
        names.DESTINATION: traced.source,
        names.MESSAGE_ID: str(traced.id),
        names.ATTEMPT: traced.attempts,
        names.VERDICT: traced.verdict,
    }
    if traced.correlation_id is not None:
        attributes[names.CONVERSATION_ID] = str(traced.correlation_id)
    if traced.verdict not in DONE:
        attributes[names.ERROR_TYPE] = traced.verdict
    return attributes


def _nanoseconds(at: float) -> int:
    return int(at * _SECOND)
