"""Which function handles which type of task, and with which options.

The first parameter is the payload: a pydantic model, or any other type that pydantic validates. Other parameters
are injected by their type: `TaskContext`, and for the transaction that completes the task SQLAlchemy's
``Session`` or a ``psycopg.Connection`` (``AsyncSession`` or ``psycopg.AsyncConnection`` in an async function).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, TypeVar
from uuid import UUID

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from relay.domain.controls import LONGEST_OF_KEY, Limit
from relay.domain.disclosure import validation
from relay.domain.errors import InvalidEvent, InvalidHandler, InvalidPayload
from relay.domain.identity import Id
from relay.domain.limits import check_key, encode_payload
from relay.domain.personal import PersonalFields
from relay.domain.retry import Backoff, RetryFunction, RetryPolicy
from relay.domain.tasks import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    InvalidTask,
    UnknownTask,
    check_priority,
    check_queue,
    check_type,
)
from relay.execution.calls import Function
from relay.execution.retry_rules import RetryRule
from relay.execution.signatures import Inject, Injectable, read
from relay.settings.values import parse_duration, parse_rate

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
#: What becomes of a task about a person who was forgotten.
Forgotten: TypeAlias = Literal["call", "skip", "dead"]
#: The field of the payload that makes the key, or a function from the payload to it.
Key = str | Callable[[Any], object]

_MAX_KEY_BYTES: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The context of a handler's call. ``attempt`` counts from 1; ``causation_id`` names what caused the task."""

    task_id: UUID
    task_type: str
    correlation_id: Id
    causation_id: Id | None
    attempt: int
    metadata: Mapping[str, Any]


_INJECTABLE: Final = Injectable({TaskContext: Inject.CONTEXT})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHandler:
    """A registered function with its options."""

    type: str
    function: Function
    queue: str
    priority: int
    policy: RetryPolicy
    time_limit: timedelta
    limits: Limit
    key: Key | None
    expires_in: timedelta | None = None
    personal: PersonalFields | None = None
    forgotten: Forgotten = "call"

    @property
    def adapter(self) -> TypeAdapter[Any]:
        """The validator of the payload."""
        assert self.function.signature.payload is not None  # nothing may replace it
        return self.function.signature.payload

    def encode(self, payload: object) -> tuple[str, str | None]:
        """Check a payload; returns it as JSON text, and the key of the concurrency limit.

        Raises InvalidPayload, which names the fields that do not fit.
        """
        text = encode_payload(plain(payload))
        try:
            # Validate the JSON, as the worker will do.
            value = self.adapter.validate_json(text)
        except ValidationError as error:
            raise InvalidPayload(f"{self.type}: {validation(error, 'payload')}", field="payload") from None
        return text, self._concurrency_key(value)

    def _concurrency_key(self, value: Any) -> str | None:
        if self.limits.concurrency is None and not self.limits.per_key:
            return None
        if self.key is None:
            return self.type
        key = self.key(value) if callable(self.key) else _field(value, self.key)
        return f"{self.type}:{check_key(str(key), 'concurrency_key', limit=_MAX_KEY_BYTES)}"


def plain(payload: object) -> object:
    """Return a payload as JSON values. Raises InvalidPayload."""
    try:
        return payload.model_dump(mode="json") if isinstance(payload, BaseModel) else to_jsonable_python(payload)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise InvalidPayload(str(error), field="payload") from None


def _field(value: Any, name: str) -> object:
    try:
        return value[name] if isinstance(value, Mapping) else getattr(value, name)
    except (KeyError, AttributeError):
        raise InvalidPayload("is missing, but the concurrency limit needs it", field=f"payload.{name}") from None


@dataclass
class TaskRegistry:
    """The task handlers of a process, one for each type."""

    handlers: dict[str, TaskHandler] = field(default_factory=dict)
    #: What to run when a task of a type has failed for good.
    corrections: dict[str, Function] = field(default_factory=dict)
    _types: dict[Callable[..., Any], str] = field(default_factory=dict)
    _watchers: list[Callable[[str], None]] = field(default_factory=list)

    def add(self, handler: TaskHandler) -> None:
        """Register a handler. Raises InvalidHandler when its type or its function is already registered."""
        if handler.type in self.handlers:
            other = self.handlers[handler.type].function.function
            raise InvalidHandler(f"{handler.type} is handled by {other.__module__}.{other.__qualname__} already")
        function = handler.function.function
        if function in self._types:
            # With two types, a schedule call with the function would be ambiguous.
            where = f"{function.__module__}.{function.__qualname__}"
            raise InvalidHandler(f"handles {self._types[function]} already", field=where)
        self.handlers[handler.type] = handler
        self._types[function] = handler.type
        for watcher in self._watchers:
            watcher(handler.queue)

    def correct(self, task_type: str, correction: Function) -> None:
        """Register what to run when a task of the type has failed. Raises InvalidHandler if it has one already."""
        if (other := self.corrections.get(task_type)) is not None:
            where = f"{other.function.__module__}.{other.function.__qualname__}"
            raise InvalidHandler(f"the failure of {task_type} is corrected by {where} already")
        self.corrections[task_type] = correction

    def watch(self, watcher: Callable[[str], None]) -> None:
        """Call ``watcher`` with the queue of every handler, present and future."""
        self._watchers.append(watcher)
        for handler in self.handlers.values():
            watcher(handler.queue)

    def queues(self) -> frozenset[str]:
        """The queues of all handlers."""
        return frozenset(handler.queue for handler in self.handlers.values())

    def find(self, task_type: str) -> TaskHandler | None:
        """Return the handler of a type, or None."""
        return self.handlers.get(task_type)

    def named(self, task: str | Callable[..., Any]) -> TaskHandler:
        """Return the handler of a type or of a decorated function. Raises UnknownTask."""
        name = task if isinstance(task, str) else self._types.get(task)
        if name not in self.handlers:
            known = ", ".join(sorted(self.handlers)) or "none"
            raise UnknownTask(
                f"no task is called {str(task)[:120]!r} here",
                field="task",
                hint=f"import the module that registers it, or pass registered=False; known: {known[:300]}",
            )
        return self.handlers[name]


#: The handlers that `task` registers.
registry: Final = TaskRegistry()


def task(  # noqa: PLR0913 - each option is one keyword
    type: str,  # noqa: A002 - the field's name in the table and in the specification
    *,
    queue: str = DEFAULT_QUEUE,
    priority: int = DEFAULT_PRIORITY,
    max_retries: int = 10,
    backoff: tuple[str, str] = ("1s", "60s"),
    time_limit: str = "5m",
    rate_limit: str | None = None,
    rate_per_key: bool = False,
    concurrency: int | None = None,
    concurrency_key: Key | None = None,
    retry: RetryFunction | None = None,
    expires_in: str | None = None,
    subject: str | None = None,
    personal: Sequence[str] = (),
    forgotten: Forgotten = "call",
    into: TaskRegistry = registry,
) -> Callable[[Decorated], Decorated]:
    """Register a function as the handler of a type of task; it stays an ordinary function.

    ``priority``: 0 first, 100 last. ``backoff``: the wait after the first failure, which doubles, and the longest.
    ``time_limit``: for one attempt. ``rate_limit``: ``"100/1m"``, starts of this type, evenly spaced over all
    workers; with ``rate_per_key``, of each key. ``concurrency``: how many may run at once, of the type or of each
    ``concurrency_key`` (a field of the payload, or a function of it). ``retry``: says instead of ``backoff``, for
    each exception, when to try again; see `RetryFunction`. ``expires_in``: so long after it is due a
    task is stale, and is not run. ``subject``, ``personal``: as of `relay.event`, these fields of the payload
    are encrypted in the row. ``forgotten``: what becomes of a task about a person who was forgotten: call the
    function with nulls, skip it, or dead: it fails. Raises InvalidTask and InvalidHandler.
    """
    if concurrency_key is not None and concurrency is None and not rate_per_key:
        raise InvalidTask("needs a limit", field="concurrency_key", hint="concurrency=1")
    interval = None if rate_limit is None else _interval(rate_limit)
    if rate_per_key and (interval is None or interval > LONGEST_OF_KEY):
        raise InvalidTask("needs a rate of at least 1/1d", field="rate_per_key", hint='rate_limit="10/1m"')
    if max_retries < 0 or (concurrency is not None and concurrency < 1):
        name = "max_retries" if max_retries < 0 else "concurrency"
        raise InvalidTask("is too small", field=name)
    rule = None if retry is None else RetryRule(retry)
    options: dict[str, Any] = {
        "type": check_type(type),
        "queue": check_queue(queue),
        "priority": check_priority(priority),
        "policy": RetryPolicy(max_attempts=max_retries + 1, backoff=_backoff(*backoff)),
        "time_limit": _duration(time_limit, "time_limit"),
        "limits": Limit(concurrency=concurrency, interval=interval, per_key=rate_per_key),
        "key": concurrency_key,
        "expires_in": None if expires_in is None else _duration(expires_in, "expires_in"),
        "personal": _personal(subject, personal),
        "forgotten": forgotten,
    }

    def register(function: Decorated) -> Decorated:
        into.add(TaskHandler(function=Function(function, read(function, _INJECTABLE), rule), **options))
        return function

    return register


def _personal(subject: str | None, fields: Sequence[str]) -> PersonalFields | None:
    if subject is None and not fields:
        return None
    if subject is None or not fields or isinstance(fields, str):
        raise InvalidTask("needs subject and a list of fields", field="personal", hint='personal=["email"]')
    try:
        return PersonalFields(subject, tuple(fields))
    except InvalidEvent as error:
        raise InvalidTask(error.message, field=error.field) from None


def _interval(rate: str) -> timedelta:
    try:
        return parse_rate(rate)
    except ValueError as error:
        raise InvalidTask(str(error), field="rate_limit", hint='for example "100/1m"') from None


def _backoff(first: str, longest: str) -> Backoff:
    try:
        return Backoff(initial=_duration(first, "backoff"), maximum=_duration(longest, "backoff"))
    except ValueError as error:
        raise InvalidTask(str(error), field="backoff") from None


def _duration(text: str, name: str) -> timedelta:
    try:
        found = parse_duration(text)
    except ValueError as error:
        raise InvalidTask(str(error), field=name, hint="for example 500ms, 30s, 5m") from None
    if found <= timedelta(0):
        raise InvalidTask("must be longer than 0", field=name)
    return found
