"""Turns PostgreSQL's errors about an application's row into our own: with a code, and without the row's data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors
from sqlalchemy.exc import DBAPIError

from relay.domain.errors import (
    DuplicateMessage,
    FutureEvent,
    InvalidTimestamp,
    RelayError,
    SchemaMissing,
    WriteConflict,
)

_IDS = ("outbox_events_pkey", "uq_outbox_original", "task_outbox_pkey")


@contextmanager
def refusals() -> Iterator[None]:
    """Raise our own error when the database refuses a row. The driver's error is its cause.

    The transaction stays as the driver has left it. Other errors, such as a lost connection, pass unchanged.
    """
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


def _refusal(error: psycopg.Error) -> RelayError | None:
    match error:
        case errors.UniqueViolation() if error.diag.constraint_name in _IDS:
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
    return None
