"""What arguments a function takes. Its signature is read once, when the function is registered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, get_origin, get_type_hints

import psycopg
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from relay.domain.errors import InvalidHandler


class Inject(Enum):
    """What a parameter gets besides the payload. The last four belong to the transaction that settles the row."""

    EVENT = "event"
    CONTEXT = "context"
    SESSION = "session"
    ASYNC_SESSION = "async session"
    CONNECTION = "connection"
    ASYNC_CONNECTION = "async connection"


_TRANSACTION: Final[dict[Any, Inject]] = {
    Session: Inject.SESSION,
    AsyncSession: Inject.ASYNC_SESSION,
    psycopg.Connection: Inject.CONNECTION,
    psycopg.AsyncConnection: Inject.ASYNC_CONNECTION,
}
_SYNC: Final = {Inject.SESSION, Inject.CONNECTION}
_ASYNC: Final = {Inject.ASYNC_SESSION, Inject.ASYNC_CONNECTION}
#: For the name of a type: the type that a plain function takes, and the type that an async function takes.
_FITTING: Final = {
    **dict.fromkeys(("Session", "AsyncSession"), ("Session", "AsyncSession")),
    **dict.fromkeys(("Connection", "AsyncConnection"), ("psycopg.Connection", "psycopg.AsyncConnection")),
    **{name: (name, name) for name in ("MessageContext", "TaskContext")},
}
_PLAIN: Final = inspect.Parameter.POSITIONAL_OR_KEYWORD
_NO_PARAMETER: Final = inspect.Parameter("payload", _PLAIN)


class Injectable:
    """What functions of one kind may take: the types in ``own``, a session and a connection.

    A type that ``own`` maps to `Inject.EVENT` may stand in place of the payload.
    """

    def __init__(self, own: Mapping[Any, Inject]) -> None:
        self._by_type = {**own, **_TRANSACTION}
        self.whole = next((kind.__name__ for kind, inject in own.items() if inject is Inject.EVENT), None)

    def kind(self, annotation: Any) -> Inject | None:
        """Which injection an annotation asks for; ``psycopg.Connection[Any]`` counts like the bare class."""
        plain = get_origin(annotation) or annotation
        return self._by_type.get(plain) if isinstance(plain, type) else None

    def names(self) -> str:
        """The types that can be injected, as text for an error message."""
        return ", ".join(f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in self._by_type)


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a function. ``payload`` validates the first; None means that it takes the whole event."""

    payload: TypeAdapter[Any] | None
    first: str
    others: Mapping[str, Inject]
    is_async: bool
    #: Whether the function may write in the transaction that settles the row.
    in_transaction: bool


def read(function: Callable[..., Any], injectable: Injectable) -> Signature:
    """Read a handler's signature. Raises InvalidHandler, naming the function and the parameter at fault."""
    if not inspect.isfunction(function):
        raise InvalidHandler(f"{function!r} is not a function", hint="decorate a plain function: def or async def")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise invalid(function, "yields, and nobody would go through what it yields")
    declared = parameters(function)
    if not declared:
        raise invalid(function, "takes no payload", "the first parameter gets it: def handle(vibe: VibeCreated)")
    hints = _hints(function)
    first, *others = declared
    is_async = inspect.iscoroutinefunction(function)
    injected = {}
    for parameter in others:
        kind = injectable.kind(hints.get(parameter.name))
        if kind is not None:
            injected[parameter.name] = _fitting(function, parameter.name, kind, is_async)
        elif parameter.default is inspect.Parameter.empty:
            raise _unknown(function, parameter.name, hints, injectable)
    payload, writes = _payload(function, first.name, hints, injectable), _SYNC | _ASYNC
    return Signature(payload, first.name, injected, is_async, not writes.isdisjoint(injected.values()))


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return a function's parameters. Raises InvalidHandler unless all can be given by name."""
    declared = list(inspect.signature(function).parameters.values())
    for parameter in declared:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY or "VAR" in parameter.kind.name:
            raise invalid(function, "must be a parameter that can be given by its name", parameter=parameter.name)
    return declared


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise invalid(
            function, f"has an annotation that cannot be read: {error}", "import it outside of TYPE_CHECKING"
        ) from error


def _fitting(function: Callable[..., Any], name: str, kind: Inject, is_async: bool) -> Inject:
    if kind in (_SYNC if is_async else _ASYNC):
        fitting = "AsyncSession or psycopg.AsyncConnection" if is_async else "Session or psycopg.Connection"
        what = "an async function" if is_async else "a function in a thread"
        raise invalid(function, f"is of the wrong kind: {what} takes {fitting}", parameter=name)
    return kind


def _payload(
    function: Callable[..., Any], name: str, hints: Mapping[str, Any], injectable: Injectable
) -> TypeAdapter[Any] | None:
    if name not in hints:
        fitting = "a pydantic model" if injectable.whole is None else f"a pydantic model, or {injectable.whole}"
        raise invalid(function, "has no annotation", fitting, parameter=name)
    kind = injectable.kind(hints[name])
    if kind is Inject.EVENT:
        return None
    if kind is not None:
        raise invalid(function, f"is the {kind.value}", "the payload comes first", parameter=name)
    try:
        return TypeAdapter(hints[name])
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        reason = str(error).splitlines()[0]
        raise invalid(function, f"cannot be validated: {reason}", parameter=name) from error


def _unknown(
    function: Callable[..., Any], name: str, hints: Mapping[str, Any], injectable: Injectable
) -> InvalidHandler:
    problem = f"has the type {hints[name]!r}, which is not injected" if name in hints else "has no annotation"
    return invalid(function, problem, f"known: {injectable.names()}", parameter=name)


def invalid(
    function: Callable[..., Any], message: str, hint: str | None = None, parameter: str | None = None
) -> InvalidHandler:
    """Make the error that names the function, and the parameter, at fault, and says what can be written."""
    where = f"{function.__module__}.{function.__qualname__}"
    field = where if parameter is None else f"{where}({parameter})"
    example = f"write {_example(function)}"
    code = inspect.unwrap(function).__code__
    place = f"{code.co_filename}:{code.co_firstlineno}"
    return InvalidHandler(message, field=field, hint="; ".join(filter(None, (example, hint, place))))


def _example(function: Callable[..., Any]) -> str:
    """Return a signature that can be called: the function's own, without what is wrong in it."""
    is_async = inspect.iscoroutinefunction(function)
    first, *others = [*inspect.signature(function).parameters.values()] or [_NO_PARAMETER]
    named = _type_name(first)
    payload = "VibeCreated" if not named or named in _FITTING or first.kind is not _PLAIN else named
    name = first.name if first.kind is _PLAIN and named not in _FITTING else "payload"
    kept = {it.name: _FITTING[_type_name(it)][is_async] for it in others if _type_name(it) in _FITTING}
    parameters = ", ".join(f"{name}: {kind}" for name, kind in {name: payload, **kept}.items())
    return f"{'async ' if is_async else ''}def {function.__name__}({parameters})"


def _type_name(parameter: inspect.Parameter) -> str:
    """Return the last name of an annotation, as it is written: ``Session`` of ``orm.Session[Any]``."""
    kind = parameter.annotation
    if kind is inspect.Parameter.empty:
        return ""
    text = kind if isinstance(kind, str) else getattr(get_origin(kind) or kind, "__name__", "")
    return text.partition("[")[0].rpartition(".")[2]
