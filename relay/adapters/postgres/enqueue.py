"""The statements that record events and tasks in a caller's transaction: one round trip for all rows of a kind.

And what PostgreSQL's errors about a row mean: our own errors have a code, and show none of the row's data.
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

import psycopg
from psycopg import errors
from sqlalchemy.exc import DBAPIError

from relay.adapters.postgres import array
from relay.adapters.postgres.sql import statement
from relay.domain.errors import (
    DuplicateMessage,
    FutureEvent,
    InvalidTimestamp,
    OutboxFull,
    RelayError,
    SchemaMissing,
    WriteConflict,
)
from relay.domain.model import OutboxEvent
from relay.domain.tasks import BackgroundTask

Value = TypeVar("Value")
Row: TypeAlias = OutboxEvent | BackgroundTask
#: Records rows through a target, in its open transaction. The result of an asynchronous target is to be awaited.
Write: TypeAlias = Callable[[Any, Sequence[Row]], Awaitable[None] | None]


class Ready(Generic[Value]):
    """An awaitable that already has its value. It does no harm not to await it."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def __await__(self) -> Generator[None, None, Value]:
        yield from ()
        return self.value


_TEXTS: Final = ("aggregate_type", "aggregate_id", "event_type", "payload", "partition_key", "topic", "stream")
_IDS: Final = ("id", "correlation_id", "causation_id")


#: What the statements below call by name: it is where the tables of the context are.
_OURS: Final = re.compile(r"\b(outbox_events|task_outbox|relay_lock_outbox)\b")


@cache
def _insert_into(name: str, schema: str | None) -> str:
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
    return _insert_into("outbox/insert", events[0].schema), parameters


_TASK: Final = ("type", "payload", "queue", "priority", "available_at", "delay", "concurrency_key")


def insert_tasks(tasks: Sequence[BackgroundTask]) -> tuple[str, dict[str, list[Any]]]:
    """Return the statement that records ``tasks`` of one schema, in pyformat style, and its parameters."""
    parameters: dict[str, list[Any]] = {name: [getattr(task, name) for task in tasks] for name in _TASK}
    for name in _IDS:
        values = [getattr(task, name) for task in tasks]
        parameters[name] = [None if value is None else str(value) for value in values]
    parameters["metadata"] = [_json(task.metadata) for task in tasks]
    parameters["originals"] = [_json(task.originals) if task.originals else None for task in tasks]
    return _insert_into("tasks/insert", tasks[0].schema), parameters


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values)) if values else "{}"


def statements(rows: Sequence[Row]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the statements that record ``rows``, in pyformat style, with their parameters.

    Schemas come in one order for everybody, because the locks of their keys do.
    """
    schemas = {row.schema for row in rows}
    if len(schemas) > 1:
        for schema in sorted(schemas, key=str):
            yield from statements([row for row in rows if row.schema == schema])
        return
    if events := [row for row in rows if isinstance(row, OutboxEvent)]:
        yield insert(events)
    if tasks := [row for row in rows if isinstance(row, BackgroundTask)]:
        yield insert_tasks(tasks)


# --- what the database refuses ---

_ID_CONSTRAINTS: Final = ("outbox_events_pkey", "uq_outbox_original", "task_outbox_pkey")


@contextmanager
def refusals(driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Iterator[None]:
    """Raise our own error when the database refuses a row, and log its warnings. The driver's error is its cause.

    The transaction stays as the driver has left it. Other errors, such as a lost connection, pass unchanged.
    """
    driver.add_notice_handler(_hear)
    try:
        yield
    except psycopg.Error as error:
        if refusal := _refusal(error):
            raise refusal from error
        raise
    except DBAPIError as error:
        # Not from SQLAlchemy's own error: it shows the parameters, including the payload.
        if isinstance(error.orig, psycopg.Error) and (refusal := _refusal(error.orig)):
            raise refusal from error.orig
        raise
    finally:
        driver.remove_notice_handler(_hear)


_log: Final = logging.getLogger("relay.outbox")
#: The brake of migration 0020 gives its errors and warnings this name.
_BRAKE: Final = "relay_brake"
#: How often a process logs that an outbox brakes, in seconds.
_LOG_INTERVAL_S: Final = 10.0
_logged: dict[str, float] = {}


def _hear(notice: errors.Diagnostic) -> None:
    """Log a warning of the brake. Every connection may have one; they are said once in a while."""
    text, now = notice.message_primary, time.monotonic()
    if text is None or notice.constraint_name != _BRAKE:
        return
    if now - _logged.get(text, -_LOG_INTERVAL_S) >= _LOG_INTERVAL_S:
        _logged[text] = now
        _log.warning("%s", text)


def _refusal(error: psycopg.Error) -> RelayError | None:
    match error:
        case errors.UniqueViolation() if error.diag.constraint_name in _ID_CONSTRAINTS:
            return DuplicateMessage(
                "a row of this id is recorded already", field="id", hint="leave the id out to be given one"
            )
        case errors.CheckViolation() if error.diag.constraint_name == "chk_occurred_not_future":
            return FutureEvent(
                "lies in the future by the clock of the database",
                field="occurred_at",
                hint="leave it out, and the database sets it; use available_at to delay an event",
            )
        case errors.DatetimeFieldOverflow() | errors.InvalidDatetimeFormat():
            return InvalidTimestamp("PostgreSQL cannot hold a time of this row")
        case errors.DeadlockDetected() | errors.SerializationFailure() | errors.LockNotAvailable():
            return WriteConflict(
                "another transaction writes the same keys",
                hint="roll back and run the whole transaction again; "
                "transactions that add their events by add_many or a session do not get in each other's way",
            )
        case errors.UndefinedTable() | errors.UndefinedColumn() | errors.UndefinedFunction():
            return SchemaMissing(
                "the database lacks a table or function of the relay, or its schema is not in the search_path",
                hint="run: relay db upgrade",
            )
    return _braked(error)


def _braked(error: psycopg.Error) -> OutboxFull | None:
    if not isinstance(error, errors.ConfigurationLimitExceeded) or error.diag.constraint_name != _BRAKE:
        return None
    return OutboxFull(
        (error.diag.message_primary or "").removeprefix("OUTBOX_FULL: "),
        hint="nothing was recorded: roll back and run the whole transaction again later; see relay backlog",
    )
