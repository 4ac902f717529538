"""As an actor module: a task of a run. It waits for nothing but its turn, and notes that it ran."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import psycopg
from pydantic import BaseModel

from tasks import TaskContext, schedule, task

_NOTE: Final = "INSERT INTO chaos_beside (subscription, message_id) VALUES ('probe', %s)"
_NOTED: Final = "SELECT 1 FROM chaos_beside WHERE subscription = 'probe' AND message_id = %s"


class Nothing(BaseModel):
    """No payload."""


@task("chaos-probe")
async def probe(_: Nothing, connection: psycopg.AsyncConnection[Any], context: TaskContext) -> None:
    """Note that this task ran."""
    await connection.execute(_NOTE, [context.task_id])


def commit_probe(connection: psycopg.Connection[Any]) -> UUID:
    """Commit such a task; returns its id. Raises psycopg.Error."""
    with connection.transaction():
        return schedule(connection, probe, Nothing())


def has_run(connection: psycopg.Connection[Any], id: UUID) -> bool:
    """Whether a task has run. Raises psycopg.Error."""
    return connection.execute(_NOTED, [id]).fetchone() is not None
