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
from typing import ParamSpec, TypeVar

from uuid_utils.compat import uuid7

from relay.domain import tracing
from relay.domain.actor import Actor
from relay.domain.identity import Id

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The ids of the current request.

    ``correlation_id`` names the operation at the start of the chain and stays the same in the whole chain.
    ``causation_id`` names the event or task that is the direct cause; None at the start. An id that is no UUID is
    text. ``actor``: who acts; an event that names nobody else has this actor. ``traceparent`` (W3C) names the
    trace and, in it, the span of this work; None without a trace.
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
        return tracing.trace_id(self.traceparent)

    def caused_by(self, causation_id: Id) -> RequestContext:
        """The context of the next step in the same chain."""
        return replace(self, causation_id=causation_id)

    @contextmanager
    def use(self) -> Iterator[RequestContext]:
        """Make this the current context for the block."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)


_current: ContextVar[RequestContext] = ContextVar("relay_request_context", default=RequestContext())  # noqa: B039 - frozen


def next_span(received: object) -> str | None:
    """The ``traceparent`` of work that a message or request began: its trace, with a new span.

    ``received``: the header's value. None if it is missing or not valid: then the work belongs to no trace.
    """
    return None if received is None else tracing.next_hop(received, os.urandom(8).hex())


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
