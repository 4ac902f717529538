"""The request context: the correlation that a piece of work belongs to, and its cause.

It is a context variable, so it follows the code through awaits and asyncio tasks. Threads start with an empty
context: give them functions wrapped by `carry`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar

from uuid_utils.compat import uuid7

from relay.domain import traceparent
from relay.domain.actor import Actor
from relay.domain.identity import Id

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The ids of the current request.

    ``correlation_id`` names the operation at the start of the chain and stays the same in the whole chain.
    ``causation_id`` names the event or task that is the direct cause; None at the start. An id that is no UUID is
    text. ``actor``: who acts; an event that names no other has this actor. ``traceparent`` (W3C) names the trace
    and, in it, the span of this work; None without a trace.
    """

    correlation_id: Id | None = None
    causation_id: Id | None = None
    actor: Actor | None = None
    traceparent: str | None = None

    @classmethod
    def current(cls) -> RequestContext:
        """The context of the running code. It is empty outside of a request."""
        return _current.get()

    @classmethod
    def begin(cls) -> RequestContext:
        """The context for the start of a chain, with a new correlation id."""
        return cls(correlation_id=uuid7())

    @classmethod
    def current_or_new(cls) -> RequestContext:
        """The current context if it has a correlation, else a new one. A chain never gets a second correlation."""
        current = cls.current()
        return replace(current, correlation_id=uuid7()) if current.correlation_id is None else current

    @property
    def trace_id(self) -> str | None:
        """The id of the trace; None without one."""
        return traceparent.trace_id(self.traceparent)

    def caused_by(self, causation_id: Id) -> RequestContext:
        """The context of the next step in the same chain."""
        return replace(self, causation_id=causation_id)

    @contextmanager
    def use(self) -> Iterator[RequestContext]:
        """Make this the current context for the block."""
        around = _current.get()
        token = _current.set(self)
        spans = None if self.traceparent in (None, around.traceparent) else _spans
        entered = None if spans is None else spans.enter(self.traceparent)
        try:
            yield self
        finally:
            if spans is not None:
                spans.leave(entered)
            _current.reset(token)


class Span(Protocol):
    """A span that has begun. ``traceparent``: its name for those below it; None if nobody can record it."""

    traceparent: str | None

    def end(self, verdict: str, /) -> None:
        """End it. ``verdict``: the result of the work, as `relay.domain.model.Verdict` names it."""


class Spans(Protocol):
    """Who records spans in this process: OpenTelemetry, if it is switched on (`relay.tracing`)."""

    def current(self) -> str | None:
        """The ``traceparent`` of the span that the running code is in; None outside of spans."""

    def created(self, destination: str, message_id: str, conversation_id: str | None) -> str | None:
        """Record the creation of a message or task; returns the ``traceparent`` that it carries, if it has one."""

    def begun(self, context: str, job: str, correlation_id: str, attempt: int) -> Span:
        """Begin the span of an attempt at a cron job, in a trace of its own."""

    def enter(self, traceparent: str | None, /) -> object:
        """Begin to run in a span that other code records. Returns what `leave` takes."""

    def leave(self, entered: object, /) -> None:
        """Leave the span."""


_spans: Spans | None = None


def record_spans(spans: Spans | None) -> None:
    """Begin to record spans of this process, or stop it."""
    global _spans  # noqa: PLW0603 - of the process, as OpenTelemetry's
    _spans = spans


def created(request: RequestContext, destination: str, message_id: object) -> str | None:
    """The ``traceparent`` for a new message or task: of the span of its creation, if spans are recorded.

    Otherwise it is that of the request.
    """
    if _spans is None:
        return request.traceparent
    conversation = None if request.correlation_id is None else str(request.correlation_id)
    return _spans.created(destination, str(message_id), conversation)


def begun(context: str, job: str, correlation_id: object, attempt: int) -> Span | None:
    """Begin the span of an attempt at a cron job; None if no spans are recorded. The caller ends it."""
    return None if _spans is None else _spans.begun(context, job, str(correlation_id), attempt)


_current: ContextVar[RequestContext] = ContextVar("relay_request_context", default=RequestContext())  # noqa: B039 - frozen


def next_span(received: object) -> str | None:
    """The ``traceparent`` of work that a message or request began: its trace, with a new span.

    ``received``: the header's value. None if it is missing or not valid: then the work belongs to no trace.
    If spans are recorded, the work is in the current span, or else in that of the sender.
    """
    if _spans is not None:
        trace = traceparent.Trace.parse(received)
        return _spans.current() or (None if trace is None else trace.value)
    return None if received is None else traceparent.next_hop(received, os.urandom(8).hex())


def carry(function: Callable[Parameters, Value]) -> Callable[Parameters, Value]:
    """Wrap a function for another thread, so that it runs in the request context that is current now.

    ``executor.submit(carry(render), case)``. It carries no other context variables, so a thread never writes in
    the transaction of the thread that started it.
    """
    context = RequestContext.current()

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
        with context.use():
            return function(*args, **kwargs)

    return run
