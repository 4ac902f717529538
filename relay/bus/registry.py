"""The common parts of the buses: one handler for each type, and one way to call plain and async functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from relay.bus.errors import DuplicateHandler, NoHandler
from relay.domain.errors import InvalidHandler

Message = TypeVar("Message")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class BusHandler:
    """A registered function: ``(message)`` or ``(message, unit)``, plain or async."""

    function: Callable[..., Any]
    takes_unit: bool

    async def call(self, message: object, unit: object = None) -> Any:
        """Call the function, and await the result if it is awaitable."""
        return await resolve(self.function(message, unit) if self.takes_unit else self.function(message))


class BusRegistry(Generic[Message]):
    """Handlers by type of message, exactly one for each type."""

    def __init__(self, what: str, *, units: bool) -> None:
        self._what = what
        self._units = units
        self._handlers: dict[type[Message], BusHandler] = {}

    def put(self, message: type[Message], function: Callable[..., Any]) -> None:
        """Register a handler. Raises DuplicateHandler, and InvalidHandler if a message cannot be its argument."""
        if message in self._handlers:
            taken = describe(self._handlers[message].function)
            raise DuplicateHandler(f"{message.__name__} is handled by {taken} already", field=describe(function))
        self._handlers[message] = read(function, units=self._units)

    def find(self, message: Message) -> BusHandler:
        """Find the handler of a message. Raises NoHandler."""
        return self.of(type(message))

    def of(self, message: type[Message]) -> BusHandler:
        """Find the handler of a type of messages. Raises NoHandler."""
        handler = self._handlers.get(message)
        if handler is None:
            raise NoHandler(
                f"no handler is registered for the {self._what} {message.__name__}",
                hint="decorate one with @bus.handles(…), and import its module before the first dispatch",
            )
        return handler


def read(function: Callable[..., Any], *, units: bool) -> BusHandler:
    """Find out how to call a function. Raises InvalidHandler."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise InvalidHandler(f"{function!r} cannot be called", hint="register a function") from None
    plain = [p for p in parameters if "VAR" not in p.kind.name]
    # Parameters with a default keep it. If all have one, the first parameter gets the message.
    needed = [p for p in plain if p.default is p.empty] or plain[:1]
    positional = all(p.kind is not p.KEYWORD_ONLY for p in needed)
    if not positional or not 1 <= len(needed) <= 1 + units:
        expected = "(message) or (message, unit)" if units else "(message)"
        raise InvalidHandler("cannot be called by the bus", field=describe(function), hint=f"take {expected}")
    return BusHandler(function, takes_unit=len(needed) == 2)


def describe(function: Callable[..., Any]) -> str:
    """The full name of a function, or of a callable object's class."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


async def resolve(value: Any) -> Any:
    """Await a value if it is awaitable, else return it."""
    return await value if inspect.isawaitable(value) else value


def complete(work: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine that never waits. So plain code and async code share one implementation.

    Raises InvalidHandler if the coroutine waits, because that needs an event loop.
    """
    try:
        work.send(None)
    except StopIteration as done:
        value: Value = done.value
        return value
    finally:
        work.close()
    raise InvalidHandler(
        "an async function waits, and dispatch() has no event loop", hint="await dispatch_async() instead"
    )
