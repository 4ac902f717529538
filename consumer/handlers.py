"""Python handlers: plain functions, registered for the events and commands they handle.

    @handles("vibe_created", version=2)
    def count(vibe: VibeCreated, session: Session) -> None:
        session.add(...)        # commits together with the inbox row, so it happens once

    @handles("vibe_created", version=2, subscription="audit")      # only the messages of this subscription
    def record(vibe: VibeCreated, session: Session) -> None: ...

    @upcasts("vibe_created", from_version=1)
    def add_tags(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "tags": []}

    @handles(StartIteration)      # a class registered with @command, or the command's name "iteration.start"
    def start(command: StartIteration, session: Session) -> None: ...

The first parameter is the payload: a pydantic model, any other type that pydantic validates, or the
`IncomingEvent`. Other parameters are injected by their type: `IncomingEvent`, `MessageContext`, and for the
inbox transaction SQLAlchemy's ``Session`` or a ``psycopg.Connection`` (``AsyncSession`` or
``psycopg.AsyncConnection`` in an async function).

When a handler returns, its event is processed. `Poison` and `DomainError` make a dead letter.
`AlreadyProcessed` undoes what the handler wrote and counts as processed. `RetryLater` says when to call it again.
Any other exception causes a retry, by the handler's own policy (``retry=``) or with back-off.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json

from relay.domain.actor import Actor
from relay.domain.disclosure import validation
from relay.domain.errors import AlreadyProcessed, DomainError, InvalidHandler, InvalidSubject, Poison
from relay.domain.identity import Id
from relay.domain.retry import Dead, Never, RetryFunction, RetryLater
from relay.domain.subject import check_type, check_version
from relay.events import declared_upcasts, registration_of
from relay.execution.calls import Function as Registered
from relay.execution.retry_rules import RetryRule
from relay.execution.signatures import Inject, Injectable, invalid, parameters, read

__all__ = [
    "AlreadyProcessed",
    "Dead",
    "DomainError",
    "Handler",
    "HandlerRegistry",
    "HandlerRoute",
    "IncomingEvent",
    "Inject",
    "MessageContext",
    "Never",
    "Poison",
    "RetryLater",
    "handles",
    "load",
    "upcasts",
]

Function = TypeVar("Function", bound=Callable[..., Any])
Upcaster = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingEvent:
    """A received event as its handler sees it. ``payload`` is parsed JSON.

    An id that is not a UUID is the text that its producer wrote. After an upcast, ``payload`` and
    ``event_version`` are in the handler's version.
    """

    message_id: Id
    subject: str
    event_type: str
    event_version: int
    occurred_at: datetime | None
    correlation_id: Id | None
    causation_id: Id | None
    partition_key: str | None
    headers: Mapping[str, str]
    payload: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageContext:
    """The context of a handler's call. ``attempt`` counts from 1.

    ``correlation_id`` is the event's own; an event without one uses its message id. ``causation_id`` is the
    id of what caused the event, None when unknown. An id that is not a UUID is text. ``idempotency_key`` is
    different for each message, and the same for its copies. ``actor``: who caused the event, None when unknown.
    """

    message_id: Id
    correlation_id: Id
    causation_id: Id | None
    attempt: int
    idempotency_key: str
    actor: Actor | None = None


_INJECTABLE: Final = Injectable({IncomingEvent: Inject.EVENT, MessageContext: Inject.CONTEXT})


class Handler(Registered):
    """A registered function, and how to call it."""

    def argument(self, event: IncomingEvent) -> Any:
        """Return the first argument. Raises Poison, which names the fields of the payload that do not fit."""
        if self.signature.payload is None:
            return event
        try:
            # As JSON, so that a strict model takes the text of a UUID or a time.
            return self.signature.payload.validate_json(to_json(event.payload))
        except ValidationError as error:
            fit = f"{event.event_type} v{event.event_version} does not fit its handler"
            raise Poison(f"{fit}: {validation(error, 'payload')}") from None
        except PydanticSerializationError:
            raise Poison(
                "is no JSON: half of a surrogate pair, or what an upcaster returned", field="payload"
            ) from None


@dataclass(frozen=True, slots=True)
class HandlerRoute:
    """How an event reaches its handler: ``upcasters`` turn it into ``version``, which the handler takes."""

    handler: Handler
    version: int
    upcasters: tuple[Upcaster, ...]

    def upcast(self, event: IncomingEvent) -> IncomingEvent:
        """Return the event in the handler's version. An upcaster's errors count as the handler's."""
        if not self.upcasters:
            return event
        payload = event.payload
        for upcaster in self.upcasters:
            payload = upcaster(payload)
        return replace(event, event_version=self.version, payload=payload)


@dataclass
class HandlerRegistry:
    """The handlers and upcasters of one module, each for one version of one event type or command.

    ``handlers`` are for every subscription that uses the module; ``named``, by the name of a subscription, for
    that one only.
    """

    name: str = "this module"
    handlers: dict[tuple[str, int], Handler] = field(default_factory=dict)
    upcasters: dict[tuple[str, int], Upcaster] = field(default_factory=dict)
    named: dict[str, dict[tuple[str, int], Handler]] = field(default_factory=dict)

    def handles(
        self,
        kind: str | type,
        *,
        version: int | None = None,
        subscription: str | Collection[str] | None = None,
        retry: RetryFunction | None = None,
    ) -> Callable[[Function], Function]:
        """See `handles`."""
        key, names = _handled(kind, version), _names(subscription)
        rule = None if retry is None else RetryRule(retry)

        def register(function: Function) -> Function:
            handler = Handler(function, read(function, _INJECTABLE), rule)
            for name in names:
                self._put(name, key, handler)
            return function

        return register

    def _put(self, name: str | None, key: tuple[str, int], handler: Handler) -> None:
        """Add a handler for one subscription, or for all (None). A message must have one handler."""
        rivals = [*self.named.values()] if name is None else [self.handlers]
        for rival in rivals:
            _refuse_second(rival, key, "handled by")
        _put(self.handlers if name is None else self.named.setdefault(name, {}), key, handler, "handled by")

    def of(self, subscription: str) -> HandlerRegistry:
        """Return what one subscription calls. Raises InvalidHandler if this is nothing."""
        handlers = self.handlers | self.named.get(subscription, {})
        if not handlers:
            raise InvalidHandler(
                f"{self.name} registers no handler for the subscription {subscription}",
                field="handler",
                hint=f"its handlers name {', '.join(sorted(self.named))}",
            )
        return HandlerRegistry(self.name, handlers, self.upcasters)

    def upcasts(self, event_type: str, *, from_version: int) -> Callable[[Function], Function]:
        """See `upcasts`."""
        key = _key(event_type, from_version)

        def register(function: Function) -> Function:
            _check_upcaster(function)
            _put(self.upcasters, key, function, "upcast by")
            declared_upcasts.add(key)
            return function

        return register

    def include(self, other: HandlerRegistry) -> None:
        """Add another registry's functions. Raises InvalidHandler when both have one for the same event."""
        for name, handlers in ((None, other.handlers), *other.named.items()):
            for key, handler in handlers.items():
                self._put(name, key, handler)
        for key, upcaster in other.upcasters.items():
            _put(self.upcasters, key, upcaster, "upcast by")

    def find(self, event_type: str, version: int) -> HandlerRoute | None:
        """Find the handler of this version; if there is none, the newest one to which the upcasters lead."""
        if handler := self.handlers.get((event_type, version)):
            return HandlerRoute(handler, version, ())
        match, passed = None, []
        while upcaster := self.upcasters.get((event_type, version)):
            passed.append(upcaster)
            version += 1
            if handler := self.handlers.get((event_type, version)):
                match = HandlerRoute(handler, version, tuple(passed))
        return match

    @property
    def commands(self) -> bool:
        """Whether any handler may be for a command: its name has a dot, like types of other producers."""
        return any("." in kind for kind, _ in self.handlers)

    def versions(self) -> Iterator[tuple[str, int]]:
        """Every version that a handler here gets, also by upcasters."""
        for key in {*self.handlers, *self.upcasters}:
            if self.find(*key) is not None:
                yield key

    def known(self) -> str:
        """List the events that have a handler here, for error messages."""
        handled = {*self.handlers, *(key for handlers in self.named.values() for key in handlers)}
        return ", ".join(f"{event_type} v{version}" for event_type, version in sorted(handled)) or "nothing"


_modules: Final[dict[str, HandlerRegistry]] = {}


def handles(
    kind: str | type,
    *,
    version: int | None = None,
    subscription: str | Collection[str] | None = None,
    retry: RetryFunction | None = None,
) -> Callable[[Function], Function]:
    """Register a function for one version of an event type or command. It may have several such decorators.

    ``kind``: an event type, a command's name ``domain.action``, or a class registered with ``@event`` or
    ``@command``, which brings its version; else it is 1. ``subscription``: one or several, by name, whose messages
    it handles; by default all that use the module. ``retry``: says instead of the back-off, for each exception,
    when to try again; see `RetryFunction`. The module's docstring says what it may take. Raises InvalidHandler
    when the function cannot be called as declared, when the subscription has a handler for it in the module
    already, or when nothing can have that type and version.
    """
    return lambda function: _of(function).handles(kind, version=version, subscription=subscription, retry=retry)(
        function
    )


def upcasts(event_type: str, *, from_version: int) -> Callable[[Function], Function]:
    """Register a function that turns a payload of ``from_version`` into one of the next version.

    It is used when a version has no handler of its own. Raises InvalidHandler.
    """
    return lambda function: _of(function).upcasts(event_type, from_version=from_version)(function)


def load(module: str) -> HandlerRegistry:
    """Import a module; return what it and its imported submodules have registered.

    Raises InvalidHandler when the module is missing or registers nothing. An error inside the module
    is raised unchanged.
    """
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise InvalidHandler(
            f"there is no module {module!r}", field="handler", hint="is it on PYTHONPATH?"
        ) from None
    merged = HandlerRegistry(module)
    for part in _parts(module):
        merged.include(part)
    if not merged.handlers and not merged.named:
        raise InvalidHandler(f"{module} registers no handler", field="handler", hint="decorate with @handles(...)")
    return merged


def _parts(module: str) -> Iterator[HandlerRegistry]:
    for name, registry in _modules.items():
        if f"{name}.".startswith(f"{module}."):
            yield registry


def _of(function: Callable[..., Any]) -> HandlerRegistry:
    name = getattr(function, "__module__", None) or "__main__"
    return _modules.setdefault(name, HandlerRegistry(name))


def _handled(kind: str | type, version: int | None) -> tuple[str, int]:
    if isinstance(kind, str):
        return _key(kind, 1 if version is None else version)
    registration = registration_of(kind)
    if registration is None:
        raise InvalidHandler(f"{kind.__name__} is not registered", hint="decorate it with @event or @command")
    if version is not None:
        raise InvalidHandler(f"{kind.__name__} brings its version", field="version", hint="leave it out")
    return registration.command or registration.event_type, registration.event_version


def _key(kind: str, version: int) -> tuple[str, int]:
    try:
        return check_type(kind), check_version(version)
    except InvalidSubject as error:
        raise InvalidHandler(error.message, field=error.field) from None


def _check_upcaster(function: Callable[..., Any]) -> None:
    if not inspect.isfunction(function):
        raise InvalidHandler(f"{function!r} is not a function")
    if inspect.iscoroutinefunction(function) or len(parameters(function)) != 1:
        raise invalid(function, "must be a plain function of one parameter, the older payload")


def _names(subscription: str | Collection[str] | None) -> Collection[str | None]:
    if subscription is None:
        return [None]
    names: Any = [subscription] if isinstance(subscription, str) else subscription
    # A list may come from the application's own settings, where None and empty texts stand for what is not set.
    if not isinstance(names, Collection) or not names or not all(isinstance(it, str) and it for it in names):
        raise InvalidHandler("is no name of a subscription, and no list of names", field="subscription")
    return [*dict.fromkeys(names)]


def _put(table: dict[tuple[str, int], Any], key: tuple[str, int], value: Any, verb: str) -> None:
    _refuse_second(table, key, verb)
    table[key] = value


def _refuse_second(table: Mapping[tuple[str, int], Any], key: tuple[str, int], verb: str) -> None:
    if key in table:
        other = inspect.unwrap(getattr(table[key], "function", table[key]))
        raise InvalidHandler(f"{key[0]} v{key[1]} is {verb} {other.__module__}.{other.__qualname__} already")
