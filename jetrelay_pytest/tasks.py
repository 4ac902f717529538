"""The task outbox of a test: the scheduled tasks, and running them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from jetrelay_pytest.calls import (
    InMemory,
    Sessions,
    Transactions,
    call_each,
    call_each_async,
)
from jetrelay_pytest.expectations import check_columns, expect, holds, plain
from relay.domain.tasks import BackgroundTask
from relay.domain.traceparent import TRACEPARENT
from relay.execution.calls import PreparedCall
from tasks.registry import TaskRegistry, registry
from tasks.task_rows import prepared

Task = str | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """A task of a committed transaction. ``row``: all its columns, as they would be in the table."""

    row: BackgroundTask

    @property
    def type(self) -> str:
        """The type of the task."""
        return self.row.type

    @property
    def payload(self) -> Any:
        """The payload as JSON values."""
        return json.loads(self.row.payload)

    def __str__(self) -> str:
        return f"{self.row.type} {self.row.payload}"


class TasksInMemory(InMemory):
    """The tasks that transactions have committed, in their order. Tests may read ``tasks``.

    Tasks that were rolled back are not here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[ScheduledTask] = []

    def add(self, row: BackgroundTask) -> None:
        """Keep a task that was committed."""
        self.tasks.append(ScheduledTask(row))

    def clear(self) -> None:
        """Forget all tasks, for example those of the preparation of a test."""
        self.tasks.clear()
        self._done.clear()

    # --- what was scheduled ---

    def assert_scheduled(
        self,
        task: Task,
        payload: Mapping[str, Any] | BaseModel | None = None,
        *,
        times: int | None = 1,
        **columns: Any,
    ) -> ScheduledTask:
        """Check that a task was committed ``times``, or at least once for None; returns the last one.

        ``task``: its type or its function. ``payload``: fields that it must have, or the whole as a model.
        ``columns``: what else it must have, as `BackgroundTask` names it: ``queue``, ``delay``, ``priority`` …
        Raises AssertionError, which shows what was committed.
        """
        __tracebackhide__ = True
        if times == 0:
            raise ValueError("times is at least 1; see assert_not_scheduled")
        return self._expect(task, payload, times, columns)[-1]

    def assert_not_scheduled(
        self, task: Task, payload: Mapping[str, Any] | BaseModel | None = None, **columns: Any
    ) -> None:
        """Check that no such task was committed; see `assert_scheduled`."""
        __tracebackhide__ = True
        self._expect(task, payload, 0, columns)

    def assert_nothing_scheduled(self) -> None:
        """Check that no task was committed at all."""
        __tracebackhide__ = True
        expect("any task", self.tasks, 0, lambda _: True)

    def _expect(
        self,
        task: Task,
        payload: Mapping[str, Any] | BaseModel | None,
        times: int | None,
        columns: Mapping[str, Any],
    ) -> list[ScheduledTask]:
        __tracebackhide__ = True
        check_columns(BackgroundTask, columns)
        kind = task if isinstance(task, str) else registry.named(task).type
        wanted = None if payload is None else plain(payload)

        def fits(it: ScheduledTask) -> bool:
            return (
                it.type == kind
                and (wanted is None or _fits(it.payload, wanted, whole=isinstance(payload, BaseModel)))
                and all(holds(getattr(it.row, name), value) for name, value in columns.items())
            )

        expected = [kind, *(f"{it}" for it in (wanted, {**columns}) if it)]
        return expect(" ".join(expected), self.tasks, times, fits)

    # --- what it does ---

    def drain(
        self,
        *,
        sessions: Sessions = Session,
        async_sessions: Sessions = AsyncSession,
        delayed: bool = False,
        within: TaskRegistry = registry,
    ) -> int:
        """Run every task that is due and registered in this process, and those that they schedule in turn.

        Returns the number of calls. Sessions, ``delayed`` and errors are as in `OutboxInMemory.drain`. Limits of
        rate and concurrency do not count here, nor does the time limit.
        """
        transactions = Transactions(sessions, async_sessions)
        return call_each(self._due(transactions, within, delayed=delayed))

    async def drain_async(
        self,
        *,
        sessions: Sessions = Session,
        async_sessions: Sessions = AsyncSession,
        delayed: bool = False,
        within: TaskRegistry = registry,
    ) -> int:
        """Do what `drain` does, in a test that is a coroutine."""
        transactions = Transactions(sessions, async_sessions)
        return await call_each_async(self._due(transactions, within, delayed=delayed))

    def _due(self, transactions: Transactions, within: TaskRegistry, *, delayed: bool) -> Iterator[PreparedCall]:
        """Yield the calls of tasks that are due."""
        test_transactions: Any = transactions

        def call(row: BackgroundTask, attempt: int) -> PreparedCall | None:
            if (handler := within.find(row.type)) is None:
                return None
            argument, trace = handler.adapter.validate_json(row.payload), row.metadata.get(TRACEPARENT)
            return prepared(
                row, handler, argument, test_transactions, token=uuid4(), attempt=attempt, traceparent=trace
            )

        return self._each((it for it in self.tasks if delayed or _is_due(it.row)), call)


def _fits(value: Any, expected: Any, *, whole: bool) -> bool:
    return bool(value == expected) if whole else holds(value, expected)


def _is_due(row: BackgroundTask) -> bool:
    later = row.available_at is not None and row.available_at > datetime.now(UTC)
    return not later and not (row.delay or timedelta())
