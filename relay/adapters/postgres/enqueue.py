"""The statements that record events and tasks in a caller's transaction: one round trip for all rows of a kind.

PostgreSQL's errors about a row become our own errors, which have a code and show none of the row's data.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, Generic, TypeAlias, TypeVar
from uuid import UUID

import psycopg
from psycopg.errors import Diagnostic
from sqlalchemy.exc import DBAPIError

from relay.adapters.postgres import array
from relay.adapters.postgres.row_texts import RowText, teach
from relay.adapters.postgres.sql import statement
from relay.domain.errors import (
    DatabaseUnreachable,
    DuplicateMessage,
    FutureEvent,
    InvalidTimestamp,
    NoTransaction,
    OutboxFull,
    RelayError,
    SchemaMissing,
    UnsupportedTarget,
    WriteConflict,
)
from relay.domain.model import Lifespan, OutboxEvent
from relay.domain.tasks import BackgroundTask

Value = TypeVar("Value")
Row: TypeAlias = OutboxEvent | BackgroundTask
#: Records rows through a target, in its open transaction. Await the result of an asynchronous target.
Write: TypeAlias = Callable[[Any, Sequence[Row]], Awaitable[None] | None]


class Ready(Generic[Value]):
    """An awaitable that already has its value. It may be left without an ``await``."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def __await__(self) -> Generator[None, None, Value]:
        yield from ()
        return self.value


_TEXTS: Final = ("aggregate_type", "aggregate_id", "event_type", "payload", "partition_key", "topic", "stream")
_IDS: Final = ("id", "correlation_id", "causation_id")


#: Names in the statements below that stand for tables and a function of the context. All are in its schema.
_OURS: Final = re.compile(r"\b(outbox_events|task_outbox|relay_lock_outbox|relay_cancel_events|subject_keys)\b")


@cache
def in_schema(name: str, schema: str | None) -> str:
    """The statement, for tables in a schema; None finds them by the search_path of the transaction."""
    text = statement(name)
    return text if schema is None else _OURS.sub(rf'"{schema}".\1', text)


def insert(events: Sequence[OutboxEvent]) -> tuple[str, dict[str, str]]:
    """Return the statement that records ``events`` of one schema, in pyformat style, and its parameters."""
    parameters = {name: array.of_texts([getattr(event, name) for event in events]) for name in _TEXTS}
    for name in _IDS:
        parameters[name] = array.of_plain([getattr(event, name) for event in events])
    parameters["event_version"] = array.of_plain([event.event_version for event in events])
    parameters["headers"] = array.of_texts([_json(event.headers) for event in events])
    parameters["originals"] = array.of_texts([_json(it.originals) if it.originals else None for it in events])
    for name in ("occurred_at", "available_at"):
        parameters[name] = array.of_moments([getattr(event, name) for event in events])
    if all(event.timing is None for event in events):
        return in_schema("outbox/insert", events[0].schema), parameters
    times = [event.timing or Lifespan() for event in events]
    parameters["expires_at"] = array.of_moments([it.expires_at for it in times])
    parameters["delay"] = array.of_spans([it.delay for it in times])
    parameters["expires_in"] = array.of_spans([it.expires_in for it in times])
    return in_schema("outbox/insert_timed", events[0].schema), parameters


def cancelling(ids: Sequence[UUID] | None, key: str | None, schema: str | None) -> tuple[str, dict[str, Any]]:
    """Return the statement that cancels events by their ids, or all of a key, and its parameters."""
    return in_schema("outbox/cancel", schema), {"ids": None if ids is None else array.of_plain(ids), "key": key}


_TASK_TEXTS: Final = ("type", "payload", "queue", "concurrency_key")


def insert_tasks(tasks: Sequence[BackgroundTask]) -> tuple[str, dict[str, str]]:
    """Return the statement that records ``tasks`` of one schema, in pyformat style, and its parameters."""
    parameters = {name: array.of_texts([getattr(task, name) for task in tasks]) for name in _TASK_TEXTS}
    for name in _IDS:
        parameters[name] = array.of_plain([getattr(task, name) for task in tasks])
    parameters["priority"] = array.of_plain([int(task.priority) for task in tasks])
    parameters["available_at"] = array.of_moments([task.available_at for task in tasks])
    parameters["delay"] = array.of_spans([task.delay for task in tasks])
    parameters["metadata"] = array.of_texts([_json(task.metadata) for task in tasks])
    parameters["originals"] = array.of_texts([_json(it.originals) if it.originals else None for it in tasks])
    if all(task.lifespan is None for task in tasks):
        return in_schema("tasks/insert", tasks[0].schema), parameters
    times = [task.lifespan or Lifespan() for task in tasks]
    parameters["expires_at"] = array.of_moments([it.expires_at for it in times])
    parameters["expires_in"] = array.of_spans([it.expires_in for it in times])
    return in_schema("tasks/insert_timed", tasks[0].schema), parameters


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values)) if values else "{}"


def statements(rows: Sequence[Row]) -> Iterator[tuple[str, dict[str, RowText]]]:
    """Yield the statements that record ``rows``, in pyformat style, with their parameters.

    All callers take the schemas in the same order, so that two transactions cannot deadlock over keys.
    """
    schemas = {row.schema for row in rows}
    if len(schemas) > 1:
        for schema in sorted(schemas, key=str):
            yield from statements([row for row in rows if row.schema == schema])
        return
    if events := [row for row in rows if isinstance(row, OutboxEvent)]:
        yield _of_texts(*insert(events))
    if tasks := [row for row in rows if isinstance(row, BackgroundTask)]:
        yield _of_texts(*insert_tasks(tasks))


def _of_texts(sql: str, parameters: dict[str, str]) -> tuple[str, dict[str, RowText]]:
    return sql, {name: RowText(value) for name, value in parameters.items()}


_PARAMETER: Final = re.compile(r"%\((\w+)\)s")


def numbered(sql: str, parameters: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """Return a statement and its parameters in the style of asyncpg: ``$1``.

    asyncpg asks the server for the type of a parameter. Arrays that are text already must stay text.
    """
    text, names = _numbered(sql)
    return text, tuple(parameters[name] for name in names)


@cache
def _numbered(sql: str) -> tuple[str, list[str]]:
    names = list(dict.fromkeys(_PARAMETER.findall(sql)))
    return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}::text", sql), names


# --- what the database refuses ---

_ID_CONSTRAINTS: Final = ("outbox_events_pkey", "uq_outbox_original", "task_outbox_pkey")


@contextmanager
def refusals(driver: Any) -> Iterator[None]:
    """Make a driver ready for rows. Raise our own error when the database refuses one; the driver's is its cause.

    The warnings of the database are logged.

    ``driver``: the connection of psycopg or asyncpg. The transaction stays as the driver has left it. Other
    errors, such as a lost connection, pass unchanged.
    """
    listen, forget, hear = (
        (driver.add_notice_handler, driver.remove_notice_handler, _hear)
        if hasattr(driver, "add_notice_handler")
        else (driver.add_log_listener, driver.remove_log_listener, _hear_asyncpg)
    )
    teach(driver)
    listen(hear)
    try:
        yield
    except Exception as error:
        cause: BaseException = error
        if isinstance(error, DBAPIError):
            cause, error.hide_parameters = error.driver_exception, True  # the payload is among the parameters
        if refusal := _refusal(cause):
            raise refusal from cause
        raise
    finally:
        forget(hear)


def sqlstate(error: BaseException) -> str | None:
    """Return the code that PostgreSQL gave an error, ours or of a driver; None if it is not PostgreSQL's."""
    cause = error.__cause__ if isinstance(error, RelayError) else error
    found = getattr(cause.driver_exception if isinstance(cause, DBAPIError) else cause, "sqlstate", None)
    return found if isinstance(found, str) else None


_log: Final = logging.getLogger("relay.outbox")
#: The brake (``schema/wakeup.sql``) gives its errors and warnings this name.
_BRAKE: Final = "relay_brake"
#: What the trigger of `relay context close` says.
_CLOSED: Final = "relay_closed"
#: How often a process logs that an outbox brakes, in seconds.
_LOG_INTERVAL_S: Final = 10.0
_logged: dict[str, float] = {}


def _hear(notice: Diagnostic | _Told) -> None:
    """Log a warning of the brake. Every connection may get one, so a process logs only one from time to time."""
    text, now = notice.message_primary, time.monotonic()
    if text is None or notice.constraint_name != _BRAKE:
        return
    if now - _logged.get(text, -_LOG_INTERVAL_S) >= _LOG_INTERVAL_S:
        _logged[text] = now
        _log.warning("%s", text)


def _hear_asyncpg(_: object, notice: Any) -> None:
    _hear(_Told(notice))


class _Told:
    """The fields of an error or a warning of asyncpg, by psycopg's names."""

    def __init__(self, message: Any) -> None:
        self.message_primary: str | None = getattr(message, "message", None)
        self.constraint_name: str | None = getattr(message, "constraint_name", None)


def _refusal(error: BaseException) -> RelayError | None:  # noqa: PLR0911 - one for each error
    told = error.diag if isinstance(error, psycopg.Error) else _Told(error)
    match sqlstate(error), told.constraint_name:
        case "23505", name if name in _ID_CONSTRAINTS:
            return DuplicateMessage(
                "a row of this id is recorded already", field="id", hint="leave the id out, and the row gets one"
            )
        case "23514", "chk_occurred_not_future":
            return FutureEvent(
                "lies in the future by the clock of the database",
                field="occurred_at",
                hint="leave it out, and the database sets it; use available_at to delay an event",
            )
        case "23514", "chk_outbox_producer" | "chk_task_producer":
            return InvalidTimestamp("must be a time of the years 1 to 9999", field="available_at")
        case "22007" | "22008" | "22015", _:  # invalid format of a time, overflow of a time or of an interval
            return InvalidTimestamp("PostgreSQL cannot hold a time of this row")
        case "40P01" | "40001" | "55P03", _:  # deadlock, serialization failure, lock not available
            return WriteConflict(
                "another transaction writes the same keys",
                hint="roll back and run the whole transaction again; "
                "transactions that add their events by add_many or a session do not get in each other's way",
            )
        case "25006", name:
            return _reads_only(told.message_primary or "", closed=name == _CLOSED)
        case "25P02", _:  # in a transaction that has failed
            return NoTransaction(
                "its transaction has failed before", field="target", hint="roll back, and run the whole again"
            )
        case "42P01" | "42703" | "42883", _:  # undefined table, column, function
            return SchemaMissing(
                "the database lacks a table or function of the relay, or its schema is not in the search_path",
                hint="run: relay db upgrade",
            )
        case "53400", name if name == _BRAKE:  # a limit of the configuration
            return _full(told.message_primary or "")
        case _:
            return None


def _reads_only(message: str, *, closed: bool) -> RelayError:
    if closed:
        return DatabaseUnreachable(message, hint="write to the new database, or again when they are open")
    return UnsupportedTarget(
        "its transaction only reads, or its server is a replica",
        field="target",
        hint="write on the primary, in a transaction that may write",
    )


def _full(message: str) -> OutboxFull:
    return OutboxFull(
        message.removeprefix("OUTBOX_FULL: "),
        hint="nothing was recorded: roll back and run the whole transaction again later; see relay backlog",
    )
