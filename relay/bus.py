"""The request context: which correlation a piece of work belongs to, and what caused it.

It lives in a context variable, so it follows the code through awaits, tasks and copied thread contexts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from uuid import UUID

from relay.domain.model import CorrelationContext


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What is known of the request being served (building blocks §4)."""

    correlation_id: UUID | None = None
    causation_id: UUID | None = None

    @classmethod
    def current(cls) -> RequestContext:
        """The context of the running code; empty outside of any request."""
        return _current.get()

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
