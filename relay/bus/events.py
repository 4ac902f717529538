"""DomainEventBus: gives domain events to handlers of the same service, in the same transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from relay.bus.context import RequestContext
from relay.bus.messages import DomainEvent
from relay.bus.registry import BusHandler, read
from relay.bus.unit_of_work import UnitOfWork

Function = TypeVar("Function", bound=Callable[..., Any])


class DomainEventBus:
    """Any number of handlers for each type of event, called in the order of their registration.

    A handler for a base class is called for every subclass, so a handler for `DomainEvent` gets every event.
    """

    def __init__(self) -> None:
        self._handlers: list[tuple[type[DomainEvent], BusHandler]] = []

    def on(self, event: type[DomainEvent]) -> Callable[[Function], Function]:
        """Register a function for an event: ``(event)`` or ``(event, unit)``, plain or async.

        Raises InvalidHandler if the function cannot be called in this way.
        """

        def register(function: Function) -> Function:
            self._handlers.append((event, read(function, units=True)))
            return function

        return register

    async def dispatch(self, event: DomainEvent, unit: UnitOfWork[Any]) -> None:
        """Call the handlers. The events and tasks that they record have the event's id as their causation.

        An exception of a handler is raised here and rolls back the command.
        """
        with RequestContext.current_or_new().caused_by(event.id).use():
            for kind, handler in self._handlers:
                if isinstance(event, kind):
                    await handler.call(event, unit)
