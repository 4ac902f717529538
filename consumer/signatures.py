"""What a handler wants to be called with, read from its signature once, when it is registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final, get_origin, get_type_hints
from uuid import UUID

import psycopg
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from relay.domain.errors import InvalidHandler


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingEvent:
    """A received event as its handler sees it. ``payload`` is parsed JSON.

    After an upcast, ``payload`` and ``event_version`` are those the handler is for.
    """

    message_id: UUID
    subject: str
    event_type: str
    event_version: int
    occurred_at: datetime | None
    correlation_id: UUID | None
    causation_id: UUID | None
    partition_key: str | None
    headers: Mapping[str, str]
    payload: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageContext:
    """Where a call of a handler stands. ``attempt`` counts from 1.

    ``correlation_id`` is the event's, or its id when it begins the chain; ``causation_id`` is what caused
    the event, None when that is unknown.
    """

    message_id: UUID
    correlation_id: UUID
    causation_id: UUID | None
    attempt: int


class Inject(Enum):
    """What a parameter gets besides the payload; the last four ride on the transaction of the inbox row."""

    EVENT = "event"
    CONTEXT = "context"
    SESSION = "session"
    ASYNC_SESSION = "async session"
    CONNECTION = "connection"
    ASYNC_CONNECTION = "async connection"


_BY_TYPE: Final[dict[Any, Inject]] = {
    IncomingEvent: Inject.EVENT,
    MessageContext: Inject.CONTEXT,
    Session: Inject.SESSION,
    AsyncSession: Inject.ASYNC_SESSION,
    psycopg.Connection: Inject.CONNECTION,
    psycopg.AsyncConnection: Inject.ASYNC_CONNECTION,
}
_SYNC: Final = {Inject.SESSION, Inject.CONNECTION}
_ASYNC: Final = {Inject.ASYNC_SESSION, Inject.ASYNC_CONNECTION}


@dataclass(frozen=True, slots=True)
class Signature:
    """``payload`` validates the first argument; None means that it takes the event as it is."""

    payload: TypeAdapter[Any] | None
    first: str
    others: Mapping[str, Inject]
    is_async: bool

    @property
    def in_transaction(self) -> bool:
        """Whether the function writes in the transaction of the inbox row."""
        return not (_SYNC | _ASYNC).isdisjoint(self.others.values())


def read(function: Callable[..., Any]) -> Signature:
    """Read a handler's signature. Raises InvalidHandler, naming the function and the parameter at fault."""
    if not inspect.isfunction(function):
        raise InvalidHandler(f"{function!r} is not a function", hint="decorate a plain function: def or async def")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _invalid(function, "yields, and nobody would go through what it yields")
    parameters = _parameters(function)
    if not parameters:
        raise _invalid(function, "takes no payload", "the first parameter gets it: def handle(vibe: VibeCreated)")
    hints = _hints(function)
    first, *others = parameters
    is_async = inspect.iscoroutinefunction(function)
    injected = {}
    for parameter in others:
        kind = _kind(hints.get(parameter.name))
        if kind is not None:
            injected[parameter.name] = _fitting(function, parameter.name, kind, is_async)
        elif parameter.default is inspect.Parameter.empty:
            raise _unknown(function, parameter.name, hints)
    return Signature(_payload(function, first.name, hints), first.name, injected, is_async)


def read_upcaster(function: Callable[..., Any]) -> None:
    """Check an upcaster: a plain function from one payload to the next. Raises InvalidHandler."""
    if not inspect.isfunction(function):
        raise InvalidHandler(f"{function!r} is not a function")
    if inspect.iscoroutinefunction(function) or len(_parameters(function)) != 1:
        raise _invalid(function, "must be a plain function of one parameter, the older payload")


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY or "VAR" in parameter.kind.name:
            raise _invalid(function, "must be a parameter that can be given by its name", parameter=parameter.name)
    return parameters


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise _invalid(
            function, f"has an annotation that cannot be read: {error}", "import it outside of TYPE_CHECKING"
        ) from error


def _kind(annotation: Any) -> Inject | None:
    """Which injection an annotation asks for; ``psycopg.Connection[Any]`` counts like the bare class."""
    plain = get_origin(annotation) or annotation
    return _BY_TYPE.get(plain) if isinstance(plain, type) else None


def _fitting(function: Callable[..., Any], name: str, kind: Inject, is_async: bool) -> Inject:
    if kind in (_SYNC if is_async else _ASYNC):
        wanted = "AsyncSession or psycopg.AsyncConnection" if is_async else "Session or psycopg.Connection"
        what = "an async function" if is_async else "a function in a thread"
        raise _invalid(function, f"is a {kind.value}: {what} takes {wanted}", parameter=name)
    return kind


def _payload(function: Callable[..., Any], name: str, hints: Mapping[str, Any]) -> TypeAdapter[Any] | None:
    if name not in hints:
        raise _invalid(function, "has no annotation", "a pydantic model, or IncomingEvent", parameter=name)
    kind = _kind(hints[name])
    if kind is Inject.EVENT:
        return None
    if kind is not None:
        raise _invalid(function, f"is the {kind.value}", "the payload comes first", parameter=name)
    try:
        return TypeAdapter(hints[name])
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        reason = str(error).splitlines()[0]
        raise _invalid(function, f"cannot be validated: {reason}", parameter=name) from error


def _unknown(function: Callable[..., Any], name: str, hints: Mapping[str, Any]) -> InvalidHandler:
    found = f"has the type {hints[name]!r}, which is not injected" if name in hints else "has no annotation"
    known = ", ".join(f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in _BY_TYPE)
    return _invalid(function, found, f"known: {known}", parameter=name)


def _invalid(
    function: Callable[..., Any], message: str, hint: str | None = None, parameter: str | None = None
) -> InvalidHandler:
    where = f"{function.__module__}.{function.__qualname__}"
    if parameter is None:
        return InvalidHandler(message, field=where, hint=hint)
    return InvalidHandler(message, field=f"{where}({parameter})", hint=hint)
