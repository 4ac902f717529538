"""DomainEventBus: what happened to an aggregate, told to its own service in the same transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from relay.bus.context import RequestContext
from relay.bus.handlers import Handler, read
from relay.bus.messages import DomainEvent
from relay.bus.unit_of_work import UnitOfWork

Function = TypeVar("Function", bound=Callable[..., Any])


class DomainEventBus:
    """Any number of handlers for each type of event, called in the order they were registered in.

    A handler of a base class is called for every class below it, so one of `DomainEvent` hears everything.
    """

    def __init__(self) -> None:
        self._handlers: list[tuple[type[DomainEvent], Handler]] = []

    def on(self, event: type[DomainEvent]) -> Callable[[Function], Function]:
        """Register a function for an event: ``(event)`` or ``(event, unit)``, plain or async.

        Raises InvalidHandler when the function cannot be called so.
        """

        def register(function: Function) -> Function:
            self._handlers.append((event, read(function, units=True)))
            return function

        return register

    async def dispatch(self, event: DomainEvent, unit: UnitOfWork[Any]) -> None:
        """Call the handlers. What they publish and schedule has the event's id as its causation.

        Whatever a handler raises is raised here, and undoes the command.
        """
        with RequestContext.current_or_new().caused_by(event.id).use():
            for kind, handler in self._handlers:
                if isinstance(event, kind):
                    await handler.call(event, unit)
