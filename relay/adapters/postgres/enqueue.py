"""Writes events and tasks in the caller's own transaction: one round trip for all rows of a kind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import psycopg
import psycopg.pq
from sqlalchemy import Connection, Dialect
from sqlalchemy.ext.asyncio import AsyncConnection

from relay.adapters.postgres import array
from relay.adapters.postgres.refusals import refusals
from relay.adapters.postgres.sql import statement
from relay.domain.errors import NoTransaction, UnsupportedTarget
from relay.domain.model import OutboxEvent
from relay.domain.tasks import BackgroundTask

Row: TypeAlias = OutboxEvent | BackgroundTask

_TEXTS: Final = ("aggregate_type", "aggregate_id", "event_type", "payload", "partition_key", "topic")
_IDS: Final = ("id", "correlation_id", "causation_id")


def insert(events: Sequence[OutboxEvent]) -> tuple[str, dict[str, str]]:
    """Return the statement that records ``events``, in pyformat style, and its parameters."""
    parameters = {name: array.of_texts([getattr(event, name) for event in events]) for name in _TEXTS}
    for name in _IDS:
        parameters[name] = array.of_plain([getattr(event, name) for event in events])
    parameters["event_version"] = array.of_plain([event.event_version for event in events])
    parameters["headers"] = array.of_texts([_json(event.headers) for event in events])
    for name in ("occurred_at", "available_at"):
        parameters[name] = array.of_moments([getattr(event, name) for event in events])
    return statement("outbox/insert"), parameters


_TASK: Final = ("type", "payload", "queue", "priority", "available_at", "delay", "concurrency_key")


def insert_tasks(tasks: Sequence[BackgroundTask]) -> tuple[str, dict[str, list[Any]]]:
    """Return the statement that records ``tasks``, in pyformat style, and its parameters."""
    parameters: dict[str, list[Any]] = {name: [getattr(task, name) for task in tasks] for name in _TASK}
    for name in _IDS:
        values = [getattr(task, name) for task in tasks]
        parameters[name] = [None if value is None else str(value) for value in values]
    parameters["metadata"] = [_json(task.metadata) for task in tasks]
    return statement("tasks/insert"), parameters


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values)) if values else "{}"


def _statements(rows: Sequence[Row]) -> Iterator[tuple[str, dict[str, Any]]]:
    if events := [row for row in rows if isinstance(row, OutboxEvent)]:
        yield insert(events)
    if tasks := [row for row in rows if isinstance(row, BackgroundTask)]:
        yield insert_tasks(tasks)


def insert_psycopg(connection: psycopg.Connection[Any], rows: Sequence[Row]) -> None:
    """Insert through a psycopg connection. Raises NoTransaction and what `refusals` raises."""
    check_psycopg(connection)
    # A plain cursor, because the connection's own cursor class may use another parameter style.
    with refusals(), psycopg.Cursor(connection) as cursor:
        for sql, parameters in _statements(rows):
            cursor.execute(sql, parameters)


async def insert_psycopg_async(connection: psycopg.AsyncConnection[Any], rows: Sequence[Row]) -> None:
    """Insert through an asynchronous psycopg connection. Raises NoTransaction and what `refusals` raises."""
    check_psycopg(connection)
    with refusals():
        async with psycopg.AsyncCursor(connection) as cursor:
            for sql, parameters in _statements(rows):
                await cursor.execute(sql, parameters)


def insert_sqlalchemy(connection: Connection, rows: Sequence[Row]) -> None:
    """Insert through a SQLAlchemy connection. Raises NoTransaction, UnsupportedTarget and what `refusals` does."""
    _check_sqlalchemy(connection)
    with refusals():
        for sql, parameters in _statements(rows):
            connection.exec_driver_sql(sql, parameters)


async def insert_sqlalchemy_async(connection: AsyncConnection, rows: Sequence[Row]) -> None:
    """Insert through an asynchronous SQLAlchemy connection. Raises what `insert_sqlalchemy` raises."""
    await connection.run_sync(insert_sqlalchemy, rows)


def check_psycopg(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a connection that would commit the row by itself."""
    idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    if connection.autocommit and idle:
        raise NoTransaction(
            "the connection is in autocommit mode and no transaction is open",
            field="target",
            hint="use `with connection.transaction():` around the change and the event",
        )


def check_driver(dialect: Dialect) -> None:
    """Refuse an engine that does not use PostgreSQL through psycopg."""
    if dialect.name != "postgresql" or dialect.driver not in ("psycopg", "psycopg_async"):
        raise UnsupportedTarget(
            f"the driver {dialect.name}+{dialect.driver} is not supported",
            field="target",
            hint="create the engine with postgresql+psycopg://",
        )


def _check_sqlalchemy(connection: Connection) -> None:
    check_driver(connection.dialect)
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise NoTransaction(
            "the connection is in autocommit mode", field="target", hint="use an engine without AUTOCOMMIT"
        )
