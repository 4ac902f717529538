"""The request context: which correlation a piece of work belongs to, and what caused it (building blocks §4).

It lives in a context variable, so it follows the code through awaits and asyncio tasks. Threads start with an
empty one: hand them functions wrapped by `carry`.
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

from relay.domain.model import CorrelationContext

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What is known of the request being served.

    ``correlation_id`` names the operation at the beginning of the chain and stays the same all along it;
    ``causation_id`` names the event or task that led here directly, None at the beginning.
    """

    correlation_id: UUID | None = None
    causation_id: UUID | None = None

    @classmethod
    def current(cls) -> RequestContext:
        """The context of the running code; empty outside of any request."""
        return _current.get()

    @classmethod
    def begin(cls) -> RequestContext:
        """The context at the beginning of a chain, with a new correlation id."""
        return cls(correlation_id=uuid7())

    @classmethod
    def current_or_new(cls) -> RequestContext:
        """The current context where it has a correlation; a chain never gets a second one."""
        current = cls.current()
        return cls.begin() if current.correlation_id is None else current

    def caused_by(self, causation_id: UUID) -> RequestContext:
        """The same chain, one step on."""
        return replace(self, causation_id=causation_id)

    @contextmanager
    def use(self) -> Iterator[RequestContext]:
        """Make this the current context for the block."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    @property
    def correlation(self) -> CorrelationContext:
        """Both ids as the value object of SDS-047 §2.2."""
        return CorrelationContext(self.correlation_id, self.causation_id)


_current: ContextVar[RequestContext] = ContextVar("relay_request_context", default=RequestContext())  # noqa: B039 - frozen


def carry(function: Callable[Parameters, Value]) -> Callable[Parameters, Value]:
    """Wrap a function for another thread: it runs in the request context that is current now.

    ``executor.submit(carry(render), case)``. Of the context it takes along nothing else, so a thread never
    writes in the transaction of the one that started it.
    """
    context = RequestContext.current()

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
        with context.use():
            return function(*args, **kwargs)

    return run
