"""Tasks as an operator sees and changes them (building blocks §2.7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from relay.adapters.postgres.audit import Audit
from relay.adapters.postgres.source import Source
from relay.adapters.postgres.sql import statement
from relay.commands.operate_tasks import TaskState
from relay.queries import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks to find. A field that is None excludes nothing. ``error`` is a part of the error's text."""

    statuses: tuple[str, ...]
    type: str | None = None
    queue: str | None = None
    correlation_id: UUID | None = None
    since: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task as an operator sees it, without its payload. A delivered one that is claimed is ``running``."""

    id: str
    type: str
    queue: str
    priority: int
    status: str
    waits_for: str | None
    created_at: datetime
    available_at: datetime | None
    delivered_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    next_attempt_at: datetime | None
    attempts: int
    last_error: str | None
    correlation_id: str | None
    causation_id: str | None
    concurrency_key: str | None


@dataclass(frozen=True, slots=True)
class TaskDetail:
    """All that is known of one task. ``history``: what operators did to it, oldest first."""

    task: TaskView
    metadata: Mapping[str, Any]
    payload: str
    history: Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class _Change(Audit):
    """The tasks of one operator's transaction."""

    tasks: Sequence[TaskState]

    async def retry(self, ids: Sequence[str]) -> None:
        await self.conn.execute(statement("tasks/retry"), {"ids": list(ids)})

    async def cancel(self, ids: Sequence[str]) -> None:
        await self.conn.execute(statement("tasks/cancel"), {"ids": list(ids)})


class PostgresTaskOperations:
    """Reads and changes rows only. All methods raise DatabaseUnreachable and SchemaMissing."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def find(self, wanted: TaskFilter, limit: int) -> Page[TaskView]:
        """Up to ``limit`` tasks, the newest first."""
        parameters = {name: getattr(wanted, name) for name in TaskFilter.__dataclass_fields__}
        parameters |= {"statuses": list(wanted.statuses), "limit": limit}
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement("tasks/tasks"), parameters)
            rows = await cursor.fetchall()
        return Page([_view(row) for row in rows], rows[0]["total"] if rows else 0)

    async def get(self, id: UUID) -> TaskDetail | None:
        """One task with its payload, or None."""
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement("tasks/task"), {"id": id})
            row = await cursor.fetchone()
            await cursor.execute(statement("tasks/history"), {"id": str(id)})
            history = await cursor.fetchall()
        return None if row is None else TaskDetail(_view(row), row["metadata"], row["payload"], history)

    def change(self, ids: Sequence[UUID]) -> AbstractAsyncContextManager[_Change]:
        return self._change(ids)

    @asynccontextmanager
    async def _change(self, ids: Sequence[UUID]) -> AsyncIterator[_Change]:
        async with self._source() as conn, conn.transaction():
            cursor = await conn.execute(statement("tasks/lock_many"), {"ids": list(ids)})
            yield _Change(conn, [TaskState(*row) for row in await cursor.fetchall()])


def _view(row: Mapping[str, Any]) -> TaskView:
    return TaskView(**{name: row[name] for name in TaskView.__dataclass_fields__})
