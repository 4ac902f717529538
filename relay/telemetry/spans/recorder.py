"""Spans around running code: of a creation, of an attempt at a cron job, and of the call of a handler."""

from __future__ import annotations

from contextvars import Token
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
)

from relay.domain.model import Verdict
from relay.domain.traceparent import Trace
from relay.telemetry.spans import names

__all__ = ["DONE", "OpenTelemetrySpans", "TracerProvider", "recorded_by", "span_context", "within"]

#: The verdicts that are no error.
DONE: Final = (Verdict.PROCESSED.value, Verdict.ALREADY_PROCESSED.value)


class OpenTelemetrySpans:
    """`relay.bus.context.Spans` by a tracer of OpenTelemetry. It works in any thread and task."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def current(self) -> str | None:
        """The span around the running code. We or others may record it."""
        return _value(trace.get_current_span().get_span_context())

    def created(self, destination: str, message_id: str, conversation_id: str | None) -> str | None:
        """Record a creation, as a child of the current span."""
        about = {
            names.OPERATION_NAME: names.CREATE,
            names.OPERATION_TYPE: names.CREATE,
            names.DESTINATION: destination,
            names.MESSAGE_ID: message_id,
        }
        if conversation_id is not None:
            about[names.CONVERSATION_ID] = conversation_id
        span = self._tracer.start_span(f"{names.CREATE} {destination}", kind=SpanKind.PRODUCER, attributes=about)
        span.end()
        return _value(span.get_span_context())

    def begun(self, context: str, job: str, correlation_id: str, attempt: int) -> Running:
        """Begin a trace. The clock caused the attempt, so the worker's current span is not its parent."""
        about: dict[str, Any] = {
            names.CONTEXT: context,
            names.JOB: job,
            names.ATTEMPT: attempt,
            names.CONVERSATION_ID: correlation_id,
        }
        return Running(self._tracer.start_span(f"{names.RUN} {job}", context=Context(), attributes=about))

    def enter(self, traceparent: str | None, /) -> Token[Context] | None:
        """Make a span the current one. This does not record it: the process that made it does."""
        found = Trace.parse(traceparent)
        if found is None or self.current() == found.value:
            return None
        return attach(within(found))

    def leave(self, entered: Any, /) -> None:
        """See the protocol."""
        if entered is not None:
            detach(entered)


class Running:
    """`relay.bus.context.Span`: one that has begun."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.traceparent = _value(span.get_span_context())

    def end(self, verdict: str, /) -> None:
        """See the protocol."""
        self._span.set_attribute(names.VERDICT, verdict)
        if verdict not in DONE:
            self._span.set_attribute(names.ERROR_TYPE, verdict)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def recorded_by(provider: TracerProvider | None = None) -> OpenTelemetrySpans:
    """Spans of a provider, by default the global one."""
    return OpenTelemetrySpans(trace.get_tracer(names.SCOPE, tracer_provider=provider))


def span_context(found: Trace) -> SpanContext:
    """What OpenTelemetry takes for a ``traceparent``."""
    ids = int(found.trace_id, 16), int(found.span_id, 16)
    return SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(found.flags))


def within(found: Trace) -> Context:
    """The context of code, or of a span, whose parent is this span."""
    return trace.set_span_in_context(NonRecordingSpan(span_context(found)))


def _value(found: SpanContext) -> str | None:
    if not found.is_valid:
        return None
    return Trace(f"{found.trace_id:032x}", f"{found.span_id:016x}", int(found.trace_flags)).value
