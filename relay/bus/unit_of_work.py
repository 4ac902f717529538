"""The unit of work: one command, one transaction. See `relay.adapters.postgres.units`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from pydantic import BaseModel

from relay.bus.messages import AggregateRoot, DomainEvent
from relay.events import Event

Session = TypeVar("Session")
Aggregate = TypeVar("Aggregate", bound=AggregateRoot)


class EventOutbox(Protocol):
    """Records integration events; see `relay.Outbox`."""

    def add(self, target: Any, event: Event | BaseModel) -> Any:
        """Record ``event`` in the open transaction of ``target``; return its id."""


class TaskSchedule(Protocol):
    """Records background tasks; see `tasks.schedule`."""

    def __call__(self, target: Any, task: Any, payload: Any, **options: Any) -> Any:
        """Record a task in the open transaction of ``target``; return its id."""


class UnitOfWork(ABC, Generic[Session]):
    """The interface through which a handler writes. Only the bus ends its transaction.

    ``session``: for repositories. All that is saved, published and scheduled commits together or not at all.
    """

    session: Session

    @abstractmethod
    def save(self, aggregate: AggregateRoot) -> None:
        """Write the aggregate with the transaction, and handle its domain events."""

    @abstractmethod
    def track(self, aggregate: Aggregate) -> Aggregate:
        """Handle the domain events of an aggregate that the repository writes itself."""

    @abstractmethod
    def publish(self, event: Event | BaseModel) -> UUID:
        """Record an integration event. Correlation and causation come from the request context."""

    @abstractmethod
    def schedule(self, task: Any, payload: Any, **options: Any) -> UUID:
        """Record a background task. ``options``: those of the task scheduler."""

    @abstractmethod
    async def pull_events(self) -> Sequence[DomainEvent]:
        """Flush the session, and take the events that saved aggregates recorded since the last call."""


class UnitsOfWork(Protocol[Session]):
    """Makes units of work.

    ``is_async``: whether their sessions need an event loop.
    """

    @property
    def is_async(self) -> bool: ...  # noqa: D102 - see above

    def begin(self, session: Session | None = None) -> AbstractAsyncContextManager[UnitOfWork[Session]]:
        """Begin a unit of work. It commits when the block ends and rolls back when the block raises.

        With ``session``, for example that of a surrounding unit, it joins the session's transaction by a savepoint
        and does not commit. Raises NestedCommand inside another unit's block without a ``session``, and
        CommitRefused if the block has ended the transaction itself.
        """
