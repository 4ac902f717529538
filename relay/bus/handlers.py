"""What the buses share: one handler for each type, and calling plain and async functions alike."""

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
class Handler:
    """A registered function: ``(message)`` or ``(message, unit)``, plain or async."""

    function: Callable[..., Any]
    takes_unit: bool

    async def call(self, message: object, unit: object = None) -> Any:
        """Call it and await what it returns, if that is to be awaited."""
        return await resolve(self.function(message, unit) if self.takes_unit else self.function(message))


class Registry(Generic[Message]):
    """Handlers by the type of the message they are for, exactly one for each."""

    def __init__(self, what: str, *, units: bool) -> None:
        self._what = what
        self._units = units
        self._handlers: dict[type[Message], Handler] = {}

    def put(self, message: type[Message], function: Callable[..., Any]) -> None:
        """Raises DuplicateHandler, and InvalidHandler for what cannot be called with a message."""
        if message in self._handlers:
            taken = describe(self._handlers[message].function)
            raise DuplicateHandler(f"{message.__name__} is handled by {taken} already", field=describe(function))
        self._handlers[message] = read(function, units=self._units)

    def find(self, message: Message) -> Handler:
        """Raises NoHandler."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise NoHandler(
                f"no handler is registered for the {self._what} {type(message).__name__}",
                hint="decorate one with @bus.handles(…), and import its module before the first dispatch",
            )
        return handler


def read(function: Callable[..., Any], *, units: bool) -> Handler:
    """See how a function wants to be called. Raises InvalidHandler."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise InvalidHandler(f"{function!r} cannot be called", hint="register a function") from None
    plain = [p for p in parameters if "VAR" not in p.kind.name]
    # What has a default is left to it, but for a first parameter that gets the message all the same.
    needed = [p for p in plain if p.default is p.empty] or plain[:1]
    positional = all(p.kind is not p.KEYWORD_ONLY for p in needed)
    if not positional or not 1 <= len(needed) <= 1 + units:
        wanted = "(message) or (message, unit)" if units else "(message)"
        raise InvalidHandler("cannot be called by the bus", field=describe(function), hint=f"take {wanted}")
    return Handler(function, takes_unit=len(needed) == 2)


def describe(function: Callable[..., Any]) -> str:
    """The full name of a function, or of a callable object's class."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


async def resolve(value: Any) -> Any:
    """Await what is to be awaited, return what is not."""
    return await value if inspect.isawaitable(value) else value


def complete(work: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine in which nothing waits, so that plain code and async code share one implementation.

    Raises InvalidHandler when something does wait: it needs an event loop.
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
