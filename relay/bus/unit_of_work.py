"""The unit of work: one command, one transaction (building blocks §3.2). See `relay.adapters.postgres.units`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from pydantic import BaseModel

from relay.bus.aggregate import AggregateRoot
from relay.bus.messages import DomainEvent
from relay.events import Event

Session = TypeVar("Session")
Aggregate = TypeVar("Aggregate", bound=AggregateRoot)


class EventOutbox(Protocol):
    """What records integration events: `relay.Outbox`."""

    def add(self, target: Any, event: Event | BaseModel) -> Any:
        """Record ``event`` in the open transaction of ``target``; returns its id."""


class TaskSchedule(Protocol):
    """What records background tasks: `tasks.schedule`."""

    def __call__(self, target: Any, task: Any, payload: Any, **options: Any) -> Any:
        """Record a task in the open transaction of ``target``; returns its id."""


class UnitOfWork(ABC, Generic[Session]):
    """What a handler may write through. Nobody but the bus ends its transaction.

    ``session``: for repositories. Whatever is saved, published and scheduled commits together, or not at all.
    """

    session: Session

    @abstractmethod
    def save(self, aggregate: AggregateRoot) -> None:
        """Write the aggregate with the transaction, and see to its domain events."""

    @abstractmethod
    def track(self, aggregate: Aggregate) -> Aggregate:
        """See to the domain events of an aggregate that the repository writes by itself."""

    @abstractmethod
    def publish(self, event: Event | BaseModel) -> UUID:
        """Record an integration event; correlation and causation come from the request context."""

    @abstractmethod
    def schedule(self, task: Any, payload: Any, **options: Any) -> UUID:
        """Record a background task; options as of the task scheduler."""

    @abstractmethod
    async def pull_events(self) -> Sequence[DomainEvent]:
        """Flush the session and take the events that saved aggregates have recorded since the last call."""


class UnitsOfWork(Protocol[Session]):
    """Where units of work come from.

    ``is_async``: whether their sessions need an event loop.
    """

    @property
    def is_async(self) -> bool: ...  # noqa: D102 - see above

    def begin(self, session: Session | None = None) -> AbstractAsyncContextManager[UnitOfWork[Session]]:
        """Commits when the block ends, rolls back when it raises.

        With ``session``, that of a surrounding unit say, it joins that session's transaction by a savepoint, and
        leaves the commit to whoever began. Raises NestedCommand inside of another unit's block if none was given,
        CommitRefused when the block has ended the transaction itself.
        """
