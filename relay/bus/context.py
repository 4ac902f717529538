"""The request context: the correlation that a piece of work belongs to, and its cause (building blocks §4).

It is a context variable, so it follows the code through awaits and asyncio tasks. Threads start with an empty
context: give them functions wrapped by `carry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from typing import ParamSpec, TypeVar
from uuid import UUID

from uuid_utils.compat import uuid7

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The ids of the current request: the CorrelationContext of SDS-047 §2.2.

    ``correlation_id`` names the operation at the start of the chain and stays the same in the whole chain.
    ``causation_id`` names the event or task that is the direct cause; None at the start.
    """

    correlation_id: UUID | None = None
    causation_id: UUID | None = None

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
        return cls.begin() if current.correlation_id is None else current

    def caused_by(self, causation_id: UUID) -> RequestContext:
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
